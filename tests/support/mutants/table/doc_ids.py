"""Faults of document ids and of forks (P6, P8)."""

from tests.support.mutants.edit import Edit, Place

GENERATOR = "idalloc_server.domain.document_ids.generator"
SCENARIOS = ("doc-ids", "two-starts")
STARTS = Place("P6", "idalloc_server.domain.document_ids.start_timestamps")
ALLOCATOR = Place("P8", "idalloc_server.domain.allocation.allocator")

MUTANTS = (
    STARTS.mutant(
        "start-of-the-own-clock",
        "a process uses the start timestamp that it asked for, not the claimed one",
        Edit(
            "StartTimestamps.claim",
            "return StartTimestamp(prefix, claim.start_timestamp)",
            "return StartTimestamp(prefix, at_least)",
        ),
        scenarios=SCENARIOS,
    ),
    STARTS.mutant(
        "start-claimed-again",
        "a process claims its own start timestamp again from a restored store",
        Edit(
            "StartTimestamps.claim",
            "max(0, int(await self._checked_wall_clock()), self._claimed.get(prefix, -1) + 1)",
            "max(0, int(await self._checked_wall_clock()))",
        ),
        scenarios=("restored-prefix",),
    ),
    STARTS.mutant(
        "next-start-not-larger",
        "the next start timestamp may be the present one",
        Edit("StartTimestamps.claim_next", "self._claim(prefix, after + 1)", "self._claim(prefix, after)"),
        unexplored="the generator ignores a claim that is not later, and claims again",
    ),
    Place("P6", GENERATOR).mutant(
        "overflow-without-a-claim",
        "when the serial overflows, the next second is used without a claim",
        Edit(
            "DocIdGenerator.issue_now",
            "if self._next_start is None:\n    return None",
            "if self._next_start is None:\n"
            "    self._next_start = StartTimestamp(self._start.prefix, self._start.timestamp + 1)",
        ),
        scenarios=SCENARIOS,
    ),
    Place("P6", GENERATOR).mutant(
        "overflow-back-to-the-old-prefix",
        "a claim that was made before the prefix changed is used after it",
        Edit("DocIdGenerator._claim_start", "start > self._start and start.prefix == self._start.prefix", "True"),
        scenarios=("prefix",),
    ),
    Place("P8", GENERATOR).mutant(
        "fork-of-document-ids",
        "the child of a fork makes document ids of its parent's start timestamp",
        Edit("DocIdGenerator.issue_now", "self._pid != self._current_pid()", "False"),
        scenarios=("fork",),
    ),
    ALLOCATOR.mutant(
        "fork-keeps-its-leases",
        "the child of a fork keeps its parent's leases, if it has its parent's process id",
        Edit("Allocator.forget_after_fork", "self._sequence_allocators.clear()\nself._pid = NO_PROCESS", "pass"),
        scenarios=("fork",),
    ),
    ALLOCATOR.mutant(
        "fork-issues-from-memory",
        "a fork that Python does not see issues ids from memory",
        Edit(
            "Allocator.issue_now",
            "sequence_allocator is None or self._current_pid() != self._pid",
            "sequence_allocator is None",
        ),
        scenarios=("fork",),
    ),
)
