"""Periods of sequences with a reset: when they begin and end, also where clocks change."""

import math
from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.calendar import check_period, date_at, load_zone, period_at, period_end
from idalloc_server.domain.sequences.sequence import Reset, Sequence

RESETS = [Reset.YEARLY, Reset.MONTHLY, Reset.DAILY]
ZONES = [
    "UTC",
    "Europe/Vienna",
    "America/New_York",
    "America/Sao_Paulo",  # clocks changed at midnight
    "America/St_Johns",  # clocks changed at 00:01, back into the previous day
    "America/Toronto",  # clocks changed once from 23:30 to 00:30
    "Pacific/Apia",  # skipped 2011-12-30
    "Pacific/Kiritimati",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Africa/Monrovia",
]


def sequence(reset: Reset, time_zone: str = "UTC") -> Sequence:
    return Sequence(reset=reset, time_zone=time_zone)


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class TestPeriodAt:
    @pytest.mark.parametrize(
        ("reset", "period"),
        [(Reset.NEVER, ""), (Reset.YEARLY, "2026"), (Reset.MONTHLY, "2026-11"), (Reset.DAILY, "2026-11-21")],
    )
    def test_is_the_year_month_or_day_of_the_reset(self, reset: Reset, period: str) -> None:
        """A reset's period is the year, month or day of the date."""
        assert period_at(sequence(reset), at("2026-11-21T12:00Z")) == period

    def test_is_in_the_time_zone_of_the_sequence(self) -> None:
        """The period is the one of the sequence's time zone, not of UTC."""
        new_years_eve = at("2026-12-31T23:30Z")
        assert period_at(sequence(Reset.YEARLY), new_years_eve) == "2026"
        assert period_at(sequence(Reset.YEARLY, "Europe/Vienna"), new_years_eve) == "2027"
        assert period_at(sequence(Reset.MONTHLY, "Europe/Vienna"), new_years_eve) == "2027-01"
        assert period_at(sequence(Reset.DAILY, "America/New_York"), at("2027-01-01T04:59Z")) == "2026-12-31"

    def test_has_years_of_four_digits(self) -> None:
        """A year is written with four digits."""
        assert date_at(Sequence(), at("0999-01-02T00:00Z")) == "0999-01-02"

    def test_is_not_rounded_up_before_midnight(self) -> None:
        """A fraction of a second before midnight still belongs to the old day."""
        assert date_at(Sequence(), math.nextafter(at("2027-01-01T00:00Z"), 0)) == "2026-12-31"


class TestPeriodEnd:
    @pytest.mark.parametrize(
        ("reset", "time_zone", "now", "end"),
        [
            (Reset.YEARLY, "UTC", "2026-11-21T12:00Z", "2027-01-01T00:00Z"),
            (Reset.MONTHLY, "UTC", "2026-12-21T12:00Z", "2027-01-01T00:00Z"),
            (Reset.MONTHLY, "UTC", "2028-02-29T23:59Z", "2028-03-01T00:00Z"),
            (Reset.DAILY, "UTC", "2028-02-28T00:00Z", "2028-02-29T00:00Z"),
            (Reset.DAILY, "Europe/Vienna", "2026-03-29T12:00+02:00", "2026-03-30T00:00+02:00"),
            (Reset.DAILY, "Europe/Vienna", "2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00"),  # 23 hours
            (Reset.DAILY, "Europe/Vienna", "2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"),  # 25 hours
            # Midnight does not exist: the day begins at 01:00.
            (Reset.DAILY, "America/Sao_Paulo", "2018-11-03T12:00-03:00", "2018-11-04T01:00-02:00"),
            # The last hour of the day is repeated.
            (Reset.DAILY, "America/Sao_Paulo", "2018-02-17T23:30-02:00", "2018-02-18T00:00-03:00"),
            # The new month lasts one minute, then the old one continues for 59.
            (Reset.MONTHLY, "America/St_Johns", "2009-10-31T23:30-02:30", "2009-11-01T00:00-02:30"),
            (Reset.MONTHLY, "America/St_Johns", "2009-11-01T00:00:30-02:30", "2009-11-01T00:01-02:30"),
            (Reset.MONTHLY, "America/St_Johns", "2009-10-31T23:01-03:30", "2009-11-01T00:00-03:30"),
            # Midnight was skipped: the day begins at 00:30.
            (Reset.DAILY, "America/Toronto", "1919-03-30T22:00-05:00", "1919-03-31T00:30-04:00"),
            # A whole day was skipped.
            (Reset.DAILY, "Pacific/Apia", "2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00"),
        ],
    )
    def test_is_the_first_second_of_the_next_period(self, reset: Reset, time_zone: str, now: str, end: str) -> None:
        """The period ends at its local midnight, also where clocks change around it."""
        assert period_end(sequence(reset, time_zone), at(now)) == at(end)

    def test_is_infinite_without_a_reset(self) -> None:
        """A sequence without a reset has no end of a period."""
        assert period_end(Sequence(), 0.0) == math.inf

    def test_is_infinite_in_the_year_9999(self) -> None:
        """The last period that a date can express has no end."""
        assert period_end(sequence(Reset.YEARLY), at("9999-06-01T00:00Z")) == math.inf

    @given(
        reset=st.sampled_from(RESETS),
        time_zone=st.sampled_from(ZONES),
        wall=st.integers(int(at("1900-01-01T00:00Z")), int(at("2060-01-01T00:00Z"))),
        share=st.floats(0, 1, exclude_max=True),
    )
    @example(reset=Reset.DAILY, time_zone="America/St_Johns", wall=int(at("2009-11-01T00:00-02:30")), share=0.5)
    def test_is_when_the_period_changes(self, reset: Reset, time_zone: str, wall: int, share: float) -> None:
        """In any zone and at any time, the period changes at its end and not before."""
        subject = sequence(reset, time_zone)
        period, end = period_at(subject, wall), period_end(subject, wall)
        assert end > wall
        assert period_at(subject, end) != period
        for moment in (wall + (end - wall) * share, end - 0.001):
            assert moment < wall or moment >= end or period_at(subject, moment) == period

    @settings(max_examples=15)
    @given(time_zone=st.sampled_from(ZONES), year=st.integers(1990, 2050))
    @example(time_zone="Pacific/Apia", year=2011)
    def test_visits_every_day_of_a_year(self, time_zone: str, year: int) -> None:
        """Going from one end to the next visits each day of a year."""
        subject = sequence(Reset.DAILY, time_zone)
        wall, seen = datetime(year, 1, 1, tzinfo=ZoneInfo(time_zone)).timestamp(), set()
        while period_at(subject, wall).startswith(str(year)):
            seen.add(period_at(subject, wall))
            wall = period_end(subject, wall)
        skipped = time_zone == "Pacific/Apia" and year == 2011
        skipped |= time_zone == "Pacific/Kiritimati" and year == 1994
        days = (date(year + 1, 1, 1) - date(year, 1, 1)).days
        assert len(seen) == days - skipped


class TestCheckPeriod:
    @pytest.mark.parametrize(
        ("reset", "text"),
        [
            (Reset.YEARLY, "2026"),
            (Reset.MONTHLY, "2026-11"),
            (Reset.DAILY, "2028-02-29"),
            (Reset.DAILY, ""),
            (Reset.NEVER, ""),
        ],
    )
    def test_accepts_periods_of_the_reset(self, reset: Reset, text: str) -> None:
        """A well-formed period of the sequence's reset is accepted."""
        check_period(sequence(reset), text)

    @pytest.mark.parametrize(
        ("reset", "text"),
        [
            (Reset.NEVER, "2026"),
            (Reset.YEARLY, "2026-11"),
            (Reset.YEARLY, "0000"),
            (Reset.YEARLY, "26"),
            (Reset.YEARLY, "٢٠٢٦"),
            (Reset.MONTHLY, "2026-13"),
            (Reset.MONTHLY, "2026-1"),
            (Reset.MONTHLY, "2026111"),
            (Reset.DAILY, "2026-02-29"),
            (Reset.DAILY, "2026-W01-1"),
            (Reset.DAILY, "2026-11-21 "),
        ],
    )
    def test_rejects_other_texts(self, reset: Reset, text: str) -> None:
        """Any other text is rejected with the field ``period``."""
        with pytest.raises(InvalidRequest) as refusal:
            check_period(sequence(reset), text)
        assert refusal.value.field == "period"


class TestLoadZone:
    @pytest.mark.parametrize(
        "name", ["", "Europe", "Europe/Wien", "../../etc/passwd", "/etc/localtime", "localtime", "a\0b", "Europe/", "ü"]
    )
    def test_rejects_unknown_zones(self, name: str) -> None:
        """A name that is not in the IANA database is rejected, and never read as a path."""
        with pytest.raises(InvalidRequest, match="Europe/Vienna") as refusal:
            load_zone(name)
        assert refusal.value.field == "time_zone"
