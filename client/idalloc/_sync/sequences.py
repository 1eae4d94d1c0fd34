"""``client.sequences`` of the client for threads."""

from collections.abc import Iterator
from typing import Unpack

from idalloc._core import sequences as calls
from idalloc._core.types import Sequence, SequenceChange
from idalloc._sync.base import BaseClient


class Sequences:
    """Administration of sequences: ``client.sequences``.

    Each change carries a new request id: the server applies it once, even if the client retries it
    because a reply was lost. Other nodes may use the old settings until the ``effective_time`` in
    the reply; ``effective_delay`` is the time until then.

    All methods raise the errors of ``Client``. Before they send anything, they raise
    ``InvalidRequest`` for a value that does not fit into its field, such as a number beyond 64 bits
    or an unknown enum text. They raise ``TypeError`` for a value of the wrong type. Both name the
    argument.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    def create(self, name: str, **settings: Unpack[calls.SequenceSettings]) -> Sequence:
        """Create a sequence.

        If a sequence of that name was deleted, the new one continues after its last id.

        Args:
            name: The name: 1 to 255 bytes of UTF-8 without control characters.
            settings: The settings, see ``idalloc.SequenceSettings``; the others have their
                defaults.

        Raises:
            SequenceExists: A sequence of that name exists.
            InvalidRequest: A setting is invalid.
            TypeError: A setting has the wrong type, or is unknown.
        """
        return self._client._call(calls.create(name, settings))

    def get(self, name: str, *, period: str = "") -> Sequence:
        """Return a sequence: its settings, its counter and the estimated time of exhaustion.

        Args:
            name: As in ``create``.
            period: As in ``advance``.

        Raises:
            SequenceNotFound: No sequence has that name.
        """
        return self._client._call(calls.get(name, period))

    def list(self, prefix: str = "", *, show_deleted: bool = False) -> Iterator[Sequence]:
        """Yield sequences in the order of their names. It requests one page after another.

        Args:
            prefix: Only sequences whose names begin with it.
            show_deleted: Whether to include deleted sequences.
        """
        pages = calls.Pages(prefix, show_deleted)
        while pages.more:
            yield from self._client._call(pages.next_page())

    def update(self, name: str, *, etag: str = "", **settings: Unpack[calls.SequenceSettings]) -> SequenceChange:
        """Change settings of a sequence.

        Args:
            name: As in ``create``.
            etag: If given, the change fails if the sequence was changed after this etag was read.
            settings: The settings to change, see ``idalloc.SequenceSettings``; None restores the
                default. Labels are replaced as a whole. Kind, reset, time zone and the sign of step
                cannot be changed.

        Raises:
            SequenceChanged: The etag is not the current one.
            InvalidRequest: No setting was given, or as in ``create``.
        """
        return self._client._call(calls.update(name, settings, etag))

    def delete(self, name: str, *, etag: str = "") -> SequenceChange:
        """Delete a sequence. If it is created again, it continues after its last id.

        Args:
            name: As in ``create``.
            etag: As in ``update``.
        """
        return self._client._call(calls.delete(name, etag))

    def advance(self, name: str, past: int, *, period: str = "", etag: str = "") -> SequenceChange:
        """Move a sequence past a value, for example after an import of rows with ids.

        It never moves back. From ``effective_time`` on, no node and no ``ids()`` returns an id at
        or below ``past`` (at or above, if the sequence counts down).

        Args:
            name: As in ``create``.
            past: The largest id in use, or the smallest one if the sequence counts down.
            period: The period of the counter, such as ``"2026-11"``, if the sequence has a reset;
                empty for the current period.
            etag: As in ``update``.
        """
        return self._client._call(calls.advance(name, past, period, etag))
