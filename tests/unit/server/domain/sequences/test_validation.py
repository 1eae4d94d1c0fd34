"""Settings of a sequence: defaults, validation, changes, and rounding to the lattice."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.formats import compile_format
from idalloc_server.domain.sequences.sequence import MAX_ID, MAX_STEP, MIN_ID, Kind, Ordering, Reset, Sequence
from idalloc_server.domain.sequences.validation import MAX_JSON_SAFE, MAX_LEASE_SIZE, check_change, resolve_settings

INTS = st.one_of(
    st.integers(-5, 5),
    st.integers(-(2**63), 2**63),
    st.sampled_from([far + near for far in (2**53, MAX_ID, MIN_ID, 2**61, -(2**61)) for near in (-1, 0, 1)]),
)
ZEROS = st.sampled_from([None, 0])


def refused(given: dict[str, Any], before: Sequence | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        resolve_settings(given, before)
    return refusal.value


class TestDefaults:
    def test_are_those_of_sequence(self) -> None:
        """Unset fields get the defaults of ``Sequence``."""
        assert resolve_settings({}) == Sequence()
        assert (
            resolve_settings({"max_value": None, "kind": 0, "reset": 0, "ordering": 0, "time_zone": ""}) == Sequence()
        )

    def test_start_is_min_value(self) -> None:
        """The default start is min_value."""
        assert resolve_settings({"min_value": -7}).start == -7

    def test_start_is_max_value_for_a_negative_step(self) -> None:
        """The default start of a falling sequence is max_value."""
        assert resolve_settings({"step": -5, "max_value": 100}).start == 100

    def test_leave_one_step_before_the_start(self) -> None:
        """The value before the start fits in the store's integers."""
        assert resolve_settings({"step": -5}).start == MAX_ID - 5
        assert resolve_settings({"step": -5}).before_start == MAX_ID
        assert refused({"step": -5, "start": MAX_ID - 4}).field == "start"

    def test_max_value_fits_the_format(self) -> None:
        """The default max_value is the largest value that fits in the format."""
        assert resolve_settings({"format": "A{value:03d}"}).max_value == 999
        assert resolve_settings({"format": "A{value}"}).max_value == MAX_ID
        assert resolve_settings({"format": "A{value:03d}", "step": -1}).start == 999
        assert refused({"format": "A{value:03d}", "min_value": 1000}).field == "format"

    def test_json_safe_limits_values_to_2_53(self) -> None:
        """A json_safe sequence has no value beyond 2^53-1."""
        assert resolve_settings({"json_safe": True}).max_value == 2**53 - 1
        assert resolve_settings({"json_safe": True, "max_value": 5}).max_value == 5
        assert resolve_settings({"json_safe": True, "format": "{value:040d}"}).max_value == 2**53 - 1
        assert resolve_settings({"json_safe": False}).max_value == MAX_ID
        assert refused({"json_safe": True, "max_value": 2**53}).field == "max_value"
        assert refused({"json_safe": True, "min_value": -(2**53)}).field == "min_value"

    def test_of_timestamps_are_rising_with_step_1(self) -> None:
        """A sequence of timestamps is RISING with step 1."""
        sequence = resolve_settings({"kind": 2})
        assert (sequence.kind, sequence.ordering, sequence.step) == (Kind.TIMESTAMP_MS, Ordering.RISING, 1)


class TestInterleaving:
    @pytest.mark.parametrize(
        ("given", "start"),
        [
            ({"offset": 3, "increment": 10}, 3),
            ({"offset": 3, "increment": 10, "start": 4}, 13),
            ({"offset": 10, "increment": 10}, 10),
            ({"offset": 1, "increment": 1, "start": 7}, 7),
            ({"offset": 3, "increment": 10, "min_value": -100}, -97),
            ({"offset": 3, "increment": 10, "min_value": 20, "start": 15}, 23),
        ],
    )
    def test_starts_at_the_first_id_of_the_offset(self, given: dict[str, int], start: int) -> None:
        """The start is rounded up to offset modulo increment."""
        sequence = resolve_settings(given)
        assert (sequence.start, sequence.step) == (start, given["increment"])

    def test_continues_from_the_current_start(self) -> None:
        """An update rounds the current start up."""
        assert resolve_settings({"offset": 2, "increment": 4}, Sequence(start=7)).start == 10

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"offset": 3}, "offset"),
            ({"increment": 3}, "offset"),
            ({"offset": 4, "increment": 3}, "offset"),
            ({"offset": -1, "increment": 3}, "offset"),
            ({"offset": 1, "increment": -3}, "increment"),
            ({"offset": 1, "increment": MAX_STEP + 1}, "increment"),
            ({"offset": 1, "increment": 3, "step": 3}, "increment"),
            ({"offset": 8, "increment": 10, "max_value": 7}, "start"),
        ],
    )
    def test_rejects_invalid_offset_and_increment(self, given: dict[str, int], field: str) -> None:
        """Offset and increment that contradict each other are rejected."""
        assert refused(given).field == field

    @given(increment=st.integers(1, 50), start=st.integers(-1000, 1000), data=st.data())
    def test_different_offsets_share_no_id(self, increment: int, start: int, data: st.DataObject) -> None:
        """P1: sequences with different offsets share no id."""
        one, other = (data.draw(st.integers(1, increment)) for _ in range(2))
        given = {"increment": increment, "start": start, "min_value": -1000}
        first, second = (resolve_settings({**given, "offset": offset}).start for offset in (one, other))
        assert start <= first < start + increment
        assert ((first - second) % increment == 0) == (one == other)


class TestValidation:
    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"step": 0}, "step"),
            ({"step": MAX_STEP + 1}, "step"),
            ({"step": -MAX_STEP - 1}, "step"),
            ({"min_value": MIN_ID - 1}, "min_value"),
            ({"max_value": MAX_ID + 1}, "max_value"),
            ({"min_value": 5, "max_value": 4}, "min_value"),
            ({"start": 0}, "start"),
            ({"max_value": 5, "start": 6}, "start"),
            ({"min_lease_size": -1}, "min_lease_size"),
            ({"max_lease_size": MAX_LEASE_SIZE + 1}, "max_lease_size"),
            ({"min_lease_size": 5, "max_lease_size": 4}, "min_lease_size"),
            ({"description": "x" * 1001}, "description"),
            ({"labels": {str(n): "" for n in range(65)}}, "labels"),
            ({"labels": {"x" * 64: ""}}, "labels"),
            ({"labels": {"": "x"}}, "labels"),
            ({"labels": {"x": "x" * 64}}, "labels"),
            ({"labels": {"x": 1}}, "labels"),
            ({"labels": ["x"]}, "labels"),
            ({"time_zone": "Europe/Wien"}, "time_zone"),
            ({"format": "{serial}"}, "format"),
            ({"format": "{value:02d}", "max_value": 100}, "format"),
            ({"reset": 2}, "format"),
            ({"reset": 2, "format": "{value}"}, "format"),
            ({"reset": 9}, "reset"),
            ({"kind": 4}, "kind"),
            ({"ordering": -1}, "ordering"),
            ({"kind": 2, "step": 2}, "step"),
            ({"kind": 2, "ordering": 1}, "ordering"),
            ({"kind": 2, "reset": 2, "format": "{year}-{value}"}, "reset"),
            ({"kind": 2, "start": 2**60}, "start"),
            ({"kind": 2, "min_value": 2**60}, "min_value"),
            ({"kind": 2, "min_value": -5}, "min_value"),
            ({"kind": 2, "max_value": 5}, "max_value"),
            ({"kind": 3, "max_value": 7_258_118_400_000}, "max_value"),
            ({"kind": 3, "format": "{value:012d}"}, "format"),
            ({"kind": 3, "format": "{value:015d}"}, "format"),
            ({"step": "1"}, "step"),
            ({"step": True}, "step"),
            ({"step": 1.5}, "step"),
            ({"format": 1}, "format"),
            ({"json_safe": 1}, "json_safe"),
            ({"last_value": 1}, "last_value"),
        ],
    )
    def test_rejects_invalid_settings(self, given: dict[str, Any], field: str) -> None:
        """An invalid setting is rejected with its field and a rule."""
        refusal = refused(given)
        assert refusal.field == field
        assert refusal.rule

    @pytest.mark.parametrize(
        "given",
        [
            {"max_value": 5, "step": 100},  # one id
            {"min_value": MIN_ID, "max_value": MIN_ID, "step": -MAX_STEP},
            {"min_lease_size": 5},
            {"labels": {"x" * 63: "ü" * 63}, "description": "x" * 1000},
            {"reset": 3, "format": "{year}{month}-{value:04d}", "time_zone": "Europe/Vienna"},
            {"kind": 2, "format": "{value:013d}", "ordering": 2},
            {"kind": 3, "json_safe": True},
            {"kind": 2, "start": 1, "min_value": 1, "max_value": 7_258_118_400_000},
        ],
    )
    def test_accepts_valid_settings(self, given: dict[str, Any]) -> None:
        """Settings at their limits are accepted."""
        resolve_settings(given)

    @given(
        st.fixed_dictionaries(
            {},
            optional={
                **{name: st.one_of(st.none(), INTS) for name in ("start", "step", "min_value", "max_value")},
                "offset": st.one_of(ZEROS, st.integers(-1, 20)),
                "increment": st.one_of(ZEROS, st.integers(-1, 20)),
                "json_safe": st.booleans(),
                "kind": st.integers(0, 4),
                "ordering": st.integers(0, 3),
                "reset": st.integers(0, 5),
                "min_lease_size": st.integers(-1, 3),
                "max_lease_size": st.integers(-1, 3),
                "format": st.sampled_from(["", "{value}", "{value:03d}", "{year}-{value:b36}", "{value:020d}{check}"]),
            },
        ),
        st.sampled_from([None, Sequence(), Sequence(step=-3, start=50), Sequence(max_value=99, format="{value:02d}")]),
    )
    @example({"step": -1}, None)
    def test_accepted_settings_are_consistent(self, given: dict[str, Any], before: Sequence | None) -> None:
        """Accepted settings keep all limits, and resolve to themselves."""
        try:
            sequence = resolve_settings(given, before)
        except InvalidRequest:
            return
        assert sequence.step
        assert abs(sequence.step) <= MAX_STEP
        assert MIN_ID <= sequence.min_value <= sequence.start <= sequence.max_value <= MAX_ID
        assert -(2**63) <= sequence.before_start <= MAX_ID
        assert not sequence.max_lease_size or sequence.min_lease_size <= sequence.max_lease_size
        if given.get("json_safe"):
            assert max(abs(sequence.min_value), abs(sequence.max_value)) <= MAX_JSON_SAFE
        if sequence.kind != Kind.COUNTER:
            assert (sequence.step, sequence.ordering, sequence.reset) == (1, Ordering.RISING, Reset.NEVER)
            # The time of any clock in this century is one of its values.
            assert sequence.before_start == 0
            assert sequence.max_value >= 4_102_444_800 * sequence.kind.per_second
        if given.get("increment"):
            assert (sequence.start - given["offset"]) % given["increment"] == 0
        compile_format(sequence.format).check_sequence(sequence)
        for value in (sequence.min_value, sequence.start, sequence.max_value):
            compile_format(sequence.format).format_ids(range(value, value + 1), "2026-11-21", 0)
        # Settings resolve to themselves if nothing is given.
        assert resolve_settings({}, sequence) == sequence


class TestUpdates:
    BEFORE = resolve_settings({"min_value": 5, "max_value": 500, "start": 7, "labels": {"a": "b"}, "description": "x"})

    def test_keep_unset_fields(self) -> None:
        """A field that is not given keeps its value."""
        assert resolve_settings({}, self.BEFORE) == self.BEFORE
        after = resolve_settings({"step": 3}, self.BEFORE)
        assert (after.step, after.start, after.max_value, after.labels) == (3, 7, 500, {"a": "b"})

    def test_none_resets_to_the_default(self) -> None:
        """None resets a field to its default."""
        after = resolve_settings(dict.fromkeys(("start", "max_value", "labels", "description")), self.BEFORE)
        assert (after.start, after.min_value, after.max_value) == (5, 5, MAX_ID)
        assert (after.labels, after.description) == ({}, "")

    def test_of_the_format_keep_max_value(self) -> None:
        """A new format does not change max_value by itself."""
        assert resolve_settings({"format": "A{value:03d}"}, self.BEFORE).max_value == 500
        assert refused({"format": "A{value:03d}"}, Sequence()).field == "format"
        assert resolve_settings({"format": "A{value:03d}", "max_value": None}, Sequence()).max_value == 999

    def test_json_safe_lowers_max_value(self) -> None:
        """json_safe lowers max_value to 2^53-1."""
        assert resolve_settings({"json_safe": True}, Sequence()).max_value == MAX_JSON_SAFE
        assert resolve_settings({"json_safe": True}, self.BEFORE).max_value == 500


class TestCheckChange:
    @pytest.mark.parametrize(
        ("before", "after", "field"),
        [
            (Sequence(), resolve_settings({"kind": 2}), "kind"),
            (Sequence(), resolve_settings({"reset": 2, "format": "{year}-{value}"}), "reset"),
            (Sequence(), resolve_settings({"time_zone": "Europe/Vienna"}), "time_zone"),
            (Sequence(), resolve_settings({"step": -1}), "step"),
            (resolve_settings({"step": -1}), Sequence(), "step"),
        ],
    )
    def test_rejects_immutable_settings(self, before: Sequence, after: Sequence, field: str) -> None:
        """Kind, reset, time zone and the sign of the step cannot change."""
        with pytest.raises(InvalidRequest, match="cannot") as refusal:
            check_change(before, after, 5)
        assert refusal.value.field == field

    @pytest.mark.parametrize(("step", "field"), [(1, "max_value"), (-1, "min_value")])
    def test_rejects_a_bound_before_the_counter(self, step: int, field: str) -> None:
        """P2: a new bound must not lie before the counter."""
        before = resolve_settings({"step": step, "min_value": 1, "max_value": 100, "start": 50})
        check_change(before, resolve_settings({field: 40, "start": 40}, before), 40)
        with pytest.raises(InvalidRequest, match="the counter's value") as refusal:
            check_change(before, resolve_settings({field: 40, "start": 40}, before), 40 + step)
        assert refusal.value.field == field
        assert str(40 + step) in refusal.value.rule

    def test_accepts_any_opposite_bound(self) -> None:
        """The bound behind the counter may change."""
        check_change(Sequence(), resolve_settings({"min_value": 1000, "start": 1000}), 50)

    def test_ignores_an_unchanged_bound(self) -> None:
        """A counter that is already past an unchanged bound does not block other changes."""
        before = Sequence(max_value=10)
        check_change(before, resolve_settings({"description": "x"}, before), 11)

    def test_accepts_any_bound_of_an_unused_sequence(self) -> None:
        """A sequence that has issued nothing may get any bound."""
        check_change(Sequence(), resolve_settings({"max_value": 1, "step": 9}), Sequence().before_start)


class TestAlign:
    """Rounding to the lattice is exact beyond doubles, and at the ends of the store's integers."""

    @pytest.mark.parametrize(
        ("given", "value", "point"),
        [
            ({"step": 10}, 2**53 + 1, 2**53 + 9),  # 2^53 ends in 2
            ({"step": 10}, 1, 1),
            ({"step": 10}, -50, -9),  # nothing was issued yet
            ({"step": 10}, 2, 11),
            ({}, MAX_ID, MAX_ID),
            ({"step": 2}, MAX_ID, MAX_ID + 1),  # past the bound: exhausted
            ({"step": -3, "start": 100}, 98, 97),
            ({"step": -3, "start": 100}, 97, 97),
            ({"step": -3, "start": 100}, 1000, 103),
            ({"step": -1}, -(2**53) - 1, -(2**53) - 1),
        ],
    )
    def test_of_known_values(self, given: dict[str, int], value: int, point: int) -> None:
        """Known values, also beyond 2^53 and at the ends of 64 bits, are rounded exactly."""
        assert resolve_settings(given).align(value) == point

    @given(step=INTS, start=INTS, value=st.one_of(INTS, st.just(MAX_ID)))
    @example(step=-1, start=MAX_ID - 1, value=MIN_ID)
    @example(step=3, start=1, value=2**53 + 1)
    def test_is_the_first_lattice_value_not_before(self, step: int, start: int, value: int) -> None:
        """The result is the first lattice value that is not before the given one."""
        try:
            sequence = resolve_settings({"step": step, "start": start, "min_value": MIN_ID})
        except InvalidRequest:
            return
        point = sequence.align(value)
        assert (point - sequence.start) % sequence.step == 0
        assert not sequence.is_past(value, point)
        assert not sequence.is_past(sequence.before_start, point)
        assert point == sequence.before_start or sequence.is_past(value, point - sequence.step)
