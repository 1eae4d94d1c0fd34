"""Faults of the reserve that serves calls while the store is away (P10)."""

from tests.support.mutants.edit import Edit, Place

UNEXPLORED = "it does not check P10"
RESERVE = Place("P10", "idalloc_server.domain.allocation.reserve")
SEQUENCE = Place("P10", "idalloc_server.domain.allocation.sequence_allocator")

MUTANTS = (
    Place("P10", "idalloc_server.domain.allocation.lease").mutant(
        "reserve-of-unusable-ids",
        "ids in ranges that are too short for the calls count as reserve",
        Edit("Lease.usable", "unusable <= 0", "True"),
        unexplored=UNEXPLORED,
    ),
    Place("P10", "idalloc_server.domain.allocation.counter_allocator").mutant(
        "renewal-at-the-end",
        "a lease is renewed when it ends, not when a third of its life is over",
        Edit("CounterAllocator._refill", "sent_at + lease_ttl / 3", "sent_at + lease_ttl"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "review-at-the-renewal",
        "a rate that rises is not reviewed before the renewal",
        Edit("Reserve._record", "now + REVIEW_SECONDS", "math.inf"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "reserve-of-one-outage",
        "a node holds what its callers use in one outage, and refills when a third of it is gone",
        Edit("Reserve._target", "GENEROSITY * seconds * rate", "seconds * rate"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "no-largest-calls",
        "a node that was called rarely holds no ids for its largest calls",
        Edit("Reserve._target", "LARGEST_CALLS * max(self.largest_call, requested)", "0"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "refill-at-the-last-id",
        "a refill is due when the reserve is used up",
        Edit("Reserve.is_short", "SHARE * self._target(lease.left, now)", "1"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "rate-of-the-long-window",
        "a rate that rose in the last seconds does not count",
        Edit("Reserve._rate", "(RECENT_SECONDS, self._config.outage_reserve)", "(self._config.outage_reserve,)"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "a-moment-is-a-rate",
        "calls within a moment count as a rate of that moment",
        Edit("Reserve._rate", "max(now - since, MIN_SECONDS)", "max(now - since, 0.001)"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "samples-pile-up",
        "a busy counter remembers what it issued at each review of its life",
        Edit("Reserve._record", "older > 2", "older > 10**6"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "share-of-the-rest-is-all",
        "a node takes as many of the last ids as its callers may use",
        Edit("Reserve.prefetch", "remaining // PREFETCH_SHARE", "remaining"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "demand-not-adopted",
        "a node that starts ignores the demand in the row",
        Edit("Reserve.adopt_demand", "self.expect(stored, now)", "pass"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "demand-of-last-week",
        "a node that starts adopts a demand of any age",
        Edit("Reserve.adopt_demand", "stored.is_current(wall, self._config.lease_ttl)", "True"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "demand-of-the-last-node",
        "the demand in the row is that of the last node that wrote it",
        Edit("Reserve.demand_to_write", "own.rate < SHARE * stored.rate", "False"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "demand-never-replaced",
        "a large demand stays in the row until it is too old for a node that starts",
        Edit("Reserve.demand_to_write", "SHARE * self._config.lease_ttl", "10 * self._config.lease_ttl"),
        unexplored=UNEXPLORED,
    ),
    RESERVE.mutant(
        "demand-made-young",
        "a node writes the demand that it read as its own: restarts with few calls keep the demand of a peak",
        Edit("Reserve.demand", "return self._expected", "return self._expected._replace(at=wall)"),
        unexplored=UNEXPLORED,
    ),
    SEQUENCE.mutant(
        "next-period-not-opened",
        "the counter of the next period is opened by its first call",
        Edit(
            "SequenceAllocator._check_period",
            "counter and (demand := counter.demand) and (not proof.sequence.is_rising)"
            " and (not self._shared.is_closed())",
            "False",
        ),
        unexplored=UNEXPLORED,
    ),
    SEQUENCE.mutant(
        "next-period-at-one-moment",
        "all nodes open the counter of the next period at the same moment",
        Edit("SequenceAllocator._check_period", "int.from_bytes(self._shared.random(2)) / 2 ** 16", "0.5"),
        unexplored=UNEXPLORED,
    ),
    SEQUENCE.mutant(
        "opened-period-is-idle",
        "a period that was opened early is closed before it begins, as it is not used",
        Edit("SequenceAllocator.pop_idle_periods", "idle.remove(self._next_period)", "pass"),
        unexplored=UNEXPLORED,
    ),
)
