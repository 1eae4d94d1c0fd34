"""The common base of both formats of a log of issued ids."""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from idalloc._core.text import escaped
from idalloc.verify._names import Names

# A row of a binary log; a record's name is its number in Names, not in the file.
ROW = np.dtype(
    [
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
        ("request_head", "<u8"),
        ("request_tail", "<u8"),
        ("zeros", "<u4"),
        ("check", "<u4"),
    ]
)
Rows: TypeAlias = npt.NDArray[np.void]

# The longest header; a longer one is damaged.
MAX_HEADER = 64 * 1024
# The limit of times since the boot: 146 years in nanoseconds.
MAX_TIME = 2**62


class InvalidFile(Exception):
    """A file cannot be read. The message begins with its path; unsafe characters are escaped."""

    def __init__(self, message: str) -> None:
        super().__init__(escaped(message))


class TruncatedHeader(InvalidFile):
    """A log ends before its first record."""

    def __init__(self, path: Path) -> None:
        why = "ends in its header, before any record" if path.stat().st_size else "is empty"
        super().__init__(f"{path}: this log {why}; leave it out if its client was killed at its start")


class Log:
    """A log, read from its beginning to its end."""

    def __init__(self, path: Path, number: int, header: dict[str, Any], *, begin: int, names: Names) -> None:
        self.path = path
        self.number = number  # its index among all logs
        boot_id = header.get("boot_id")
        ahead = header.get("boot_offset_ns")
        times: list[Any] = [header.get("boot_time_ns"), 0 if ahead is None else ahead]
        timely = {*map(type, times)} == {int} and all(abs(time) < MAX_TIME for time in [*times, sum(times)])
        if not timely or not isinstance(boot_id, str) or not boot_id.isascii():
            raise InvalidFile(f"{path}: the header of this log is damaged")
        # The time of the boot by the log's clock, in nanoseconds since the Unix epoch.
        self.boot_time = sum(times)
        # The machine's boot that the times belong to; empty if the boot, or the offset of the log's
        # clock from the machine's, is unknown.
        self.boot_id = "" if ahead is None else boot_id.lower()
        self._begin = begin
        self._names = names
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first record."""
        self._at = self._begin
        self._row = 0
        self._size = self.path.stat().st_size
        self.ended = False  # whether the whole log was read
        self.truncated = False  # whether the log ends in the middle of a record
        self.malformed = 0  # the number of malformed records
        self.messages: list[str] = []  # of the first of them

    def read(self, max_records: int) -> Rows:
        """Read the next records, at least one if any is left."""
        raise NotImplementedError

    def _add_malformed(self, message: str) -> None:
        self.malformed += 1
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(f"{self.path}: {message}")


# The findings of each kind that have a message.
MAX_MESSAGES = 5
