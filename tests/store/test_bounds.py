"""Counter arithmetic, against sets of numbers and the ends of 64 bits."""

from hypothesis import example, given
from hypothesis import strategies as st

from idalloc_server.domain.sequences.sequence import MAX_ID, MAX_STEP, MIN_ID, Sequence
from idalloc_server.store.bounds import MIN_BIGINT, advance_counter, timestamp_grant

EDGES = (2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, MAX_ID - 1, MAX_ID, MIN_ID, MIN_BIGINT, MIN_BIGINT + 1)
values = st.one_of(st.integers(-60, 60), st.sampled_from(EDGES), st.integers(MIN_BIGINT, MAX_ID))
sizes = st.one_of(st.integers(1, 20), st.sampled_from((2**53 + 1, MAX_STEP - 1, MAX_STEP)))
signs = st.sampled_from((1, -1))


@given(values, values, st.integers(MIN_ID, MAX_ID) | st.integers(-20, 20), sizes, signs)
@example(MAX_ID, 0, 1, MAX_STEP, 1)
@example(2**63 - 1, 0, 1, 1, 1)
@example(MIN_BIGINT, 0, MIN_ID + MAX_STEP, MAX_STEP, -1)
@example(MAX_ID, MAX_ID, MAX_ID, 7, -1)
def test_an_advance_never_goes_back_and_lands_on_the_lattice(
    last_value: int, at_least: int, start: int, size: int, sign: int
) -> None:
    """P2: an advance reaches both values, on a point of the lattice or at the end of BIGINT."""
    sequence = Sequence(start=start, step=sign * size, min_value=MIN_ID)
    found = advance_counter(last_value, at_least, sequence)
    assert MIN_BIGINT <= found <= 2**63 - 1
    for least in (last_value, at_least):
        assert not sequence.is_past(least, found)
    if found in (MAX_ID, MIN_BIGINT, last_value):
        return  # the end, or on it already
    assert (found - start) % size == 0
    assert not sequence.is_past(sequence.before_start, found)
    # The point before it would have been too early.
    before = found - sequence.step
    assert any(sequence.is_past(least, before) for least in (last_value, at_least, sequence.before_start))


@given(st.integers(-30, 30), st.integers(-30, 30), st.integers(-10, 10), st.integers(1, 7), signs)
def test_an_advance_finds_the_first_point_of_the_lattice(
    last_value: int, at_least: int, start: int, size: int, sign: int
) -> None:
    """P5: an advance skips no point of the lattice."""
    sequence = Sequence(start=start, step=sign * size)
    walked = sequence.before_start
    while any(sequence.is_past(least, walked) for least in (last_value, at_least)):
        walked += sequence.step
    assert advance_counter(last_value, at_least, sequence) == walked


@given(st.integers(0, 50), st.integers(0, 80), st.integers(0, 30), st.integers(0, 80), st.integers(0, 20))
def test_granted_timestamps_are_free_and_near_the_clock(
    last_value: int, max_value: int, wanted: int, now: int, ahead: int
) -> None:
    """P1: granted timestamps are past the counter, and within the allowed distance of the clock."""
    free = [value for value in range(now, max_value + 1) if value > last_value]
    allowed = [value for value in free if value <= now + ahead][:wanted]
    result = timestamp_grant(last_value, max_value, wanted, now, ahead)
    assert result.granted == len(allowed)
    assert result.last_value == (allowed[-1] if allowed else last_value)
    assert result.remaining == len(free) - len(allowed)
