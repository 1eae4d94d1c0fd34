"""What a process reports of the reserves of its sequences."""

import asyncio
from collections import Counter
from unittest.mock import Mock

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.reserve import MAX_LEASE_SIZE, REMAINING_IDS
from idalloc_server.domain.errors import StoreUnreachable
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.witness.store import WitnessedStore
from idalloc_server.node.report import NodeReport
from idalloc_server.telemetry import families
from idalloc_server.telemetry.metrics import CallMetrics, Counts
from idalloc_server.telemetry.series import OTHER
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.fake_witness import MemoryWitness
from tests.support.sequence_allocators import make, own_counter
from tests.support.steady_nodes import CONFIG, SteadyNodes
from tests.support.waiting import hold_for_async

RESERVE = CONFIG.outage_reserve


async def sampled(report: NodeReport) -> Counts:
    """Return the metrics after the next sample."""
    task = asyncio.create_task(report.sample())
    await hold_for_async(1.5, "the report samples each second of virtual time")
    task.cancel()
    return report.counts()


def report_of(allocator: Allocator, witnessed: WitnessedStore | None = None) -> NodeReport:
    """Return the report of a process that has only an allocator."""
    issuers = Mock(
        allocator=allocator,
        doc_ids=Mock(issued=0, prefix=0, start_timestamp=0),
        sequences=Mock(generations_ended=0),
        start_timestamps=Mock(has_conflict=False),
    )
    audit = Mock(rejected={})
    return NodeReport(CallMetrics(), issuers, audit, Counter(), {}, 1, lambda: False, [], witnessed)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [(Sequence(max_value=1_000_000), REMAINING_IDS), (Sequence(max_lease_size=5_000), MAX_LEASE_SIZE)],
)
async def test_a_limited_reserve_is_reported_with_its_reason(
    store: MemoryStore, clock: FakeClock, settings: Sequence, reason: str
) -> None:
    """A sequence with an own series is limited only while its settings keep the reserve short."""
    make(store, "s", settings)
    nodes = SteadyNodes(store, clock, 1, [100], rate=10)
    [allocator] = nodes.allocators
    report = report_of(allocator)
    await nodes.run(30)
    gauges = (await sampled(report)).gauges
    assert gauges[families.RESERVE_LIMITED] == {f"{reason} s": 1}
    assert gauges[families.RESERVE]["s"] < 15
    store.rows["s"].sequence = Sequence()
    await allocator.drop_lease("s")
    await nodes.run(30)
    gauges = (await sampled(report)).gauges
    assert gauges[families.RESERVE_LIMITED] == {}
    assert gauges[families.RESERVE]["s"] > RESERVE / 2


async def test_only_a_server_with_a_witness_reports_it(store: MemoryStore, clock: FakeClock) -> None:
    """The metric of the witness follows its last call, and has no series without a witness."""
    [allocator] = SteadyNodes(store, clock, 1, [100], rate=10).allocators
    assert report_of(allocator).counts().gauges[families.WITNESS_UP] == {}
    assert "witness" not in report_of(allocator).describe()
    witness = MemoryWitness()
    witnessed = WitnessedStore(store, witness)
    report = report_of(allocator, witnessed)
    assert report.describe()["witness"] == witness.address
    assert report.counts().gauges[families.WITNESS_UP] == {"": 1}
    witness.down = True
    with pytest.raises(StoreUnreachable):
        await witnessed.grant("s", 1, 0)
    assert report.counts().gauges[families.WITNESS_UP] == {"": 0}


async def test_a_drained_reserve_is_not_limited(store: MemoryStore, clock: FakeClock) -> None:
    """While the store is away, a reserve that no limit kept short is low."""
    nodes = SteadyNodes(store, clock, 1, [100], rate=10)
    report = report_of(nodes.allocators[0])
    await nodes.run(30)
    store.down = True
    assert await nodes.run_without_store(RESERVE * 7 / 8) == 0
    gauges = (await sampled(report)).gauges
    assert gauges[families.RESERVE]["s"] < RESERVE / 2
    assert gauges[families.RESERVE_LIMITED] == {}


@pytest.mark.parametrize(("max_value", "shown"), [(10_000, False), (10**9, True)])
async def test_other_leaves_out_limited_reserves(
    store: MemoryStore, clock: FakeClock, max_value: int, shown: bool
) -> None:
    """The series of all sequences without an own one is never limited."""
    make(store, "s", Sequence(max_value=max_value))
    nodes = SteadyNodes(store, clock, 1, [1], rate=10)
    report = report_of(nodes.allocators[0])
    await nodes.run(30)
    gauges = (await sampled(report)).gauges
    assert (OTHER in gauges[families.RESERVE]) == shown
    assert gauges[families.RESERVE_LIMITED] == {}


async def test_a_long_reserve_is_not_limited(store: MemoryStore, clock: FakeClock) -> None:
    """A limit that leaves ids for `outage_reserve`, but not for more than that, is not reported."""
    make(store, "s", Sequence(max_value=1_000_000))
    nodes = SteadyNodes(store, clock, 1, [9], rate=10)
    await nodes.run(30)
    [allocator] = nodes.allocators
    seconds = allocator.reserve_seconds("s")
    assert seconds is not None
    assert seconds > RESERVE
    assert own_counter(allocator, "s").state.reserve_limit == REMAINING_IDS
    assert allocator.reserve_limit("s") == ""
