"""Settings of a sequence: defaults, validation, and the changes that an update may make."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeVar

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.calendar import load_zone
from idalloc_server.domain.sequences.formats import compile_format
from idalloc_server.domain.sequences.sequence import MAX_ID, MAX_STEP, MIN_ID, Kind, Ordering, Reset, Sequence
from idalloc_server.domain.sequences.text import check_text

# The largest integer that JavaScript and doubles represent exactly.
MAX_JSON_SAFE = 2**53 - 1
MAX_DESCRIPTION = 1000
MAX_LABELS = 64
MAX_LABEL = 63
MAX_LEASE_SIZE = 10_000_000
# Timestamps up to 2200-01-01 must fit in a sequence of them, and in its format.
_SECONDS_TO_2200 = 7_258_118_400

_BOUNDS = ("min_value", "max_value")
_LEASE_SIZES = ("min_lease_size", "max_lease_size")
_TEXTS = ("description", "format", "time_zone")
_CHOICES: dict[str, type[IntEnum]] = {"kind": Kind, "ordering": Ordering, "reset": Reset}
_SETTINGS = {
    "start", "step", "offset", "increment", "labels", "json_safe", *_BOUNDS, *_LEASE_SIZES, *_TEXTS, *_CHOICES,
}  # fmt: skip
# The types of settings, and the rule for their errors; any other setting is a number.
_TYPES: dict[str, tuple[type[Any], str]] = {
    **dict.fromkeys(_TEXTS, (str, "must be text")),
    "json_safe": (bool, "must be true or false"),
    "labels": (Mapping, "must be a mapping of text to text"),
}
# Settings for which 0 means unset: proto3 does not distinguish the two.
_ZERO_IS_UNSET = {"offset", "increment", *_CHOICES}

_T = TypeVar("_T")


def resolve_settings(given: Mapping[str, Any], before: Sequence | None = None) -> Sequence:
    """Return validated settings of a new or updated sequence.

    Args:
        given: Values by field of ``idalloc.v1.Sequence``; None resets a field to its default.
        before: The current settings, which apply to fields that are not given; None for a new
            sequence.

    Raises:
        InvalidRequest: A setting is invalid; the error names the field and the rule.
    """
    typed: dict[str, Any] = {name: _typed(name, value) for name, value in given.items()}
    defaults = Sequence()

    def resolve(name: str, default: _T) -> _T:
        value: _T | None = typed[name] if name in typed else getattr(before, name, None)
        return default if value is None else value

    kind = resolve("kind", defaults.kind)
    is_timestamp = kind != Kind.COUNTER
    ordering = typed.get("ordering") if is_timestamp else resolve("ordering", defaults.ordering)
    template = resolve("format", defaults.format)
    json_safe = bool(typed.get("json_safe"))
    step = _step(typed, resolve("step", defaults.step))
    min_value = resolve("min_value", defaults.min_value)
    max_value = _max_value(typed, before, template, json_safe=json_safe, min_value=min_value)
    sequence = Sequence(
        start=_start(typed, before, step, min_value=min_value, max_value=max_value),
        step=step,
        min_value=min_value,
        max_value=max_value,
        kind=kind,
        ordering=Ordering.RISING if is_timestamp and ordering is None else ordering or defaults.ordering,
        min_lease_size=resolve("min_lease_size", defaults.min_lease_size),
        max_lease_size=resolve("max_lease_size", defaults.max_lease_size),
        format=template,
        reset=resolve("reset", defaults.reset),
        time_zone=resolve("time_zone", defaults.time_zone) or defaults.time_zone,
        labels=resolve("labels", defaults.labels),
        description=resolve("description", defaults.description),
    )
    _check_text_lengths(sequence)
    _check_numbers(sequence, json_safe)
    if is_timestamp:
        _check_timestamps(sequence)
    load_zone(sequence.time_zone)
    compile_format(sequence.format).check_sequence(sequence)
    return sequence


def check_texts(given: Mapping[str, Any]) -> None:
    """Reject control characters and bidirectional marks in new texts and labels.

    Args:
        given: As for ``resolve_settings``, which checks the types, and the name of a new sequence.

    Raises:
        InvalidRequest: A text has such a character; the error names the field.
    """
    for name in ("name", *_TEXTS):
        if isinstance(text := given.get(name), str):
            check_text(name, text)
    if isinstance(labels := given.get("labels"), Mapping):
        for text in (text for pair in labels.items() for text in pair if isinstance(text, str)):
            check_text("labels", text)


def check_change(before: Sequence, after: Sequence, last_value: int) -> None:
    """Reject a change of an immutable setting, and a new bound that the counter has passed.

    Args:
        before: The current settings, also those of a deleted sequence that is created again.
        after: The new settings from ``resolve_settings``.
        last_value: The counter; with a reset, the counter of the current period.

    Raises:
        InvalidRequest: The change is not allowed; the error names the field.
    """
    for name in ("kind", "reset", "time_zone"):
        values = (getattr(before, name), getattr(after, name))
        if values[0] != values[1]:
            old, new = (value.name if isinstance(value, IntEnum) else repr(value) for value in values)
            raise InvalidRequest(name, f"cannot be changed from {old} to {new}")
    if (before.step > 0) != (after.step > 0):
        raise InvalidRequest("step", f"cannot change its sign, from {before.step} to {after.step}")
    if after.bound != before.bound and after.is_past(last_value, after.bound):
        field, limit = ("max_value", "at least") if after.step > 0 else ("min_value", "at most")
        raise InvalidRequest(field, f"must be {limit} {last_value}, the counter's value; is {after.bound}")


def changed_bound(before: Sequence, after: Sequence) -> int | None:
    """Return the new bound that the counter must not have passed, or None if there is none.

    A sequence with a reset has none: its periods have their own counters.
    """
    return after.bound if after.bound != before.bound and after.reset == Reset.NEVER else None


def _typed(name: str, value: Any) -> object:
    if name not in _SETTINGS:
        raise InvalidRequest(name, "is not a setting of a sequence")
    if value is None or (name in _ZERO_IS_UNSET and value == 0):
        return None
    wanted, rule = _TYPES.get(name, (int, "must be a whole number"))
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise InvalidRequest(name, rule)
    if isinstance(value, Mapping):
        if not all(isinstance(text, str) for pair in value.items() for text in pair):
            raise InvalidRequest(name, rule)
        return MappingProxyType(dict(value))
    if name not in _CHOICES:
        return value
    try:
        return _CHOICES[name](value)
    except ValueError:
        names = ", ".join(choice.name for choice in _CHOICES[name])
        raise InvalidRequest(name, f"must be one of {names}; is {value}") from None


def _step(typed: Mapping[str, Any], default: int) -> int:
    """Return the step: ``increment`` if it is set, else ``default``."""
    offset = typed.get("offset")
    increment = typed.get("increment")
    if increment is None:
        if offset is not None:
            raise InvalidRequest("offset", "must be set together with increment")
        return default
    if typed.get("step") is not None:
        raise InvalidRequest("increment", "must not be set together with step")
    if not 1 <= increment <= MAX_STEP:
        raise InvalidRequest("increment", f"must be 1 to {MAX_STEP}; is {increment}")
    if offset is None or not 1 <= offset <= increment:
        raise InvalidRequest("offset", f"must be 1 to increment, {increment}; is {offset or 0}")
    return int(increment)


def _max_value(
    typed: Mapping[str, Any], before: Sequence | None, template: str, json_safe: bool, min_value: int
) -> int:
    if typed.get("max_value") is not None:
        return int(typed["max_value"])
    limit = MAX_JSON_SAFE if json_safe else MAX_ID
    # The user may have set it explicitly, so a new format does not change it.
    if "max_value" not in typed and before is not None:
        return min(before.max_value, limit)
    room = compile_format(template).largest_value
    if room is not None and room < min_value:
        raise InvalidRequest(
            "format", f"has room for values up to {room}, and min_value is {min_value}: increase the width of {{value}}"
        )
    return limit if room is None else min(room, limit)


def _start(typed: Mapping[str, Any], before: Sequence | None, step: int, min_value: int, max_value: int) -> int:
    start = typed.get("start", None if before is None else before.start)
    increment = typed.get("increment")
    if increment is not None:
        first = min_value if start is None else max(start, min_value)
        return int(first + (typed["offset"] - first) % increment)
    if start is not None:
        return int(start)
    # The value one step before the start must fit in the store.
    return min_value if step > 0 else min(max_value, MAX_ID + step)


def _check_text_lengths(sequence: Sequence) -> None:
    if len(sequence.description) > MAX_DESCRIPTION:
        raise InvalidRequest(
            "description", f"must have at most {MAX_DESCRIPTION} characters, has {len(sequence.description)}"
        )
    if len(sequence.labels) > MAX_LABELS:
        raise InvalidRequest("labels", f"must have at most {MAX_LABELS} entries, has {len(sequence.labels)}")
    for key, value in sequence.labels.items():
        if not 1 <= len(key) <= MAX_LABEL:
            raise InvalidRequest(
                "labels", f"must have keys of 1 to {MAX_LABEL} characters; {key[:MAX_LABEL]!r} has {len(key)}"
            )
        if len(value) > MAX_LABEL:
            raise InvalidRequest(
                "labels", f"must have values of at most {MAX_LABEL} characters; the value of {key!r} has {len(value)}"
            )


def _check_numbers(sequence: Sequence, json_safe: bool) -> None:
    step = sequence.step
    least = sequence.min_value
    most = sequence.max_value
    if step == 0 or abs(step) > MAX_STEP:
        raise InvalidRequest("step", f"must be {-MAX_STEP} to {MAX_STEP} and not 0; is {step}")
    for name in _BOUNDS:
        bound = getattr(sequence, name)
        if not MIN_ID <= bound <= MAX_ID:
            raise InvalidRequest(name, f"must be {MIN_ID} to {MAX_ID}; is {bound}")
        if json_safe and abs(bound) > MAX_JSON_SAFE:
            raise InvalidRequest(
                name, f"must be {-MAX_JSON_SAFE} to {MAX_JSON_SAFE}, since json_safe is set; is {bound}"
            )
    if least > most:
        raise InvalidRequest("min_value", f"must be at most max_value, {most}; is {least}")
    if not least <= sequence.start <= most:
        raise InvalidRequest("start", f"must be min_value to max_value, {least} to {most}; is {sequence.start}")
    if sequence.before_start > MAX_ID:
        raise InvalidRequest(
            "start", f"must be at most {MAX_ID + step}: the store must hold start - step; is {sequence.start}"
        )
    for name in _LEASE_SIZES:
        if not 0 <= (size := getattr(sequence, name)) <= MAX_LEASE_SIZE:
            raise InvalidRequest(name, f"must be 0 to {MAX_LEASE_SIZE}; is {size}")
    largest = sequence.max_lease_size
    if largest and sequence.min_lease_size > largest:
        raise InvalidRequest(
            "min_lease_size", f"must be at most max_lease_size, {largest}; is {sequence.min_lease_size}"
        )


def _check_timestamps(sequence: Sequence) -> None:
    kind = sequence.kind.name
    of_clock = f"1 or unset if kind is {kind}: the clock sets the first id"
    for name, wanted, rule in (
        ("step", 1, f"1 if kind is {kind}"),
        ("ordering", Ordering.RISING, f"RISING or unset if kind is {kind}"),
        ("reset", Reset.NEVER, f"NEVER if kind is {kind}"),
        ("min_value", 1, of_clock),
        ("start", 1, of_clock),
    ):
        value = getattr(sequence, name)
        if value != wanted:
            raise InvalidRequest(name, f"must be {rule}; is {value.name if isinstance(value, IntEnum) else value}")
    room = compile_format(sequence.format).largest_value
    least = _SECONDS_TO_2200 * sequence.kind.per_second
    if room is not None and room < least:
        raise InvalidRequest(
            "format", f"must have room for timestamps up to the year 2200, {least}: increase the width of {{value}}"
        )
    if sequence.max_value < least:
        raise InvalidRequest(
            "max_value", f"must be at least {least}, the year 2200, if kind is {kind}; is {sequence.max_value}"
        )
