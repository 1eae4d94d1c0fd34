"""The demand of a counter as a text in its row."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idalloc_server.domain.sequences.sequence import MAX_ID
from idalloc_server.domain.store.records import Demand
from idalloc_server.store.stored_rows import pack_demand, unpack_demand

rates = st.floats(min_value=1e-300, max_value=1e18)
calls = st.integers(1, MAX_ID)
times = st.floats(min_value=0, max_value=253_402_300_798)


@given(rates, calls, times)
def test_a_rounded_demand_is_kept_exactly(rate: float, largest_call: int, at: float) -> None:
    """A node recognizes its own demand: 6 digits and whole seconds are read as written."""
    demand = Demand(float(f"{rate:.6g}"), largest_call, round(at))
    assert unpack_demand(pack_demand(demand)) == demand


@given(rates, calls, times)
def test_any_demand_is_rounded_once(rate: float, largest_call: int, at: float) -> None:
    """What is read is near to what was written, and is written again as the same text."""
    packed = pack_demand(Demand(rate, largest_call, at))
    found = unpack_demand(packed)
    assert found is not None
    assert math.isclose(found.rate, rate, rel_tol=1e-5)
    assert found.largest_call == largest_call
    assert abs(found.at - at) <= 0.5
    assert pack_demand(found) == packed


@given(st.one_of(st.text(), st.none(), st.binary(), st.integers(), st.lists(st.text()), st.booleans()))
@example("1 2 3 4")
@example(f"{10**400} 1 1")
@example(f"1 {'9' * 5000} 1")
@example(f"1 {MAX_ID + 1} 1")
@example("1 1.5 1")
@example("1 1 inf")
@example("1 1 253402300800")
def test_anything_else_is_no_demand(packed: object) -> None:
    """A row can hold anything; what is no demand is None, and never an error."""
    found = unpack_demand(packed)
    if found is not None:  # three numbers, by chance
        assert unpack_demand(pack_demand(found)) is not None
        assert 0 < found.rate <= MAX_ID


@pytest.mark.parametrize(
    "packed", ["1 2 3 4", "1 2", "1e999 1 1", "1 1.5 1", "1 1 inf", "nan 1 1", "1 0 1", 5, b"1 1 1"]
)
def test_a_wrong_demand_is_none(packed: object) -> None:
    """An unreadable, negative, infinite or absurd demand is None."""
    assert unpack_demand(packed) is None


def test_the_form_in_the_row() -> None:
    """People can read and edit it: the rate, the largest call, and the time."""
    assert pack_demand(Demand(1234.5678, 1_000, 1_700_000_000.4)) == "1234.57 1000 1700000000"
    assert pack_demand(None) is None
