"""A message's bytes in pieces that are parsed one by one, without what has too many fields."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from idalloc_server.documents.cost import MAX_ARGUMENTS, MAX_INSERTED_DOCUMENTS, MAX_ITEMS
from idalloc_server.xproto.errors import XError, parse_error

# The bytes of a piece: about five milliseconds of parsing.
_PIECE = 64 * 1024

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# The errors of too many fields of a frame, by the field's name.
_TOO_MANY = {
    "row": (MAX_INSERTED_DOCUMENTS, XError(1105, f"an insert has at most {MAX_INSERTED_DOCUMENTS} documents")),
    "args": (MAX_ARGUMENTS, XError(1390, "Prepared statement contains too many placeholders")),
}
_OTHERS = (MAX_ITEMS, XError(1153, f"a part of a message has at most {MAX_ITEMS} items", "08S01"))


def pieces(descriptor: Any, payload: bytes) -> Iterator[bytes]:
    """Yield the bytes of a message in pieces of whole fields.

    Raises:
        XError: They are not such bytes, or have too many fields.
    """
    start, counts = 0, Counter[str]()
    if len(payload) > _PIECE:
        for number, begin, content, end in _fields(payload, 0, len(payload)):
            field = descriptor.fields_by_number.get(number)
            name = field.name if field is not None else ""
            counts[name] += 1
            most, failure = _TOO_MANY.get(name, _OTHERS)
            if counts[name] > most:
                raise failure
            if end - begin > _PIECE and field is not None and field.message_type is not None:
                _check_items(field.message_type, payload, content, end)
            if end - start > _PIECE:
                yield payload[start:end]
                start = end
    yield payload[start:]


def _check_items(descriptor: Any, payload: bytes, start: int, end: int) -> None:
    """Refuse a message with too many others in it."""
    items, waiting = 0, [(descriptor, start, end)]
    while waiting:
        outer, start, end = waiting.pop()
        for number, _, content, after in _fields(payload, start, end):
            field = outer.fields_by_number.get(number)
            if field is None or (inner := field.message_type) is None:
                continue
            items += 1
            if items > MAX_ITEMS:
                raise _OTHERS[1]
            if inner.name != "Scalar":  # which has at most one other
                waiting.append((inner, content, after))


def _fields(payload: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field's number, beginning, beginning of the content, and end."""
    at = start
    while at < end:
        begin = at
        tag, at = _varint(payload, at, end)
        content, kind = at, tag & 7
        if kind == _BYTES:
            length, content = _varint(payload, at, end)
            at = content + length
        elif kind == _VARINT:
            _, at = _varint(payload, at, end)
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise parse_error()
        if at > end:
            raise parse_error()
        yield tag >> 3, begin, content, at


def _varint(payload: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = shift = 0
    for at in range(at, min(end, at + 10)):  # noqa: B020 - the last value is used
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise parse_error()
