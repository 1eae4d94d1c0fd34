"""What the lanes of a process are run by, and what they share."""

from collections.abc import Callable
from dataclasses import dataclass

from idalloc_server.domain.allocation.burned import BurnedIds
from idalloc_server.domain.allocation.high_water_marks import HighWaterMarks
from idalloc_server.domain.allocation.usage import UsageRates
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.store import Store
from idalloc_server.domain.store_health import StoreHealth


@dataclass(frozen=True, slots=True)
class AllocationConfig:
    """What all lanes of a process are run by.

    Attributes:
        lease_ttl: How long a lease lives unless it is renewed, in seconds.
        store_timeout: When a store call is given up, in seconds.
        auto_create_sequences: Whether a sequence is created on first use.
        max_clock_skew: How far timestamps may be ahead of the clock, in seconds.
        outage_reserve: For how long the ids of a lane are to last while the store is away, in seconds.
        max_reserved_ids: The most ids that a lane holds ahead of its callers.
        max_sequences: The most sequences that the process keeps high_water_marks of.
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
    """What all lanes of a process share.

    Attributes:
        store: Where the counters are.
        clock: Ends the leases.
        terms: What the lanes are run by.
        high_water_marks: What was seen of each counter.
        burned: Counts the ids that were taken and not issued.
        rates: Watches how fast sequences are used.
        store_check: Judges by refills whether the store works.
        drop_unknown: Called with a name when its lane has nothing to do and the store never returned anything of it.
    """

    store: Store
    clock: Clock
    allocation_config: AllocationConfig
    high_water_marks: HighWaterMarks
    burned: BurnedIds
    rates: UsageRates
    store_check: StoreHealth
    drop_unknown: Callable[[str], None]
