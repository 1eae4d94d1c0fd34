"""Checks of replies: one that breaks the contract of the protos is refused as a whole, before any id is given out."""

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from idalloc._core.errors import ProtocolError, check_duration, protocol_error
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2
from idalloc.v1 import sequences_pb2 as sequences

AnyResponse = TypeVar("AnyResponse", bound=Message)
StreamRequest = pb.StreamRangesRequest | pb.StreamDocIdsRequest
Ranges = pb.AllocateRangeResponse | pb.StreamRangesResponse
DocIds = pb.GenerateDocIdResponse | pb.StreamDocIdsResponse
Change = sequences.UpdateSequenceResponse | sequences.DeleteSequenceResponse | sequences.AdvanceSequenceResponse

# No store holds a larger id.
LARGEST_ID = 2**63 - 2
# The largest value of the server's setting max_ids_per_call.
MOST_IDS = 2**31 - 1
# How many ids a message of a stream has at most where the request names no number.
DEFAULT_CHUNK = 10_000
# How many seconds a pool may keep ids: lease_ttl is a day at most, and this leaves room for later servers.
LONGEST_USE = 366 * 86_400
# How many seconds a change may take to be effective: an imported row may say that its leases live a century.
LONGEST_WAIT = 101 * 366 * 86_400
# The years 1 to 9999, in seconds since 1970.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799

# So much of a text is shown in an error.
_SHOWN = 60
# The characters that the document ids of a process share; the serial follows.
_HEAD = 12
_LARGEST_SERIAL = 2**64 - 1
_DOC_ID = re.compile(r"[0-9a-f]{28}")
_PERIOD = re.compile(r"[0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?")
# In hexadecimal, without hyphens.
_UUIDS = {
    pb.UUID_VERSION_4: re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"),
    pb.UUID_VERSION_7: re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}"),
}
_UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIMES = ("exhaust_time", "create_time", "update_time", "delete_time")


def checked(request: Message, reply: AnyResponse) -> AnyResponse:
    """Returns the reply to a unary request, if the contract allows it.

    Raises:
        ProtocolError: It does not; or grpc.aio could not read the reply, and returned None.
    """
    check = CHECKS.get(type(reply))
    if check is None:
        raise unreadable(request)
    check(request, reply)
    return reply


def unreadable(request: Message) -> ProtocolError:
    """The error for a reply that is no message of protobuf."""
    return ProtocolError(f"the reply to {type(request).__name__} cannot be read; expected a message of protobuf")


def check_chunk(request: StreamRequest, reply: pb.StreamRangesResponse | pb.StreamDocIdsResponse, missing: int) -> int:
    """Checks a message of a stream by itself.

    Args:
        request: What the stream was asked for.
        reply: The message.
        missing: How many ids of the total have not come before it.

    Returns:
        How many ids it brings.

    Raises:
        ProtocolError: The contract does not allow it; or grpc.aio could not read it, and returned None.
    """
    if not missing:
        raise ProtocolError(f"the reply to {type(request).__name__} goes on after its {request.total_id_count} ids")
    most = min(request.chunk_id_count or DEFAULT_CHUNK, missing)
    least = most if request.chunk_id_count else 1  # the server's default may be less than 10,000
    if isinstance(reply, pb.StreamRangesResponse):
        return _check_range(reply, least, most, request.view == pb.RANGE_VIEW_TEXTS)
    if isinstance(reply, pb.StreamDocIdsResponse):
        return _check_doc_ids(reply, least, most, request.view)
    raise unreadable(request)


class Chunks:
    """Checks the messages of one stream, in their order.

    Attributes:
        missing: How many ids of the total have not come.
    """

    def __init__(self, request: StreamRequest) -> None:
        self.missing = request.total_id_count
        self._request = request
        self._last: tuple[str, Any] | None = None  # a period, or what document ids share; and the last id

    def check(self, reply: pb.StreamRangesResponse | pb.StreamDocIdsResponse) -> int:
        """Checks the next message, as ``check_chunk``, and that it goes on behind the one before."""
        count = check_chunk(self._request, reply, self.missing)
        if isinstance(reply, pb.StreamRangesResponse):
            ids = reply.range
            self._check_order(reply, "range.first_id", reply.period, ids.first_id, ids.last_id, ids.step)
        elif reply.runs:
            first = reply.runs[0].first_doc_id
            self._check_order(reply, "runs[0].first_doc_id", first[:_HEAD], first, _last_doc_id(reply.runs[-1]), 1)
        else:
            first = reply.doc_ids[0]
            self._check_order(reply, "doc_ids[0]", first[:_HEAD], first, reply.doc_ids[-1], 1)
        self.missing -= count
        return count

    def end(self) -> None:
        """Checks that the stream may end now.

        Raises:
            ProtocolError: Ids are missing.
        """
        if self.missing:
            name, total = type(self._request).__name__, self._request.total_id_count
            raise ProtocolError(f"the reply to {name} ended with {self.missing} of {total} ids missing")

    def _check_order(self, reply: Message, field: str, part: str, first: Any, last: Any, step: int) -> None:
        before, self._last = self._last, (part, last)
        if before is None or before[0] != part:
            return
        if first <= before[1] if step > 0 else first >= before[1]:
            raise protocol_error(
                reply, field, f"is {shown(first)}", f"an id behind {before[1]}, the last of the message before"
            )


def _check_range(reply: Ranges, least: int, most: int, with_texts: bool) -> int:
    """Checks a range and what comes with it; returns how many ids it has."""
    ids = reply.range
    first, last, step, count = ids.first_id, ids.last_id, ids.step, ids.id_count
    if not least <= count <= min(most, MOST_IDS):
        raise _wrong_count(reply, "range.id_count", f"is {count}", least, most)
    if not step:
        raise protocol_error(reply, "range.step", "is 0", "another number")
    if last != first + (count - 1) * step:
        expected = first + (count - 1) * step
        raise protocol_error(
            reply, "range.last_id", f"is {last}", f"{expected}, {count - 1} steps of {step} behind {first}"
        )
    if first > LARGEST_ID or last > LARGEST_ID:
        field = "range.first_id" if first > LARGEST_ID else "range.last_id"
        raise protocol_error(reply, field, f"is {LARGEST_ID + 1}", f"at most {LARGEST_ID}")
    check_duration(reply, "ttl", reply.ttl, LONGEST_USE)
    if reply.period and not _PERIOD.fullmatch(reply.period):
        raise protocol_error(
            reply, "period", f"is {shown(reply.period)}", "a year, a month or a day, such as '2026-11'"
        )
    if with_texts:
        _check_each_once(reply, "texts", list(reply.texts), count)
    elif reply.texts:
        raise protocol_error(reply, "texts", f"has {len(reply.texts)} items", "none but in the view TEXTS")
    return count


def _check_doc_ids(reply: DocIds, least: int, most: int, view: int) -> int:
    """Checks document ids; returns how many they are."""
    if view != pb.DOC_ID_VIEW_COMPACT:
        return _check_doc_id_texts(reply, least, most)
    if reply.doc_ids:
        raise protocol_error(reply, "doc_ids", f"has {len(reply.doc_ids)} items", "none in the view COMPACT")
    count, last = 0, ""
    for number, run in enumerate(reply.runs):
        first, step, more = run.first_doc_id, run.step, run.id_count
        if not 0 < more <= min(most, MOST_IDS) - count:
            at_most = min(most, MOST_IDS) - count
            raise protocol_error(
                reply, f"runs[{number}].id_count", f"is {more}", f"1 to {at_most}" if at_most else "no run"
            )
        if not _DOC_ID.fullmatch(first):
            raise _no_doc_id(reply, f"runs[{number}].first_doc_id", first)
        if first <= last:
            raise protocol_error(reply, f"runs[{number}].first_doc_id", f"is {shown(first)}", f"an id behind {last}")
        if step < 1 or int(first[_HEAD:], 16) + (more - 1) * step > _LARGEST_SERIAL:
            raise protocol_error(
                reply, f"runs[{number}].step", f"is {step}", f"at least 1, and {more} serials below 2^64"
            )
        count += more
        last = _last_doc_id(run)
    if count < least:
        raise _wrong_count(reply, "runs", f"has {count} ids", least, most)
    return count


def _last_doc_id(run: pb.DocIdRun) -> str:
    serial = int(run.first_doc_id[_HEAD:], 16) + (run.id_count - 1) * run.step
    return f"{run.first_doc_id[:_HEAD]}{serial:016x}"


def _check_doc_id_texts(reply: DocIds, least: int, most: int) -> int:
    texts = list(reply.doc_ids)
    if reply.runs:
        raise protocol_error(reply, "runs", f"has {len(reply.runs)} items", "none in the view IDS")
    if not least <= len(texts) <= most:
        raise _wrong_count(reply, "doc_ids", f"has {len(texts)} items", least, most)
    last = ""
    for number, text in enumerate(texts):
        if not _DOC_ID.fullmatch(text):
            raise _no_doc_id(reply, f"doc_ids[{number}]", text)
        if text <= last:
            raise protocol_error(reply, f"doc_ids[{number}]", f"is {shown(text)}", f"an id behind {last}")
        last = text
    return len(texts)


def _check_uuids(request: pb.GenerateUuidRequest, reply: pb.GenerateUuidResponse) -> None:
    if request.view == pb.UUID_VIEW_BYTES:
        field, uuids, other = "uuid_bytes", [octets.hex() for octets in reply.uuid_bytes], "uuids"
    else:
        field, uuids, other = "uuids", list(reply.uuids), "uuid_bytes"
    if beside := getattr(reply, other):
        raise protocol_error(reply, other, f"has {len(beside)} items", f"none beside {field}")
    _check_each_once(reply, field, uuids, request.id_count)
    version = _UUIDS[request.version]
    for number, text in enumerate(uuids):
        if request.view != pb.UUID_VIEW_BYTES and not _UUID_TEXT.fullmatch(text):
            raise protocol_error(reply, f"{field}[{number}]", f"is {shown(text)}", "a UUID of 36 lower-case characters")
        if not version.fullmatch(text.replace("-", "")):
            raise protocol_error(
                reply, f"{field}[{number}]", f"is {shown(text)}", f"a UUID of version {request.version}"
            )


def _check_each_once(reply: Message, field: str, texts: list[str], count: int) -> None:
    """Checks that there are so many texts, none of them empty, and none twice."""
    if len(texts) != count:
        raise _wrong_count(reply, field, f"has {len(texts)} items", count, count)
    if len(set(texts)) < count:
        twice = next(text for number, text in enumerate(texts) if text in texts[:number])
        raise protocol_error(reply, field, f"has {shown(twice)} twice", "each once")
    if "" in texts:
        raise protocol_error(reply, field, "has an empty item", "none")


def check_sequence(reply: Message, field: str, sequence: sequences.Sequence) -> None:
    """Checks what is known of a sequence: numbers and times that can be.

    Raises:
        ProtocolError: They cannot.
    """
    if sequence.remaining < 0:
        raise protocol_error(reply, f"{field}.remaining", f"is {sequence.remaining}", "at least 0")
    if not 0 <= sequence.used_ratio <= 1:
        raise protocol_error(reply, f"{field}.used_ratio", f"is {sequence.used_ratio}", "0 to 1")
    if not (sequence.ids_per_second >= 0 and isfinite(sequence.ids_per_second)):
        raise protocol_error(reply, f"{field}.ids_per_second", f"is {sequence.ids_per_second}", "a number, at least 0")
    for name in _TIMES:
        _check_time(reply, f"{field}.{name}", getattr(sequence, name))


def _check_time(reply: Message, field: str, time: Timestamp) -> None:
    if not (FIRST_SECOND <= time.seconds <= LAST_SECOND and 0 <= time.nanos < 10**9):
        found = (
            f"is {time.seconds} s and {time.nanos} ns since 1970" if time.nanos else f"is {time.seconds} s since 1970"
        )
        raise protocol_error(reply, field, found, "a time in the years 1 to 9999")


def _check_named(reply: Any, name: str) -> None:
    """Checks a reply that has the sequence of a name."""
    if reply.sequence.name != name:
        raise protocol_error(reply, "sequence.name", f"is {shown(reply.sequence.name)}", f"{name!r}")
    check_sequence(reply, "sequence", reply.sequence)


def _check_change(reply: Change, name: str) -> None:
    _check_named(reply, name)
    _check_time(reply, "effective_time", reply.effective_time)
    check_duration(reply, "effective_delay", reply.effective_delay, LONGEST_WAIT)


def _check_page(request: sequences.ListSequencesRequest, reply: sequences.ListSequencesResponse) -> None:
    """Checks a page by itself; see ``Pages`` for how pages follow each other."""
    if len(reply.sequences) > request.page_size:
        raise protocol_error(reply, "sequences", f"has {len(reply.sequences)} items", f"at most {request.page_size}")
    for number, sequence in enumerate(reply.sequences):
        if not sequence.name.startswith(request.name_prefix):
            found = f"is {shown(sequence.name)}"
            raise protocol_error(
                reply, f"sequences[{number}].name", found, f"a name that begins with {request.name_prefix!r}"
            )
        check_sequence(reply, f"sequences[{number}]", sequence)


def _check_node(reply: node_pb2.GetNodeResponse | node_pb2.UpdateNodeResponse) -> None:
    if not reply.HasField("node"):
        raise protocol_error(reply, "node", "is missing", "the node that answered")
    if not 0 <= reply.node.prefix < 2**16:
        raise protocol_error(reply, "node.prefix", f"is {reply.node.prefix}", "0 to 65535")


def shown(value: object) -> str:
    """A value of a reply for an error: a long text is cut, and characters that do not print are escaped."""
    if not isinstance(value, str):
        return str(value)
    return f"{value[:_SHOWN]!r}{'…' if len(value) > _SHOWN else ''}"


def _wrong_count(reply: Message, field: str, found: str, least: int, most: int) -> ProtocolError:
    return protocol_error(reply, field, found, f"{most}" if least == most else f"{least} to {most}")


def _no_doc_id(reply: Message, field: str, text: str) -> ProtocolError:
    return protocol_error(reply, field, f"is {shown(text)}", "28 lower-case hexadecimal characters")


# How each reply to a unary request is checked.
CHECKS: dict[type[Message], Callable[[Any, Any], object]] = {
    pb.AllocateRangeResponse: lambda request, reply: _check_range(
        reply, request.id_count, request.id_count, request.view == pb.RANGE_VIEW_TEXTS
    ),
    pb.GenerateDocIdResponse: lambda request, reply: _check_doc_ids(
        reply, request.id_count, request.id_count, request.view
    ),
    pb.GenerateUuidResponse: _check_uuids,
    sequences.CreateSequenceResponse: lambda request, reply: _check_named(reply, request.sequence.name),
    sequences.GetSequenceResponse: lambda request, reply: _check_named(reply, request.name),
    sequences.ListSequencesResponse: _check_page,
    sequences.UpdateSequenceResponse: lambda request, reply: _check_change(reply, request.sequence.name),
    sequences.DeleteSequenceResponse: lambda request, reply: _check_change(reply, request.name),
    sequences.AdvanceSequenceResponse: lambda request, reply: _check_change(reply, request.name),
    sequences.ParseIdResponse: lambda request, reply: None,  # any number, and parts of a text that the caller has
    node_pb2.GetNodeResponse: lambda request, reply: _check_node(reply),
    node_pb2.UpdateNodeResponse: lambda request, reply: _check_node(reply),
}
