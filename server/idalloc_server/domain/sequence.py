"""What a sequence is: its name and its settings."""

import re
from dataclasses import dataclass

from idalloc_server.domain.errors import InvalidRequest

# CrateDB stores no larger BIGINT: 2^63-1 is refused by the server itself.
MAX_ID = 2**63 - 2
MAX_NAME_BYTES = 255

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Sequence:
    """The settings of a sequence.

    Attributes:
        start: The first id that is ever issued.
        step: The distance from one id to the next, never 0.
        min_value: No id lies below it.
        max_value: No id lies above it.
    """

    start: int = 1
    step: int = 1
    min_value: int = 1
    max_value: int = MAX_ID


def check_name(name: str) -> None:
    """Refuses a name that is not 1 to 255 bytes of UTF-8 without control characters.

    Raises:
        InvalidRequest: It is not.
    """
    size = len(name.encode())
    if not size:
        raise InvalidRequest("sequence", "must not be empty")
    if size > MAX_NAME_BYTES:
        raise InvalidRequest("sequence", f"must have at most {MAX_NAME_BYTES} bytes of UTF-8, has {size}")
    if _CONTROL.search(name):
        raise InvalidRequest("sequence", "must not have control characters")
