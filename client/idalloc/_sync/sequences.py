"""`client.sequences` of the client for threads."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from idalloc._core.requests import AnyRequest, AnyResponse
from idalloc._core.sequences import (
    Pages,
    SequenceSettings,
    advance_request,
    create_request,
    delete_request,
    update_request,
)
from idalloc._sync.base import BaseClient, Stubs
from idalloc.v1 import sequences_pb2 as pb

if TYPE_CHECKING:
    from typing import Unpack

    import grpc


class Sequences:
    """The sequences of a server: ``client.sequences``.

    A change carries a request id of its own, so that it is done once also where its answer was lost and gRPC sent it
    again. Nodes may still use the old settings until the ``effective_time`` in the reply; ``effective_delay`` is the
    time until then.

    All raise what calls of the client do, and before anything is sent ``ValueError`` for a value that does not fit
    into its field (a number beyond 64 bits, a word that the setting does not know) and ``TypeError`` for one of
    another type; both name the argument.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    def create(self, name: str, **settings: "Unpack[SequenceSettings]") -> pb.Sequence:
        """Creates a sequence. Under the name of a deleted one, it goes on behind that one's last id.

        Args:
            name: Its name: 1 to 255 bytes of UTF-8 without control characters.
            settings: What it is made of, see ``SequenceSettings``; what is left out is the default.

        Raises:
            SequenceExists: There is one of that name.
            InvalidRequest: A setting breaks its rule.
            ValueError: A setting is none of its words, or does not fit into its field.
            TypeError: A setting is of another type, or there is none of that name.
        """
        return self._call(lambda stubs: stubs.sequences.CreateSequence, create_request(name, settings)).sequence

    def get(self, name: str, period: str = "") -> pb.Sequence:
        """Gets a sequence: its settings, its counter, and when it will be exhausted.

        Args:
            name: Its name.
            period: As in ``advance``.
        """
        request = pb.GetSequenceRequest(name=name, period=period)
        return self._call(lambda stubs: stubs.sequences.GetSequence, request).sequence

    def list(self, prefix: str = "", *, show_deleted: bool = False) -> Iterator[pb.Sequence]:
        """Lists sequences by name, asking for page after page.

        Args:
            prefix: Only those whose names begin with this.
            show_deleted: Whether also deleted ones.
        """
        pages, more = Pages(prefix, show_deleted), True
        while more:
            response = self._call(lambda stubs: stubs.sequences.ListSequences, pages.request)
            more = pages.follow(response)
            yield from response.sequences

    def update(self, name: str, *, etag: str = "", **settings: "Unpack[SequenceSettings]") -> pb.UpdateSequenceResponse:
        """Changes settings of a sequence.

        Args:
            name: Its name.
            etag: Where it is given, the sequence must not have been changed since this etag of it was read.
            settings: What to change, see ``SequenceSettings``; None restores the default, labels are replaced as a
                whole. Kind, reset, time zone and the sign of step stay for ever.

        Raises:
            SequenceChanged: The etag is not the present one.
            ValueError: There is nothing to change, or as in ``create``.
        """
        request = update_request(name, settings, etag)
        return self._call(lambda stubs: stubs.sequences.UpdateSequence, request)

    def delete(self, name: str, *, etag: str = "") -> pb.DeleteSequenceResponse:
        """Deletes a sequence. Its name stays known: created again, it goes on behind its last id.

        Args:
            name: Its name.
            etag: As in ``update``.
        """
        return self._call(lambda stubs: stubs.sequences.DeleteSequence, delete_request(name, etag))

    def advance(self, name: str, past: int, *, period: str = "", etag: str = "") -> pb.AdvanceSequenceResponse:
        """Moves a sequence past a value, as after an import of rows that have ids already. It never moves back.

        From ``effective_time`` on no id at or below ``past`` is given (at or above, where the sequence counts down),
        neither by a node nor by ``ids()``.

        Args:
            name: Its name.
            past: The largest id in use, or the smallest one where the sequence counts down.
            period: Which period's counter, such as ``"2026-11"``, where the sequence has a reset; empty for the
                present one.
            etag: As in ``update``.
        """
        request = advance_request(name, past, period, etag)
        return self._call(lambda stubs: stubs.sequences.AdvanceSequence, request)

    def _call(
        self,
        method: "Callable[[Stubs], grpc.UnaryUnaryMultiCallable[AnyRequest, AnyResponse]]",
        request: AnyRequest,
    ) -> AnyResponse:
        return self._client._call(method, request)
