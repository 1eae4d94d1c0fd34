"""What the JSON lines of a client's log say, for a test that looks at single records: ``verify`` looks at all."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Issued(NamedTuple):
    """A range, and when it was asked for and came, in nanoseconds of this machine's boot clock.

    Attributes:
        sequence: Empty for document ids.
        node: The process that took it.
        lowest: Its lowest id.
        highest: Its highest id.
        step: From one id to the next.
        generation: Of the sequence.
        asked: When the call began.
        answered: When the range came.
    """

    sequence: str
    node: int
    lowest: int
    highest: int
    step: int
    generation: int
    asked: int
    answered: int


def boot_ns() -> int:
    """Now, as records say it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read(log: Path) -> Iterator[Issued]:
    """Reads the ranges of a log of JSON lines, also while it is written; document ids are left out."""
    with log.open() as lines:
        header = json.loads(next(lines))
        for line in lines:
            if not line.endswith("\n"):
                return
            record: dict[str, Any] = json.loads(line)
            if "sequence" not in record:
                continue
            last = record["first"] + (record["count"] - 1) * record["step"]
            yield Issued(
                record["sequence"],
                record.get("node", 0),
                min(record["first"], last),
                max(record["first"], last),
                record["step"],
                record["generation"],
                record["asked"] - header["boot_time_ns"],
                record["answered"] - header["boot_time_ns"],
            )


class Port:
    """A port of loopback that stays this test's own also while no server listens on it: bound, and never listening."""

    def __init__(self) -> None:
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._held.getsockname()[1]}"

    def close(self) -> None:
        """Gives it up."""
        self._held.close()
