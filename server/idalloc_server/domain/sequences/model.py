"""What a sequence is: its name and its settings. What may be set, and changed, is in ``rules``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from idalloc_server.domain.errors import InvalidRequest

# CrateDB stores no larger BIGINT: 2^63-1 is refused by the server itself.
MAX_ID = 2**63 - 2
# Far enough for all, and near enough that no difference of a step and a bound overflows.
MIN_ID = -(2**62)
MAX_STEP = 2**61
MAX_NAME_BYTES = 255
# Stands between a sequence's name and a period in the name of the period's own counter; no name may have it.
PERIOD_MARK = "\x1f"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Kind(IntEnum):
    """What the values are; the numbers are those of ``idalloc.v1.SequenceKind``."""

    COUNTER = 1
    TIMESTAMP_MS = 2
    TIMESTAMP_US = 3

    @property
    def per_second(self) -> int:
        """How many values of a timestamp a second has."""
        return {Kind.TIMESTAMP_MS: 1_000, Kind.TIMESTAMP_US: 1_000_000}[self]


class Ordering(IntEnum):
    """In which order ids are handed out; the numbers are those of ``idalloc.v1.Ordering``."""

    RISING_PER_NODE = 1
    RISING = 2


class Reset(IntEnum):
    """When the sequence starts over; the numbers are those of ``idalloc.v1.Reset``."""

    NEVER = 1
    YEARLY = 2
    MONTHLY = 3
    DAILY = 4


@dataclass(frozen=True, slots=True)
class Sequence:
    """The settings of a sequence.

    Attributes:
        start: The first id that is ever issued.
        step: The distance from one id to the next, never 0.
        min_value: No id lies below it.
        max_value: No id lies above it.
        kind: What the values are.
        ordering: In which order ids are handed out.
        min_lease_size: The fewest ids that a node takes from the store at a time.
        max_lease_size: The most that it takes beyond what is asked for; 0 for the lane's own limit.
        format: The template of an id's text; empty for decimal digits.
        reset: When the sequence starts over.
        time_zone: Where periods begin, and dates in texts are meant.
        labels: Words of the user's own.
        description: For people.
    """

    start: int = 1
    step: int = 1
    min_value: int = 1
    max_value: int = MAX_ID
    kind: Kind = Kind.COUNTER
    ordering: Ordering = Ordering.RISING_PER_NODE
    min_lease_size: int = 0
    max_lease_size: int = 0
    format: str = ""
    reset: Reset = Reset.NEVER
    time_zone: str = "UTC"
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    description: str = ""

    @property
    def before_start(self) -> int:
        """The counter of a sequence that has issued nothing. It may lie below the bounds."""
        return self.start - self.step

    @property
    def bound(self) -> int:
        """The last value that the counter may reach: it runs towards this one of the two bounds."""
        return self.max_value if self.step > 0 else self.min_value

    @property
    def is_rising(self) -> bool:
        """Whether an allocation gets ids behind those of all that were answered before it, on any node."""
        return self.ordering == Ordering.RISING or self.kind != Kind.COUNTER

    def is_past(self, value: int, other: int) -> bool:
        """Whether the counter comes to ``value`` later than to ``other``."""
        return value > other if self.step > 0 else value < other

    def reaching(self, value: int) -> int:
        """Returns the first point of the lattice (start + k * step, k >= -1) that is not before ``value``."""
        steps = max(0, -((value - self.before_start) // -self.step))
        return self.before_start + steps * self.step


def check_name(name: str, field: str = "sequence") -> None:
    """Refuses a name that is not 1 to 255 bytes of UTF-8 without control characters.

    Raises:
        InvalidRequest: It is not; the error names ``field``.
    """
    size = len(name.encode())
    if not size:
        raise InvalidRequest(field, "must not be empty")
    if size > MAX_NAME_BYTES:
        raise InvalidRequest(field, f"must have at most {MAX_NAME_BYTES} bytes of UTF-8, has {size}")
    if _CONTROL.search(name):
        raise InvalidRequest(field, "must not have control characters")


def name_of_period(name: str, period: str) -> str:
    """Returns the name under which the counter of one period of a sequence lies in the store."""
    return f"{name}{PERIOD_MARK}{period}"
