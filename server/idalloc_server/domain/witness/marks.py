"""The marks that a witness keeps, and the interface of a witness."""

from collections.abc import Collection
from collections.abc import Sequence as Many
from typing import NamedTuple, Protocol

from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR
from idalloc_server.domain.store.records import Mark

# The beginning of the names of the marks of start timestamps; a prefix follows.
START = f"{PERIOD_SEPARATOR}start "


class Replacement(NamedTuple):
    """A new mark in place of one that was read."""

    name: str  # the name of the row in the store, or of the mark
    mark: Mark  # the new mark
    seen: str  # the token of the mark that was read; empty if there was none


class Witness(Protocol):
    """Durable high-water marks, kept apart from the store, shared by any number of processes.

    Every method raises ``StoreFailure``. A replacement without an answer may have been applied, or
    may be later: it changes nothing once another one was applied. Calls may run concurrently and do
    not block the event loop.
    """

    @property
    def address(self) -> str:
        """The witness's address, without passwords or tokens."""

    async def open(self) -> None:
        """Connect, and create missing tables.

        Raises:
            StartRefused: The place is unsuitable, has tables of another program, or lacks a
                privilege.
        """

    async def read(self, names: Collection[str]) -> dict[str, Mark]:
        """Return the marks of these names after the last acknowledged write.

        ``names`` is not empty.
        """

    async def replace(self, replacements: Many[Replacement]) -> set[str]:
        """Replace marks, each in one atomic write.

        The present mark must have the token ``seen``, or not exist if that is empty.
        ``replacements`` is not empty, and its names are distinct.

        Returns:
            The names whose mark is the new one. Of the others, the mark is another one, or the
            outcome is unknown.
        """

    async def list(self, after: str, limit: int) -> list[tuple[str, Mark]]:
        """Return at most ``limit`` marks after a name ("" for all), in byte order of names."""

    async def forget(self, names: Collection[str]) -> int:
        """Delete marks, and return how many there were. ``names`` is not empty."""

    async def close(self) -> None:
        """Close all connections. Further calls fail."""
