"""Settings: what is set where nothing is said, what is refused, what may change, and the arithmetic at the far ends."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.formats import compile_format
from idalloc_server.domain.sequences.model import MAX_ID, MAX_STEP, MIN_ID, Kind, Ordering, Reset, Sequence
from idalloc_server.domain.sequences.validation import MAX_JSON_SAFE, MAX_LEASE_SIZE, check_change, settle

INTS = st.one_of(
    st.integers(-5, 5),
    st.integers(-(2**63), 2**63),
    st.sampled_from([far + near for far in (2**53, MAX_ID, MIN_ID, 2**61, -(2**61)) for near in (-1, 0, 1)]),
)
ZEROS = st.sampled_from([None, 0])


def refused(given: dict[str, Any], before: Sequence | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        settle(given, before)
    return refusal.value


class TestDefaults:
    def test_are_those_of_a_plain_sequence(self) -> None:
        assert settle({}) == Sequence()
        assert settle({"max_value": None, "kind": 0, "reset": 0, "ordering": 0, "time_zone": ""}) == Sequence()

    def test_start_is_min_value(self) -> None:
        assert settle({"min_value": -7}).start == -7

    def test_start_is_max_value_where_the_step_is_negative(self) -> None:
        assert settle({"step": -5, "max_value": 100}).start == 100

    def test_leave_room_for_a_step_before_the_start(self) -> None:
        assert settle({"step": -5}).start == MAX_ID - 5
        assert settle({"step": -5}).before_start == MAX_ID
        assert refused({"step": -5, "start": MAX_ID - 4}).field == "start"

    def test_max_value_is_what_the_format_has_room_for(self) -> None:
        assert settle({"format": "A{value:03d}"}).max_value == 999
        assert settle({"format": "A{value}"}).max_value == MAX_ID
        assert settle({"format": "A{value:03d}", "step": -1}).start == 999
        assert refused({"format": "A{value:03d}", "min_value": 1000}).field == "format"

    def test_json_safe_ends_at_2_to_53(self) -> None:
        assert settle({"json_safe": True}).max_value == 2**53 - 1
        assert settle({"json_safe": True, "max_value": 5}).max_value == 5
        assert settle({"json_safe": True, "format": "{value:040d}"}).max_value == 2**53 - 1
        assert settle({"json_safe": False}).max_value == MAX_ID
        assert refused({"json_safe": True, "max_value": 2**53}).field == "max_value"
        assert refused({"json_safe": True, "min_value": -(2**53)}).field == "min_value"

    def test_timestamps_rise(self) -> None:
        sequence = settle({"kind": 2})
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
    def test_starts_at_the_first_id_with_the_remainder(self, given: dict[str, int], start: int) -> None:
        sequence = settle(given)
        assert (sequence.start, sequence.step) == (start, given["increment"])

    def test_goes_on_from_the_present_start(self) -> None:
        assert settle({"offset": 2, "increment": 4}, Sequence(start=7)).start == 10

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
    def test_refuses_what_does_not_fit_together(self, given: dict[str, int], field: str) -> None:
        assert refused(given).field == field

    @given(increment=st.integers(1, 50), start=st.integers(-1000, 1000), data=st.data())
    def test_of_different_offsets_never_gives_the_same_id(
        self, increment: int, start: int, data: st.DataObject
    ) -> None:
        one, other = (data.draw(st.integers(1, increment)) for _ in range(2))
        given = {"increment": increment, "start": start, "min_value": -1000}
        first, second = (settle({**given, "offset": offset}).start for offset in (one, other))
        assert start <= first < start + increment
        assert ((first - second) % increment == 0) == (one == other)


class TestRefusals:
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
    def test_name_the_field(self, given: dict[str, Any], field: str) -> None:
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
    def test_are_not_of_what_is_sensible(self, given: dict[str, Any]) -> None:
        settle(given)

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
    def test_leave_no_settings_that_contradict_each_other(self, given: dict[str, Any], before: Sequence | None) -> None:
        try:
            sequence = settle(given, before)
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
        compile_format(sequence.format).check(sequence)
        for value in (sequence.min_value, sequence.start, sequence.max_value):
            compile_format(sequence.format).texts(range(value, value + 1), "2026-11-21", 0)
        # What was settled once stays, whatever is not said.
        assert settle({}, sequence) == sequence


class TestUpdates:
    BEFORE = settle({"min_value": 5, "max_value": 500, "start": 7, "labels": {"a": "b"}, "description": "x"})

    def test_leave_what_is_not_said(self) -> None:
        assert settle({}, self.BEFORE) == self.BEFORE
        after = settle({"step": 3}, self.BEFORE)
        assert (after.step, after.start, after.max_value, after.labels) == (3, 7, 500, {"a": "b"})

    def test_go_back_to_the_default_for_none(self) -> None:
        after = settle(dict.fromkeys(("start", "max_value", "labels", "description")), self.BEFORE)
        assert (after.start, after.min_value, after.max_value) == (5, 5, MAX_ID)
        assert (after.labels, after.description) == ({}, "")

    def test_of_a_format_leave_max_value(self) -> None:
        assert settle({"format": "A{value:03d}"}, self.BEFORE).max_value == 500
        assert refused({"format": "A{value:03d}"}, Sequence()).field == "format"
        assert settle({"format": "A{value:03d}", "max_value": None}, Sequence()).max_value == 999

    def test_of_json_safe_lower_max_value(self) -> None:
        assert settle({"json_safe": True}, Sequence()).max_value == MAX_JSON_SAFE
        assert settle({"json_safe": True}, self.BEFORE).max_value == 500


class TestCheckChange:
    @pytest.mark.parametrize(
        ("before", "after", "field"),
        [
            (Sequence(), settle({"kind": 2}), "kind"),
            (Sequence(), settle({"reset": 2, "format": "{year}-{value}"}), "reset"),
            (Sequence(), settle({"time_zone": "Europe/Vienna"}), "time_zone"),
            (Sequence(), settle({"step": -1}), "step"),
            (settle({"step": -1}), Sequence(), "step"),
        ],
    )
    def test_refuses_what_stays_for_ever(self, before: Sequence, after: Sequence, field: str) -> None:
        with pytest.raises(InvalidRequest, match="ever") as refusal:
            check_change(before, after, 5)
        assert refusal.value.field == field

    @pytest.mark.parametrize(("step", "field"), [(1, "max_value"), (-1, "min_value")])
    def test_refuses_a_bound_that_the_counter_has_passed(self, step: int, field: str) -> None:
        before = settle({"step": step, "min_value": 1, "max_value": 100, "start": 50})
        check_change(before, settle({field: 40, "start": 40}, before), 40)
        with pytest.raises(InvalidRequest, match="where the counter is") as refusal:
            check_change(before, settle({field: 40, "start": 40}, before), 40 + step)
        assert refusal.value.field == field
        assert str(40 + step) in refusal.value.rule

    def test_lets_the_other_bound_pass(self) -> None:
        check_change(Sequence(), settle({"min_value": 1000, "start": 1000}), 50)

    def test_lets_other_changes_pass_where_the_counter_was_past_its_bound_before(self) -> None:
        before = Sequence(max_value=10)
        check_change(before, settle({"description": "x"}, before), 11)

    def test_lets_a_sequence_change_that_has_issued_nothing(self) -> None:
        check_change(Sequence(), settle({"max_value": 1, "step": 9}), Sequence().before_start)


class TestReaching:
    """The arithmetic of the lattice: exact beyond doubles, and at the ends of what a store can hold."""

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
    def test_of_known_points(self, given: dict[str, int], value: int, point: int) -> None:
        assert settle(given).reaching(value) == point

    @given(step=INTS, start=INTS, value=st.one_of(INTS, st.just(MAX_ID)))
    @example(step=-1, start=MAX_ID - 1, value=MIN_ID)
    @example(step=3, start=1, value=2**53 + 1)
    def test_is_the_first_point_not_before(self, step: int, start: int, value: int) -> None:
        try:
            sequence = settle({"step": step, "start": start, "min_value": MIN_ID})
        except InvalidRequest:
            return
        point = sequence.reaching(value)
        assert (point - sequence.start) % sequence.step == 0
        assert not sequence.is_past(value, point)
        assert not sequence.is_past(sequence.before_start, point)
        assert point == sequence.before_start or sequence.is_past(value, point - sequence.step)
