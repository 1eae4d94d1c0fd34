"""What is done to sequences, with real nodes that hold leases meanwhile (P5)."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from idalloc_server.domain.allocator import Allocator
from idalloc_server.domain.author import Author
from idalloc_server.domain.errors import (
    InvalidRequest,
    RequestIdReused,
    SequenceChanged,
    SequenceDeleted,
    SequenceExists,
    SequenceInvalid,
    SequenceNotFound,
    StoreOutcomeUnknown,
)
from idalloc_server.domain.fencing import MARGIN_SECONDS
from idalloc_server.domain.lane import Terms
from idalloc_server.domain.range import Range
from idalloc_server.domain.registry import Registry
from idalloc_server.domain.sequence import MAX_ID, Kind, Reset, Sequence, name_of_period
from tests.fakes import FakeClock, Fault, MemoryStore, Row, lost_reply, lost_request, twice

TERMS = Terms(lease_ttl=180.0, store_timeout=0.2, auto_create_sequences=True)
EFFECTIVE_IN = TERMS.lease_ttl + MARGIN_SECONDS
REQUEST_ID = "0b5ff5ea-9b2a-4bf0-8a1c-3f0d6e1f2a77"
_requests = itertools.count()


class Node:
    """A node of its own: what it may do to sequences, and what it issues."""

    def __init__(self, store: MemoryStore, clock: FakeClock) -> None:
        self.allocator = Allocator(store, clock, TERMS)
        self.registry = Registry(store, clock, self.allocator, store_timeout=TERMS.store_timeout)

    async def warm(self, name: str, clock: FakeClock) -> list[int]:
        """Takes ids until the node holds some in memory; returns those taken."""
        taken = []
        for _ in range(8):
            taken += ids(await self.allocator.allocate(name, 10))
            clock.advance(0.1)
        assert self.allocator.lease_count
        return taken

    async def take(self, name: str, count: int = 1) -> list[int]:
        return ids(await self.allocator.allocate(name, count))


@pytest.fixture
def node(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock)


@pytest.fixture
def other(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock)


def ids(taken: Range) -> list[int]:
    return list(range(taken.first_id, taken.last_id + taken.step, taken.step))


async def reached(state: Callable[[], bool]) -> None:
    for _ in range(100):
        if state():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come to that")


def new() -> Author:
    return Author(f"00000000-0000-4000-8000-{next(_requests):012d}", "digest")


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
    assert gone.overview.row.deleted
    for call in (node.registry.get("orders"), node.registry.delete("orders", "", new()), node.take("orders")):
        with pytest.raises(SequenceDeleted):
            await call
    assert await node.registry.list("", "", 10, deleted=False) == ([], False)
    assert [shown.row.name for shown in (await node.registry.list("", "", 10, deleted=True))[0]] == ["orders"]


async def test_delete_and_create_again_repeats_no_id_while_two_nodes_hold_leases(
    node: Node, other: Node, clock: FakeClock
) -> None:
    issued = await node.warm("orders", clock) + await other.warm("orders", clock)
    await node.registry.delete("orders", "", new())
    issued += await other.take("orders")  # from its lease, which has not ended
    made = await node.registry.create("orders", {"description": "again"}, new())
    assert made.row.generation == 3
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


async def test_after_an_advance_is_effective_no_node_issues_what_lies_before(
    node: Node, other: Node, clock: FakeClock
) -> None:
    await node.warm("orders", clock)
    await other.warm("orders", clock)
    advanced = await node.registry.advance("orders", 5000, "", "", new())
    assert advanced.effective_in == EFFECTIVE_IN
    assert advanced.effective_at == clock.wall() + EFFECTIVE_IN
    assert advanced.overview.last_value == 5000
    assert await node.take("orders") == [5001]
    assert (await other.take("orders"))[0] < 5000  # still its right
    clock.advance(advanced.effective_in)
    for _ in range(5):
        assert min(await other.take("orders", 40) + await node.take("orders", 40)) > 5000


async def test_advance_never_lowers_and_still_ends_leases(node: Node, other: Node, clock: FakeClock) -> None:
    await other.warm("orders", clock)
    before = (await node.registry.get("orders")).row
    advanced = await node.registry.advance("orders", 3, "", "", new())
    assert advanced.overview.row.last_value == before.last_value
    assert advanced.overview.row.generation == before.generation + 1


@pytest.mark.parametrize(
    ("given", "past", "following"),
    [
        ({"step": 10}, 15, 21),
        ({"step": 10}, 21, 31),
        ({"step": -1, "max_value": 100}, 42, 41),
        ({"step": -3, "min_value": -10, "max_value": 20}, 19, 17),
        ({"min_value": -50, "start": -50}, -50, -49),
        ({"start": 100}, 7, 100),
        ({"step": 10, "max_value": 95}, 90, 91),
    ],
)
async def test_advance_lands_on_the_lattice(node: Node, given: dict[str, int], past: int, following: int) -> None:
    await node.registry.create("orders", given, new())
    await node.registry.advance("orders", past, "", "", new())
    assert await node.take("orders") == [following]


@pytest.mark.parametrize(
    ("given", "past"),
    [({}, MAX_ID + 1), ({"max_value": 99}, 100), ({"step": -1, "min_value": 5, "max_value": 9}, 4)],
)
async def test_advance_beyond_the_bound_is_refused(node: Node, given: dict[str, int], past: int) -> None:
    await node.registry.create("orders", given, new())
    with pytest.raises(InvalidRequest) as refused:
        await node.registry.advance("orders", past, "", "", new())
    assert refused.value.field == "past"


async def test_advance_to_the_bound_leaves_nothing(node: Node) -> None:
    await node.registry.create("wide", {"step": 2**60}, new())
    advanced = await node.registry.advance("wide", MAX_ID, "", "", new())
    assert (advanced.overview.remaining, advanced.overview.used_ratio) == (0, 1.0)
    assert advanced.overview.row.last_value is not None
    assert advanced.overview.row.last_value <= MAX_ID


async def test_period_of_a_sequence_without_reset_is_refused(node: Node) -> None:
    await node.take("orders")
    with pytest.raises(InvalidRequest) as refused:
        await node.registry.advance("orders", 5, "2026", "", new())
    assert refused.value.field == "period"


async def test_advance_moves_the_counter_of_one_period(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    await _create_monthly(node)
    later = await node.registry.advance("bills", 70, "2031-05", "", new())
    assert (later.overview.last_value, later.overview.period) == (70, "2031-05")
    now = await node.registry.advance("bills", 30, "", "", new())
    assert (now.overview.last_value, now.overview.period) == (30, "2023-11")
    parent, period = store.rows["bills"], store.rows[name_of_period("bills", "2023-11")]
    assert period.generation < parent.generation  # the next who opens it does so behind what was advanced past
    assert parent.last_value == 0
    assert store.rows[name_of_period("bills", "2031-05")].last_value == 70


async def test_node_that_opens_the_period_meanwhile_cannot_undo_an_advance(node: Node, store: MemoryStore) -> None:
    await _create_monthly(node)
    counter = name_of_period("bills", "2023-11")
    gate = store.hold("revise")
    advancing = asyncio.create_task(node.registry.advance("bills", 30, "", "", new()))
    await reached(lambda: bool(store.calls_of("revise")))
    row = store.rows["bills"]
    await store.open_period(counter, row.sequence, row.sequence.before_start, row.generation)
    gate.set()
    await advancing
    row = store.rows["bills"]
    await store.open_period(counter, row.sequence, row.sequence.before_start, row.generation)
    assert store.rows[counter].last_value == 30


async def test_two_advances_of_a_period_at_once_both_hold(node: Node, other: Node, store: MemoryStore) -> None:
    await _create_monthly(node)
    await asyncio.gather(
        *(each.registry.advance("bills", past, "", "", new()) for each, past in ((node, 30), (other, 500), (node, 77)))
    )
    assert store.rows[name_of_period("bills", "2023-11")].last_value == 500
    assert store.rows[name_of_period("bills", "2023-11")].generation <= store.rows["bills"].generation


async def test_restored_store_goes_on_after_an_advance(node: Node, store: MemoryStore) -> None:
    await node.take("orders", 100)
    await node.registry.advance("orders", 200, "", "", new())
    await node.take("orders", 100)
    store.rows["orders"] = Row(Sequence(), 50)
    with pytest.raises(Exception, match="went backwards"):
        await node.take("orders")
    await node.registry.advance("orders", 1000, "", "", new())
    assert await node.take("orders") == [1001]


async def test_update_changes_what_was_said_and_ends_leases(node: Node, other: Node, clock: FakeClock) -> None:
    issued = await other.warm("orders", clock)
    changed = await node.registry.update("orders", {"step": 10, "description": "tens"}, '"0"', new())
    assert (changed.overview.row.sequence.step, changed.overview.etag) == (10, '"1"')
    assert changed.overview.row.sequence.description == "tens"
    assert changed.effective_in == EFFECTIVE_IN
    clock.advance(changed.effective_in)
    issued += await other.take("orders", 3)
    assert issued[-1] - issued[-2] == 10
    assert len(issued) == len(set(issued))


async def test_update_of_words_ends_no_lease(node: Node, clock: FakeClock) -> None:
    await node.warm("orders", clock)
    changed = await node.registry.update("orders", {"description": "x", "labels": {"a": "b"}}, "", new())
    assert (changed.overview.row.generation, changed.effective_in) == (1, 0.0)
    assert changed.effective_at <= clock.wall()
    assert changed.overview.etag == '"1"'


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
async def test_repeated_requests_are_done_once(node: Node, other: Node, store: MemoryStore, fault: Fault) -> None:
    async def until_answered(each: Node, author: Author, what: str) -> None:
        registry = each.registry
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: registry.create("orders", {"start": 7}, author),
            "advance": lambda: registry.advance("orders", 50, "", '"0"', author),
            "update": lambda: registry.update("orders", {"step": 2}, '"1"', author),
            "delete": lambda: registry.delete("orders", '"2"', author),
        }
        store.next("create" if what == "create" else "revise", fault)
        try:
            await calls[what]()
        except StoreOutcomeUnknown:
            await calls[what]()
        await calls[what]()

    for revision, what in enumerate(("create", "advance", "update", "delete")):
        await until_answered(node if revision % 2 else other, new(), what)
        assert store.rows["orders"].revision == revision
        assert store.rows["orders"].generation == revision + 1
    assert store.rows["orders"].deleted


async def test_request_id_of_another_request_is_refused(node: Node) -> None:
    await node.registry.create("orders", {}, Author(REQUEST_ID, "one"))
    author = Author(REQUEST_ID, "two")
    for call in (
        node.registry.create("orders", {"step": 2}, author),
        node.registry.update("orders", {"step": 2}, "", author),
        node.registry.delete("orders", "", author),
        node.registry.advance("orders", 5, "", "", author),
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


async def test_row_without_last_value_is_invalid_and_still_listed(node: Node, store: MemoryStore) -> None:
    store.rows["orders"] = Row(Sequence(), None)
    for call in (
        node.registry.get("orders"),
        node.registry.update("orders", {}, "", new()),
        node.registry.advance("orders", 5, "", "", new()),
    ):
        with pytest.raises(SequenceInvalid):
            await call
    shown, _ = await node.registry.list("", "", 10, deleted=False)
    assert (shown[0].last_value, shown[0].remaining) == (None, 0)


async def test_forecast_is_when_the_last_id_is_taken_at_the_rate(node: Node, other: Node, clock: FakeClock) -> None:
    await node.registry.create("orders", {"max_value": 1000}, new())
    assert (await node.registry.get("orders")).exhausted_at is None
    await node.take("orders", 50)
    clock.advance(10)
    await node.take("orders", 50)
    for each in (node, other):  # one that saw it, and one that did not
        shown = await each.registry.get("orders")
        used = shown.row.last_value
        assert used is not None
        assert shown.ids_per_second == pytest.approx((used - 50 * (each is node)) / 10)
        assert (shown.remaining, shown.used_ratio) == (1000 - used, used / 1000)
        assert shown.exhausted_at == pytest.approx(clock.wall() + shown.remaining / shown.ids_per_second)


async def test_forecast_beyond_the_year_9999_is_none(node: Node, clock: FakeClock) -> None:
    await node.registry.create("orders", {}, new())
    await node.take("orders", 100)
    clock.advance(10)
    assert (await node.registry.get("orders")).exhausted_at is None


async def test_forecast_of_a_period_ends_with_it(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    await _create_monthly(node)
    clock.advance(100)
    counter = name_of_period("bills", "2023-11")
    store.rows[counter] = Row(store.rows["bills"].sequence, 10)
    slow = await node.registry.get("bills")
    assert slow.ids_per_second > 0
    assert slow.exhausted_at is None
    store.rows[counter].last_value = 900_000
    fast = await node.registry.get("bills")
    assert fast.remaining == 99_999
    assert fast.exhausted_at is not None


async def test_pages_go_on_behind_the_last_name(node: Node) -> None:
    for name in ("a", "b", "ba", "c"):
        await node.registry.create(name, {}, new())
    found, more = await node.registry.list("b", "", 1, deleted=False)
    assert ([shown.row.name for shown in found], more) == (["b"], True)
    found, more = await node.registry.list("b", "b", 1, deleted=False)
    assert ([shown.row.name for shown in found], more) == (["ba"], False)


async def _create_monthly(node: Node) -> None:
    given = {"reset": Reset.MONTHLY, "format": "{year}-{month}-{value:06d}"}
    await node.registry.create("bills", given, new())


async def test_timestamps_are_not_advanced_far_ahead_of_the_clock(node: Node, clock: FakeClock) -> None:
    await node.registry.create("ev", {"kind": Kind.TIMESTAMP_MS}, new())
    in_microseconds = int(clock.wall() * 1_000_000)
    with pytest.raises(InvalidRequest) as refused:
        await node.registry.advance("ev", in_microseconds, "", "", new())
    assert refused.value.field == "past"
    await node.registry.advance("ev", int(clock.wall() * 1000) + 50_000, "", "", new())


async def test_an_advance_and_the_time_of_timestamps_are_no_rate(node: Node, clock: FakeClock) -> None:
    await node.registry.create("ev", {"kind": Kind.TIMESTAMP_MS}, new())
    await node.take("ev", 2)
    clock.advance(100.0)
    await node.take("ev", 2)
    await node.take("orders", 2)
    await node.registry.advance("orders", 1_000_000, "", "", new())
    clock.advance(100.0)
    for name in ("ev", "orders"):
        shown = await node.registry.get(name)
        assert (shown.ids_per_second, shown.exhausted_at) == (0.0, None)
