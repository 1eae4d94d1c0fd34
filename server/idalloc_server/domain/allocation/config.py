"""The settings and the shared state of all sequence allocators of a process."""

from collections.abc import Callable
from dataclasses import dataclass, field

from idalloc_server.domain.allocation.burned import BurnedIds
from idalloc_server.domain.allocation.high_water_marks import HighWaterMarks
from idalloc_server.domain.allocation.issued import IssuedIds
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.store.health import StoreHealth
from idalloc_server.domain.store.protocol import Store
from idalloc_server.telemetry.metrics import Timings

REFILL_OUTCOMES = OK, FAILED, EXHAUSTED = "ok", "failed", "exhausted"


@dataclass(frozen=True, slots=True)
class AllocationConfig:
    """The settings of all sequence allocators of a process.

    Attributes:
        lease_ttl: The TTL of a lease, in seconds.
        store_timeout: The timeout of a store call, in seconds.
        auto_create_sequences: Whether the first use of a sequence creates it.
        max_clock_skew: How far timestamps may be ahead of the clock, in seconds.
        outage_reserve: How long the ids in memory last while the store is unavailable, in seconds.
        max_reserved_ids: The most ids that a sequence holds in memory beyond what callers wait for.
        max_sequences: The most sequences with a high-water mark.
    """

    lease_ttl: float
    store_timeout: float
    auto_create_sequences: bool
    max_clock_skew: float = 60.0
    outage_reserve: float = 90.0
    max_reserved_ids: int = 100_000_000
    max_sequences: int = 1_000_000


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state that all sequence allocators of a process share.

    Attributes:
        store: The store of the counters.
        clock: The clock that leases expire by.
        allocation_config: The settings.
        high_water_marks: The last known state of each counter.
        drop_unknown: Called with the name of an idle sequence that the store never returned a row
            for.
        is_closed: Returns whether the allocator is closed, and starts no counter.
        random: Returns random bytes of a given number.
        burned: Counts burned ids.
        issued: Counts issued ids.
        refills: The duration of refills by outcome: ok, failed or exhausted.
        store_health: Whether the store works, by refills and failed calls.
    """

    store: Store
    clock: Clock
    allocation_config: AllocationConfig
    high_water_marks: HighWaterMarks
    drop_unknown: Callable[[str], None]
    is_closed: Callable[[], bool]
    random: Callable[[int], bytes]
    burned: BurnedIds = field(default_factory=BurnedIds)
    issued: IssuedIds = field(default_factory=IssuedIds)
    refills: dict[str, Timings] = field(default_factory=lambda: {name: Timings() for name in REFILL_OUTCOMES})
    store_health: StoreHealth = field(default_factory=StoreHealth)
