"""A sequence: its name and settings. ``validation`` has the rules for them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from idalloc_server.domain.errors import InvalidRequest

# The largest BIGINT that CrateDB stores: it rejects 2^63-1.
MAX_ID = 2**63 - 2
# The smallest id and the largest step: no difference of a step and a bound may overflow 64 bits.
MIN_ID = -(2**62)
MAX_STEP = 2**61
MAX_NAME_BYTES = 255
# Separates the sequence's name from the period in the name of a period's row. Not allowed in
# sequence names.
PERIOD_SEPARATOR = "\x1f"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Kind(IntEnum):
    """Kind of values, numbered as in ``idalloc.v1.SequenceKind``."""

    COUNTER = 1
    TIMESTAMP_MS = 2
    TIMESTAMP_US = 3

    @property
    def per_second(self) -> int:
        """Timestamp values in one second."""
        return {Kind.TIMESTAMP_MS: 1_000, Kind.TIMESTAMP_US: 1_000_000}[self]


class Ordering(IntEnum):
    """Order in which ids are issued, numbered as in ``idalloc.v1.Ordering``."""

    RISING_PER_NODE = 1
    RISING = 2


class Reset(IntEnum):
    """When the sequence restarts, numbered as in ``idalloc.v1.Reset``."""

    NEVER = 1
    YEARLY = 2
    MONTHLY = 3
    DAILY = 4


@dataclass(frozen=True, slots=True)
class Sequence:
    """The settings of a sequence."""

    start: int = 1  # the first id
    step: int = 1  # the difference between consecutive ids, not 0
    min_value: int = 1  # the smallest possible id
    max_value: int = MAX_ID  # the largest possible id
    kind: Kind = Kind.COUNTER  # counter or timestamps
    ordering: Ordering = Ordering.RISING_PER_NODE  # order in which ids are issued
    min_lease_size: int = 0  # the fewest ids that a node takes from the store at a time
    # The most ids that a node takes beyond those requested; 0 for the allocator's own limit.
    max_lease_size: int = 0
    format: str = ""  # template of an id's text; empty for decimal digits
    reset: Reset = Reset.NEVER  # when the sequence restarts
    time_zone: str = "UTC"  # IANA time zone of periods and of dates in formatted ids
    # Labels set by the user.
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    description: str = ""  # description set by the user

    @property
    def before_start(self) -> int:
        """The counter's value before the first id is issued. It may be out of bounds."""
        return self.start - self.step

    @property
    def bound(self) -> int:
        """The bound ahead of the counter: ``max_value``, or ``min_value`` with a negative step."""
        return self.max_value if self.step > 0 else self.min_value

    @property
    def is_rising(self) -> bool:
        """Whether ids rise in the order of the calls, over all nodes."""
        return self.ordering == Ordering.RISING or self.kind != Kind.COUNTER

    def is_past(self, value: int, other: int) -> bool:
        """Return whether ``value`` lies beyond ``other`` in the direction of the step."""
        return value > other if self.step > 0 else value < other

    def align(self, value: int) -> int:
        """Return the first start + k * step, k >= -1, that is not before ``value``."""
        steps = max(0, -((value - self.before_start) // -self.step))
        return self.before_start + steps * self.step


def check_name(name: str, field: str = "sequence") -> None:
    """Validate a sequence's name: 1 to 255 bytes of UTF-8 without control characters.

    Raises:
        InvalidRequest: The name is invalid; the error names ``field``.
    """
    size = len(name.encode())
    if not size:
        raise InvalidRequest(field, "must not be empty")
    if size > MAX_NAME_BYTES:
        raise InvalidRequest(field, f"must have at most {MAX_NAME_BYTES} bytes of UTF-8, has {size}")
    if _CONTROL.search(name):
        raise InvalidRequest(field, "must not have control characters")


def name_of_period(name: str, period: str) -> str:
    """Return the name of the store's row that holds the counter of a period."""
    return f"{name}{PERIOD_SEPARATOR}{period}"


def counts_ids(name: str, reset: Reset) -> bool:
    """Return whether a row counts ids: with a reset, only the rows of the periods do."""
    return reset == Reset.NEVER or PERIOD_SEPARATOR in name
