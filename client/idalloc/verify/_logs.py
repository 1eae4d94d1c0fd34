"""What the two forms of a log of issued ids have in common, and how one is read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from idalloc.verify._names import Names

COMMON = [
    ("kind", "u1"),
    ("flags", "u1"),
    ("zero", "<u2"),
    ("name", "<u4"),
    ("generation", "<i8"),
    ("node", "<i8"),
    ("first", "<i8"),
    ("step", "<i8"),
    ("count", "<i8"),
    ("asked", "<i8"),
    ("answered", "<i8"),
]
# A row of a binary log; a record's name is its number in Names, not in the file.
ROW = np.dtype([*COMMON, ("request_head", "<u8"), ("request_tail", "<u8"), ("zeros", "<u4"), ("check", "<u4")])
Rows: TypeAlias = npt.NDArray[np.void]

# A flag in memory only: of the request id, format 1 has half.
HALF = 128

# No header is longer; what says so is damaged.
MOST_HEADER = 64 * 1024
# No machine has been up for so long: 146 years in nanoseconds.
MOST_TIME = 2**62


class NoLog(Exception):
    """A file cannot be read as what it should be; the text has its name, too."""


class EndsInHeader(NoLog):
    """A log ends before its first record."""

    def __init__(self, path: Path) -> None:
        why = "ends in its header, before any record" if path.stat().st_size else "is empty"
        super().__init__(f"{path}: this log {why}; leave it out if its client was killed at its start")


class Log:
    """A log that is read from its beginning to its end.

    Attributes:
        path: The file.
        number: Its place among all logs.
        boot_id: Which run of the machine its times are of; empty if that, or how far the log's clock is ahead of the
            machine's, is not known.
        boot_time: When that began, in nanoseconds since 1970, by the log's clock.
        ended: Whether all of it was read.
        cut: Whether it ends in the middle of a record.
        malformed: How many places in it are no records.
        messages: The first of them, in words.
    """

    def __init__(self, path: Path, number: int, header: dict[str, Any], begin: int, names: Names) -> None:
        self.path = path
        self.number = number
        boot_id, ahead = header.get("boot_id"), header.get("boot_offset_ns")
        self.boot_time = _time(header.get("boot_time_ns"), path) + (0 if ahead is None else _time(ahead, path))
        if not isinstance(boot_id, str) or not boot_id.isascii():
            raise NoLog(f"{path}: the header of this log is damaged")
        self.boot_id = "" if ahead is None else boot_id.lower()
        _time(self.boot_time, path)
        self._begin = begin
        self._names = names
        self.rewind()

    def rewind(self) -> None:
        """Goes back to the first record."""
        self._at = self._begin
        self._row = 0
        self._size = self.path.stat().st_size
        self.ended = False
        self.cut = False
        self.malformed = 0
        self.messages: list[str] = []

    def read(self, most: int) -> Rows:
        """Reads the next records, some if there are any left."""
        raise NotImplementedError

    def _tell(self, finding: str) -> None:
        self.malformed += 1
        if len(self.messages) < MOST_MESSAGES:
            self.messages.append(f"{self.path}: {finding}")


# So many findings of each kind are put in words.
MOST_MESSAGES = 5


def _time(value: object, path: Path) -> int:
    if type(value) is not int or not -MOST_TIME < value < MOST_TIME:
        raise NoLog(f"{path}: the header of this log is damaged")
    return value


def blocks(log: Log, most: int) -> Iterator[Rows]:
    """Reads a log once more from its beginning, to look something up."""
    log.rewind()
    while not log.ended:
        yield log.read(most)
