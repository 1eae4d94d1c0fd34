"""Sequences are made, changed and deleted while real nodes hold leases (P5)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from idalloc_server.domain.administration.change_tokens import ChangeToken
from idalloc_server.domain.errors import (
    InvalidRequest,
    RequestIdReused,
    SequenceChanged,
    SequenceDeleted,
    SequenceExists,
    SequenceNotFound,
    StoreOutcomeUnknown,
)
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.sequences.model import Reset, Sequence, name_of_period
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply, lost_request, twice
from tests.unit.server.domain.administration.conftest import EFFECTIVE_IN, Node, create_monthly, new, reached

REQUEST_ID = "0b5ff5ea-9b2a-4bf0-8a1c-3f0d6e1f2a77"


async def test_created_sequence_is_as_it_was_asked_for(node: Node, clock: FakeClock) -> None:
    made = await node.registry.create("orders", {"start": 100, "step": 10, "labels": {"team": "a"}}, new())
    assert (made.row.sequence.start, made.row.sequence.step, dict(made.row.sequence.labels)) == (100, 10, {"team": "a"})
    assert (made.last_value, made.row.created_at, made.etag) == (None, clock.wall(), '"0"')
    assert await node.registry.get("orders") == made
    assert await node.take("orders", 2) == [100, 110]
    assert (await node.registry.get("orders")).last_value == 110


async def test_existing_name_is_refused(node: Node) -> None:
    await node.take("used")
    await node.registry.create("made", {}, new())
    for name in ("used", "made"):
        with pytest.raises(SequenceExists):
            await node.registry.create(name, {}, new())


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, name_of_period("a", "2026")])
async def test_malformed_names_are_refused_by_all(node: Node, name: str) -> None:
    registry = node.registry
    for call in (
        registry.create(name, {}, new()),
        registry.get(name),
        registry.update(name, {}, "", new()),
        registry.delete(name, "", new()),
        registry.advance(name, 5, "", "", new()),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await call
        assert refused.value.field == "name"


async def test_unknown_names_are_not_found_and_not_created(node: Node, store: MemoryStore) -> None:
    registry = node.registry
    for call in (
        registry.get("none"),
        registry.update("none", {}, "", new()),
        registry.delete("none", "", new()),
        registry.advance("none", 5, "", "", new()),
        registry.parse("none", "5"),
    ):
        with pytest.raises(SequenceNotFound):
            await call
    assert not store.rows


async def test_deleted_sequence_is_not_found_and_gives_no_ids(node: Node) -> None:
    await node.take("orders", 5)
    gone = await node.registry.delete("orders", "", new())
    assert gone.summary.row.deleted
    for call in (node.registry.get("orders"), node.registry.delete("orders", "", new()), node.take("orders")):
        with pytest.raises(SequenceDeleted):
            await call
    assert await node.registry.list("", "", 10, deleted=False) == ([], "")
    assert [shown.row.name for shown in (await node.registry.list("", "", 10, deleted=True))[0]] == ["orders"]


async def test_delete_and_create_again_repeats_no_id_while_two_nodes_hold_leases(
    node: Node, other: Node, clock: FakeClock
) -> None:
    issued = await node.warm("orders", clock) + await other.warm("orders", clock)
    gone = await node.registry.delete("orders", "", new())
    issued += await other.take("orders")  # from its lease, which has not ended
    made = await node.registry.create("orders", {"description": "again"}, new())
    assert made.row.generation > gone.summary.row.generation
    for _ in range(5):
        issued += await node.take("orders", 50) + await other.take("orders", 3)
        clock.advance(60)
    assert len(issued) == len(set(issued))


async def test_created_again_goes_on_behind_its_last_value(node: Node) -> None:
    await node.take("orders", 5)
    await node.registry.delete("orders", "", new())
    await node.registry.create("orders", {"start": 1, "step": 10}, new())
    assert await node.take("orders") == [21]  # the counter went on to 11, on the new lattice


async def test_created_again_keeps_its_direction_and_room(node: Node) -> None:
    await node.take("orders", 50)
    await node.registry.delete("orders", "", new())
    for given, field in (({"step": -1}, "step"), ({"max_value": 49}, "max_value"), ({"reset": Reset.DAILY}, "reset")):
        with pytest.raises(InvalidRequest) as refused:
            await node.registry.create("orders", given, new())
        assert refused.value.field in (field, "format")


async def test_update_changes_what_was_said_and_ends_leases(node: Node, other: Node, clock: FakeClock) -> None:
    issued = await other.warm("orders", clock)
    changed = await node.registry.update("orders", {"step": 10, "description": "tens"}, '"0"', new())
    assert (changed.summary.row.sequence.step, changed.summary.etag) == (10, '"1"')
    assert changed.summary.row.sequence.description == "tens"
    assert changed.effective_delay == EFFECTIVE_IN
    clock.advance(changed.effective_delay)
    issued += await other.take("orders", 3)
    assert issued[-1] - issued[-2] == 10
    assert len(issued) == len(set(issued))


async def test_update_of_words_ends_no_lease(node: Node, clock: FakeClock) -> None:
    await node.warm("orders", clock)
    before = (await node.registry.get("orders")).row
    changed = await node.registry.update("orders", {"description": "x", "labels": {"a": "b"}}, "", new())
    assert (changed.summary.row.generation, changed.effective_delay) == (before.generation, 0.0)
    assert changed.effective_at <= clock.wall()
    assert changed.summary.etag == '"1"'


async def test_stale_etag_is_refused_and_says_the_present_one(node: Node) -> None:
    await node.take("orders")
    await node.registry.update("orders", {"description": "x"}, '"0"', new())
    for call in (
        node.registry.update("orders", {"description": "y"}, '"0"', new()),
        node.registry.delete("orders", '"0"', new()),
        node.registry.advance("orders", 5, "", '"0"', new()),
    ):
        with pytest.raises(SequenceChanged) as refused:
            await call
        assert refused.value.metadata["etag"] == '"1"'
    assert (await node.registry.get("orders")).row.sequence.description == "x"


async def test_etag_is_not_moved_by_allocations(node: Node) -> None:
    await node.registry.create("orders", {}, new())
    await node.take("orders", 5)
    await node.registry.update("orders", {"max_value": 99}, '"0"', new())


async def test_bound_that_the_counter_passed_is_refused(node: Node, store: MemoryStore) -> None:
    await node.take("orders", 50)
    with pytest.raises(InvalidRequest) as refused:
        await node.registry.update("orders", {"max_value": 49}, "", new())
    assert refused.value.field == "max_value"
    gate = store.hold("revise")
    racing = asyncio.create_task(node.registry.update("orders", {"max_value": 60}, "", new()))
    await reached(lambda: bool(store.calls_of("revise")))
    store.rows["orders"].last_value = 61  # another node was faster
    gate.set()
    with pytest.raises(InvalidRequest) as refused:
        await racing
    assert refused.value.field == "max_value"


async def test_changes_at_once_are_all_made(node: Node, other: Node) -> None:
    await node.take("orders")
    await asyncio.gather(
        *(
            each.registry.update("orders", given, "", new())
            for each, given in (
                (node, {"description": "x"}),
                (other, {"max_value": 99}),
                (other, {"labels": {"a": "b"}}),
            )
        )
    )
    row = (await node.registry.get("orders")).row
    assert (row.sequence.description, row.sequence.max_value, dict(row.sequence.labels)) == ("x", 99, {"a": "b"})


async def test_change_that_others_always_outrun_is_given_up(node: Node, store: MemoryStore) -> None:
    await node.take("orders")
    revise = store._revise

    def outrun(name: str, revision: int, change: object) -> object:
        store.rows[name].revision += 1
        return revise(name, revision, change)  # type: ignore[arg-type]

    store._revise = outrun  # type: ignore[assignment, method-assign]
    with pytest.raises(SequenceChanged):
        await node.registry.update("orders", {"description": "x"}, "", new())


@pytest.mark.parametrize(
    "fault", [lost_reply(), lost_request(), Fault(delay=5), twice()], ids=["reply", "request", "slow", "twice"]
)
async def test_repeated_requests_are_done_once(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock, fault: Fault
) -> None:
    async def until_answered(each: Node, change_token: ChangeToken, what: str) -> None:
        registry = each.registry
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: registry.create("orders", {"start": 7}, change_token),
            "advance": lambda: registry.advance("orders", 50, "", '"0"', change_token),
            "update": lambda: registry.update("orders", {"step": 2}, '"1"', change_token),
            "delete": lambda: registry.delete("orders", '"2"', change_token),
        }
        store.next("create" if what == "create" else "revise", fault)
        try:
            await calls[what]()
        except StoreOutcomeUnknown:
            await calls[what]()
        await calls[what]()

    first = generation_after(Sequence(), 0, clock)
    for revision, what in enumerate(("create", "advance", "update", "delete")):
        await until_answered(node if revision % 2 else other, new(), what)
        assert store.rows["orders"].revision == revision
        assert store.rows["orders"].generation == first + revision  # the clock stands still
    assert store.rows["orders"].deleted


async def test_request_id_of_another_request_is_refused(node: Node) -> None:
    await node.registry.create("orders", {}, ChangeToken(REQUEST_ID, "one"))
    change_token = ChangeToken(REQUEST_ID, "two")
    for call in (
        node.registry.create("orders", {"step": 2}, change_token),
        node.registry.update("orders", {"step": 2}, "", change_token),
        node.registry.delete("orders", "", change_token),
        node.registry.advance("orders", 5, "", "", change_token),
    ):
        with pytest.raises(RequestIdReused):
            await call


async def test_change_is_finished_though_its_caller_went_away(node: Node, store: MemoryStore) -> None:
    await node.take("orders")
    gate = store.hold("revise")
    call = asyncio.create_task(node.registry.advance("orders", 50, "", "", new()))
    await reached(lambda: bool(store.calls_of("revise")))
    call.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    await reached(lambda: not node.registry._changes)
    assert await node.take("orders") == [51]


async def test_an_exhausted_sequence_is_created_again_with_its_own_settings(node: Node) -> None:
    await node.registry.create("short", {"max_value": 5}, new())
    await node.take("short", 5)
    await node.registry.update("short", {"step": 7}, "", new())  # leaves the counter past the bound
    await node.registry.delete("short", "", new())
    made = await node.registry.create("short", {"max_value": 5, "step": 7}, new())
    assert made.remaining == 0


async def test_a_bound_of_a_sequence_with_a_reset_is_held_against_its_periods_alone(node: Node) -> None:
    await create_monthly(node)
    await node.registry.update("bills", {"start": 100}, "", new())
    changed = await node.registry.update("bills", {"start": 1, "max_value": 50}, "", new())
    assert changed.summary.row.sequence.max_value == 50


async def test_a_deleted_sequence_with_a_reset_is_created_again_with_a_bound_that_its_periods_have_not_passed(
    node: Node,
) -> None:
    await create_monthly(node)
    await node.registry.update("bills", {"start": 100}, "", new())
    await node.registry.delete("bills", "", new())
    given = {"reset": Reset.MONTHLY, "format": "{year}-{month}-{value:06d}", "max_value": 50}
    assert (await node.registry.create("bills", given, new())).row.sequence.max_value == 50


async def test_a_bound_that_the_period_has_passed_is_refused_when_a_sequence_is_created_again(node: Node) -> None:
    await create_monthly(node)
    await node.take("bills", 60)
    await node.registry.delete("bills", "", new())
    given = {"reset": Reset.MONTHLY, "format": "{year}-{month}-{value:06d}", "max_value": 50}
    with pytest.raises(InvalidRequest) as refused:
        await node.registry.create("bills", given, new())
    assert refused.value.field == "max_value"
