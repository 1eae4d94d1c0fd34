"""The scenarios. Each is as small as its question allows, so that all its orders of events can be explored."""

from typing import Any

from idalloc_server.domain.sequences.model import Kind, Ordering, Reset
from tests.support.exploration.node import ExploredNode
from tests.support.exploration.scenario import Actor, Scenario, Step
from tests.support.exploration.steps import (
    allocate,
    allocate_once,
    bring_in,
    cancel,
    change,
    check_idle,
    claim,
    export,
    fork,
    is_child,
    kill,
    make_doc_ids,
    prune,
    restore,
    retire,
    set_clock,
    start,
    stop,
)
from tests.support.exploration.world import World
from tests.support.simulation.node import CONFIG, REQUEST_ID_WINDOW

LEASE = CONFIG.lease_ttl
# Past a lease and the margin for clocks that drift apart.
PAST_LEASE = LEASE + 1.5
# Past the timeout of a store call, and past a third of a lease: the renewal.
PAST_TIMEOUT, RENEWAL = CONFIG.store_timeout + 1.0, LEASE / 3 + 1.0
DAY = 86_400.0
# From the start of a world to midnight in UTC.
TO_MIDNIGHT = 6_400.0
DAILY: dict[str, Any] = {"reset": Reset.DAILY, "format": "{year}{month}{day}-{value}"}
# As ``idalloc store export`` writes it.
EXPORT = [
    b'{"idallocExport": 1}',
    b'{"name": "a", "lastValue": "50", "settings": {}}',
]


def _actors(world: World, *actors: tuple[Step, ...]) -> None:
    world.actors += [Actor(f"caller {number + 1}", steps) for number, steps in enumerate(actors)]


def _nodes(world: World, count: int = 2, **settings: Any) -> None:
    """Adds a sequence, and nodes that have two of its ids in memory unless ``min_lease_size`` is 0."""
    world.add_sequence("a", **{"min_lease_size": 3, **settings})
    for _ in range(count):
        _use(world, world.add_node())


def _use(world: World, node: ExploredNode) -> None:
    """Lets a node issue ids, and take a lease: the first write takes no more than what was asked for."""
    for _ in range(2):
        world.run(node, world.calls.allocate(node, "a", 1))
    settings = world.store.rows["a"].sequence
    assert node.allocator.held_ids == max(0, settings.min_lease_size - 1), node.allocator.held_ids


def _cold_start(world: World) -> None:
    world.add_node()
    world.add_node()
    _actors(world, (allocate(1), allocate(1)), (allocate(2, 2),))


def _shared(world: World) -> None:
    _nodes(world)
    _actors(world, (allocate(1, 2), allocate(1, 2)), (allocate(2, 3), allocate(2)))


def _tail_return(world: World) -> None:
    _nodes(world, min_lease_size=5)
    _actors(world, (stop(2),), (allocate(1, 3), allocate(1, 3)), (stop(1),))


def _idle_close(world: World) -> None:
    _nodes(world)
    _actors(world, (check_idle(1), check_idle(1)), (allocate(1), allocate(2, 3)))


def _advance_lease(world: World) -> None:
    _nodes(world)
    _actors(world, (change(1, "advance", (50, "")),), (allocate(2), allocate(2, 3)))


def _advance_renewal(world: World) -> None:
    _nodes(world, min_lease_size=6)
    world.run(world.nodes[0], _advance(world.nodes[0], world))
    _actors(world, (allocate(2), allocate(2), allocate(2)))


async def _advance(node: ExploredNode, world: World) -> None:
    await world.calls.change(node, "a", "advance", (50, ""), node.service.change_token("", b""))


def _update(world: World) -> None:
    _nodes(world)
    _actors(world, (change(1, "update", {"step": 5}),), (allocate(2), allocate(2, 3)))


def _update_bound(world: World) -> None:
    _nodes(world)
    _actors(world, (change(1, "update", {"max_value": 8}), change(1, "update", {"max_value": 20})), (allocate(2, 3),))


def _export(world: World) -> None:
    _nodes(world)
    _actors(world, (export(1),), (allocate(2), allocate(2, 3)))


def _delete_create(world: World) -> None:
    _nodes(world)
    _actors(world, (change(1, "delete"), change(1, "create", {})), (allocate(2, 3),))


def _advance_period(world: World) -> None:
    _nodes(world, **DAILY)
    _actors(world, (change(1, "advance", (50, "")),), (allocate(2, 3),))


def _interrupted_advance(world: World) -> None:
    _nodes(world, **DAILY)
    _actors(world, (change(2, "advance", (50, "")),), (kill(2),), (allocate(1, 3),))


def _period_end(world: World) -> None:
    world.add_sequence("a", min_lease_size=3, **DAILY)
    node = world.add_node()
    node.clock.offset = TO_MIDNIGHT - 10.0
    _use(world, node)
    _actors(world, (allocate(1, 2), allocate(1, 2)))


def _period_clock(world: World) -> None:
    _nodes(world, count=1, **DAILY)
    _actors(world, (allocate(1, 2), allocate(1, 2)), (set_clock(1, DAY), set_clock(1, -DAY)))


def _request_id(world: World) -> None:
    _nodes(world)
    _actors(world, (allocate_once(1, "r"), allocate_once(2, "r")), (allocate_once(2, "r"),))


def _request_cancel(world: World) -> None:
    _nodes(world, count=1)
    _actors(world, (allocate_once(1, "r", 2), allocate_once(1, "r", 2)), (allocate_once(1, "r", 2),), (cancel(0),))


def _request_advance(world: World) -> None:
    _nodes(world)
    world.run(world.nodes[0], world.calls.allocate_once(world.nodes[0], "a", 1, "r"))
    _actors(world, (allocate_once(2, "r"), allocate_once(1, "r")), (change(1, "advance", (50, "")),))


def _request_window(world: World) -> None:
    _nodes(world)
    first, second = world.nodes
    world.run(first, world.calls.allocate_once(first, "a", 1, "r"))
    world.run(second, second.request_ids.prune())  # from now on its window counts
    _actors(world, (prune(2),), (allocate_once(1, "r"),))


def _restore(world: World) -> None:
    _nodes(world)
    world.backup = world.store.back_up()
    for node in world.nodes:
        world.run(node, world.calls.allocate(node, "a", 5))  # past the copy
    _actors(world, (allocate(1, 3), allocate(1, 5)), (restore(),), (allocate(2, 4),))


def _rising(world: World) -> None:
    _nodes(world, ordering=Ordering.RISING, min_lease_size=0)
    _actors(world, (allocate(1, 2),), (allocate(1),), (allocate(2),))


def _rising_cancel(world: World) -> None:
    _nodes(world, count=1, ordering=Ordering.RISING, min_lease_size=0)
    _actors(world, (allocate(1, 2), allocate(1)), (allocate(1),), (cancel(0),))


def _bound(world: World) -> None:
    _nodes(world, max_value=7, min_lease_size=0)
    _actors(world, (allocate(1, 2), allocate(1, 2)), (allocate(1, 3),), (allocate(2, 2),))


def _timestamps(world: World) -> None:
    _nodes(world, kind=Kind.TIMESTAMP_MS, min_lease_size=0)
    _actors(world, (allocate(1, 2), allocate(1)), (allocate(2),), (set_clock(1, -30.0),))


def _cancel(world: World) -> None:
    _nodes(world)
    _actors(world, (allocate(1, 3), allocate(1)), (allocate(1, 3),), (cancel(0),))


def _crash(world: World) -> None:
    _nodes(world)
    _actors(world, (allocate(1, 3),), (kill(1), start(), allocate(3, 3)), (allocate(2, 3),))


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


def _two_starts(world: World) -> None:
    world.add_node()
    world.add_node().clock.offset = -5.0
    _actors(world, (claim(1), make_doc_ids(1)), (claim(2), make_doc_ids(2)), (start(), claim(3)))


def _doc_ids(world: World) -> None:
    node = world.add_node()
    world.run(node, node.claim_start())
    world.promises.record_start(node)
    for _ in range(256):  # all but few serials of the timestamp
        world.run(node, world.calls.make_doc_ids(node, 2**40 - 1, 0, 65_535))
    _actors(
        world,
        (make_doc_ids(1, 2**40, increment=65_535), make_doc_ids(1)),
        (make_doc_ids(1, 2**40, increment=65_535),),
        (cancel(0),),
        (kill(1), start(), set_clock(2, -30.0), claim(2), make_doc_ids(2)),
    )


def _import(world: World) -> None:
    _nodes(world)
    world.add_node()
    _actors(world, (bring_in(3, EXPORT),), (allocate(1), allocate(1, 3)))


def _retire(world: World) -> None:
    _nodes(world, count=1)
    world.add_node()
    _actors(world, (retire(2),), (allocate(1, 3),))


_ALL = (
    Scenario("cold-start", "two nodes use a name first", _cold_start, (1, 2, 9)),
    Scenario("shared", "two nodes take more than they hold", _shared, (1, 2, 4, 9), (LEASE,)),
    Scenario("tail-return", "two nodes stop, and one still serves", _tail_return, (1, 2, 3, 9), (RENEWAL,)),
    Scenario("idle-close", "an idle sequence is closed as its callers return", _idle_close, (1, 2, 3, 9), (RENEWAL,)),
    Scenario("advance-lease", "an advance beside two leases", _advance_lease, (1, 2, 4, 5), (PAST_LEASE,), needed=1),
    Scenario("advance-renewal", "a lease is renewed after an advance", _advance_renewal, (5,), (RENEWAL,), needed=3),
    Scenario("update-step", "a new step beside two leases", _update, (1, 2, 4, 5), (PAST_LEASE,), needed=1),
    Scenario("update-bound", "a lower bound beside two leases", _update_bound, (1, 2, 5), (PAST_LEASE,), needed=1),
    Scenario("export", "an export beside two leases", _export, (2,)),
    Scenario(
        "delete-create",
        "a deletion and a creation beside two leases",
        _delete_create,
        (1, 2, 5),
        (PAST_LEASE,),
        needed=1,
    ),
    Scenario(
        "advance-period",
        "an advance of a period beside two leases",
        _advance_period,
        (1, 5),
        (PAST_LEASE,),
        preempts=False,
    ),
    Scenario(
        "interrupted-advance",
        "a node is killed while it advances a period",
        _interrupted_advance,
        (1, 5),
        serves_after=True,
        has_more=False,
    ),
    Scenario("period-end", "a period ends beside a refill", _period_end, (1,), (20.0,), needed=1),
    Scenario("period-clock", "a clock is set over a period's end", _period_clock, (1,)),
    Scenario("request-id", "one request id on two nodes", _request_id, (1, 7), preempts=False),
    Scenario("request-cancel", "callers of a request id give up and retry", _request_cancel, (1, 7, 9)),
    Scenario(
        "request-advance", "a request id and an advance", _request_advance, (1, 5, 7), (PAST_LEASE,), preempts=False
    ),
    Scenario(
        "request-window",
        "a request id's window ends",
        _request_window,
        (7,),
        (REQUEST_ID_WINDOW, 599.0),
        needed=1,
        preempts=False,
    ),
    Scenario("restore", "an older copy is restored under two nodes", _restore, (1, 3)),
    Scenario("rising", "ids that rise over two nodes", _rising, (1, 2)),
    Scenario("rising-cancel", "a caller of rising ids gives up", _rising_cancel, (1, 9)),
    Scenario("bound", "the last ids before a bound", _bound, (1, 9)),
    Scenario("timestamps", "ids that are timestamps, and a clock is set back", _timestamps, (1, 2)),
    Scenario("cancel", "a caller gives up", _cancel, (1, 9)),
    Scenario("crash", "a node is killed and another one starts", _crash, (1, 9)),
    Scenario("fork", "a node forks, noticed or not", _fork, (8,)),
    Scenario("two-starts", "three nodes start with one prefix", _two_starts, (6,)),
    Scenario("doc-ids", "serials overflow, and the node restarts", _doc_ids, (6,)),
    Scenario("import", "an import beside a node", _import, (1, 2, 5), (PAST_LEASE,)),
    Scenario("retire", "a store is retired beside a node", _retire, (1, 5), (PAST_LEASE,), needed=1, preempts=False),
)
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
