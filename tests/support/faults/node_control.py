"""Controls the clocks, faults and forks of a ``tests.support.faults.faulty_node`` by a file.

A change takes effect for every call and statement that begins after the method has returned.
"""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

FaultKind = Literal[
    "late",  # applied and answered after the delay; never applied if the caller gives up before
    "slow",  # applied at once, answered after the delay
    "hang",  # never applied, never answered
    "mute",  # applied, never answered
    "failed",  # not applied, outcome reported as unknown
    "lost",  # applied, outcome reported as unknown
    "later",  # outcome reported as unknown, then applied after the delay
    "twice",  # applied twice, answered with the second result
    "again",  # applied twice, answered with the first result
    "rejected",  # not applied, reported as not applied: CrateDB's 503
    "unreachable",  # not sent
]
# The methods of a Store that write.
WRITES = (
    "grant", "grant_timestamps", "create", "open_period", "revise", "record", "forget_recorded", "give_back",
    "claim_start", "keep_prefix", "release_prefix", "raise_start",
)  # fmt: skip


@dataclass
class StoreFault:
    """A fault of calls to the store."""

    number: int  # identifies the fault
    kind: FaultKind  # what happens to the call
    methods: list[str]  # names of the methods of ``Store`` that fail; empty for all
    times: int | None  # how many calls fail in each process; None for all
    seconds: float  # the delay, for kinds that have one


@dataclass
class ControlState:
    """The content of the control file."""

    # The time at which the wall clock is stopped, in seconds since 1970; None while it runs.
    wall: float | None = None
    wall_offset: float = 0.0  # seconds by which the wall clock is ahead of the machine's
    # Seconds by which the boot clock is ahead of the machine's; never decreases.
    boot_offset: float = 0.0
    # Active faults; the first one that matches a call applies.
    faults: list[StoreFault] = field(default_factory=list)
    fork_count: int = 0  # how many forks were requested in total
    fork_log: str = ""  # the log of the latest fork, see ``NodeControl.fork``
    # The sequences that a forked child allocates from.
    fork_sequences: list[str] = field(default_factory=list)


class NodeControl:
    """Writes the control file of one node, or of several nodes that share it.

    Args:
        file: The control file; created at once.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._state = ControlState()
        self._writes = count(1)
        self._numbers = count(1)
        self._write()

    @property
    def arguments(self) -> list[str]:
        """Command-line arguments that make a node read this file."""
        return ["--control", str(self.file)]

    def set_wall_clock(self, at: float | None = None, *, offset: float | None = None) -> None:
        """Stop the wall clock ``at`` a time, or run it ``offset`` seconds off the machine's."""
        self._state.wall = at
        self._state.wall_offset = offset or 0.0
        self._write()

    def advance_boot_clock(self, seconds: float) -> None:
        """Move the boot clock forward, as after a suspend."""
        assert seconds >= 0
        self._state.boot_offset += seconds
        self._write()

    def inject(self, kind: FaultKind, *methods: str, times: int | None = None, seconds: float = 0.0) -> int:
        """Add a ``StoreFault`` for calls that begin from now on, and return its number."""
        fault = StoreFault(next(self._numbers), kind, list(methods), times, seconds)
        self._state.faults.append(fault)
        self._write()
        return fault.number

    def clear_faults(self) -> None:
        """Remove all faults for calls that begin from now on."""
        self._state.faults.clear()
        self._write()

    def fork(self, log: Path, *sequences: str) -> None:
        """Make each process fork soon; its child tries to issue ids, and reports on it.

        Args:
            log: The child logs issued ids to LOG.PID; ``fork_results`` reads its ``ForkResult``.
            sequences: The sequences to allocate from, besides document ids and UUIDs.
        """
        self._state.fork_count += 1
        self._state.fork_log = str(log)
        self._state.fork_sequences = list(sequences)
        self._write()

    def _write(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(asdict(self._state)))
        # The node compares modification times, which are too coarse for two writes in a row.
        number = next(self._writes)
        os.utime(new, ns=(number, number))
        new.replace(self.file)


@dataclass
class ForkResult:
    """What a forked child was able to issue."""

    pid: int
    ids: int  # how many sequence ids and document ids it issued; its log has them
    uuids: list[str]  # the UUIDs of version 7 that it issued
    refusals: dict[str, int]  # counts of errors, by message


def fork_results(log: Path) -> list[ForkResult]:
    """Return the reports of the children that have not crashed; see ``NodeControl.fork``."""
    return [ForkResult(**json.loads(file.read_text())) for file in sorted(log.parent.glob(f"fork-{log.name}-*.json"))]


def fork_exit_codes(log: Path) -> list[int]:
    """Return the exit codes of ended children from a node's log; gRPC crashes in some of them."""
    lines = [line for line in log.read_text().splitlines() if '"forked"' in line]
    return [json.loads(line)["exit_code"] for line in lines]


def read_state(file: Path) -> ControlState:
    """Read a file that a ``NodeControl`` wrote."""
    state: dict[str, Any] = json.loads(file.read_text())
    return ControlState(**state | {"faults": [StoreFault(**each) for each in state["faults"]]})


def injected_faults(log: Path, name: str = "") -> Counter[tuple[str, str]]:
    """Count a node's logged faults of store calls by (kind, method); of one row if it is named."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in log.read_text().splitlines():
        if '"fault_injected"' in line:
            event = json.loads(line)
            counts[event["kind"], event["method"]] += name in ("", event["name"])
    return counts


def issued_after(log: Path, name: str, since: int) -> list[int]:
    """Return the first ids of a sequence's ranges that a node issued after a boot time in ns.

    The time at which the node last read its clock for the range counts, not the reply's arrival.
    Replies that were on their way when a process was paused arrive after the pause. Only a node
    with the log level debug logs them.
    """
    events = (json.loads(line) for line in log.read_text().splitlines() if '"issued"' in line)
    return [each["first_id"] for each in events if each["name"] == name and each["clock_read_at"] > since]
