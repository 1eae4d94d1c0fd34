"""Create, update and delete of sequences while nodes hold leases (P5)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from idalloc_server.domain.administration.change_keys import ChangeKey
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
from idalloc_server.domain.sequences.sequence import Reset, Sequence, name_of_period
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply, lost_request, twice
from tests.unit.server.domain.administration.conftest import EFFECTIVE_IN, Node, create_monthly, new_token, wait_until

REQUEST_ID = "0b5ff5ea-9b2a-4bf0-8a1c-3f0d6e1f2a77"


async def test_create_stores_the_given_settings(node: Node, clock: FakeClock) -> None:
    """A new sequence has its settings, and issues ids by them."""
    made = await node.service.create("orders", {"start": 100, "step": 10, "labels": {"team": "a"}}, new_token())
    assert (made.row.sequence.start, made.row.sequence.step, dict(made.row.sequence.labels)) == (100, 10, {"team": "a"})
    assert (made.last_value, made.row.created_at, made.etag) == (None, clock.wall(), '"0"')
    assert await node.service.get("orders") == made
    assert await node.take("orders", 2) == [100, 110]
    assert (await node.service.get("orders")).last_value == 110


async def test_create_of_an_existing_name_is_rejected(node: Node) -> None:
    """A name that exists is rejected, also if its first use created it."""
    await node.take("used")
    await node.service.create("made", {}, new_token())
    for name in ("used", "made"):
        with pytest.raises(SequenceExists):
            await node.service.create(name, {}, new_token())


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, name_of_period("a", "2026")])
async def test_malformed_names_are_rejected(node: Node, name: str) -> None:
    """Every method rejects a malformed name."""
    service = node.service
    for call in (
        service.create(name, {}, new_token()),
        service.get(name),
        service.update(name, {}, "", new_token()),
        service.delete(name, "", new_token()),
        service.advance(name, 5, "", "", new_token()),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await call
        assert refused.value.field == "name"


async def test_unknown_names_are_not_found(node: Node, store: MemoryStore) -> None:
    """No method but create creates a sequence."""
    service = node.service
    for call in (
        service.get("none"),
        service.update("none", {}, "", new_token()),
        service.delete("none", "", new_token()),
        service.advance("none", 5, "", "", new_token()),
        service.parse("none", "5"),
    ):
        with pytest.raises(SequenceNotFound):
            await call
    assert not store.rows


async def test_a_deleted_sequence_issues_no_ids(node: Node) -> None:
    """P5: a deleted sequence is not found, and issues nothing."""
    await node.take("orders", 5)
    gone = await node.service.delete("orders", "", new_token())
    assert gone.summary.row.deleted
    for call in (node.service.get("orders"), node.service.delete("orders", "", new_token()), node.take("orders")):
        with pytest.raises(SequenceDeleted):
            await call
    assert await node.service.list("", "", 10, with_deleted=False) == ([], "")
    assert [summary.row.name for summary in (await node.service.list("", "", 10, with_deleted=True))[0]] == ["orders"]


async def test_deleting_and_recreating_under_leases_repeats_no_id(node: Node, other: Node, clock: FakeClock) -> None:
    """P5: a sequence deleted and created again while two nodes hold leases repeats no id."""
    issued = await node.warm("orders", clock) + await other.warm("orders", clock)
    gone = await node.service.delete("orders", "", new_token())
    issued += await other.take("orders")  # from its lease, which is still valid
    made = await node.service.create("orders", {"description": "again"}, new_token())
    assert made.row.generation > gone.summary.row.generation
    for _ in range(5):
        issued += await node.take("orders", 50) + await other.take("orders", 3)
        clock.advance(60)
    assert len(issued) == len(set(issued))


async def test_a_recreated_sequence_continues_after_its_last_value(node: Node) -> None:
    """P5: a sequence that is created again continues after its last value."""
    await node.take("orders", 5)
    await node.service.delete("orders", "", new_token())
    await node.service.create("orders", {"start": 1, "step": 10}, new_token())
    assert await node.take("orders") == [21]  # the counter went on to 11, on the new lattice


async def test_a_recreated_sequence_keeps_immutable_settings(node: Node) -> None:
    """P5: creating again cannot change the direction or the reset, or lower a passed bound."""
    await node.take("orders", 50)
    await node.service.delete("orders", "", new_token())
    for given, field in (({"step": -1}, "step"), ({"max_value": 49}, "max_value"), ({"reset": Reset.DAILY}, "reset")):
        with pytest.raises(InvalidRequest) as refused:
            await node.service.create("orders", given, new_token())
        assert refused.value.field in (field, "format")


async def test_update_changes_the_given_settings_and_ends_leases(node: Node, other: Node, clock: FakeClock) -> None:
    """P5: an update of the step applies on every node once it is effective."""
    issued = await other.warm("orders", clock)
    changed = await node.service.update("orders", {"step": 10, "description": "tens"}, '"0"', new_token())
    assert (changed.summary.row.sequence.step, changed.summary.etag) == (10, '"1"')
    assert changed.summary.row.sequence.description == "tens"
    assert changed.effective_delay == EFFECTIVE_IN
    clock.advance(changed.effective_delay)
    issued += await other.take("orders", 3)
    assert issued[-1] - issued[-2] == 10
    assert len(issued) == len(set(issued))


async def test_update_of_description_and_labels_ends_no_lease(node: Node, clock: FakeClock) -> None:
    """A change of description or labels is effective at once."""
    await node.warm("orders", clock)
    before = (await node.service.get("orders")).row
    changed = await node.service.update("orders", {"description": "x", "labels": {"a": "b"}}, "", new_token())
    assert (changed.summary.row.generation, changed.effective_delay) == (before.generation, 0.0)
    assert changed.effective_at <= clock.wall()
    assert changed.summary.etag == '"1"'


async def test_a_stale_etag_is_rejected_with_the_current_one(node: Node) -> None:
    """A change with a stale etag changes nothing, and returns the current etag."""
    await node.take("orders")
    await node.service.update("orders", {"description": "x"}, '"0"', new_token())
    for call in (
        node.service.update("orders", {"description": "y"}, '"0"', new_token()),
        node.service.delete("orders", '"0"', new_token()),
        node.service.advance("orders", 5, "", '"0"', new_token()),
    ):
        with pytest.raises(SequenceChanged) as refused:
            await call
        assert refused.value.metadata["etag"] == '"1"'
    assert (await node.service.get("orders")).row.sequence.description == "x"


async def test_allocations_do_not_change_the_etag(node: Node) -> None:
    """An etag stays valid while ids are allocated."""
    await node.service.create("orders", {}, new_token())
    await node.take("orders", 5)
    await node.service.update("orders", {"max_value": 99}, '"0"', new_token())


async def test_a_bound_before_the_counter_is_rejected(node: Node, store: MemoryStore) -> None:
    """P2: a bound that the counter has passed, also concurrently, is rejected."""
    await node.take("orders", 50)
    with pytest.raises(InvalidRequest) as refused:
        await node.service.update("orders", {"max_value": 49}, "", new_token())
    assert refused.value.field == "max_value"
    gate = store.hold("revise")
    racing = asyncio.create_task(node.service.update("orders", {"max_value": 60}, "", new_token()))
    await wait_until(lambda: bool(store.calls_of("revise")))
    store.rows["orders"].last_value = 61  # another node was faster
    gate.set()
    with pytest.raises(InvalidRequest) as refused:
        await racing
    assert refused.value.field == "max_value"


async def test_concurrent_updates_are_all_applied(node: Node, other: Node) -> None:
    """Concurrent updates of different settings are all applied."""
    await node.take("orders")
    await asyncio.gather(
        *(
            each.service.update("orders", given, "", new_token())
            for each, given in (
                (node, {"description": "x"}),
                (other, {"max_value": 99}),
                (other, {"labels": {"a": "b"}}),
            )
        )
    )
    row = (await node.service.get("orders")).row
    assert (row.sequence.description, row.sequence.max_value, dict(row.sequence.labels)) == ("x", 99, {"a": "b"})


async def test_a_change_that_always_conflicts_fails(node: Node, store: MemoryStore) -> None:
    """A change gives up if another one precedes each attempt."""
    await node.take("orders")
    revise = store._revise

    def change_first(name: str, revision: int, change: object) -> object:
        store.rows[name].revision += 1
        return revise(name, revision, change)  # type: ignore[arg-type]

    store._revise = change_first  # type: ignore[assignment, method-assign]
    with pytest.raises(SequenceChanged):
        await node.service.update("orders", {"description": "x"}, "", new_token())


@pytest.mark.parametrize(
    "fault", [lost_reply(), lost_request(), Fault(delay=5), twice()], ids=["reply", "request", "slow", "twice"]
)
async def test_a_repeated_request_is_applied_once(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock, fault: Fault
) -> None:
    """P5: a request that is sent again after a fault of the store is applied once."""

    async def until_answered(each: Node, change_key: ChangeKey, what: str) -> None:
        service = each.service
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: service.create("orders", {"start": 7}, change_key),
            "advance": lambda: service.advance("orders", 50, "", '"0"', change_key),
            "update": lambda: service.update("orders", {"step": 2}, '"1"', change_key),
            "delete": lambda: service.delete("orders", '"2"', change_key),
        }
        store.next("create" if what == "create" else "revise", fault)
        try:
            await calls[what]()
        except StoreOutcomeUnknown:
            await calls[what]()
        await calls[what]()

    first = generation_after(Sequence(), 0, clock)
    for revision, what in enumerate(("create", "advance", "update", "delete")):
        await until_answered(node if revision % 2 else other, new_token(), what)
        assert store.rows["orders"].revision == revision
        assert store.rows["orders"].generation == first + revision  # the test clock does not move
    assert store.rows["orders"].deleted


async def test_a_reused_request_id_is_rejected(node: Node) -> None:
    """A request id cannot be used for another request."""
    await node.service.create("orders", {}, ChangeKey(REQUEST_ID, "one"))
    change_key = ChangeKey(REQUEST_ID, "two")
    for call in (
        node.service.create("orders", {"step": 2}, change_key),
        node.service.update("orders", {"step": 2}, "", change_key),
        node.service.delete("orders", "", change_key),
        node.service.advance("orders", 5, "", "", change_key),
    ):
        with pytest.raises(RequestIdReused):
            await call


@pytest.mark.parametrize(("name", "method"), [("orders", "revise"), ("missing", "get")])
async def test_a_change_completes_after_its_caller_is_cancelled(
    node: Node, store: MemoryStore, name: str, method: str
) -> None:
    """P5: a change completes if its caller is cancelled; if it is refused, nothing is logged."""
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    await node.take("orders")
    gate = store.hold(method)
    call = asyncio.create_task(node.service.advance(name, 50, "", "", new_token()))
    await wait_until(lambda: bool(store.calls_of(method)))
    call.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    await wait_until(lambda: not node.service._changes)
    assert await node.take("orders") == [51 if name == "orders" else 2]
    assert logged == []


async def test_an_exhausted_sequence_can_be_recreated(node: Node) -> None:
    """A deleted sequence that is exhausted can be created again with its settings."""
    await node.service.create("short", {"max_value": 5}, new_token())
    await node.take("short", 5)
    await node.service.update("short", {"step": 7}, "", new_token())  # leaves the counter past the bound
    await node.service.delete("short", "", new_token())
    made = await node.service.create("short", {"max_value": 5, "step": 7}, new_token())
    assert made.remaining == 0


async def test_a_bound_with_a_reset_is_compared_to_its_periods(node: Node) -> None:
    """A bound of a sequence with a reset is compared to the counters of its periods only."""
    await create_monthly(node)
    await node.service.update("bills", {"start": 100}, "", new_token())
    changed = await node.service.update("bills", {"start": 1, "max_value": 50}, "", new_token())
    assert changed.summary.row.sequence.max_value == 50


async def test_a_recreated_reset_may_lower_a_bound_of_unused_periods(
    node: Node,
) -> None:
    """A sequence with a reset that is created again may get a bound that no period passed."""
    await create_monthly(node)
    await node.service.update("bills", {"start": 100}, "", new_token())
    await node.service.delete("bills", "", new_token())
    given = {"reset": Reset.MONTHLY, "format": "{year}-{month}-{value:06d}", "max_value": 50}
    assert (await node.service.create("bills", given, new_token())).row.sequence.max_value == 50


async def test_a_recreated_reset_keeps_bounds_its_period_passed(node: Node) -> None:
    """P2: a sequence with a reset that is created again keeps a bound that its period passed."""
    await create_monthly(node)
    await node.take("bills", 60)
    await node.service.delete("bills", "", new_token())
    given = {"reset": Reset.MONTHLY, "format": "{year}-{month}-{value:06d}", "max_value": 50}
    with pytest.raises(InvalidRequest) as refused:
        await node.service.create("bills", given, new_token())
    assert refused.value.field == "max_value"
