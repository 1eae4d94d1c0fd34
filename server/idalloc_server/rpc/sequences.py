"""The servicer of idalloc.v1.SequenceService."""

import base64
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from idalloc.v1 import sequences_pb2 as pb
from idalloc_server.auth.call_types import Context
from idalloc_server.domain.administration.change_keys import ChangeKey
from idalloc_server.domain.administration.service import ChangeResult, SequenceService
from idalloc_server.domain.administration.summary import SequenceSummary
from idalloc_server.domain.errors import InvalidRequest, SequenceInvalid
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_server.domain.sequences.sequence import Kind, Ordering, Reset

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 1000
# The most bytes of a page, unless its first sequence has more. gRPC clients accept 4 MiB by
# default.
MAX_PAGE_BYTES = 1_000_000
MAX_INT64 = 2**63 - 1

_ENUMS: dict[str, tuple[str, type[Kind] | type[Ordering] | type[Reset]]] = {
    "kind": ("SequenceKind", Kind),
    "ordering": ("Ordering", Ordering),
    "reset": ("Reset", Reset),
}
# The fields that callers may set, besides the name.
_SETTINGS = (
    "description",
    "labels",
    "kind",
    "start",
    "step",
    "min_value",
    "max_value",
    "json_safe",
    "offset",
    "increment",
    "ordering",
    "min_lease_size",
    "max_lease_size",
    "format",
    "reset",
    "time_zone",
)
# Fields that only derive other settings and are not stored: the mask "*" does not reset them.
_INPUT_ONLY = frozenset({"json_safe", "offset", "increment"})
_WITH_PRESENCE = frozenset({"start", "step", "min_value", "max_value"})
_FIELDS = frozenset(field.name for field in pb.Sequence.DESCRIPTOR.fields)


@dataclass(eq=False)
class SequencesServicer:
    """Translates requests and replies of sequences."""

    descriptor = pb.DESCRIPTOR.services_by_name["SequenceService"]

    service: SequenceService

    async def CreateSequence(self, request: pb.CreateSequenceRequest, context: Context) -> pb.CreateSequenceResponse:
        """See sequences.proto."""
        change_key = self._change_key(request, request.request_id)
        with _prefix_fields("sequence"):
            given = _settings_of(request.sequence, _set_fields(request.sequence))
            created = await self.service.create(request.sequence.name, given, change_key)
        return pb.CreateSequenceResponse(sequence=_to_message(created))

    async def GetSequence(self, request: pb.GetSequenceRequest, context: Context) -> pb.GetSequenceResponse:
        """See sequences.proto."""
        return pb.GetSequenceResponse(sequence=_to_message(await self.service.get(request.name, request.period)))

    async def ListSequences(
        self, request: pb.ListSequencesRequest, context: Context, readable: Patterns | None = None
    ) -> pb.ListSequencesResponse:
        """See sequences.proto."""
        if request.page_size < 0:
            raise InvalidRequest("page_size", f"must be at least 1, or 0 for the default, not {request.page_size}")
        size = min(request.page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        after = _last_listed(request)
        try:
            found, last_name = await self.service.list(
                request.name_prefix, after, size, with_deleted=request.show_deleted, visible=readable
            )
        except SequenceInvalid as invalid:
            name = invalid.metadata["sequence"]
            # A list without the corrupt row would make callers believe that the sequence does not
            # exist.
            raise SequenceInvalid(
                name if readable is None or readable.match(name) else "(a name that you may not read)",
                "its row in the store is corrupt (GetSequence has the details), so this list ends with an error; "
                "repair the row, or choose a name_prefix that excludes it",
            ) from invalid
        page = pb.ListSequencesResponse()
        size = 0
        for summary in found:
            sequence = _to_message(summary)
            size += sequence.ByteSize()
            if page.sequences and size > MAX_PAGE_BYTES:
                last_name = page.sequences[-1].name
                break
            page.sequences.append(sequence)
        if last_name:
            token = json.dumps([last_name, request.name_prefix, request.show_deleted])
            page.next_page_token = base64.urlsafe_b64encode(token.encode()).decode()
        return page

    async def UpdateSequence(self, request: pb.UpdateSequenceRequest, context: Context) -> pb.UpdateSequenceResponse:
        """See sequences.proto."""
        change_key = self._change_key(request, request.request_id)
        fields = _masked_fields(request)
        with _prefix_fields("sequence"):
            given = _settings_of(request.sequence, fields)
            changed = await self.service.update(request.sequence.name, given, request.sequence.etag, change_key)
        return pb.UpdateSequenceResponse(**_to_reply(changed))

    async def DeleteSequence(self, request: pb.DeleteSequenceRequest, context: Context) -> pb.DeleteSequenceResponse:
        """See sequences.proto."""
        change_key = self._change_key(request, request.request_id)
        changed = await self.service.delete(request.name, request.etag, change_key)
        return pb.DeleteSequenceResponse(**_to_reply(changed))

    async def AdvanceSequence(self, request: pb.AdvanceSequenceRequest, context: Context) -> pb.AdvanceSequenceResponse:
        """See sequences.proto."""
        change_key = self._change_key(request, request.request_id)
        if not request.HasField("past"):
            raise InvalidRequest("past", "must be set, even if it is 0")
        changed = await self.service.advance(
            request.name, request.past, request.period, etag=request.etag, change_key=change_key
        )
        return pb.AdvanceSequenceResponse(**_to_reply(changed))

    async def ParseId(self, request: pb.ParseIdRequest, context: Context) -> pb.ParseIdResponse:
        """See sequences.proto."""
        parsed = await self.service.parse(request.sequence, request.text)
        return pb.ParseIdResponse(
            value=parsed.value,
            year=parsed.year,
            month=parsed.month,
            day=parsed.day,
            prefix=parsed.prefix,
            check=parsed.check,
        )

    def _change_key(self, request: Message, request_id: str) -> ChangeKey:
        content = request.DESCRIPTOR.full_name.encode() + b"\0" + request.SerializeToString(deterministic=True)
        return self.service.change_key(request_id, content)


@contextmanager
def _prefix_fields(message: str) -> Iterator[None]:
    """Name invalid fields by their path in the request."""
    try:
        yield
    except InvalidRequest as refused:
        raise InvalidRequest(f"{message}.{refused.field}", refused.rule) from refused


def _set_fields(sequence: pb.Sequence) -> list[str]:
    return [field.name for field, _ in sequence.ListFields() if field.name in _SETTINGS]


def _masked_fields(request: pb.UpdateSequenceRequest) -> Iterable[str]:
    """Return the settings that an update changes."""
    paths = list(request.update_mask.paths)
    set_fields = _set_fields(request.sequence)
    if not paths:
        return set_fields
    if "*" in paths:
        if len(paths) > 1:
            raise InvalidRequest("update_mask", '"*" must be the only path')
        return [field for field in _SETTINGS if field not in _INPUT_ONLY or field in set_fields]
    for path in paths:
        if path not in _FIELDS:
            within = " (only whole fields can be changed)" if path.partition(".")[0] in _FIELDS else ""
            raise InvalidRequest("update_mask", f"a sequence has no field {path!r}{within}")
    return [field for field in _SETTINGS if field in paths]


def _settings_of(sequence: pb.Sequence, fields: Iterable[str]) -> dict[str, Any]:
    """Return the values of fields as the domain takes them: None for a field that is not set."""
    given: dict[str, Any] = {}
    for field in fields:
        value = getattr(sequence, field)
        if field in _WITH_PRESENCE:
            given[field] = value if sequence.HasField(field) else None  # type: ignore[arg-type]
        elif field in _ENUMS:
            name, kind = _ENUMS[field]
            try:
                given[field] = kind(value) if value else None
            except ValueError:
                raise InvalidRequest(field, f"{value} is not a value of {name}") from None
        else:
            given[field] = (dict(value) if field == "labels" else value) or None
    return given


def _last_listed(request: pb.ListSequencesRequest) -> str:
    """Return the last name of the previous page; empty for the first page."""
    if not request.page_token:
        return ""
    try:
        after, *other = json.loads(base64.b64decode(request.page_token, altchars=b"-_", validate=True))
        # Not check_name: an adopted table may have names that are invalid for new sequences.
        if not after.encode():
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError):
        after = ""
        other = []
    if len(other) != 2:
        raise InvalidRequest("page_token", "must be the next_page_token of a reply")
    if other != [request.name_prefix, request.show_deleted]:
        raise InvalidRequest("page_token", "is from a list with another name_prefix or show_deleted")
    return str(after)


def _to_reply(changed: ChangeResult) -> dict[str, Any]:
    """Return the fields that all replies to a change share."""
    delay = Duration()
    delay.FromMilliseconds(math.ceil(changed.effective_delay * 1000))
    return {
        "sequence": _to_message(changed.summary),
        "effective_time": _timestamp(changed.effective_at),
        "effective_delay": delay,
    }


def _to_message(summary: SequenceSummary) -> pb.Sequence:
    row = summary.row
    sequence = row.sequence
    return pb.Sequence(
        name=row.name,
        description=sequence.description,
        labels=sequence.labels,
        kind=int(sequence.kind),  # type: ignore[arg-type]
        start=sequence.start,
        step=sequence.step,
        min_value=sequence.min_value,
        max_value=sequence.max_value,
        ordering=int(sequence.ordering),  # type: ignore[arg-type]
        min_lease_size=sequence.min_lease_size,
        max_lease_size=sequence.max_lease_size,
        format=sequence.format,
        reset=int(sequence.reset),  # type: ignore[arg-type]
        time_zone=sequence.time_zone,
        last_value=summary.last_value,
        remaining=min(summary.remaining, MAX_INT64),
        used_ratio=summary.used_ratio,
        ids_per_second=summary.ids_per_second,
        exhaust_time=_timestamp(summary.exhaust_time),
        generation=row.generation,
        period=summary.period,
        etag=summary.etag,
        create_time=_timestamp(row.created_at),
        update_time=_timestamp(row.changed_at),
        delete_time=_timestamp(row.changed_at if row.deleted else None),
    )


def _timestamp(seconds: float | None) -> Timestamp | None:
    if seconds is None:
        return None
    stamp = Timestamp()
    stamp.FromMilliseconds(math.ceil(seconds * 1000))
    return stamp
