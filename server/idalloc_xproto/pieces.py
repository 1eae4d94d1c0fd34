"""Cuts a message's bytes into pieces that are parsed one by one; limits its fields and items."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from idalloc_xproto.documents.cost import MAX_ARGUMENTS, MAX_INSERTED_DOCUMENTS, MAX_ITEMS
from idalloc_xproto.mysql_errors import XError, parse_error

# The bytes of a piece: about five milliseconds of parsing.
_PIECE = 64 * 1024

_LONG = 0x80  # the bit of a varint's byte that another one follows
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
# The most fields of a frame with a name, and the code and the text of the error beyond them.
_TOO_MANY: dict[str, tuple[int, int, str]] = {
    "row": (MAX_INSERTED_DOCUMENTS, 1105, f"an insert has at most {MAX_INSERTED_DOCUMENTS} documents"),
    "args": (MAX_ARGUMENTS, 1390, "Prepared statement contains too many placeholders"),
}
_MAX_NESTING = 100  # protobuf's


def pieces(descriptor: Any, payload: bytes) -> Iterator[bytes]:
    """Yield the bytes of a message in pieces of whole fields.

    Raises:
        XError: They are not bytes of a message, or have too many fields.
    """
    start = 0
    if len(payload) > _PIECE:
        counts = Counter[str]()
        known = _known(descriptor)
        for number, begin, content, end in _fields(payload, 0, len(payload)):
            name, inner = known.get(number, ("", None))
            counts[name] += 1
            most, code, text = _TOO_MANY.get(name, (MAX_ITEMS, 0, ""))
            if counts[name] > most:
                raise XError(code, text) if code else _too_many_items()
            if end - begin > _PIECE and inner is not None:
                _check_items(inner, payload, content, end)
            if end - start > _PIECE:
                yield payload[start:end]
                start = end
    yield payload[start:]


def _check_items(descriptor: Any, payload: bytes, start: int, end: int) -> None:
    """Check that a message does not have too many others inside."""
    items = 0
    outer = [(_known(descriptor), _fields(payload, start, end))]
    while outer:
        known, fields = outer[-1]
        for number, _, content, after in fields:
            _, inner = known.get(number, ("", None))
            if inner is None:
                continue
            items += 1
            if items > MAX_ITEMS:
                raise _too_many_items()
            if inner.name != "Scalar":  # a scalar has at most one other inside
                outer.append((_known(inner), _fields(payload, content, after)))
                break
        else:
            outer.pop()
        if len(outer) > _MAX_NESTING:
            raise parse_error()


def _too_many_items() -> XError:
    return XError(1153, f"a part of a message has at most {MAX_ITEMS} items", "08S01")


@cache
def _known(descriptor: Any) -> dict[int, tuple[str, Any]]:
    """Return each field's name, and its descriptor if it is a message, by the field's number."""
    return {field.number: (field.name, field.message_type) for field in descriptor.fields}


def _fields(payload: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field's number, beginning, beginning of the content, and end."""
    at = start
    while at < end:
        begin = at
        tag, at = (payload[at], at + 1) if payload[at] < _LONG else _varint(payload, at, end)
        content = at
        kind = tag & 7
        if kind == _BYTES and at < end and payload[at] < _LONG:  # nearly always
            content += 1
            at = content + payload[at]
        elif kind == _BYTES:
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
    for after, byte in enumerate(payload[at : min(end, at + 10)], start=at + 1):
        value |= (byte & 0x7F) << shift
        if byte < _LONG:
            return value, after
        shift += 7
    raise parse_error()
