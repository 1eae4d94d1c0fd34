"""How the ids of a sequence are written as text: templates such as ``INV-{year}-{value:06d}``, read in both directions.

A template has literal text (``{{`` and ``}}`` for braces) and fields:

* ``{value}``: exactly once, and ``{prefix}``, the node's, 0 to 65535. They take a notation: none for decimal digits,
  ``06d`` and ``08x`` as in Python, ``decimal``, ``hex``, ``crockford`` or ``b36``, each with a width or without, as in
  ``crockford:8``. A width is exact.
* ``{year}``, ``{month}``, ``{day}``: 4, 2 and 2 digits, in the sequence's time zone.
* ``{check}``: check characters over the texts of all other fields, in order, in upper case, without the literal text.
"""

import re
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.check_digits import CHECKS, Check
from idalloc_server.domain.sequences.model import MAX_ID, MIN_ID, Reset, Sequence

MAX_TEMPLATE = 200
MAX_PREFIX = 65535
MAX_WIDTH = 40

_TOKEN = re.compile(r"(?P<literal>(?:[^{}]|\{\{|\}\})+)|\{(?P<field>[^{}:]*)(?::(?P<spec>[^{}]*))?\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PYTHONS = re.compile(r"(?:0(?P<width>[0-9]+))?(?P<type>[dx])")
_NAMED = re.compile(r"(?P<name>[a-z0-9]+)(?::(?P<width>[0-9]+))?")
_DATE_WIDTHS = {"year": 4, "month": 2, "day": 2}
_NEEDED = {
    Reset.NEVER: (),
    Reset.YEARLY: ("year",),
    Reset.MONTHLY: ("year", "month"),
    Reset.DAILY: ("year", "month", "day"),
}


class Parts(NamedTuple):
    """What a text is made of; None for what its format does not have, and "" for check characters."""

    value: int
    year: int | None = None
    month: int | None = None
    day: int | None = None
    prefix: int | None = None
    check: str = ""


class _Notation(NamedTuple):
    """A way to write numbers."""

    base: int
    # All characters that are read, as the inside of a character class.
    read: str
    # From what is read to the digits that int() takes.
    digits: dict[int, int]
    # All texts of two digits, for notations that Python does not write itself.
    pairs: tuple[str, ...] = ()

    def write(self, values: Iterable[int], width: int) -> list[str]:
        if not self.pairs:
            form = f"%0{width}{'d' if self.base == 10 else 'x'}" if width else "%d" if self.base == 10 else "%x"
            return [form % value for value in values]
        pairs, hundred, texts = self.pairs, len(self.pairs), []
        # Neighbours begin alike, so the beginning is written again only when it is another.
        last, begin = 0, ""
        for value in values:
            rest, low = divmod(value, hundred)
            if rest != last:
                last, begin = rest, self.write([rest], 1)[0]
            texts.append((begin + pairs[low]).lstrip("0").rjust(width or 1, "0"))
        return texts

    def number(self, text: str) -> int:
        return int(text.translate(self.digits), self.base)


def _own(alphabet: str, aliases: str = "", digits: str = "") -> _Notation:
    pythons = "0123456789abcdefghijklmnopqrstuvwxyz"[: len(alphabet)]
    return _Notation(
        len(alphabet),
        alphabet + aliases,
        str.maketrans(alphabet + aliases, pythons + digits),
        tuple(a + b for a in alphabet for b in alphabet),
    )


_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_NOTATIONS = {
    "decimal": _Notation(10, "0123456789", {}),
    "hex": _Notation(16, "0123456789abcdef", {}),
    # People who type it may use lower case, and mistake I and L for 1, and O for 0.
    "crockford": _own(
        _CROCKFORD, _CROCKFORD[10:].lower() + "ILOilo", "0123456789abcdefghijklmnopqrstuvwxyz"[10:32] + "110110"
    ),
    "b36": _own("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}
_PLAIN = _NOTATIONS["decimal"]


class _Field(NamedTuple):
    """A field of a template."""

    name: str
    width: int  # 0: as many as the number needs
    notation: _Notation = _PLAIN
    algorithm: str = ""  # of check; empty for the default

    @property
    def pattern(self) -> str:
        if self.name == "check":
            return f"(?P<check>[0-9A-Za-z*]{{{self.width}}})"
        size = f"{{{self.width}}}" if self.width else f"{{1,{MAX_WIDTH}}}"
        return f"(?P<{self.name}>[{self.notation.read}]{size})"

    def write(self, number: int) -> str:
        return self.notation.write([number], self.width)[0]

    @property
    def largest(self) -> int | None:
        return self.notation.base**self.width - 1 if self.width else None


class Format:
    """A template that was understood.

    Args:
        template: The template; empty for plain decimal digits.

    Attributes:
        template: The template.
        has_date: Whether its texts need a date.
        largest_value: The largest value that its width has room for; None where there is no limit.

    Raises:
        InvalidRequest: It is none; the error names ``format``.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        self._items = _understood(template or "{value}")
        self._fields = {item.name: item for item in self._items if isinstance(item, _Field)}
        value = self._fields["value"]
        room = value.largest
        self.largest_value = None if room is None or room >= MAX_ID else room
        self.has_date = any(name in _DATE_WIDTHS for name in self._fields)
        self._check = _check_of(self._fields)
        pattern = "".join(re.escape(item) if isinstance(item, str) else item.pattern for item in self._items)
        # Only plain numbers have a sign: see check().
        self._pattern = re.compile(pattern if template else "(?P<value>-?[0-9]{1,19})")

    def check(self, sequence: Sequence) -> None:
        """Refuses the format for a sequence, unless its different ids, of whatever periods, must give different texts.

        Raises:
            InvalidRequest: They may not; the error names ``format`` and says what to do.
        """
        needed = _NEEDED[sequence.reset]
        missing = [f"{{{name}}}" for name in needed if name not in self._fields]
        if missing:
            raise _refused(
                f"must have {' and '.join(missing)}, since all values come again in each period of the reset"
            )
        if not self.template:
            return
        if needed:
            for name in self._fields:
                if name in _DATE_WIDTHS and name not in needed:
                    raise _refused(
                        f"must not have {{{name}}}: texts tell the period of the reset, and it is no part of that one"
                    )
        if sequence.min_value < 0:
            raise _refused(f"has no room for a sign: set min_value to 0 or more, it is {sequence.min_value}")
        if self.largest_value is not None and sequence.max_value > self.largest_value:
            raise _refused(
                f"has room for values up to {self.largest_value}, and max_value is {sequence.max_value}: "
                "give {value} a larger width, or set max_value to less"
            )
        self._check_neighbours()

    def texts(self, values: range, date: str, prefix: int) -> list[str]:
        """Writes ids.

        Args:
            values: The ids; within the bounds of a sequence that ``check`` let pass.
            date: What the date fields tell: a date such as "2026-11-21", or as much of it as they need. Otherwise "".
            prefix: The node's prefix, for formats that have it.

        Raises:
            ValueError: A field has no room for the number, or the date is too short.
        """
        known = self._known(date, prefix)
        if not values:
            return []
        if self.template and not 0 <= min(values[0], values[-1]) <= max(values[0], values[-1]) <= self._room():
            raise ValueError(f"{values} does not fit in {self.template!r}")
        value = self._fields["value"]
        written = value.notation.write(values, value.width)
        names = list(self._fields)
        at = names.index("value")
        # One format for all of them: what is not the value, or the check characters, is the same in each.
        form = "".join(
            item.replace("%", "%%") if isinstance(item, str) else known.get(item.name, "%s") for item in self._items
        )
        if self._check is None:
            return [form % text for text in written]
        before = "".join(known.get(name, "") for name in names[:at]).upper()
        after = "".join(known.get(name, "") for name in names[at:]).upper()
        checks = self._check.of_neighbours(before, map(str.upper, written), after)
        first, second = (checks, written) if names.index("check") < at else (written, checks)
        return [form % pair for pair in zip(first, second, strict=True)]

    def parse(self, text: str) -> Parts:
        """Takes a text apart that ``texts`` made. Letters of Crockford's and check characters may be in lower case.

        Raises:
            InvalidRequest: It is none of this format, or its check characters are wrong; the error names ``text``.
        """
        found = self._pattern.fullmatch(text)
        if not found:
            raise _unlike(self.template, text)
        groups = found.groupdict()
        check = groups.pop("check", "").upper()
        numbers = {name: self._fields[name].notation.number(part) for name, part in groups.items()}
        written = {name: self._fields[name].write(number) for name, number in numbers.items()}
        # Leading zeros that no width asks for would make another text of the same id, and so would "-0".
        if any(len(written[name]) != len(part) for name, part in groups.items()):
            raise _unlike(self.template, text)
        value, prefix = numbers["value"], numbers.get("prefix")
        if not MIN_ID <= value <= self._room() or (prefix or 0) > MAX_PREFIX:
            raise InvalidRequest("text", "must not have a number that is larger than any id or prefix")
        year, month, day = (numbers.get(name) for name in _DATE_WIDTHS)
        try:
            # 2000 has all days that there are.
            date(2000 if year is None else year, 1 if month is None else month, 1 if day is None else day)
        except ValueError:
            raise InvalidRequest("text", "must have a date that exists") from None
        if self._check is not None:
            checked = "".join(written[name] for name in self._fields if name != "check")
            if self._check.make(checked.upper()) != check:
                raise InvalidRequest("text", "has wrong check characters: it was mistyped, or is of another sequence")
        return Parts(value, year, month, day, prefix, check)

    def _room(self) -> int:
        return MAX_ID if self.largest_value is None else self.largest_value

    def _known(self, date: str, prefix: int) -> dict[str, str]:
        """The texts of the fields that are the same in all texts."""
        known = {}
        for name, start in (("year", 0), ("month", 5), ("day", 8)):
            if name in self._fields:
                known[name] = date[start : start + _DATE_WIDTHS[name]]
                if len(known[name]) != _DATE_WIDTHS[name]:
                    raise ValueError(f"{self.template!r} needs more of a date than {date!r}")
        if "prefix" in self._fields:
            if not 0 <= prefix <= MAX_PREFIX:
                raise ValueError(f"{prefix} is no prefix")
            known["prefix"] = self._fields["prefix"].write(prefix)
        return known

    def _check_neighbours(self) -> None:
        """Refuses two fields of no fixed width, unless one of them must end where the literal text next to it is.

        With one such field, the length of a text tells which characters are whose.
        """
        items = self._items
        varying = [at for at, item in enumerate(items) if isinstance(item, _Field) and not item.width]
        for left, right in pairwise(varying):
            first, second, behind, ahead = items[left], items[right], items[left + 1], items[right - 1]
            assert isinstance(first, _Field)  # noqa: S101
            assert isinstance(second, _Field)  # noqa: S101
            ends = isinstance(behind, str) and behind[0] not in first.notation.read
            begins = isinstance(ahead, str) and ahead[-1] not in second.notation.read
            if not ends and not begins:
                raise _refused(
                    f"does not show where {{{first.name}}} ends and {{{second.name}}} begins: give one a width, "
                    'or put a character between them that is none of its digits, such as "-"'
                )


@lru_cache(maxsize=1024)
def compile_format(template: str) -> Format:
    """Returns the format of a template; "" is plain decimal digits.

    Raises:
        InvalidRequest: It is none; the error names ``format`` and says what to do.
    """
    return Format(template)


def _understood(template: str) -> list[str | _Field]:
    if len(template) > MAX_TEMPLATE:
        raise _refused(f"must have at most {MAX_TEMPLATE} characters, has {len(template)}")
    if _CONTROL.search(template):
        raise _refused("must not have control characters")
    items: list[str | _Field] = []
    seen: set[str] = set()
    at = 0
    while at < len(template):
        token = _TOKEN.match(template, at)
        if not token:
            raise _refused(f"has a brace at character {at + 1} that is not of a field: write {{{{ or }}}} for a brace")
        at = token.end()
        if token["literal"] is not None:
            items.append(token["literal"].replace("{{", "{").replace("}}", "}"))
            continue
        name = token["field"]
        if name in seen:
            raise _refused(f"must have {{{name}}} only once")
        seen.add(name)
        items.append(_field(name, token["spec"]))
    if "value" not in seen:
        raise _refused("must have {value}, the number itself")
    return items


def _field(name: str, spec: str | None) -> _Field:
    if name in _DATE_WIDTHS:
        if spec is not None:
            raise _refused(f"must have {{{name}}} without {spec!r}: it has {_DATE_WIDTHS[name]} digits always")
        return _Field(name, _DATE_WIDTHS[name])
    if name == "check":
        if spec is not None and spec not in CHECKS:
            raise _refused(f"must have one of {', '.join(CHECKS)} after {{check:, not {spec!r}")
        return _Field(name, CHECKS[spec].width if spec else 1, algorithm=spec or "")
    if name not in ("value", "prefix"):
        raise _refused(f"has the unknown field {{{name}}}: there are value, year, month, day, prefix and check")
    if spec is None:
        return _Field(name, 0)
    pythons, named = _PYTHONS.fullmatch(spec), _NAMED.fullmatch(spec)
    if pythons:
        notation, width = "decimal" if pythons["type"] == "d" else "hex", pythons["width"]
    elif named and named["name"] in _NOTATIONS:
        notation, width = named["name"], named["width"]
    else:
        raise _refused(
            f"has the unknown {spec!r} in {{{name}}}: write one such as 06d or 08x, or one of {', '.join(_NOTATIONS)}, "
            "with a width as in crockford:8 or without"
        )
    if width is not None and not (len(width) <= 2 and 1 <= int(width) <= MAX_WIDTH):
        raise _refused(f"must have a width of 1 to {MAX_WIDTH} in {{{name}}}, not {width}")
    field = _Field(name, int(width or 0), _NOTATIONS[notation])
    if name == "prefix" and field.largest is not None and field.largest < MAX_PREFIX:
        raise _refused(f"must have room for {MAX_PREFIX} in {{prefix}}, as {{prefix:05d}} and {{prefix:04x}} have")
    return field


def _check_of(fields: dict[str, _Field]) -> Check | None:
    if "check" not in fields:
        return None
    decimal = all(field.notation is _PLAIN for field in fields.values())
    check = CHECKS[fields["check"].algorithm or ("mod11_10" if decimal else "mod37_36")]
    if check.decimal_only and not decimal:
        raise _refused("must have decimal fields only for these check digits: mod37_36, mod37_2, mod97_10 take letters")
    return check


def _refused(rule: str) -> InvalidRequest:
    return InvalidRequest("format", rule)


def _unlike(template: str, text: str) -> InvalidRequest:
    return InvalidRequest("text", f"must be like {template or '{value}'!r}; is {text[:MAX_TEMPLATE]!r}")
