"""The clocks of a zone as a local time that never goes back (G12), compared with Python's `zoneinfo`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.core.table.zones import LocalClock, local_clock

ZONES = (
    *("UTC", "Europe/Zurich", "America/Sao_Paulo", "Asia/Beirut", "Asia/Kathmandu", "Australia/Lord_Howe"),
    *("Pacific/Apia", "America/St_Johns", "Africa/Casablanca", "Pacific/Auckland"),
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = 3_600_000


def ms(text: str) -> int:
    return round((datetime.fromisoformat(text) - EPOCH) / timedelta(milliseconds=1))


def shown(zone: str, moment: int) -> int:
    local = (EPOCH + timedelta(milliseconds=moment)).astimezone(ZoneInfo(zone))
    return round((local.replace(tzinfo=UTC) - EPOCH) / timedelta(milliseconds=1))


def local(zone: str, moment: int) -> int:
    return int(local_clock(zone).local(np.array([moment]))[0])


def first_at(zone: str, time: int) -> int:
    return int(local_clock(zone).first_at(np.array([time]))[0])


moments = st.integers(ms("1972-01-01T00:00Z"), ms("2037-12-31T00:00Z"))


@settings(max_examples=examples(300), deadline=None)
@given(zone=st.sampled_from(ZONES), moment=moments)
def test_local_time_is_the_highest_that_clocks_have_shown(zone: str, moment: int) -> None:
    day = range(moment - 26 * HOUR, moment, HOUR // 4)  # clocks that go back do so by less than a day since 1972
    at_changes = [int(since) - 1 for since in local_clock(zone).since[1:] if moment - 26 * HOUR < since <= moment]
    assert local(zone, moment) == max(shown(zone, at) for at in (*day, *at_changes, moment))


@settings(max_examples=examples(300), deadline=None)
@given(zone=st.sampled_from(ZONES), moment=moments, minutes=st.integers(-100, 100), ms_more=st.integers(-2, 2))
def test_a_bound_has_passed_exactly_if_local_time_has_reached_it(
    zone: str, moment: int, minutes: int, ms_more: int
) -> None:
    bound = shown(zone, moment) // HOUR * HOUR + minutes * 60_000 + ms_more
    begins = first_at(zone, bound)
    assert (begins <= moment) == (bound <= local(zone, moment))
    assert local(zone, begins - 1) < bound <= local(zone, begins)


@pytest.mark.parametrize(
    ("zone", "midnight", "begins"),
    [
        ("Europe/Zurich", "2026-03-29T00:00Z", "2026-03-28T23:00Z"),
        ("Europe/Zurich", "2026-03-30T00:00Z", "2026-03-29T22:00Z"),
        ("America/Sao_Paulo", "2018-11-04T00:00Z", "2018-11-04T03:00Z"),
        ("America/Sao_Paulo", "2018-02-18T00:00Z", "2018-02-18T03:00Z"),
        ("Asia/Beirut", "2022-03-27T00:00Z", "2022-03-26T22:00Z"),
        ("Asia/Kathmandu", "2026-01-01T00:00Z", "2025-12-31T18:15Z"),
        ("Pacific/Apia", "2011-12-30T00:00Z", "2011-12-30T10:00Z"),
        ("Pacific/Apia", "2011-12-31T00:00Z", "2011-12-30T10:00Z"),
        # Clocks went back at 00:01, and showed 23:01 to 24:00 again: the first minute stays in its day.
        ("America/St_Johns", "2010-11-07T00:00Z", "2010-11-07T02:30Z"),
        ("UTC", "1970-01-01T00:00Z", "1970-01-01T00:00Z"),
    ],
)
def test_days_begin_when_clocks_first_show_them(zone: str, midnight: str, begins: str) -> None:
    assert first_at(zone, ms(midnight)) == ms(begins)


@pytest.mark.parametrize("zone", ZONES)
def test_times_far_outside_of_the_calendar_are_converted(zone: str) -> None:
    for time in (-(2**62), 2**62):
        assert abs(local(zone, time) - time) <= 15 * HOUR
        assert abs(first_at(zone, time) - time) <= 15 * HOUR


@pytest.mark.parametrize("zone", ZONES)
def test_from_2100_on_clocks_stay_as_they_are(zone: str) -> None:
    clock: LocalClock = local_clock(zone)
    assert clock.since[-1] < ms("2100-01-01T00:00Z")
    assert local(zone, ms("2100-07-01T00:00Z")) - ms("2100-07-01T00:00Z") == clock.ahead[-1]


@settings(max_examples=examples(100), deadline=None)
@given(zone=st.sampled_from(ZONES), moment=moments, hours=st.sampled_from([1, 6, 24, 168]), ms_more=st.integers(-2, 2))
def test_no_span_of_local_time_is_longer_than_the_longest(zone: str, moment: int, hours: int, ms_more: int) -> None:
    clock, span = local_clock(zone), hours * HOUR
    changes = clock.reached[1:]
    begin = np.array([moment, *changes, *(changes - span + ms_more), *(changes + ms_more)])
    assert (clock.first_at(begin + span) - clock.first_at(begin)).max() <= clock.longest(span)


def test_the_longest_day_has_25_hours() -> None:
    assert local_clock("Europe/Zurich").longest(24 * HOUR) == 25 * HOUR
    assert local_clock("UTC").longest(24 * HOUR) == 24 * HOUR
