"""Strategies for random inputs, and the number of inputs that each test tries.

``make test`` tries few, the same ones each time. ``make fuzz`` tries IDALLOC_TEST_FUZZ_EXAMPLES new
ones.
"""

import os
from collections import Counter
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("IDALLOC_TEST_FUZZ_EXAMPLES", "0"))

# Number of inputs tried in this run, by the test's name.
TRIED: Counter[str] = Counter()


def tries(few: int, shares: int = 1) -> settings:
    """Return the settings of a test.

    Args:
        few: Number of inputs in ``make test``.
        shares: Number of tests that share the inputs of ``make fuzz``.
    """
    return settings(
        max_examples=max(1, EXAMPLES // shares) if EXAMPLES else few,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


NAMES = ["a", "b", "orders", "bills", "gone"]
# Texts with a meaning somewhere, at a limit, or with unusual characters.
ODD_TEXTS = [
    "", " ", "\x00", "\x1f", "a\x1f2026", "a\x00b", "\n", "\u202e", "\ufeff", "\U0001f600", "e\u0301", "\u0661", "\x7f",
    "x" * 255, "x" * 256, "\u00e9" * 128, "\U0010ffff" * 64, "y" * 5_000, "z" * 300_000, "%s%n", "{", "{value}",
    "{value:09d}", "{value:999999999d}", "{year}-{month}-{value}", "{value}{check}", "{value!r}", "{value.__class__}",
    "2026", "2026-13", "2026-11-21", "9999", "0000", "0", "-1", "1_0", "NaN", "1e999", "9" * 5_000, "*", "name",
    "step", "labels", "labels.a", "max_value,step", "Europe/Berlin", "../etc/passwd", "/", "UTC", "idalloc.v1",
    "00000000-0000-4000-8000-000000000000", "12345678-1234-4234-8234-123456789abc", "AAAA", "=", "e30=",
]  # fmt: skip
TEXTS = st.sampled_from(NAMES) | st.sampled_from(ODD_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=12)

_EDGES = [0, 1, 2, 3, 7, 10, 100, 255, 65_535, 65_536, 99_999, 100_000, 100_001, 2**31 - 1, 2**53, 2**62, 2**63 - 1]
_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}
_SIGNED = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    edges = {edge * sign for edge in _EDGES for sign in (1, -1)} | {low, low + 1, high - 1, high}
    return st.sampled_from(sorted(edge for edge in edges if low <= edge <= high)) | st.integers(low, high)


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    kind = field.cpp_type
    if kind in _UNSIGNED:
        return _integers(0, 2 ** _UNSIGNED[kind] - 1)
    if kind in _SIGNED:
        return _integers(-(2 ** _SIGNED[kind]), 2 ** _SIGNED[kind] - 1)
    if field.enum_type is not None:
        numbers = [value.number for value in field.enum_type.values]
        return st.sampled_from([*numbers, *numbers, -1, 99, 2**31 - 1, -(2**31)])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return st.floats(width=32)
    return st.binary(max_size=20) if field.type == FieldDescriptor.TYPE_BYTES else TEXTS


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> Message:
    """Return a valid message with any values in about half of its fields."""
    message: Any = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            keys, values = (_scalars(inner.fields_by_name[each]) for each in ("key", "value"))
            getattr(message, field.name).update(draw(st.dictionaries(keys, values, max_size=3)))
        elif inner is not None and depth < 3:
            into = getattr(message, field.name)
            (into.add() if field.is_repeated else into).CopyFrom(draw(messages(inner, depth + 1)))
        elif inner is None and field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(_scalars(field), max_size=4)))
        elif inner is None:
            setattr(message, field.name, draw(_scalars(field)))
    return message  # type: ignore[no-any-return]


@st.composite
def mutated(draw: st.DrawFn, contents: st.SearchStrategy[bytes]) -> bytes:
    """Return bytes of which some were changed, removed, doubled or inserted."""
    content = bytearray(draw(contents))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        size = draw(st.integers(0, 8))
        how = draw(st.sampled_from(["flip", "cut", "end", "double", "insert"]))
        if how == "flip" and at < len(content):
            content[at] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del content[at : at + size]
        elif how == "end":
            del content[at:]
        elif how == "double":
            content[at:at] = content[at : at + size]
        elif how == "insert":
            content[at:at] = draw(st.binary(max_size=8))
    return bytes(content)


# Unknown fields: a varint, bytes, a group, and fixed-size ones.
_UNKNOWN = [b"\xf8\x3f\x01", b"\xfa\x3f\x03abc", b"\xfb\x3f\xfc\x3f", b"\xfd\x3f\0\0\0\0", b"\xf9\x3f" + bytes(8)]


def requests(descriptor: Descriptor) -> st.SearchStrategy[bytes]:
    """Return requests: valid messages, damaged ones, and noise."""
    valid = messages(descriptor).map(lambda message: message.SerializeToString())
    deep = st.sampled_from([b"\x0a\x7f" * 100, b"\x0b" * 10_000, b"\x0a" + b"\xff" * 9 + b"\x01", bytes(300_000)])
    unknown = st.tuples(valid, st.sampled_from(_UNKNOWN)).map(b"".join)
    return valid | valid | valid | unknown | mutated(valid) | st.binary(max_size=64) | deep
