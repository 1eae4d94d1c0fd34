"""Checks of replies against the contract in the protos.

A reply that violates it is rejected as a whole, before any of its ids is returned to the caller:
the checks raise ``ProtocolError``, also for None, which grpc.aio returns for what it cannot parse.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from math import isfinite
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from idalloc._core.errors import ProtocolError
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2
from idalloc.v1 import sequences_pb2 as sequences

StreamRequest = pb.StreamRangesRequest | pb.StreamDocIdsRequest
StreamReply = pb.StreamRangesResponse | pb.StreamDocIdsResponse
Ranges = pb.AllocateRangeResponse | pb.StreamRangesResponse
DocIds = pb.GenerateDocIdResponse | pb.StreamDocIdsResponse
Change = sequences.UpdateSequenceResponse | sequences.DeleteSequenceResponse | sequences.AdvanceSequenceResponse

# The largest id that a store holds.
MAX_ID = 2**63 - 2
# The largest value of the server's setting max_ids_per_call.
MAX_IDS = 2**31 - 1
# The largest message of a stream, in ids, if the request has no chunk_id_count.
DEFAULT_CHUNK = 10_000
# The longest ttl. The server's lease_ttl is a day at most; the rest is room for later versions.
MAX_TTL_SECONDS = 366 * 86_400
# The longest time until a change is effective: an imported row may have a lease of a century.
MAX_EFFECTIVE_DELAY_SECONDS = 101 * 366 * 86_400
# The years 1 to 9999, in seconds since 1970.
MIN_TIME = -62_135_596_800
MAX_TIME = 253_402_300_799

# How many characters of a text an error quotes.
_QUOTED_LENGTH = 60
# The 12 characters that the document ids of a server process share; the serial follows.
_SHARED_LENGTH = 12
_MAX_SERIAL = 2**64 - 1
_DOC_ID = re.compile(r"[0-9a-f]{28}")
_PERIOD = re.compile(r"[0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?")
# In hexadecimal, without hyphens.
_UUID_VERSIONS = {
    pb.UUID_VERSION_4: re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"),
    pb.UUID_VERSION_7: re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}"),
}
_TIMES = ("exhaust_time", "create_time", "update_time", "delete_time")


def protocol_error(reply: Message, field: str, found: str, expected: str) -> ProtocolError:
    """Return the error for a reply that violates the contract.

    Args:
        reply: The reply, or the detail of an error.
        field: The path of the invalid field.
        found: The invalid value, with a verb, such as ``is 0``.
        expected: The expected value.
    """
    return ProtocolError(f"{type(reply).__name__}.{field} {found}; expected {expected}", metadata={"field": field})


def check_duration(reply: Message, field: str, duration: Duration, max_seconds: int) -> None:
    """Check that a duration is between 0 and ``max_seconds``."""
    seconds = duration.seconds
    nanos = duration.nanos
    if not (0 <= seconds <= max_seconds and 0 <= nanos < 10**9):
        found = f"is {seconds} s and {nanos} ns" if nanos else f"is {seconds} s"
        raise protocol_error(reply, field, found, f"0 to {max_seconds} s")


def check_reply(request: Message, reply: Message) -> None:
    """Check the reply to a unary request."""
    check = CHECKS.get(type(reply))
    if check is None:
        raise unparsable(request)
    check(request, reply)


def unparsable(request: Message) -> ProtocolError:
    """Return the error for a reply that is not a protobuf message."""
    return ProtocolError(f"the reply to {type(request).__name__} cannot be parsed as protobuf")


def check_chunk(request: StreamRequest, reply: StreamReply, missing: int) -> int:
    """Check one message of a stream, before which ``missing`` ids of the total had not arrived.

    Returns:
        The number of ids in the message.
    """
    if not missing:
        raise ProtocolError(f"the reply to {type(request).__name__} continues after its {request.total_id_count} ids")
    max_count = min(request.chunk_id_count or DEFAULT_CHUNK, missing)
    min_count = max_count if request.chunk_id_count else 1  # the server's default may be less than 10,000
    if isinstance(reply, pb.StreamRangesResponse):
        return _check_range(reply, min_count, max_count, request.view == pb.RANGE_VIEW_TEXTS)
    if isinstance(reply, pb.StreamDocIdsResponse):
        return _check_doc_ids(reply, min_count, max_count)
    raise unparsable(request)


def check_order(reply: StreamReply, before: tuple[str, Any] | None) -> tuple[str, Any]:
    """Check that the ids of a stream's message come after those of the previous message.

    ``before`` is what this function returned for the previous message; None for the first one.

    Returns:
        The message's period or shared characters, within which ids are in order, and its last id.
    """
    first: Any
    last: Any
    if isinstance(reply, pb.StreamRangesResponse):
        scope = reply.period
        field = "range.first_id"
        first = reply.range.first_id
        last = reply.range.last_id
        rises = reply.range.step > 0
    else:
        field = "runs[0].first_doc_id"
        first = reply.runs[0].first_doc_id
        scope = first[:_SHARED_LENGTH]
        last = _last_doc_id(reply.runs[-1])
        rises = True
    if before is not None and before[0] == scope and (first <= before[1] if rises else first >= before[1]):
        expected = f"an id after {before[1]}, the last one of the previous message"
        raise protocol_error(reply, field, f"is {quote(first)}", expected)
    return scope, last


def _check_range(reply: Ranges, min_count: int, max_count: int, with_texts: bool) -> int:
    """Check a message with a range; return the number of ids."""
    ids = reply.range
    first = ids.first_id
    last = ids.last_id
    step = ids.step
    count = ids.id_count
    if not min_count <= count <= min(max_count, MAX_IDS):
        raise protocol_error(reply, "range.id_count", f"is {count}", _bounds(min_count, max_count))
    if not step:
        raise protocol_error(reply, "range.step", "is 0", "a step other than 0")
    if last != (expected := first + (count - 1) * step):
        steps = f"{expected}, {count - 1} steps of {step} after {first}"
        raise protocol_error(reply, "range.last_id", f"is {last}", steps)
    if first > MAX_ID or last > MAX_ID:
        field = "range.first_id" if first > MAX_ID else "range.last_id"
        raise protocol_error(reply, field, f"is {MAX_ID + 1}", f"at most {MAX_ID}")
    check_duration(reply, "ttl", reply.ttl, MAX_TTL_SECONDS)
    if reply.period and not _PERIOD.fullmatch(reply.period):
        expected_period = "a year, a month or a day, such as '2026-11'"
        raise protocol_error(reply, "period", f"is {quote(reply.period)}", expected_period)
    if with_texts:
        _check_each_once(reply, "texts", list(reply.texts), count)
    elif reply.texts:
        raise protocol_error(reply, "texts", f"has {len(reply.texts)} items", "none outside the view TEXTS")
    return count


def _check_batch(request: pb.BatchAllocateRangesRequest, reply: pb.BatchAllocateRangesResponse) -> None:
    """Check that each request has a result: an error, or a valid range of its own."""
    if len(reply.results) != len(request.requests):
        raise protocol_error(reply, "results", f"has {len(reply.results)} items", f"{len(request.requests)}")
    taken = defaultdict(list)  # the bounds of the ranges of a sequence and period
    for number, (asked, result) in enumerate(zip(request.requests, reply.results, strict=True)):
        if result.HasField("response"):
            _check_range(result.response, asked.id_count, asked.id_count, with_texts=False)
            ids = result.response.range
            bounds = sorted((ids.first_id, ids.last_id))
            taken[asked.sequence, result.response.period].append((bounds, number))
        elif not result.error.code:
            raise protocol_error(reply, f"results[{number}]", "has no range and no error", "one of them")
    for ranges in taken.values():
        for (lower, _), (upper, number) in pairwise(sorted(ranges)):
            if upper[0] <= lower[1]:
                raise protocol_error(reply, f"results[{number}]", f"has {upper[0]} twice", "each id once")


def _check_doc_ids(reply: DocIds, min_count: int, max_count: int) -> int:
    """Check a message with document ids in the view COMPACT; return the number of ids."""
    if reply.doc_ids:
        raise protocol_error(reply, "doc_ids", f"has {len(reply.doc_ids)} items", "none in the view COMPACT")
    count = 0
    last = ""
    for number, run in enumerate(reply.runs):
        first = run.first_doc_id
        step = run.step
        more = run.id_count
        left = min(max_count, MAX_IDS) - count
        if not 0 < more <= left:
            raise protocol_error(reply, f"runs[{number}].id_count", f"is {more}", f"1 to {left}" if left else "no run")
        if not _DOC_ID.fullmatch(first):
            found = f"is {quote(first)}"
            raise protocol_error(reply, f"runs[{number}].first_doc_id", found, "28 lower-case hexadecimal characters")
        if first <= last:
            raise protocol_error(reply, f"runs[{number}].first_doc_id", f"is {quote(first)}", f"an id after {last}")
        if step < 1 or int(first[_SHARED_LENGTH:], 16) + (more - 1) * step > _MAX_SERIAL:
            expected = f"at least 1, and {more} serials below 2^64"
            raise protocol_error(reply, f"runs[{number}].step", f"is {step}", expected)
        count += more
        last = _last_doc_id(run)
    if count < min_count:
        raise protocol_error(reply, "runs", f"has {count} ids", _bounds(min_count, max_count))
    return count


def _last_doc_id(run: pb.DocIdRun) -> str:
    serial = int(run.first_doc_id[_SHARED_LENGTH:], 16) + (run.id_count - 1) * run.step
    return f"{run.first_doc_id[:_SHARED_LENGTH]}{serial:016x}"


def _check_uuids(request: pb.GenerateUuidRequest, reply: pb.GenerateUuidResponse) -> None:
    """Check UUIDs in the view BYTES."""
    if reply.uuids:
        raise protocol_error(reply, "uuids", f"has {len(reply.uuids)} items", "none in the view BYTES")
    uuids = [octets.hex() for octets in reply.uuid_bytes]
    _check_each_once(reply, "uuid_bytes", uuids, request.id_count)
    for number, text in enumerate(uuids):
        if not _UUID_VERSIONS[request.version].fullmatch(text):
            expected = f"a UUID of version {request.version}"
            raise protocol_error(reply, f"uuid_bytes[{number}]", f"is {quote(text)}", expected)


def _check_each_once(reply: Message, field: str, texts: list[str], count: int) -> None:
    """Check that there are ``count`` texts, none empty and none twice."""
    if len(texts) != count:
        raise protocol_error(reply, field, f"has {len(texts)} items", f"{count}")
    if len(set(texts)) < count:
        [(duplicate, _)] = Counter(texts).most_common(1)
        raise protocol_error(reply, field, f"has {quote(duplicate)} twice", "each once")
    if "" in texts:
        raise protocol_error(reply, field, "has an empty item", "none")


def check_sequence(reply: Message, field: str, sequence: sequences.Sequence) -> None:
    """Check the numbers and times of a sequence."""
    if sequence.remaining < 0:
        raise protocol_error(reply, f"{field}.remaining", f"is {sequence.remaining}", "at least 0")
    if not 0 <= sequence.used_ratio <= 1:
        raise protocol_error(reply, f"{field}.used_ratio", f"is {sequence.used_ratio}", "0 to 1")
    if not (sequence.ids_per_second >= 0 and isfinite(sequence.ids_per_second)):
        raise protocol_error(reply, f"{field}.ids_per_second", f"is {sequence.ids_per_second}", "a number, at least 0")
    for name in _TIMES:
        _check_time(reply, f"{field}.{name}", getattr(sequence, name))


def _check_time(reply: Message, field: str, time: Timestamp) -> None:
    if not (MIN_TIME <= time.seconds <= MAX_TIME and 0 <= time.nanos < 10**9):
        nanos = f" and {time.nanos} ns" if time.nanos else ""
        found = f"is {time.seconds} s{nanos} since 1970"
        raise protocol_error(reply, field, found, "a time in the years 1 to 9999")


def _check_named_sequence(reply: Any, name: str) -> None:
    """Check a reply that must contain the sequence ``name``."""
    if reply.sequence.name != name:
        raise protocol_error(reply, "sequence.name", f"is {quote(reply.sequence.name)}", f"{name!r}")
    check_sequence(reply, "sequence", reply.sequence)


def _check_change(reply: Change, name: str) -> None:
    _check_named_sequence(reply, name)
    _check_time(reply, "effective_time", reply.effective_time)
    check_duration(reply, "effective_delay", reply.effective_delay, MAX_EFFECTIVE_DELAY_SECONDS)


def _check_page(request: sequences.ListSequencesRequest, reply: sequences.ListSequencesResponse) -> None:
    """Check one page; ``Pages`` checks the order of pages."""
    if len(reply.sequences) > request.page_size:
        raise protocol_error(reply, "sequences", f"has {len(reply.sequences)} items", f"at most {request.page_size}")
    for number, sequence in enumerate(reply.sequences):
        if not sequence.name.startswith(request.name_prefix):
            expected = f"a name that begins with {request.name_prefix!r}"
            raise protocol_error(reply, f"sequences[{number}].name", f"is {quote(sequence.name)}", expected)
        check_sequence(reply, f"sequences[{number}]", sequence)


def _check_node(reply: node_pb2.GetNodeResponse | node_pb2.UpdateNodeResponse) -> None:
    if not reply.HasField("node"):
        raise protocol_error(reply, "node", "is missing", "the node that answered")
    if not 0 <= reply.node.prefix < 2**16:
        raise protocol_error(reply, "node.prefix", f"is {reply.node.prefix}", "0 to 65535")


def quote(value: object) -> str:
    """Return a value for an error message; texts are truncated and escaped."""
    if not isinstance(value, str):
        return str(value)
    return f"{value[:_QUOTED_LENGTH]!r}{'…' if len(value) > _QUOTED_LENGTH else ''}"


def _bounds(minimum: int, maximum: int) -> str:
    return f"{maximum}" if minimum == maximum else f"{minimum} to {maximum}"


# The check of each reply to a unary request.
CHECKS: dict[type[Message], Callable[[Any, Any], object]] = {
    pb.AllocateRangeResponse: lambda request, reply: _check_range(
        reply, request.id_count, request.id_count, request.view == pb.RANGE_VIEW_TEXTS
    ),
    pb.BatchAllocateRangesResponse: _check_batch,
    pb.GenerateDocIdResponse: lambda request, reply: _check_doc_ids(reply, request.id_count, request.id_count),
    pb.GenerateUuidResponse: _check_uuids,
    sequences.CreateSequenceResponse: lambda request, reply: _check_named_sequence(reply, request.sequence.name),
    sequences.GetSequenceResponse: lambda request, reply: _check_named_sequence(reply, request.name),
    sequences.ListSequencesResponse: _check_page,
    sequences.UpdateSequenceResponse: lambda request, reply: _check_change(reply, request.sequence.name),
    sequences.DeleteSequenceResponse: lambda request, reply: _check_change(reply, request.name),
    sequences.AdvanceSequenceResponse: lambda request, reply: _check_change(reply, request.name),
    sequences.ParseIdResponse: lambda request, reply: None,  # any value is valid
    node_pb2.GetNodeResponse: lambda request, reply: _check_node(reply),
    node_pb2.UpdateNodeResponse: lambda request, reply: _check_node(reply),
}
