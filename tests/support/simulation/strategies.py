"""Hypothesis strategies of ``test_state_machine``."""

from hypothesis import strategies as st

from idalloc_server.domain.errors import StoreAnsweredError, StoreOutcomeUnknown, StoreUnreachable
from tests.support.simulation.store_connection import StoreFault

FAR = 10**12

NAMES = st.sampled_from(["a", "a", "a", "b", "c"])
NODES = st.integers(0, 3)
COUNTS = st.one_of(st.integers(1, 5), st.integers(1, 5), st.integers(1, 300), st.just(5_000))
TIMES = st.sampled_from([0.0, 0.001, 0.002, 0.5, 1.1, 5.0, 31.0, 59.0, 62.0, 100.0, 150.0, 182.0])
METHODS = st.sampled_from(
    [
        *["grant"] * 4,
        *["give_back"] * 2,
        *["record", "recorded", "revise", "open_period", "create", "get", "grant_timestamps", "claim_start"],
    ]
)
FAULTS = st.sampled_from(
    [
        StoreFault(applied=0, error=StoreUnreachable),
        StoreFault(applied=0, error=StoreAnsweredError),
        StoreFault(applied=0, error=StoreOutcomeUnknown),
        StoreFault(error=StoreOutcomeUnknown),
        StoreFault(error=StoreOutcomeUnknown),
        StoreFault(applied=2),
        StoreFault(again=0.01),
        StoreFault(again=70.0),
        StoreFault(before=3.0),
        StoreFault(before=32.0),
        StoreFault(before=45.0),  # applied after the caller has given up
        StoreFault(before=200.0),
        StoreFault(after=3.0),
        StoreFault(after=32.0),
        StoreFault(after=45.0),
    ]
)
SETTINGS = st.sampled_from(
    [
        {},
        {},
        {"step": 7, "start": 3},
        {"step": -3, "start": 900, "min_value": -FAR, "max_value": 1_000},
        {"max_value": 40},
        {"max_value": 700, "min_lease_size": 30},
        {"step": -1, "min_value": 1, "max_value": 60},
        {"offset": 2, "increment": 5},
        {"ordering": 2},
        {"ordering": 2, "max_value": 500},
        {"kind": 2},
        {"reset": 4, "format": "{year}{month}{day}-{value}"},
        {"reset": 4, "format": "{year}{month}{day}-{value}", "max_value": 900},
        {"max_lease_size": 20},
        {"min_lease_size": 100},
    ]
)
CHANGES = st.sampled_from(
    [
        {"max_value": FAR},
        {"max_value": 60},
        {"step": 2},
        {"step": -2},
        {"step": 5},
        {"ordering": 2},
        {"ordering": 1},
        {"max_lease_size": 10},
        {"min_lease_size": 50},
        {"description": "another"},
    ]
)
