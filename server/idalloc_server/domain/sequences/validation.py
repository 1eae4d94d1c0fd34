"""What may be set in a sequence, what is set where nothing is said, and what may be changed later."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeVar

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.calendar import zone
from idalloc_server.domain.sequences.formats import compile_format
from idalloc_server.domain.sequences.model import MAX_ID, MAX_STEP, MIN_ID, Kind, Ordering, Reset, Sequence
from idalloc_server.domain.text import check_text

# Up to here JSON, JavaScript and doubles are exact.
MAX_JSON_SAFE = 2**53 - 1
MAX_DESCRIPTION = 1000
MAX_LABELS = 64
MAX_LABEL = 63
MAX_LEASE_SIZE = 10_000_000
# Sequences of timestamps, and their formats, must have room for those of 2200-01-01.
_SECONDS_TO_2200 = 7_258_118_400

_NUMBERS = (
    "start", "step", "min_value", "max_value", "offset", "increment", "min_lease_size", "max_lease_size",
)  # fmt: skip
_TEXTS = ("description", "format", "time_zone")
_CHOICES: dict[str, type[IntEnum]] = {"kind": Kind, "ordering": Ordering, "reset": Reset}
_SETTINGS = {*_NUMBERS, *_TEXTS, *_CHOICES, "labels", "json_safe"}
# Those of which 0 means that nothing is said, since on the wire nothing tells the two apart.
_NO_ZERO = {"offset", "increment", *_CHOICES}

_T = TypeVar("_T")


def settle(given: Mapping[str, Any], before: Sequence | None = None) -> Sequence:
    """Returns the settings that are meant, checked.

    Args:
        given: What was said, by the names of ``idalloc.v1.Sequence``. None means "back to the default".
        before: The present settings; what is not said stays as it is in them. None for a new sequence.

    Raises:
        InvalidRequest: Something breaks its rule; the error names the field and says what to do.
    """
    said: dict[str, Any] = {name: _typed(name, value) for name, value in given.items()}
    plain = Sequence()

    def settled(name: str, default: _T) -> _T:
        """What is said, or what is there, or the default."""
        value: _T | None = said[name] if name in said else getattr(before, name, None)
        return default if value is None else value

    kind = settled("kind", plain.kind)
    clocked = kind != Kind.COUNTER
    ordering = said.get("ordering") if clocked else settled("ordering", plain.ordering)
    template = settled("format", plain.format)
    json_safe = bool(said.get("json_safe"))
    step = _step(said, settled("step", plain.step))
    min_value = settled("min_value", plain.min_value)
    max_value = _max_value(said, before, template, json_safe, min_value)
    sequence = Sequence(
        start=_start(said, before, step, min_value, max_value),
        step=step,
        min_value=min_value,
        max_value=max_value,
        kind=kind,
        ordering=Ordering.RISING if clocked and ordering is None else ordering or plain.ordering,
        min_lease_size=settled("min_lease_size", plain.min_lease_size),
        max_lease_size=settled("max_lease_size", plain.max_lease_size),
        format=template,
        reset=settled("reset", plain.reset),
        time_zone=settled("time_zone", plain.time_zone) or plain.time_zone,
        labels=settled("labels", plain.labels),
        description=settled("description", plain.description),
    )
    _check_words(sequence)
    _check_numbers(sequence, json_safe)
    _check_lease_sizes(sequence)
    if clocked:
        _check_timestamps(sequence)
    zone(sequence.time_zone)
    compile_format(sequence.format).check(sequence)
    return sequence


def check_texts(given: Mapping[str, Any]) -> None:
    """Refuses new texts and labels with control characters or bidirectional marks. Stored ones are not looked at.

    Args:
        given: As for ``settle``, which checks the types; and the name of a new sequence.

    Raises:
        InvalidRequest: There are some; the error names the field.
    """
    for name in ("name", *_TEXTS):
        if isinstance(text := given.get(name), str):
            check_text(name, text)
    if isinstance(labels := given.get("labels"), Mapping):
        for word in (word for pair in labels.items() for word in pair if isinstance(word, str)):
            check_text("labels", word)


def check_change(before: Sequence, after: Sequence, last_value: int) -> None:
    """Refuses a change of what stays for ever, and of a bound that the counter has passed.

    Args:
        before: The present settings, also those of a deleted sequence that is created again.
        after: What they are to be, as from ``settle``.
        last_value: The counter; that of the present period, where the sequence has a reset.

    Raises:
        InvalidRequest: It is one; the error names the field.
    """
    for name in ("kind", "reset", "time_zone"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            raise InvalidRequest(name, f"stays for ever: it is {_word(old)}, and cannot become {_word(new)}")
    if (before.step > 0) != (after.step > 0):
        raise InvalidRequest("step", f"keeps its sign for ever: it is {before.step}, and cannot become {after.step}")
    if after.bound != before.bound and after.is_past(last_value, after.bound):
        field, side = ("max_value", "less") if after.step > 0 else ("min_value", "more")
        raise InvalidRequest(field, f"must not be {side} than {last_value}, where the counter is; is {after.bound}")


def new_bound(before: Sequence, after: Sequence) -> int | None:
    """Returns the bound that a change brings and that the sequence's own counter must not have passed; None for none.

    With a reset the counters of the periods are what counts.
    """
    return after.bound if after.bound != before.bound and after.reset == Reset.NEVER else None


def _typed(name: str, value: object) -> object:
    if name not in _SETTINGS:
        raise InvalidRequest(name, "is no setting of a sequence")
    if value is None or (name in _NO_ZERO and value == 0):
        return None
    if name == "labels":
        words = isinstance(value, Mapping) and all(isinstance(word, str) for pair in value.items() for word in pair)
        if not isinstance(value, Mapping) or not words:
            raise InvalidRequest(name, "must be names and values, all of them text")
        return MappingProxyType(dict(value))
    if name in _TEXTS:
        if not isinstance(value, str):
            raise InvalidRequest(name, "must be text")
        return value
    if name == "json_safe":
        if not isinstance(value, bool):
            raise InvalidRequest(name, "must be true or false")
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(name, "must be a whole number")
    if name not in _CHOICES:
        return value
    try:
        return _CHOICES[name](value)
    except ValueError:
        words_of = ", ".join(choice.name for choice in _CHOICES[name])
        raise InvalidRequest(name, f"must be one of {words_of}; is {value}") from None


def _step(said: Mapping[str, Any], otherwise: int) -> int:
    """What increment says, or step."""
    offset, increment = said.get("offset"), said.get("increment")
    if increment is None:
        if offset is not None:
            raise InvalidRequest("offset", "must come with increment")
        return otherwise
    if said.get("step") is not None:
        raise InvalidRequest("increment", "must not come with step: it stands instead of it")
    if not 1 <= increment <= MAX_STEP:
        raise InvalidRequest("increment", f"must be 1 to {MAX_STEP}; is {increment}")
    if offset is None or not 1 <= offset <= increment:
        raise InvalidRequest("offset", f"must be 1 to increment, {increment}; is {offset or 0}")
    return int(increment)


def _max_value(said: Mapping[str, Any], before: Sequence | None, template: str, json_safe: bool, min_value: int) -> int:
    if said.get("max_value") is not None:
        return int(said["max_value"])
    most = MAX_JSON_SAFE if json_safe else MAX_ID
    # Whether the user said it once is not known, so it never changes by itself.
    if "max_value" not in said and before is not None:
        return min(before.max_value, most)
    room = compile_format(template).largest_value
    if room is not None and room < min_value:
        raise InvalidRequest(
            "format", f"has room for values up to {room}, and min_value is {min_value}: give {{value}} a larger width"
        )
    return most if room is None else min(room, most)


def _start(said: Mapping[str, Any], before: Sequence | None, step: int, min_value: int, max_value: int) -> int:
    start = said.get("start", None if before is None else before.start)
    increment = said.get("increment")
    if increment is not None:
        first = min_value if start is None else max(start, min_value)
        return int(first + (said["offset"] - first) % increment)
    if start is not None:
        return int(start)
    # One step before the start must be a number that the store can hold.
    return min_value if step > 0 else min(max_value, MAX_ID + step)


def _check_words(sequence: Sequence) -> None:
    if len(sequence.description) > MAX_DESCRIPTION:
        raise InvalidRequest(
            "description", f"must have at most {MAX_DESCRIPTION} characters, has {len(sequence.description)}"
        )
    if len(sequence.labels) > MAX_LABELS:
        raise InvalidRequest("labels", f"must be at most {MAX_LABELS}, are {len(sequence.labels)}")
    for key, value in sequence.labels.items():
        if not 1 <= len(key) <= MAX_LABEL:
            raise InvalidRequest("labels", f"must have keys of 1 to {MAX_LABEL} characters; one has {len(key)}")
        if len(value) > MAX_LABEL:
            raise InvalidRequest(
                "labels", f"must have values of at most {MAX_LABEL} characters; that of {key!r} has {len(value)}"
            )


def _check_numbers(sequence: Sequence, json_safe: bool) -> None:
    start, step, min_value, max_value = sequence.start, sequence.step, sequence.min_value, sequence.max_value
    if step == 0 or abs(step) > MAX_STEP:
        raise InvalidRequest("step", f"must be {-MAX_STEP} to {MAX_STEP}, and not 0; is {step}")
    for name, bound in (("min_value", min_value), ("max_value", max_value)):
        if not MIN_ID <= bound <= MAX_ID:
            raise InvalidRequest(name, f"must be {MIN_ID} to {MAX_ID}; is {bound}")
        if json_safe and abs(bound) > MAX_JSON_SAFE:
            raise InvalidRequest(
                name, f"must be {-MAX_JSON_SAFE} to {MAX_JSON_SAFE}, since json_safe is set; is {bound}"
            )
    if min_value > max_value:
        raise InvalidRequest("min_value", f"must not be more than max_value, {max_value}; is {min_value}")
    if not min_value <= start <= max_value:
        raise InvalidRequest("start", f"must be min_value to max_value, {min_value} to {max_value}; is {start}")
    if sequence.before_start > MAX_ID:
        raise InvalidRequest(
            "start", f"must be at most {MAX_ID + step}, so that there is room for one step of {step} before it"
        )


def _check_lease_sizes(sequence: Sequence) -> None:
    least, most = sequence.min_lease_size, sequence.max_lease_size
    for name, size in (("min_lease_size", least), ("max_lease_size", most)):
        if not 0 <= size <= MAX_LEASE_SIZE:
            raise InvalidRequest(name, f"must be 0 to {MAX_LEASE_SIZE}; is {size}")
    if most and least > most:
        raise InvalidRequest("min_lease_size", f"must not be more than max_lease_size, {most}; is {least}")


def _check_timestamps(sequence: Sequence) -> None:
    kind = sequence.kind.name
    if sequence.step != 1:
        raise InvalidRequest("step", f"must be 1 where kind is {kind}")
    if sequence.ordering != Ordering.RISING:
        raise InvalidRequest("ordering", f"must be RISING where kind is {kind}, or left out")
    if sequence.reset != Reset.NEVER:
        raise InvalidRequest("reset", f"must be NEVER where kind is {kind}")
    for name in ("min_value", "start"):
        if getattr(sequence, name) != 1:
            raise InvalidRequest(name, f"must be 1 where kind is {kind}, or left out: the clock says what comes first")
    room = compile_format(sequence.format).largest_value
    least = _SECONDS_TO_2200 * sequence.kind.per_second
    if room is not None and room < least:
        raise InvalidRequest(
            "format", f"must have room for timestamps up to the year 2200, {least}: give {{value}} a larger width"
        )
    if sequence.max_value < least:
        raise InvalidRequest(
            "max_value", f"must be at least {least}, the year 2200, where kind is {kind}; is {sequence.max_value}"
        )


def _word(value: object) -> str:
    return value.name if isinstance(value, IntEnum) else repr(value)
