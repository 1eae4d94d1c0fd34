"""Reads ranges one at a time from a client's log of JSON lines; and ports to listen on again."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class IssuedRange(NamedTuple):
    """An issued range; times are in nanoseconds of this machine's boot clock."""

    sequence: str
    node: int  # the node id of the process that issued the range
    lowest: int
    highest: int
    step: int  # the difference between successive ids
    generation: int  # the sequence's generation
    asked: int  # when the call was sent
    answered: int  # when the reply arrived

    @property
    def ids(self) -> range:
        """The ids, in the order of the sequence."""
        first, last = (self.lowest, self.highest) if self.step > 0 else (self.highest, self.lowest)
        return range(first, last + self.step, self.step)


def boot_time_ns() -> int:
    """Return the time of the boot clock, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read_ranges(log: Path) -> Iterator[IssuedRange]:
    """Yield ranges of a JSON lines log without document ids, even while a client writes it."""
    with log.open() as lines:
        header = json.loads(next(lines))
        for line in lines:
            if not line.endswith("\n"):
                return
            record: dict[str, Any] = json.loads(line)
            if "sequence" not in record:
                continue
            last = record["first"] + (record["count"] - 1) * record["step"]
            yield IssuedRange(
                record["sequence"],
                record.get("node", 0),
                min(record["first"], last),
                max(record["first"], last),
                record["step"],
                record["generation"],
                record["asked"] - header["boot_time_ns"],
                record["answered"] - header["boot_time_ns"],
            )


class ReservedPort:
    """A loopback port kept for a server, even while it is down, by a socket that never listens."""

    def __init__(self) -> None:
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._held.getsockname()[1]}"

    def close(self) -> None:
        """Release the port."""
        self._held.close()
