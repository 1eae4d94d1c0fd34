"""Formats: ids have different texts, parsing reverses formatting, check digits detect typos."""

from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.formats import ParsedId, compile_format
from idalloc_server.domain.sequences.sequence import MAX_ID, MIN_ID, Reset, Sequence

DATE = "2026-11-21"
DATES = ["2026-11-21", "2026-11-20", "2026-01-21", "2025-11-21", "1999-12-31", "2028-02-29"]
# Numbers whose concatenations are ambiguous in many ways.
AMBIGUOUS = [1, 11, 111, 1111, 16, 17, 33, 1057, 10, 101]
LENGTHS = {Reset.NEVER: 10, Reset.YEARLY: 4, Reset.MONTHLY: 7, Reset.DAILY: 10}
CHECKS = ["luhn", "damm", "verhoeff", "mod11_10", "mod37_36", "mod97_10", "mod11_2", "mod37_2"]
SPECS = ["", ":06d", ":08x", ":1d", ":d", ":x", ":decimal", ":decimal:5", ":hex", ":hex:9", ":crockford"]
SPECS += [":crockford:8", ":b36", ":b36:7", ":20d"]


def text(template: str, value: int, date: str = DATE, prefix: int = 0) -> str:
    return compile_format(template).format_ids(range(value, value + 1), date, prefix)[0]


def refusal(template: str, sequence: Sequence | None = None) -> str:
    with pytest.raises(InvalidRequest) as refused:
        compile_format(template).check_sequence(sequence or Sequence())
    assert refused.value.field == "format"
    return refused.value.rule


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Draw templates, most of them valid: any fields in any order, with or without text between."""
    fields = ["{value" + draw(st.sampled_from(SPECS)) + "}"]
    fields += draw(st.lists(st.sampled_from(["{year}", "{month}", "{day}"]), unique=True))
    if draw(st.booleans()):
        fields.append("{prefix" + draw(st.sampled_from(["", ":05d", ":04x", ":x", ":crockford", ":b36:4"])) + "}")
    if draw(st.booleans()):
        fields.append(draw(st.sampled_from(["{check}", *(f"{{check:{name}}}" for name in CHECKS)])))
    literal = st.sampled_from(["", "", "", "-", "INV-", "0", "1", "a", "A", "{{", "}}", "%", "%s", "O", "l", "é"])
    return "".join(draw(literal) + field for field in draw(st.permutations(fields))) + draw(literal)


VALUES = st.one_of(st.integers(0, 40), st.integers(0, 2**21), st.sampled_from([2**53, MAX_ID - 1, MAX_ID]))
IDS = st.tuples(VALUES, st.sampled_from(DATES), st.sampled_from([0, 1, 11, 255, 256, 1023, 65535]))


def valid_sequence(template: str, reset: Reset = Reset.NEVER) -> Sequence | None:
    """Return a sequence for which the format is valid, or None."""
    try:
        room = compile_format(template).largest_value
        sequence = Sequence(min_value=0, max_value=MAX_ID if room is None else room, format=template, reset=reset)
        compile_format(template).check_sequence(sequence)
    except InvalidRequest:
        return None
    return sequence


class TestFormatIds:
    @pytest.mark.parametrize(
        ("template", "value", "expected"),
        [
            ("", 42, "42"),
            ("", -42, "-42"),
            ("", MAX_ID, "9223372036854775806"),
            ("INV-{year}-{value:06d}", 42, "INV-2026-000042"),
            ("{year}{month}{day}/{value}", 42, "20261121/42"),
            ("{value:b36}", 35, "Z"),
            ("{value:b36}", 36, "10"),
            ("{value:b36}", 0, "0"),
            ("{value:b36:3}", 1296, "100"),
            ("{value:crockford}", 32**7 + 31, "1000000Z"),
            ("{value:crockford:8}", 22, "0000000P"),
            ("{value:08x}", 0xBEEF, "0000beef"),
            ("{value:hex}", 0xBEEF, "beef"),
            ("{value:x}", 10, "a"),
            ("{value:decimal:4}", 7, "0007"),
            ("{prefix:04x}-{value}", 7, "abcd-7"),
            ("{{{value}}}", 7, "{7}"),
            ("100%{value}%s", 7, "100%7%s"),
            ("{value:03d}{check:luhn}", 18, "0182"),
            ("{value}{check:damm}", 572, "5724"),
            ("{value}{check:verhoeff}", 236, "2363"),
            ("{value:04d}{check:mod11_10}", 794, "07945"),
            ("{value:04d}{check}", 794, "07945"),
            ("{value}-{check:mod11_2}", 79, "79-X"),
            ("{value}{check:mod97_10}", 794, "79444"),
            ("{check:damm}-{value}", 572, "4-572"),
        ],
    )
    def test_follows_the_template(self, template: str, value: int, expected: str) -> None:
        """Each notation, width and field gives the text that its template defines."""
        assert text(template, value, prefix=0xABCD) == expected

    def test_keeps_the_order_of_the_values(self) -> None:
        """The texts are in the order of the values."""
        assert compile_format("{value:02d}").format_ids(range(30, 0, -10), "", 0) == ["30", "20", "10"]
        assert compile_format("{value}{check:luhn}").format_ids(range(1, 4), "", 0) == ["18", "26", "34"]

    def test_of_an_empty_range_is_empty(self) -> None:
        """An empty range gives no texts."""
        assert compile_format("{value:02d}").format_ids(range(0), "", 0) == []

    def test_needs_the_date_of_its_fields_only(self) -> None:
        """A date may be as short as the date fields allow, and not shorter."""
        assert text("{year}-{value}", 1, "2026") == "2026-1"
        with pytest.raises(ValueError, match="needs more"):
            text("{year}{month}-{value}", 1, "2026")

    @pytest.mark.parametrize(("template", "value"), [("{value:02d}", 100), ("{value}x", -1)])
    def test_rejects_values_that_do_not_fit(self, template: str, value: int) -> None:
        """A value that does not fit in its field is never formatted."""
        with pytest.raises(ValueError, match="does not fit"):
            text(template, value)

    def test_check_digits_cover_fields_and_no_literals(self) -> None:
        """Check characters cover all fields and no literal text."""
        assert text("{year}-{value:04d}-{check:damm}", 1)[-1] == text("{value}{check:damm}", 20260001)[-1]
        assert text("x{value:08x}{check}", 0xA)[-1] == text("{value:b36:8}{check}", 10)[-1]


class TestValidation:
    @pytest.mark.parametrize(
        ("template", "rule"),
        [
            ("INV", "must have the field {value}"),
            ("{value}{value}", "only once"),
            ("{value}{check}{check}", "only once"),
            ("{year}{year}{value}", "only once"),
            ("{serial}", "unknown field {serial}"),
            ("{}", "unknown field {}"),
            ("{Value}", "unknown field"),
            ("{value!r}", "unknown field"),
            ("{value", "unmatched brace at character 1"),
            ("{value}}", "unmatched brace at character 8"),
            ("a{{{value}}", "unmatched brace at character 11"),
            ("{{value}}", "must have the field {value}"),
            ("{value:}", "unknown notation ''"),
            ("{value:6d}", "unknown notation '6d'"),
            ("{value:06X}", "unknown"),
            ("{value:base64}", "unknown"),
            ("{value:hex:}", "unknown"),
            ("{value:00d}", "width of 1 to"),
            ("{value:hex:0}", "width of 1 to"),
            ("{value:041d}", "width of 1 to"),
            ("{value:crockford:99999999999999999999}", "width of 1 to"),
            ("{year:4}{value}", "without '4'"),
            ("{value}{check:crc}", "must have one of luhn"),
            ("{value}{check:}", "must have one of luhn"),
            ("{prefix:02x}{value:06d}", "room for 65535"),
            ("{value:hex}{check:luhn}", "decimal fields only"),
            ("{prefix:04x}{value:06d}{check:damm}", "decimal fields only"),
            ("{value}\n", "control characters"),
            ("{value}" + "x" * 194, "at most 200"),
        ],
    )
    def test_rejects_invalid_templates(self, template: str, rule: str) -> None:
        """An invalid template is rejected with the rule that it breaks."""
        assert rule in refusal(template)

    @pytest.mark.parametrize(
        ("template", "reset"),
        [
            ("", Reset.YEARLY),
            ("{value}", Reset.YEARLY),
            ("{month}{day}{value}", Reset.YEARLY),
            ("{year}-{value}", Reset.MONTHLY),
            ("{month}-{value}", Reset.MONTHLY),
            ("{year}{month}-{value}", Reset.DAILY),
            ("{year}{day}-{value}", Reset.DAILY),
        ],
    )
    def test_rejects_a_reset_without_its_date_fields(self, template: str, reset: Reset) -> None:
        """P1: a format must show the period of the reset, since values repeat in each."""
        assert "repeat in each period" in refusal(template, Sequence(reset=reset))

    def test_rejects_a_date_finer_than_the_period(self) -> None:
        """A format must not have a date field that the period does not determine."""
        assert "not part of the period" in refusal("{year}{month}-{value}", Sequence(reset=Reset.YEARLY))

    def test_rejects_values_that_do_not_fit(self) -> None:
        """The sequence's bounds must fit in the width of the value."""
        assert "up to 999" in refusal("{value:03d}", Sequence(max_value=1000))
        compile_format("{value:03d}").check_sequence(Sequence(max_value=999))
        assert "sign" in refusal("A{value}", Sequence(min_value=-1))
        compile_format("").check_sequence(Sequence(min_value=MIN_ID))

    @pytest.mark.parametrize(
        "template",
        [
            "{prefix}{value}",
            "{value}{year}{prefix}",
            "{prefix}0{value}",
            "{value:hex}a{prefix:hex}",
            "{prefix}{check}{value}",
            "{value:crockford}o{prefix:crockford}",
        ],
    )
    def test_rejects_ambiguous_adjacent_fields(self, template: str) -> None:
        """P1: adjacent fields of varying width must not give one text for two ids."""
        assert "does not show where" in refusal(template)

    @pytest.mark.parametrize(
        "template",
        [
            "{prefix}-{value}",
            "{prefix:05d}{value}",
            "{prefix}{value:06d}",
            "{value}{check}",
            "{year}{value}{month}",
            "{value}x{year}{prefix}",
            "{value}{year}-{prefix}",
            "{value:hex}g{prefix:hex}",
            "{prefix}a{value}",
        ],
    )
    def test_accepts_separated_fields(self, template: str) -> None:
        """Fields with a separator or a width are accepted."""
        compile_format(template).check_sequence(Sequence(max_value=999_999))

    @pytest.mark.parametrize(
        ("template", "largest"),
        [
            ("", None),
            ("{value}", None),
            ("{value:06d}", 999_999),
            ("{value:02x}", 255),
            ("{value:crockford:4}", 2**20 - 1),
            ("{value:b36:2}", 1295),
            ("{value:019d}", None),
            ("{value:018d}", 10**18 - 1),
        ],
    )
    def test_largest_value_follows_the_width(self, template: str, largest: int | None) -> None:
        """The largest value is what fits in the width of the value."""
        assert compile_format(template).largest_value == largest

    def test_has_date_with_a_date_field(self) -> None:
        """A format has a date if it has a date field."""
        assert compile_format("{day}{value}").has_date
        assert not compile_format("{prefix}-{value}").has_date


class TestProperties:
    # Most templates do not fit most resets.
    @settings(suppress_health_check=[HealthCheck.filter_too_much])
    @given(template=templates(), reset=st.sampled_from(list(Reset)), ids=st.lists(IDS, min_size=2, max_size=12))
    def test_different_ids_have_different_texts(
        self, template: str, reset: Reset, ids: list[tuple[int, str, int]]
    ) -> None:
        """P1: the period and value alone make the texts of different ids different."""
        sequence = valid_sequence(template, reset)
        assume(sequence)
        assert sequence
        periodic = reset != Reset.NEVER
        texts: dict[str, tuple[str, int]] = {}
        for value, date, prefix in ids:
            period = date[: LENGTHS[reset]]
            meant = (period if periodic else "", min(value, sequence.max_value))
            assert texts.setdefault(text(template, meant[1], period, prefix), meant) == meant

    @given(template=templates(), id=IDS)
    def test_parse_reverses_format_ids(self, template: str, id: tuple[int, str, int]) -> None:
        """Parsing a formatted id gives its fields back."""
        sequence = valid_sequence(template)
        assume(sequence)
        assert sequence
        value, date, prefix = min(id[0], sequence.max_value), *id[1:]
        parts = compile_format(template).parse(text(template, value, date, prefix))
        year, month, day = (int(part) for part in date.split("-"))
        assert parts == ParsedId(
            value,
            year if "{year}" in template else None,
            month if "{month}" in template else None,
            day if "{day}" in template else None,
            prefix if "{prefix" in template else None,
            parts.check,
        )
        assert bool(parts.check) == ("{check" in template)

    def test_adjacent_small_numbers_never_collide(self) -> None:
        """P1: no two ids share a text, for any pair of notations and text between them."""
        for spec, other, between in product(SPECS, ["", ":05d", ":x", ":crockford"], ["", "-", "1", "{year}", "a"]):
            template = f"{{value{spec}}}{between}{{prefix{other}}}"
            sequence = valid_sequence(template)
            if sequence is None:
                continue
            seen: dict[str, int] = {}
            for value, prefix in product(AMBIGUOUS, AMBIGUOUS):
                if value <= sequence.max_value:
                    assert seen.setdefault(text(template, value, DATE, prefix), value) == value

    @pytest.mark.parametrize("name", CHECKS)
    @given(value=st.integers(0, 10**9 - 1), data=st.data())
    def test_detects_one_wrong_character(self, name: str, value: int, data: st.DataObject) -> None:
        """Each algorithm detects one wrong character."""
        template = f"{{value:09d}}-{{check:{name}}}"
        right = text(template, value)
        at = data.draw(st.sampled_from([at for at, letter in enumerate(right) if letter != "-"]))
        letters = "0123456789" if at < 9 else "0123456789X*ABCYZ"
        wrong = data.draw(st.sampled_from([letter for letter in letters if letter != right[at]]))
        with pytest.raises(InvalidRequest) as refused:
            compile_format(template).parse(right[:at] + wrong + right[at + 1 :])
        assert refused.value.field == "text"

    @given(
        value=st.integers(0, 32**8 - 1), at=st.integers(0, 8), wrong=st.sampled_from("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
    )
    def test_detects_one_wrong_letter(self, value: int, at: int, wrong: str) -> None:
        """The default algorithm detects one wrong Crockford letter."""
        right = text("{value:crockford:8}{check}", value)
        assume(right[at] != wrong)
        with pytest.raises(InvalidRequest, match="wrong check characters"):
            compile_format("{value:crockford:8}{check}").parse(right[:at] + wrong + right[at + 1 :])


class TestParse:
    def test_accepts_lower_case_crockford_and_look_alikes(self) -> None:
        """Crockford's decoding accepts lower case, I and L as 1, and O as 0."""
        assert compile_format("{value:crockford:4}").parse("oLi0") == ParsedId(1 * 32**2 + 1 * 32)
        assert compile_format("{value:crockford}").parse("1z").value == 63
        right = text("{value:crockford:8}{check}", 123_456_789)
        assert compile_format("{value:crockford:8}{check}").parse(right.lower()) == ParsedId(
            123_456_789, check=right[-1]
        )

    @pytest.mark.parametrize(
        ("template", "wrong"),
        [
            ("", ""),
            ("", "+1"),
            ("", "-0"),
            ("", "007"),
            ("", "-07"),
            ("", "\u0661"),
            ("", "1\n"),
            ("", str(MAX_ID + 1)),
            ("", str(MIN_ID - 1)),
            ("", "9" * 10_000),
            ("INV-{value:06d}", "INV-42"),
            ("INV-{value:06d}", "inv-000042"),
            ("INV-{value:06d}", "INV-0000042"),
            ("INV-{value}", "INV--1"),
            ("INV-{value}", "INV-01"),
            ("{value:hex}", "BEEF"),
            ("{value:b36}", "0Z"),
            ("{value:b36}", "z"),
            ("{value:crockford}", "U"),
            ("{value:crockford}", "o1"),
            ("{value:b36:20}", "Z" * 20),
            ("{year}{month}{day}-{value}", "20260229-1"),
            ("{month}-{value}", "13-1"),
            ("{year}-{value}", "0000-1"),
            ("{prefix}-{value}", "65536-1"),
            ("{prefix}-{value}", "01-1"),
            ("{value:06d}{check}", "0000010"),
        ],
    )
    def test_rejects_texts_of_no_id(self, template: str, wrong: str) -> None:
        """A text that no id of the format has is rejected, with a short message."""
        with pytest.raises(InvalidRequest) as refused:
            compile_format(template).parse(wrong)
        assert refused.value.field == "text"
        assert len(refused.value.rule) < 400

    @given(value=st.integers(MIN_ID, MAX_ID))
    def test_reverses_plain_numbers(self, value: int) -> None:
        """Decimal digits give any id back."""
        assert compile_format("").parse(text("", value)) == ParsedId(value)
