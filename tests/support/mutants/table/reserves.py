"""Faults of the reserve that serves calls while the store is away (P10)."""

from tests.support.mutants.edit import Edit, Mutant

HELD = "idalloc_server.domain.allocation.held_ids"
LEASE = "idalloc_server.domain.allocation.lease"
RESERVE = "idalloc_server.domain.allocation.reserve"
SEQUENCE = "idalloc_server.domain.allocation.sequence_allocator"
UNEXPLORED = "it does not check P10"

MUTANTS = (
    Mutant(
        "reserve-of-unusable-ids",
        "P10",
        LEASE,
        "ids in ranges that are too short for the calls count as reserve",
        (Edit("Lease.usable", "unusable <= 0", "True"),),
        unexplored=UNEXPLORED,
    ),
    Mutant(
        "renewal-at-the-end",
        "P10",
        HELD,
        "a lease is renewed when it ends, not when a third of its life is over",
        (Edit("HeldIds.add", "sent_at + lease_ttl / 3", "sent_at + lease_ttl"),),
        unexplored=UNEXPLORED,
    ),
    Mutant(
        "review-at-the-renewal",
        "P10",
        RESERVE,
        "a rate that rises is not reviewed before the renewal",
        (
            Edit(
                "Reserve._begin_part",
                "self.review_at = now + min(max(now - self._began_at, PART_SECONDS), REVIEW_SECONDS)",
                "self.review_at = math.inf",
            ),
        ),
        unexplored=UNEXPLORED,
    ),
    Mutant(
        "demand-not-adopted",
        "P10",
        RESERVE,
        "a node that starts ignores the demand in the row",
        (Edit("Reserve.adopt_demand", "self.expect(stored, left, now)", "pass"),),
        unexplored=UNEXPLORED,
    ),
    Mutant(
        "demand-of-last-week",
        "P10",
        RESERVE,
        "a node that starts adopts a demand of any age",
        (
            Edit(
                "Reserve.adopt_demand",
                "stored and stored.is_current(wall, self._config.lease_ttl)",
                "stored",
            ),
        ),
        unexplored=UNEXPLORED,
    ),
    Mutant(
        "demand-measured-badly",
        "P10",
        RESERVE,
        "a node writes a demand that it measured for a moment: restarts with few calls keep the demand of a peak",
        (
            Edit(
                "_Measured.is_long_enough",
                "self.seconds >= DEMAND_SECONDS and self.issued >= DEMAND_CALLS * self.largest_call",
                "self.issued > 0",
            ),
        ),
        unexplored=UNEXPLORED,
    ),
    Mutant(
        "demand-of-the-last-node",
        "P10",
        RESERVE,
        "the demand in the row is that of the last node that wrote it",
        (Edit("Reserve.demand_to_write", "return own._replace(rate=math.sqrt(stored.rate * own.rate))", "return own"),),
        unexplored=UNEXPLORED,
    ),
    Mutant(
        "one-call-is-a-rate",
        "P10",
        RESERVE,
        "a single large call counts as a rate that the reserve must last for",
        (Edit("Reserve._measure", "(used - largest)", "used"),),
        unexplored=UNEXPLORED,
    ),
    Mutant(
        "next-period-not-opened",
        "P10",
        SEQUENCE,
        "the counter of the next period is opened by its first call",
        (
            Edit(
                "SequenceAllocator._check_period",
                "counter and (demand := counter.demand) and (not proof.sequence.is_rising)"
                " and (not self._shared.is_closed())",
                "False",
            ),
        ),
        unexplored=UNEXPLORED,
    ),
    Mutant(
        "opened-period-is-idle",
        "P10",
        SEQUENCE,
        "a period that was opened early is closed before it begins, as it is not used",
        (Edit("SequenceAllocator.pop_idle_periods", "idle.remove(self._next_period)", "pass"),),
        unexplored=UNEXPLORED,
    ),
)
