"""The survey of the sequences in use: leases, failed renewals and forecasts."""

from dataclasses import replace

from idalloc_server.domain.allocation.survey import NEAREST, CounterState, survey
from idalloc_server.domain.sequences.sequence import Kind, Reset, Sequence


class Clock:
    """A clock that stands."""

    def boot(self) -> float:
        """Return the time since the boot."""
        return 100.0

    def wall(self) -> float:
        """Return the time since 1970."""
        return 1_000_000.0


def state(**changed: object) -> CounterState:
    """Return a counter's state: a lease until 280 s, 600 ids left in the store, a rate of 2."""
    usual = CounterState("", Sequence(), 5, 5, 280.0, 600, 100.0, False, "", False, 2.0)
    return usual._replace(**changed)  # type: ignore[arg-type]


def exhausts_in(of: CounterState) -> float | None:
    """Return the forecast of a counter."""
    return of.exhausts_in(Clock())


def test_forecast_counts_from_the_last_write() -> None:
    """The seconds are those of the ids left at the rate, less the time since they were counted."""
    assert exhausts_in(state()) == 300.0
    assert exhausts_in(state(refilled_at=60.0)) == 260.0
    assert exhausts_in(state(refilled_at=-1000.0)) == 0.0
    assert exhausts_in(state(remaining=0, ids_per_second=0.0)) == 0.0


def test_counters_without_a_rate_have_no_forecast() -> None:
    """Before the first write, without a rate, for timestamps, and for the own row with a reset."""
    assert exhausts_in(state(remaining=None)) is None
    assert exhausts_in(state(ids_per_second=0.0)) is None
    assert exhausts_in(state(settings=replace(Sequence(), kind=Kind.TIMESTAMP_MS))) is None
    assert exhausts_in(state(settings=replace(Sequence(), reset=Reset.DAILY))) is None


def test_renewal_is_late_in_the_last_third_of_the_lease() -> None:
    """A failed renewal counts while the lease has ids and is in its last third."""
    assert not state(has_failed=True).is_renewal_late(159.0, 180.0)
    assert not state().is_renewal_late(250.0, 180.0)
    assert not state(has_failed=True, ids_in_memory=0).is_renewal_late(250.0, 180.0)
    assert state(has_failed=True).is_renewal_late(250.0, 180.0)


async def test_survey_keeps_the_nearest_forecasts() -> None:
    """The survey counts thousands of sequences, and keeps the forecasts of the nearest 20."""
    states = {f"s{number}": state(remaining=10 * number, ids_per_second=1.0) for number in range(1000)}
    states["s7"] = states["s7"]._replace(is_behind=True, ids_in_memory=0)
    found = await survey([*states, "gone"], lambda name: [states[name]] if name in states else [], Clock(), 180.0)
    assert (found.lease_count, found.behind, found.late_renewals) == (999, 1, 0)
    assert found.exhausts_in == {f"s{number}": 10.0 * number for number in range(NEAREST)}
