"""The settings and the shared state of all sequence allocators of a process."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from idalloc_server.domain.allocation.burned import BurnedIds
from idalloc_server.domain.allocation.high_water_marks import HighWaterMarks
from idalloc_server.domain.allocation.issued import Issuer
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.store_calls import StoreHealth
from idalloc_server.telemetry.metrics import Timings

# Called before the first use of a sequence creates it; raises a ``Refusal`` if its caller may not.
admit_creation: ContextVar[Callable[[], None]] = ContextVar("admit_creation", default=lambda: None)

REFILL_OUTCOMES = OK, FAILED, EXHAUSTED = "ok", "failed", "exhausted"


@dataclass(frozen=True, slots=True)
class AllocationConfig:
    """The settings of all sequence allocators of a process."""

    lease_ttl: float  # the TTL of a lease, in seconds
    # The timeout of a store call, in seconds; then a node completes the advance of another one.
    store_timeout: float
    auto_create_sequences: bool  # whether the first use of a sequence creates it
    max_clock_skew: float = 60.0  # how far timestamps may be ahead of the clock, in seconds
    # How long the ids in memory last while the store is unavailable, in seconds.
    outage_reserve: float = 90.0
    # The most ids that a sequence holds in memory beyond what callers wait for.
    max_reserved_ids: int = 100_000_000
    max_sequences: int = 1_000_000  # the most sequences with a high-water mark


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state that all sequence allocators of a process share."""

    store: Store
    clock: Clock  # the clock that leases expire by
    allocation_config: AllocationConfig
    high_water_marks: HighWaterMarks  # the last known state of each counter
    # Called with the name of an idle sequence that the store never returned a row for.
    drop_unknown: Callable[[str], None]
    is_closed: Callable[[], bool]  # returns whether the allocator is closed: it starts no counter
    random: Callable[[int], bytes]  # returns random bytes of a given number
    burned: BurnedIds = field(default_factory=BurnedIds)
    # The counters with new ids: each adds itself when its ``new_ids`` leaves 0.
    issuing: list[Issuer] = field(default_factory=list)
    # The duration of refills by outcome: ok, failed or exhausted.
    refills: dict[str, Timings] = field(default_factory=lambda: {name: Timings() for name in REFILL_OUTCOMES})
    # Whether the store works, by refills and failed calls.
    store_health: StoreHealth = field(default_factory=StoreHealth)
