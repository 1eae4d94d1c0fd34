"""The scenarios, each so small that all orders of its events can be explored."""

from collections.abc import Callable
from typing import Any

from idalloc_server.backup.export_file import header_line, row_line
from idalloc_server.domain.allocation.counter_allocator import RECHECK_SECONDS
from idalloc_server.domain.sequences.sequence import Kind, Ordering, Reset
from idalloc_server.domain.store.identity import ANY_STORE, Opening
from idalloc_server.domain.store.records import Demand
from tests.support.exploration.node import ExploredNode, MessageConnection
from tests.support.exploration.scenario import Actor, Scenario, Step
from tests.support.exploration.steps import (
    Given,
    abandon,
    allocate,
    allocate_once,
    bring_in,
    cancel,
    change,
    check_idle,
    claim,
    exchange,
    export,
    fork,
    has_opened,
    is_child,
    is_retired,
    kill,
    lose_marks,
    make_doc_ids,
    open_store,
    prune,
    restore,
    retire,
    set_clock,
    set_prefix,
    start,
    stop,
)
from tests.support.exploration.stream import Stream
from tests.support.exploration.workers import Server
from tests.support.exploration.world import World
from tests.support.fake_witness import MemoryWitness
from tests.support.promises.calls import unless_refused
from tests.support.simulation.node import CONFIG, EPOCH_WALL, REQUEST_ID_WINDOW

LEASE = CONFIG.lease_ttl
# Past a lease and the margin for clocks that drift apart.
PAST_LEASE = LEASE + 1.5
# Past the timeout of a store call, and past a third of a lease: the renewal.
PAST_TIMEOUT, RENEWAL = CONFIG.store_timeout + 1.0, LEASE / 3 + 1.0
DAY = 86_400.0
# From the start of a world to midnight in UTC.
TO_MIDNIGHT = 6_400.0
REQUEST_ID = "00000000-0000-4000-8000-000000000001"
DAILY: dict[str, Any] = {"reset": Reset.DAILY, "format": "{year}{month}{day}-{value}"}
TOMORROW = "2023-11-15"

# By name. Each is a function below.
SCENARIOS: dict[str, Scenario] = {}


def _actors(world: World, *actors: tuple[Step, ...]) -> None:
    world.actors += [Actor(f"caller {number + 1}", steps) for number, steps in enumerate(actors)]


def _nodes(world: World, count: int = 2, **settings: Any) -> None:
    """Add a sequence, and nodes with two of its ids in memory unless ``min_lease_size`` is 0."""
    world.add_sequence("a", **{"min_lease_size": 3, **settings})
    for _ in range(count):
        _use(world, world.add_node())


def _use(world: World, node: ExploredNode, held: int | None = None) -> None:
    """Let a node issue ids, and take a lease: the first write takes only what was asked for."""
    for _ in range(2):
        world.run(node, world.calls.allocate(node, "a", 1))
    settings = world.store.rows["a"].sequence
    expected = max(0, settings.min_lease_size - 1) if held is None else held
    assert node.allocator.held_ids == expected, node.allocator.held_ids


def _become_idle(world: World, node: ExploredNode) -> None:
    for _ in range(3):
        world.run(node, node.allocator.check_idle_sequences())
    assert not node.allocator.sequence_count


def _exported(world: World) -> list[bytes]:
    return [header_line().encode(), row_line(world.store.rows["a"].stored("a")).encode()]


def _scenario(
    about: str, promises: tuple[int, ...], **options: Any
) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Register the function that sets up a scenario: ``_cold_start`` is that of ``cold-start``."""

    def register(set_up: Callable[[World], None]) -> Callable[[World], None]:
        name = set_up.__name__.strip("_").replace("_", "-")
        SCENARIOS[name] = Scenario(name, about, set_up, promises, **options)
        return set_up

    return register


@_scenario("two nodes use a name first", promises=(1, 2, 9))
def _cold_start(world: World) -> None:
    world.add_node()
    world.add_node()
    _actors(world, (allocate(1), allocate(1)), (allocate(2, 2),))


@_scenario("two nodes take more than they hold", promises=(1, 2, 4, 9), jumps=(LEASE,))
def _shared(world: World) -> None:
    _nodes(world)
    _actors(world, (allocate(1, 2), allocate(1, 2)), (allocate(2, 3), allocate(2)))


@_scenario("two nodes stop, and one still serves", promises=(1, 2, 3, 9), jumps=(RENEWAL,))
def _tail_return(world: World) -> None:
    _nodes(world, min_lease_size=5)
    _actors(world, (stop(2),), (allocate(1, 3), allocate(1, 3)), (stop(1),))


@_scenario("an idle sequence is closed as its callers return", promises=(1, 2, 3, 9), jumps=(RENEWAL,))
def _idle_close(world: World) -> None:
    _nodes(world, count=1)
    other = world.add_node()
    world.run(other, other.allocator.proof("a"))  # it sees the counter, and takes nothing
    world.now = RENEWAL
    _actors(world, (check_idle(1), check_idle(1)), (allocate(1), allocate(2, 3)))


@_scenario("an advance beside two leases", promises=(1, 2, 4, 5), jumps=(PAST_LEASE,), needed=1)
def _advance_lease(world: World) -> None:
    _nodes(world)
    _actors(world, (change(1, "advance", (50, "")),), (allocate(2), allocate(2, 3)))


async def _changing(world: World, node: ExploredNode, kind: str, given: Given) -> None:
    await world.calls.change(node, "a", kind, given, node.service.change_key("", b""))


def _change(world: World, node: ExploredNode, kind: str, given: Given) -> None:
    world.run(node, _changing(world, node, kind, given))


@_scenario("a lease is renewed after a restore and an advance", promises=(5,), jumps=(RENEWAL,), needed=3)
def _advance_renewal(world: World) -> None:
    world.add_sequence("a", min_lease_size=6)
    world.backup = world.store.back_up()
    first, second, third = (world.add_node() for _ in range(3))
    _change(world, first, "advance", (20, ""))
    _use(world, second)
    world.now = 1.0
    world.restore()
    _change(world, third, "advance", (50, ""))
    world.promises.record_repair({("a", ""): (50, 1)}, world.now)
    _actors(world, (allocate(2), allocate(2), allocate(2)))


@_scenario("a new step beside two leases", promises=(1, 2, 4, 5), jumps=(PAST_LEASE,), needed=1)
def _update_step(world: World) -> None:
    _nodes(world)
    _actors(world, (change(1, "update", {"step": 5}),), (allocate(2, 3),))


@_scenario("a node changes a sequence that it issues", promises=(1, 5))
def _own_change(world: World) -> None:
    _nodes(world, count=1)
    _actors(world, (change(1, "update", {"step": 5}), allocate(1)), (allocate(1, 2), allocate(1)))


@_scenario("two nodes create and change one name", promises=(5,), has_more=False)
def _two_changes(world: World) -> None:
    world.add_node()
    world.add_node()
    _actors(
        world,
        *(
            (change(node, "create", {}, "b"), change(node, "update", {"step": node + 1}, "b", REQUEST_ID))
            for node in (1, 2)
        ),
    )


@_scenario("a lower bound beside two leases", promises=(1, 2, 5), jumps=(PAST_LEASE,), needed=1, is_long=True)
def _update_bound(world: World) -> None:
    _nodes(world)
    _actors(world, (change(1, "update", {"max_value": 8}), change(1, "update", {"max_value": 20})), (allocate(2, 3),))


@_scenario("an export beside two leases", promises=(2,))
def _export(world: World) -> None:
    _nodes(world)
    _actors(world, (export(1),), (allocate(2), allocate(2, 3)))


@_scenario(
    "a deletion and a creation beside two leases", promises=(1, 2, 5), jumps=(PAST_LEASE,), needed=1, is_long=True
)
def _delete_create(world: World) -> None:
    _nodes(world)
    _actors(world, (change(1, "delete"), change(1, "create", {})), (allocate(2, 3),))


@_scenario("an advance of a period beside two leases", promises=(1, 5), jumps=(PAST_LEASE,), preempts=False)
def _advance_period(world: World) -> None:
    _nodes(world, **DAILY)
    _actors(world, (change(1, "advance", (50, "")),), (allocate(2, 3),))


@_scenario("an update beside a lease of a period", promises=(5,), jumps=(121.0,), needed=1, has_more=False)
def _update_period(world: World) -> None:
    _nodes(world, count=1, **DAILY)
    other = world.add_node()
    _change(world, other, "update", {"step": 5})
    world.now = RENEWAL
    _actors(world, (allocate(1), allocate(1)))


@_scenario("two advances of a period", promises=(5,), has_more=False)
def _two_advances(world: World) -> None:
    world.add_sequence("a", **DAILY)
    node, other = world.add_node(), world.add_node()
    world.call(node, unless_refused(_changing, world, node, "advance", (100, "")))
    world.serve_until(node, "open_period")
    world.call(other, unless_refused(_changing, world, other, "advance", (50, "")))
    world.serve_until(other, "revise")  # it has opened the same generation
    world.kill(other)
    _actors(world, (allocate(1, when=lambda _: not node.callers),))


@_scenario("an advance is retried as its node is killed", promises=(5,), has_more=False)
def _retried_advance(world: World) -> None:
    world.add_sequence("a", **DAILY)
    world.add_node()
    world.add_node()
    retries = (change(node, "advance", (50, ""), request_id=REQUEST_ID) for node in (2, 1))
    _actors(world, (*retries, allocate(1)), (kill(2),))


@_scenario("an update after half an advance", promises=(5,), has_more=False)
def _update_interrupted(world: World) -> None:
    world.add_sequence("a", **DAILY)
    node, other = world.add_node(), world.add_node()
    node.clock.offset = 0.0015  # the second update gets a generation that the advance may have taken
    world.run(node, world.calls.allocate(node, "a", 1))
    world.call(other, unless_refused(_changing, world, other, "advance", (50, "")))
    world.serve_until(other, "revise")
    world.kill(other)
    _actors(world, tuple(step for each in (5, 7) for step in (change(1, "update", {"step": each}), allocate(1))))


@_scenario(
    "a node is killed while it advances a period", promises=(1, 5), serves_after=True, has_more=False, is_long=True
)
def _interrupted_advance(world: World) -> None:
    _nodes(world, **DAILY)
    _actors(world, (change(2, "advance", (50, "")),), (kill(2),), (allocate(1, 3),))


@_scenario("a period ends beside a refill", promises=(1,), jumps=(20.0,), needed=1)
def _period_end(world: World) -> None:
    world.add_sequence("a", min_lease_size=3, **DAILY)
    node = world.add_node()
    node.clock.offset = TO_MIDNIGHT - 10.0
    _use(world, node)
    _actors(world, (allocate(1, 2), allocate(1, 2)))


@_scenario("an older copy is restored after a clock was set", promises=(1, 3), has_more=False)
def _period_restore(world: World) -> None:
    _nodes(world, count=1, **DAILY)
    world.backup = world.store.back_up()
    world.run(world.nodes[0], world.calls.allocate(world.nodes[0], "a", 5))  # past the copy
    _become_idle(world, world.nodes[0])
    _actors(world, (set_clock(1, DAY), set_clock(1, -DAY), restore()), (allocate(1, 2), allocate(1, 2)))


@_scenario("a clock is set over a period's end", promises=(1,))
def _period_clock(world: World) -> None:
    _nodes(world, count=1, **DAILY)
    _actors(world, (allocate(1, 2), allocate(1, 2)), (set_clock(1, DAY), set_clock(1, -DAY)))


def _early_period(world: World) -> ExploredNode:
    """Return a node whose next call opens the counter of the next period."""
    world.outage_reserve = 2.0  # the next period is opened 4 to 6 s before it
    world.add_sequence("a", min_lease_size=20, **DAILY)
    for _ in range(2):
        node = world.add_node()
        node.clock.offset = TO_MIDNIGHT - 27.0
    first = world.nodes[0]
    _use(world, first)
    world.now += 19.5
    world.run(first, world.calls.allocate(first, "a", 1))  # else it is not in use
    world.now += 4
    return first


@_scenario("the next period, already opened, is advanced", promises=(1, 5), jumps=(20.0,), needed=1)
def _early_advance(world: World) -> None:
    node = _early_period(world)
    world.run(node, world.calls.allocate(node, "a", 1))
    assert len(world.store.rows) == 3
    _actors(world, (allocate(1, 2),), (change(2, "advance", (50, TOMORROW)),))


@_scenario("the next period is opened as a clock is set", promises=(1, 2), has_more=False)
def _early_clock(world: World) -> None:
    _early_period(world)
    _actors(world, (allocate(1),), (set_clock(1, DAY), set_clock(1, -DAY)))


@_scenario("two nodes start with the demand of others", promises=(1, 2, 9), has_more=False)
def _demand(world: World) -> None:
    world.outage_reserve = 2.0
    _nodes(world, count=0, min_lease_size=0)
    world.store.rows["a"].demand = Demand(1.0, 1, EPOCH_WALL)
    world.add_node()
    world.add_node()
    _actors(world, (allocate(1), allocate(1, 3)), (allocate(2, 2),))


@_scenario("one request id on two nodes", promises=(1, 7), preempts=False)
def _request_id(world: World) -> None:
    _nodes(world)
    _actors(world, (allocate_once(1, "r"), allocate_once(2, "r")), (allocate_once(2, "r"),))


@_scenario("an answer is recorded as the lease ends", promises=(4, 7), jumps=(35.0,), needed=1)
def _request_late(world: World) -> None:
    _nodes(world, count=1)
    world.now = LEASE - 30.0
    _actors(world, (allocate_once(1, "r"),))


@_scenario("one request id for two calls", promises=(1, 7))
def _request_reuse(world: World) -> None:
    _nodes(world, count=1)
    _actors(world, (allocate_once(1, "r"),), (allocate_once(1, "r", 2),))


@_scenario("a retry in the next period", promises=(1, 7), jumps=(20.0,), needed=1)
def _request_period(world: World) -> None:
    world.add_sequence("a", **DAILY)
    node = world.add_node()
    node.clock.offset = TO_MIDNIGHT - 10.0
    _actors(world, (allocate_once(1, "r"), allocate_once(1, "r")))


@_scenario("a node stops as it records an answer", promises=(7, 9))
def _request_stop(world: World) -> None:
    _nodes(world, count=1)
    _actors(world, (allocate_once(1, "r"),), (cancel(0), stop(1)))


@_scenario("callers of a request id give up and retry", promises=(1, 7, 9))
def _request_cancel(world: World) -> None:
    _nodes(world, count=1)
    _actors(world, (allocate_once(1, "r", 2), allocate_once(1, "r", 2)), (allocate_once(1, "r", 2),), (cancel(0),))


@_scenario("a request id and an advance", promises=(1, 5, 7), jumps=(PAST_LEASE,), preempts=False)
def _request_advance(world: World) -> None:
    _nodes(world)
    world.run(world.nodes[0], world.calls.allocate_once(world.nodes[0], "a", 1, "r"))
    _actors(world, (allocate_once(2, "r"), allocate_once(1, "r")), (change(1, "advance", (50, "")),))


@_scenario("a request id after a change", promises=(5, 7))
def _request_change(world: World) -> None:
    _nodes(world)
    _change(world, world.nodes[0], "advance", (50, ""))
    _actors(world, (allocate_once(1, "r"),), (allocate_once(2, "r"),))


@_scenario("a request id's window ends", promises=(7,), jumps=(REQUEST_ID_WINDOW, 599.0), needed=1, preempts=False)
def _request_window(world: World) -> None:
    _nodes(world, count=1)
    first, second = world.nodes[0], world.add_node(window=60.0)
    world.run(first, world.calls.allocate_once(first, "a", 1, "r"))
    world.run(second, second.request_ids.prune())  # from now on its window counts
    second.clock.offset = DAY
    _actors(world, (prune(2),), (allocate_once(1, "r"),))


@_scenario("an older copy is restored under two nodes", promises=(1, 3))
def _restore(world: World) -> None:
    _nodes(world)
    world.backup = world.store.back_up()
    first, second = world.nodes
    _change(world, second, "update", {"max_lease_size": 9})
    world.run(second, second.allocator.proof("a"))  # it sees the new generation, and the counter of the copy
    _become_idle(world, second)
    for count in (3, 1):  # past the copy; the last one leaves a tail
        world.run(first, world.calls.allocate(first, "a", count))
    _become_idle(world, first)
    _actors(world, (allocate(1, 3), allocate(1, 5)), (restore(),), (allocate(2, 4),))


@_scenario("a fresh node uses a restored copy", promises=(3,), jumps=(RECHECK_SECONDS,), needed=1, has_more=False)
def _restore_fresh(world: World) -> None:
    _nodes(world, count=1)
    world.backup = world.store.back_up()
    world.run(world.nodes[0], world.calls.allocate(world.nodes[0], "a", 3))  # past the copy
    world.add_node()
    _actors(world, (allocate(1, 5), allocate(1)), (restore(), allocate(2, 9)))


@_scenario("the copy lacks the sequence, and another one is created", promises=(3, 9))
def _restore_empty(world: World) -> None:
    world.backup = world.store.back_up()
    _nodes(world, count=1)
    world.add_node()
    falling = {"start": 100, "step": -1, "min_value": 1, "max_value": 100}
    _actors(world, (allocate(1, 3), allocate(1, 3)), (restore(), change(2, "create", falling)))


def _opened(world: World, *names: str) -> None:
    """Add a node that opens the store; others issue ids of these sequences."""
    first, other = world.add_node(), world.add_node()
    for node, opening in ((first, Opening(name="first")), (other, ANY_STORE)):
        world.run(node, node.connection.open(opening))
    for name in names:
        world.run(other, world.calls.allocate(other, name, 3))
    world.kill(other)
    world.backup = world.store.back_up()  # not restored: without a check of unattributed ids


@_scenario("the store is exchanged, or lost in part, under a node", promises=(1, 3))
def _exchange_running(world: World) -> None:
    _opened(world, "a", "b")
    _actors(
        world,
        (allocate(1, 1, "a"), allocate(1, 1, "b"), allocate(1, 1, "b")),
        (exchange(whole=True),),
        (exchange(whole=False),),
    )


@_scenario("the same, and a further worker of the server starts", promises=(1, 3))
def _exchange_worker(world: World) -> None:
    _opened(world, "a")
    worker = (start(), open_store(3, first=1), allocate(3, 1, when=lambda world: has_opened(world, 3)))
    _actors(world, worker, (exchange(whole=True),), (exchange(whole=False),))


@_scenario("the sequences are lost, and a fresh node starts", promises=(1, 3), has_more=False)
def _exchange_fresh(world: World) -> None:
    _opened(world, "a")
    fresh = (start(), open_store(3), allocate(3, 1, when=lambda world: has_opened(world, 3)))
    _actors(world, fresh, (exchange(whole=False),))


def _witnessed(world: World, count: int = 2, **settings: Any) -> ExploredNode:
    """Add nodes with a witness; copy the store; let the first node issue ids past the copy."""
    world.witness = MemoryWitness()
    _nodes(world, count, **settings)
    world.backup = world.store.back_up()
    world.run(world.nodes[0], world.calls.allocate(world.nodes[0], "a", 3))
    return world.nodes[0]


@_scenario("a fresh node uses a restored copy beside the old one", promises=(1, 3))
def _witness_fresh(world: World) -> None:
    _witnessed(world, count=1)
    _actors(world, (allocate(1, 3),), (restore(), start(), allocate(2, 4)))


@_scenario("a node is replaced as an older copy is restored", promises=(1, 3), is_long=True)
def _witness_killed(world: World) -> None:
    _witnessed(world, count=1)
    _actors(world, (allocate(1, 3),), (kill(1), start(), allocate(2, 4)), (restore(),))


@_scenario("two grants around a restore", promises=(1, 3), preempts=False, is_long=True)
def _witness_race(world: World) -> None:
    world.witness = MemoryWitness()
    _nodes(world, count=1)
    world.backup = world.store.back_up()  # up to the mark: only the grants below are lost
    world.add_node()
    _actors(world, (allocate(1, 4),), (allocate(2, 6),), (restore(),))


@_scenario("live and fresh nodes use a restored copy", promises=(1, 3), has_more=False, is_long=True)
def _witness_live(world: World) -> None:
    _witnessed(world)
    world.add_node()
    _actors(world, (restore(), allocate(3, 4)), (allocate(2, 5),))


@_scenario("the copy lacks the sequence", promises=(1, 3), has_more=False, is_long=True)
def _witness_new(world: World) -> None:
    world.witness = MemoryWitness()
    world.backup = world.store.back_up()
    world.add_node()
    world.add_node()
    _actors(world, (allocate(1, 2), allocate(1, 2)), (restore(), allocate(2, 3)))


@_scenario("another sequence gets the name that the copy lacks", promises=(1, 3, 9), has_more=False, is_long=True)
def _witness_other(world: World) -> None:
    world.witness = MemoryWitness()
    world.backup = world.store.back_up()
    _nodes(world, count=1)
    world.add_node()
    falling = {"start": 100, "step": -1, "min_value": 1, "max_value": 100}
    _actors(world, (restore(), change(2, "create", falling), allocate(2, 98)), (allocate(1, 3),))


@_scenario("a fresh node uses a restored period", promises=(1, 3), is_long=True)
def _witness_period(world: World) -> None:
    _witnessed(world, count=1, **DAILY)
    world.add_node()
    _actors(world, (allocate(1, 3),), (restore(), allocate(2, 4)))


@_scenario("an advance is lost with the copy", promises=(1, 3, 5), has_more=False)
def _witness_advance(world: World) -> None:
    world.witness = MemoryWitness()
    world.add_sequence("a")  # without a lease the advance is effective at once
    world.backup = world.store.back_up()
    world.add_node()
    world.add_node()
    _actors(world, (change(1, "advance", (50, "")),), (restore(), allocate(2, 4)))


@_scenario("a deletion is lost with the copy", promises=(1, 3), has_more=False, is_long=True)
def _witness_delete(world: World) -> None:
    _witnessed(world, count=1)
    world.add_node()
    _actors(world, (change(1, "delete"), change(1, "create", {}), allocate(1)), (restore(), allocate(2, 4)))


@_scenario(
    "a restored sequence is advanced by too little",
    promises=(1, 3),
    jumps=(RECHECK_SECONDS,),
    needed=1,
    serves_after=True,
    has_more=False,
)
def _witness_repair(world: World) -> None:
    _witnessed(world, count=1)
    world.kill(world.nodes[0])
    world.restore()
    world.add_node()
    _actors(world, (allocate(2, 2), change(2, "advance", (1, "")), allocate(2, 2)))


@_scenario("two nodes stop, and one still serves", promises=(1, 2, 3, 9), preempts=False, is_long=True)
def _witness_tail(world: World) -> None:
    world.witness = MemoryWitness()
    _nodes(world, min_lease_size=5)
    _actors(world, (stop(2),), (allocate(1, 6),), (stop(1),))


@_scenario(
    "an idle sequence is closed beside another node",
    promises=(1, 2, 3, 9),
    jumps=(RENEWAL,),
    preempts=False,
    is_long=True,
)
def _witness_idle(world: World) -> None:
    world.witness = MemoryWitness()
    _nodes(world, count=1, min_lease_size=5)
    world.now = RENEWAL
    world.add_node()
    _actors(world, (check_idle(1), check_idle(1)), (allocate(2, 3),))


@_scenario("an older copy is restored as a tail is returned", promises=(1, 3))
def _witness_tail_restore(world: World) -> None:
    _witnessed(world, count=1, min_lease_size=5)
    world.add_node()
    _actors(world, (stop(1),), (restore(), allocate(2, 4)))


@_scenario(
    "a tail is returned beside a grant, and an older copy is restored", promises=(1, 3), has_more=False, is_long=True
)
def _witness_tail_race(world: World) -> None:
    _witnessed(world, count=1, min_lease_size=5)
    world.add_node()
    world.add_node()
    _actors(world, (stop(1),), (allocate(2, 6), restore(), allocate(3, 9)))


@_scenario("two nodes take ids at once", promises=(1, 3, 9), jumps=(LEASE,), serves_after=True)
def _witness_shared(world: World) -> None:
    world.witness = MemoryWitness()
    _nodes(world)
    _actors(world, (allocate(1, 3),), (allocate(2, 3),))


@_scenario("the witness loses its marks", promises=(1, 3, 9), serves_after=True, has_more=False, is_long=True)
def _witness_empty(world: World) -> None:
    world.witness = MemoryWitness()
    _nodes(world)
    _actors(world, (lose_marks(),), (allocate(1, 3),), (allocate(2, 3),))


@_scenario("start timestamps are lost with the copy", promises=(6,))
def _witness_starts(world: World) -> None:
    world.witness = MemoryWitness()
    world.backup = world.store.back_up()
    world.add_node()
    world.add_node()
    _actors(world, (claim(1), make_doc_ids(1)), (restore(), claim(2), make_doc_ids(2)))


@_scenario("ids that rise over two nodes", promises=(1, 2))
def _rising(world: World) -> None:
    _nodes(world, ordering=Ordering.RISING, min_lease_size=0)
    _actors(world, (allocate(1, 2),), (allocate(1),), (allocate(2),))


@_scenario("a caller of rising ids gives up", promises=(1, 9))
def _rising_cancel(world: World) -> None:
    _nodes(world, count=1, ordering=Ordering.RISING, min_lease_size=0)
    _actors(world, (allocate(1, 2), allocate(1)), (allocate(1),), (cancel(0),))


@_scenario("the rest of a write of rising ids", promises=(1, 2), has_more=False)
def _rising_rest(world: World) -> None:
    _nodes(world, ordering=Ordering.RISING, min_lease_size=0)
    _actors(world, (allocate(1, 2), allocate(1)), (allocate(2),), (cancel(0),))


@_scenario("the last ids before a bound", promises=(1, 9), is_long=True)
def _bound(world: World) -> None:
    _nodes(world, max_value=7, min_lease_size=0)
    _actors(world, (allocate(1, 2),), (allocate(1, 4), allocate(2, 2)), (allocate(1),))


@_scenario("a large and a small call for the last ids", promises=(1, 9), has_more=False)
def _last_ids(world: World) -> None:
    world.outage_reserve = 1.0
    world.add_sequence("a", max_value=10_000)
    node, other = world.add_node(), world.add_node()
    _use(world, node, 5)
    world.run(other, world.calls.allocate(other, "a", 9_990))
    _actors(world, (allocate(1, 3),), (allocate(1, 2),))


@_scenario("ids that are timestamps, and a clock is set back", promises=(1, 2))
def _timestamps(world: World) -> None:
    _nodes(world, kind=Kind.TIMESTAMP_MS, min_lease_size=0)
    _actors(world, (allocate(1, 2), allocate(1)), (allocate(2),), (set_clock(1, -30.0),))


@_scenario("timestamps far ahead of the clock", promises=(1, 2))
def _timestamps_ahead(world: World) -> None:
    _nodes(world, count=1, kind=Kind.TIMESTAMP_MS, min_lease_size=0)
    _actors(world, (allocate(1, 2), allocate(1, 60_000)), (set_clock(1, -30.0),))


@_scenario("a caller gives up", promises=(1, 9))
def _cancel(world: World) -> None:
    _nodes(world)
    _actors(world, (allocate(1, 3), allocate(1)), (allocate(1, 3),), (cancel(0),))


@_scenario("grants share a write, and its answer may lack rows", promises=(1, 9))
def _joined(world: World) -> None:
    for name, first in (("a", 1), ("b", 100)):
        world.add_sequence(name, start=first)
    connection = world.add_node().connection
    assert isinstance(connection, MessageConnection)
    connection.join_grants()
    end = Step("an earlier request ends", 1, lambda *_: connection.end_request())
    _actors(world, (allocate(1, 1, "a"),), (allocate(1, 2, "b"),), (end,))


@_scenario("a stream breaks between an answer and its write", promises=(1, 9), preempts=False)
def _stream(world: World) -> None:
    _nodes(world, count=1)
    stream = Stream(world, 1)
    _actors(
        world,
        (stream.send(1), stream.send(3, 1)),
        (stream.receive(), stream.receive(), stream.receive(), stream.end()),
        (stream.cancel(),),
        (stream.fail_write(),),
        (allocate(1, 2),),
    )


@_scenario("a stream ends, or its node drains", promises=(1, 9), preempts=False)
def _stream_drain(world: World) -> None:
    _nodes(world, count=1)
    stream = Stream(world, 1)
    _actors(
        world, (stream.send(3), stream.send(1), stream.end()), (stream.receive(), stream.receive()), (stream.drain(),)
    )


@_scenario("a stream asks for more than its limit", promises=(1, 9), has_more=False)
def _stream_limit(world: World) -> None:
    world.add_sequence("a")
    world.add_node()
    stream = Stream(world, 1, max_ids=1)
    sends, answers = [stream.send(*[1] * each) for each in (8, 4)], [stream.receive() for _ in range(12)]
    _actors(world, (*sends,), (*answers, stream.end()))


@_scenario("a stream breaks, and a request id is asked again", promises=(1, 7, 9), preempts=False)
def _stream_request_id(world: World) -> None:
    _nodes(world)
    stream = Stream(world, 1)
    _actors(
        world,
        (stream.send(1, request_id=REQUEST_ID),),
        (stream.receive(), stream.end()),
        (stream.cancel(),),
        (allocate_once(2, REQUEST_ID),),
    )


@_scenario("an answer waits past its lease", promises=(1, 4), jumps=(LEASE,), needed=1)
def _stream_lease(world: World) -> None:
    _nodes(world, count=1)
    stream = Stream(world, 1)
    _actors(world, (stream.send(3, 1),), (stream.receive(), stream.receive(), stream.end()))


@_scenario("a node is killed and another one starts", promises=(1, 9))
def _crash(world: World) -> None:
    _nodes(world)
    _actors(world, (allocate(1, 3),), (kill(1), start(), allocate(3, 3)), (allocate(2, 3),))


@_scenario("a stop reaches its time limit", promises=(1, 9))
def _abandon(world: World) -> None:
    _nodes(world)
    _actors(world, (allocate(1, 3),), (abandon(1),), (allocate(2, 3),))


@_scenario("a node forks, noticed or not", promises=(8,))
def _fork(world: World) -> None:
    _nodes(world, count=1)
    world.run(world.nodes[0], world.nodes[0].claim_start())
    _actors(
        world,
        (allocate(1, 3), allocate(1)),
        (fork(1),),
        (fork(1, repeats_pid=True),),
        (fork(1, is_noticed=False),),
        (allocate(1, when=lambda world: is_child(world, 1)), allocate(1, 9)),
        (make_doc_ids(1, when=lambda world: is_child(world, 1)),),
    )


@_scenario("three nodes start with one prefix", promises=(6,), is_long=True)
def _two_starts(world: World) -> None:
    world.add_node()
    world.add_node().clock.offset = -5.0
    _actors(world, (claim(1), make_doc_ids(1)), (claim(2), make_doc_ids(2)), (start(), claim(3)))


async def _use_up_serials(node: ExploredNode, world: World) -> None:
    """Take all but few document ids of a timestamp."""
    for _ in range(256):
        await world.calls.make_doc_ids(node, 2**40 - 1, 0, 65_535)


@_scenario("serials overflow, and the node restarts", promises=(6,))
def _doc_ids(world: World) -> None:
    node = world.add_node()
    world.run(node, node.claim_start())
    world.promises.record_start(node)
    world.run(node, _use_up_serials(node, world))
    _actors(
        world,
        (make_doc_ids(1, 2**40, increment=65_535), make_doc_ids(1)),
        (make_doc_ids(1, 2**40, increment=65_535),),
        (cancel(0),),
        (kill(1), start(), set_clock(2, -30.0), claim(2), make_doc_ids(2)),
    )


@_scenario("serials overflow as the prefix changes", promises=(6,))
def _prefix(world: World) -> None:
    node = world.add_node()
    world.run(node, node.claim_start())
    world.promises.record_start(node)
    world.run(node, _use_up_serials(node, world))
    _actors(world, (make_doc_ids(1, 2**40, increment=65_535),), (set_prefix(1, 7), make_doc_ids(1)))


@_scenario("an older copy is restored as the prefix changes", promises=(6,), has_more=False)
def _restored_prefix(world: World) -> None:
    world.backup = world.store.back_up()
    for node in (world.add_node(), world.add_node()):
        world.run(node, node.claim_start())
        world.promises.record_start(node)
        world.run(node, world.calls.make_doc_ids(node, 1))
    _actors(world, (set_prefix(2, 7), restore(), set_prefix(2, 0), make_doc_ids(2)), (claim(1), make_doc_ids(1)))


@_scenario("two workers change their node at once", promises=(6,), has_more=False)
def _workers(world: World) -> None:
    server = Server(world)
    _actors(world, (server.change(2, prefix=7, auto_increment_offset=5),), (server.change(3, prefix=8),))


@_scenario("two workers change their node at once, and one is killed", promises=(6,), has_more=False, is_long=True)
def _workers_killed(world: World) -> None:
    server = Server(world)
    _actors(world, (server.change(2, auto_increment_offset=5),), (server.change(3, prefix=8),), (kill(3),))


@_scenario("a store imports its own export beside a node", promises=(1, 2, 5), jumps=(PAST_LEASE,), has_more=False)
def _import(world: World) -> None:
    _nodes(world)
    world.add_node()
    _actors(world, (bring_in(3, _exported(world)),), (allocate(1), allocate(1, 3)))


@_scenario(
    "an older copy is restored, and the last export is imported",
    promises=(1, 2, 3, 5),
    serves_after=True,
    has_more=False,
)
def _import_restored(world: World) -> None:
    world.add_sequence("a", min_lease_size=3)
    world.backup = world.store.back_up()
    world.add_node()
    world.add_node()
    _change(world, world.nodes[0], "advance", (10, ""))
    _use(world, world.nodes[0])
    lines = _exported(world)
    world.restore()
    world.promises.restored = False  # the only node that used the sequence has seen more: no id is repeated
    _actors(
        world,
        (bring_in(2, lines), change(2, "advance", (60, ""), must=False)),
        (allocate(1), allocate(1, 3)),
    )


@_scenario("a name is used first on a retired store", promises=(1, 5), jumps=(PAST_LEASE,), needed=1, has_more=False)
def _retire_new(world: World) -> None:
    world.add_node()
    world.add_node()
    _actors(world, (retire(2, "b"),), (allocate(1, 1, "b", when=is_retired),))


@_scenario("a store is retired beside a node", promises=(1, 5), jumps=(PAST_LEASE,), needed=1, preempts=False)
def _retire(world: World) -> None:
    _nodes(world, count=1)
    world.add_node()
    _actors(world, (retire(2, "a"),), (allocate(1, 3),))
