"""Formats: templates such as ``INV-{year}-{value:06d}`` to format ids as text and parse them.

A template has literal text (``{{`` and ``}}`` for braces) and fields:

* ``{value}`` (required) and ``{prefix}``, the node prefix, 0 to 65535. Their notation is decimal
  digits by default, ``06d`` and ``08x`` as in Python, or ``decimal``, ``hex``, ``crockford`` or
  ``b36``, with or without an exact width, as in ``crockford:8``.
* ``{year}``, ``{month}``, ``{day}``: 4, 2 and 2 digits, in the sequence's time zone.
* ``{check}``: check characters over all other fields, in order, in upper case, without the literal
  text.
"""

import re
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.check_digits import CHECK_ALGORITHMS, CheckAlgorithm
from idalloc_server.domain.sequences.sequence import MAX_ID, MIN_ID, Reset, Sequence

MAX_TEMPLATE = 200
MAX_PREFIX = 65535
MAX_WIDTH = 40

_PIECE = re.compile(r"(?P<literal>(?:[^{}]|\{\{|\}\})+)|\{(?P<field>[^{}:]*)(?::(?P<spec>[^{}]*))?\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PYTHON_SPEC = re.compile(r"(?:0(?P<width>[0-9]+))?(?P<notation>[dx])")
_NAMED_SPEC = re.compile(r"(?P<notation>[a-z0-9]+)(?::(?P<width>[0-9]+))?")
_DATE_WIDTHS = {"year": 4, "month": 2, "day": 2}
_REQUIRED_FIELDS = {
    Reset.NEVER: (),
    Reset.YEARLY: ("year",),
    Reset.MONTHLY: ("year", "month"),
    Reset.DAILY: ("year", "month", "day"),
}


class ParsedId(NamedTuple):
    """The fields of a formatted id.

    A field that the format lacks is None, or "" for check characters.
    """

    value: int
    year: int | None = None
    month: int | None = None
    day: int | None = None
    prefix: int | None = None
    check: str = ""


class _Notation(NamedTuple):
    """A number notation."""

    base: int
    # The characters that are accepted, as the inside of a regular expression's character class.
    accepted: str
    # Translates accepted characters to the digits that int() takes.
    digits: dict[int, int]
    # All texts of two digits, for notations that Python cannot format.
    pairs: tuple[str, ...] = ()

    def format(self, values: Iterable[int], width: int) -> list[str]:
        if not self.pairs:
            form = f"%0{width}{'d' if self.base == 10 else 'x'}" if width else "%d" if self.base == 10 else "%x"
            return [form % value for value in values]
        # Consecutive values mostly differ only in the last two digits, so the leading digits are
        # cached.
        last_high = 0
        leading = ""
        texts = []
        for value in values:
            high, low = divmod(value, len(self.pairs))
            if high != last_high:
                last_high = high
                leading = self.format([high], 1)[0]
            texts.append((leading + self.pairs[low]).lstrip("0").rjust(width or 1, "0"))
        return texts


def _custom_notation(alphabet: str, aliases: str = "", digits: str = "") -> _Notation:
    python_digits = "0123456789abcdefghijklmnopqrstuvwxyz"[: len(alphabet)]
    return _Notation(
        len(alphabet),
        alphabet + aliases,
        str.maketrans(alphabet + aliases, python_digits + digits),
        tuple(a + b for a in alphabet for b in alphabet),
    )


_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_NOTATIONS = {
    "decimal": _Notation(10, "0123456789", {}),
    "hex": _Notation(16, "0123456789abcdef", {}),
    # Crockford's decoding accepts lower case, I and L as 1, and O as 0.
    "crockford": _custom_notation(
        _CROCKFORD, _CROCKFORD[10:].lower() + "ILOilo", "0123456789abcdefghijklmnopqrstuvwxyz"[10:32] + "110110"
    ),
    "b36": _custom_notation("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}
_DECIMAL = _NOTATIONS["decimal"]


class _Field(NamedTuple):
    """A field of a template."""

    name: str
    width: int  # 0: no fixed width
    notation: _Notation = _DECIMAL
    algorithm: str = ""  # of {check}; empty for the default

    def format(self, number: int) -> str:
        return self.notation.format([number], self.width)[0]


class Format:
    """A compiled template.

    Args:
        template: The template; empty for plain decimal digits.

    Raises:
        InvalidRequest: The template is invalid; the error names ``format``.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        self._items = _parse_template(template or "{value}")
        self._fields = {item.name: item for item in self._items if isinstance(item, _Field)}
        value = self._fields["value"]
        self._max_value = min(MAX_ID, value.notation.base**value.width - 1) if value.width else MAX_ID
        # The largest value that fits in the width of ``{value}``; None for no limit.
        self.largest_value = None if self._max_value == MAX_ID else self._max_value
        # Whether the template has date fields.
        self.has_date = any(name in _DATE_WIDTHS for name in self._fields)
        self._check: CheckAlgorithm | None = None
        if "check" in self._fields:
            decimal = all(field.notation is _DECIMAL for field in self._fields.values())
            self._check = CHECK_ALGORITHMS[self._fields["check"].algorithm or ("mod11_10" if decimal else "mod37_36")]
            if self._check.decimal_only and not decimal:
                raise _invalid(
                    "must have decimal fields only for these check digits; mod37_36, mod37_2, mod97_10 allow letters"
                )
        pattern = ""
        for item in self._items:
            if isinstance(item, str):
                pattern += re.escape(item)
            else:
                accepted = "0-9A-Za-z*" if item.name == "check" else item.notation.accepted
                pattern += f"(?P<{item.name}>[{accepted}]{{{item.width or f'1,{MAX_WIDTH}'}}})"
        # Only the empty template allows a sign: see check_sequence().
        self._pattern = re.compile(pattern if template else "(?P<value>-?[0-9]{1,19})")

    def check_sequence(self, sequence: Sequence) -> None:
        """Validate that different ids of a sequence, over all its periods, have different texts.

        Raises:
            InvalidRequest: It does not; the error names ``format`` and the next step.
        """
        required = _REQUIRED_FIELDS[sequence.reset]
        missing = [f"{{{name}}}" for name in required if name not in self._fields]
        if missing:
            raise _invalid(f"must have {' and '.join(missing)}, since values repeat in each period of the reset")
        if not self.template:
            return
        if required:
            for name in self._fields:
                if name in _DATE_WIDTHS and name not in required:
                    raise _invalid(f"must not have {{{name}}}: it is not part of the period of the reset")
        if sequence.min_value < 0:
            raise _invalid(f"has no room for a sign: min_value must be at least 0; is {sequence.min_value}")
        if self.largest_value is not None and sequence.max_value > self.largest_value:
            raise _invalid(
                f"has room for values up to {self.largest_value}, and max_value is {sequence.max_value}: "
                "increase the width of {value}, or lower max_value"
            )
        self._check_adjacent_fields()

    def format_ids(self, values: range, date: str, prefix: int) -> list[str]:
        """Format ids.

        Args:
            values: The ids, within the bounds of a sequence that passed ``check_sequence``.
            date: The date such as "2026-11-21", or the leading part that the date fields need; else
                "".
            prefix: The node prefix, 0 to 65535; ignored if the format has none.

        Raises:
            ValueError: A number does not fit in its field, or the date is too short.
        """
        constant = self._format_constant_fields(date, prefix)
        if not values:
            return []
        if self.template and not 0 <= min(values[0], values[-1]) <= max(values[0], values[-1]) <= self._max_value:
            raise ValueError(f"{values} does not fit in {self.template!r}")
        value = self._fields["value"]
        numbers = value.notation.format(values, value.width)
        names = list(self._fields)
        at = names.index("value")
        # One printf template for all ids: only the value and the check characters differ.
        printf = "".join(
            item.replace("%", "%%") if isinstance(item, str) else constant.get(item.name, "%s") for item in self._items
        )
        if self._check is None:
            return [printf % number for number in numbers]
        before = "".join(constant.get(name, "") for name in names[:at]).upper()
        after = "".join(constant.get(name, "") for name in names[at:]).upper()
        checks = self._check.compute_many(before, map(str.upper, numbers), after)
        first, second = (checks, numbers) if names.index("check") < at else (numbers, checks)
        return [printf % pair for pair in zip(first, second, strict=True)]

    def parse(self, text: str) -> ParsedId:
        """Parse a formatted id. Crockford's letters and check characters may be in lower case.

        Raises:
            InvalidRequest: The text does not match, or its check characters are wrong; the error
                names ``text``.
        """
        found = self._pattern.fullmatch(text)
        groups = found.groupdict() if found else {}
        check = groups.pop("check", "").upper()
        numbers: dict[str, int] = {}
        canonical: dict[str, str] = {}
        for name, part in groups.items():
            field = self._fields[name]
            numbers[name] = int(part.translate(field.notation.digits), field.notation.base)
            canonical[name] = field.format(numbers[name])
        # Only one text is valid for an id: no extra leading zeros, and no "-0".
        if not found or any(len(canonical[name]) != len(part) for name, part in groups.items()):
            raise InvalidRequest("text", f"must be like {self.template or '{value}'!r}; is {text[:MAX_TEMPLATE]!r}")
        prefix = numbers.get("prefix")
        if not MIN_ID <= numbers["value"] <= self._max_value or (prefix or 0) > MAX_PREFIX:
            raise InvalidRequest("text", "must not have a number that is larger than any id or prefix")
        year, month, day = (numbers.get(name) for name in _DATE_WIDTHS)
        try:
            # The default year must be a leap year.
            date(2000 if year is None else year, 1 if month is None else month, 1 if day is None else day)
        except ValueError:
            raise InvalidRequest("text", "must have a date that exists") from None
        if self._check is not None:
            checked = "".join(canonical[name] for name in self._fields if name != "check")
            if self._check.compute(checked.upper()) != check:
                raise InvalidRequest(
                    "text", "has wrong check characters: it is mistyped, or belongs to another sequence"
                )
        return ParsedId(numbers["value"], year=year, month=month, day=day, prefix=prefix, check=check)

    def _format_constant_fields(self, date: str, prefix: int) -> dict[str, str]:
        """Return the text of each field that is the same in all ids: dates and the prefix."""
        constant = {}
        for name, start in (("year", 0), ("month", 5), ("day", 8)):
            if name in self._fields:
                constant[name] = date[start : start + _DATE_WIDTHS[name]]
                if len(constant[name]) != _DATE_WIDTHS[name]:
                    raise ValueError(f"{self.template!r} needs more of a date than {date!r}")
        if "prefix" in self._fields:
            if not 0 <= prefix <= MAX_PREFIX:
                raise ValueError(f"the prefix must be 0 to {MAX_PREFIX}; is {prefix}")
            constant["prefix"] = self._fields["prefix"].format(prefix)
        return constant

    def _check_adjacent_fields(self) -> None:
        """Validate that literal text separates the fields without a fixed width.

        It must not begin or end with one of their digits. One such field is always unambiguous: the
        length of the text determines its width.
        """
        items = self._items
        varying = [at for at, item in enumerate(items) if isinstance(item, _Field) and not item.width]
        for left, right in pairwise(varying):
            first = items[left]
            second = items[right]
            after = items[left + 1]
            before = items[right - 1]
            assert isinstance(first, _Field)  # noqa: S101
            assert isinstance(second, _Field)  # noqa: S101
            ends = isinstance(after, str) and after[0] not in first.notation.accepted
            begins = isinstance(before, str) and before[-1] not in second.notation.accepted
            if not ends and not begins:
                raise _invalid(
                    f"does not show where {{{first.name}}} ends and {{{second.name}}} begins: give one a width, "
                    'or separate them by a character that is not a digit of it, such as "-"'
                )


@lru_cache(maxsize=1024)
def compile_format(template: str) -> Format:
    """Return the format of a template; "" is plain decimal digits.

    Raises:
        InvalidRequest: The template is invalid; the error names ``format`` and the next step.
    """
    return Format(template)


def _parse_template(template: str) -> list[str | _Field]:
    if len(template) > MAX_TEMPLATE:
        raise _invalid(f"must have at most {MAX_TEMPLATE} characters, has {len(template)}")
    if _CONTROL.search(template):
        raise _invalid("must not have control characters")
    items: list[str | _Field] = []
    seen: set[str] = set()
    at = 0
    while at < len(template):
        piece = _PIECE.match(template, at)
        if not piece:
            raise _invalid(f"has an unmatched brace at character {at + 1}: write {{{{ or }}}} for a literal brace")
        at = piece.end()
        if piece["literal"] is not None:
            items.append(piece["literal"].replace("{{", "{").replace("}}", "}"))
            continue
        name = piece["field"]
        if name in seen:
            raise _invalid(f"must have {{{name}}} only once")
        seen.add(name)
        items.append(_parse_field(name, piece["spec"]))
    if "value" not in seen:
        raise _invalid("must have the field {value}")
    return items


def _parse_field(name: str, spec: str | None) -> _Field:
    if name in _DATE_WIDTHS:
        if spec is not None:
            raise _invalid(f"must have {{{name}}} without {spec!r}: it always has {_DATE_WIDTHS[name]} digits")
        return _Field(name, _DATE_WIDTHS[name])
    if name == "check":
        if spec is not None and spec not in CHECK_ALGORITHMS:
            raise _invalid(f"must have one of {', '.join(CHECK_ALGORITHMS)} after {{check:, not {spec!r}")
        return _Field(name, CHECK_ALGORITHMS[spec].width if spec else 1, algorithm=spec or "")
    if name not in ("value", "prefix"):
        raise _invalid(f"has the unknown field {{{name}}}; the fields are value, year, month, day, prefix and check")
    if spec is None:
        return _Field(name, 0)
    python = _PYTHON_SPEC.fullmatch(spec)
    found = python or _NAMED_SPEC.fullmatch(spec)
    notation = found["notation"] if found else ""
    if python:
        notation = "decimal" if notation == "d" else "hex"
    if not found or notation not in _NOTATIONS:
        raise _invalid(
            f"has the unknown notation {spec!r} in {{{name}}}: use one such as 06d or 08x, "
            f"or one of {', '.join(_NOTATIONS)}, with or without a width as in crockford:8"
        )
    width = found["width"]
    if width is not None and not (len(width) <= 2 and 1 <= int(width) <= MAX_WIDTH):
        raise _invalid(f"must have a width of 1 to {MAX_WIDTH} in {{{name}}}, not {width}")
    field = _Field(name, int(width or 0), _NOTATIONS[notation])
    if name == "prefix" and width is not None and field.notation.base**field.width <= MAX_PREFIX:
        raise _invalid(f"must have room for {MAX_PREFIX} in {{prefix}}, as {{prefix:05d}} and {{prefix:04x}} have")
    return field


def _invalid(rule: str) -> InvalidRequest:
    return InvalidRequest("format", rule)
