"""What harms a node of ``tests.faults.node``, written by a test to a file while the node runs.

A call that the node gets, and a statement that it sends, after a line of the test returned see what that line wrote.
"""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

Kind = Literal[
    "late",  # is applied and answered so many seconds later; one that is given up before is never applied
    "slow",  # is applied at once, and answered so many seconds later
    "hang",  # is never applied, and never answered
    "mute",  # is applied, and never answered
    "failed",  # is not applied; what is known is that its outcome is not known
    "lost",  # is applied, likewise
    "later",  # is applied so many seconds after that was told
    "twice",  # is applied twice; the answer is that of the second time
    "again",  # is applied twice; the answer is that of the first time
    "rejected",  # is not applied, and that is known: CrateDB's 503
    "unreachable",  # is not even sent
]
# The calls of a Store that move or make something.
WRITES = (
    "grant", "grant_timestamps", "create", "open_period", "revise", "record", "forget_recorded", "give_back",
    "claim_start", "keep_prefix", "release_prefix", "raise_start",
)  # fmt: skip


@dataclass
class Harm:
    """What becomes of calls to the store.

    Attributes:
        number: Which one it is.
        what: See ``Kind``.
        methods: The calls, by the names of ``Store``; none for all.
        times: How many of them, in each process; None for all from now on.
        seconds: See ``Kind``.
    """

    number: int
    what: Kind
    methods: list[str]
    times: int | None
    seconds: float


@dataclass
class State:
    """What the file says.

    Attributes:
        wall: What the wall clock says, and stands still at; None where it goes.
        wall_offset: How far it is ahead of the machine's, in seconds.
        boot_offset: Likewise of the clock that nobody sets: it only grows.
        harms: What becomes of calls to the store; of several for a call the first one counts.
        fork: How many forks there are to be, all in all.
        forked: Where the latest of them write, see ``Control.fork``.
        fork_sequences: Of what they try to issue ids.
    """

    wall: float | None = None
    wall_offset: float = 0.0
    boot_offset: float = 0.0
    harms: list[Harm] = field(default_factory=list)
    fork: int = 0
    forked: str = ""
    fork_sequences: list[str] = field(default_factory=list)


class Control:
    """Writes the file; each node has its own one, or several share one.

    Args:
        file: Where it is; made at once.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._state = State()
        self._writes = count(1)
        self._numbers = count(1)
        self._write()

    @property
    def arguments(self) -> list[str]:
        """What the node is started with."""
        return ["--control", str(self.file)]

    def set_wall(self, at: float | None = None, *, offset: float | None = None) -> None:
        """Sets the wall clock: it stands still ``at`` some time, or goes ``offset`` seconds ahead of the machine's."""
        self._state.wall = at
        self._state.wall_offset = offset or 0.0
        self._write()

    def move_boot(self, seconds: float) -> None:
        """Moves the clock that nobody sets forwards, as where a machine was suspended."""
        assert seconds >= 0
        self._state.boot_offset += seconds
        self._write()

    def harm(self, what: Kind, *methods: str, times: int | None = None, seconds: float = 0.0) -> int:
        """Has calls to the store go wrong from now on; see ``Harm``. Returns its number.

        One that is under way stays as it began.
        """
        harm = Harm(next(self._numbers), what, list(methods), times, seconds)
        self._state.harms.append(harm)
        self._write()
        return harm.number

    def heal(self) -> None:
        """Has all further calls to the store go well."""
        self._state.harms.clear()
        self._write()

    def fork(self, log: Path, *sequences: str) -> None:
        """Has each process of the node fork, soon. The child tries to issue ids, says what came of it, and ends.

        Args:
            log: Where it writes down what it issued: LOG.PID; ``forks`` then returns what came of it.
            sequences: Of what it tries to issue ids; of document ids and UUIDs it does in any case.
        """
        self._state.fork += 1
        self._state.forked = str(log)
        self._state.fork_sequences = list(sequences)
        self._write()

    def _write(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(asdict(self._state)))
        # The time of a file is coarse: two writes in a row would look like one.
        number = next(self._writes)
        os.utime(new, ns=(number, number))
        new.replace(self.file)


@dataclass
class Fork:
    """What the child of a fork got.

    Attributes:
        pid: Its process id.
        ids: How many ids of sequences and document ids it got: they are in its log.
        uuids: The UUIDs of version 7 that it got.
        refusals: Why it got nothing else, and how often it heard that.
    """

    pid: int
    ids: int
    uuids: list[str]
    refusals: dict[str, int]


def forks(log: Path) -> list[Fork]:
    """Returns what came of the forks that ended well by now; see ``Control.fork``."""
    return [Fork(**json.loads(file.read_text())) for file in sorted(log.parent.glob(f"told-{log.name}-*.json"))]


def ended_forks(log: Path) -> list[int]:
    """Returns from a node's log the exit codes of the forks that ended: gRPC crashes in some of them."""
    lines = [line for line in log.read_text().splitlines() if '"forked"' in line]
    return [json.loads(line)["exit_code"] for line in lines]


def read(file: Path) -> State:
    """Reads what a ``Control`` wrote."""
    given: dict[str, Any] = json.loads(file.read_text())
    return State(**given | {"harms": [Harm(**each) for each in given["harms"]]})


def harmed(log: Path) -> Counter[tuple[str, str]]:
    """Counts in a node's log how often calls to the store were harmed, by (what, method)."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in log.read_text().splitlines():
        if '"harmed"' in line:
            event = json.loads(line)
            counts[event["what"], event["method"]] += 1
    return counts
