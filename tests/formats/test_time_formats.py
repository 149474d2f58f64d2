"""Times by pattern and by zone, against Python's own readers: `strptime` and `zoneinfo`."""

from __future__ import annotations

import random
import re
import zoneinfo
from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.formats.text_columns import read_texts
from joinery_runtime.job.model.base import AS_STORED
from joinery_runtime.job.model.inputs import Column
from joinery_runtime.job.model.time_formats import checked_format, checked_zone, needs_zone

TIMESTAMP = pa.field("c", pa.timestamp("ms", tz="UTC"))
DAYS = ["%Y-%m-%d", "%d.%m.%y", "%m/%d/%Y", "%d %b %Y", "%B %d, %Y", "%Y-%j", "%a %d %b %Y", "%A, %d/%m/%y", "%Y%m%d"]
CLOCKS = [
    "%H:%M:%S",
    "%H:%M",
    "%I:%M:%S %p",
    "%p %I.%M",
    "%H%M%S",
    "%H:%M:%S.%f",
    "%H:%M:%S,%f",
    "%H:%M:%S:%f",
    "%H:%M:%S %f",
]
ZONES = ["", "%z", " %z"]
MOMENTS = st.datetimes(datetime(1969, 1, 1), datetime(2068, 12, 31, 23, 59, 59, 999_999))


def read(pattern: str, *texts: str, zone: str = "UTC") -> list[datetime | None]:
    column = Column.model_validate({"name": "c", "type": "timestamp", "format": pattern, "zone": zone})
    return read_texts(TIMESTAMP, column, pl.Series(texts, dtype=pl.String))[0].to_pylist()


@pytest.mark.parametrize(
    ("pattern", "texts", "expected"),
    [
        (
            "%C%y-%m-%d",
            ["2024-03-04", "1951-12-31", "no"],
            [datetime(2024, 3, 3, 23), datetime(1951, 12, 30, 23), None],
        ),
        ("%Y-%m-%d %q %H:%M", ["2024-03-04 1 10:11", "2024-03-04 2 10:11"], [datetime(2024, 3, 4, 9, 11), None]),
        ("%Y-%m-%d %H:%M %k", ["2024-03-04 10:11 10", "2024-03-04 10:11 11"], [datetime(2024, 3, 4, 9, 11), None]),
        ("%C%y-%m-%d %H:%M %z", ["2024-03-04 10:11 +0200"], [datetime(2024, 3, 4, 8, 11)]),
    ],
)
def test_what_only_earlier_releases_took_is_read_as_they_did(
    pattern: str, texts: list[str], expected: list[datetime | None]
) -> None:
    with pytest.raises(ValueError, match=r"no part of a time|twice"):
        checked_format(pattern)
    column = Column.model_validate(
        {"name": "c", "type": "timestamp", "format": pattern, "zone": "Europe/Berlin"}, context=AS_STORED
    )
    times = read_texts(TIMESTAMP, column, pl.Series(texts))[0].to_pylist()
    assert [time and time.replace(tzinfo=None) for time in times] == expected


def strptime(text: str, pattern: str) -> datetime | None:
    """What Python makes of the text, cut off below a millisecond."""
    try:
        moment = datetime.strptime(text, pattern)
    except ValueError:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from(DAYS),
    st.sampled_from(["T", " "]),
    st.sampled_from(CLOCKS),
    st.sampled_from(ZONES),
    MOMENTS,
    st.randoms(),
)
def test_patterns_read_what_strptime_reads(
    day: str, between: str, clock: str, zone: str, moment: datetime, at_random: random.Random
) -> None:
    pattern = f"{day}{between}{clock}{zone}"
    if pattern.endswith("%f%z") or pattern.endswith("%p%z"):
        pattern = pattern.replace("%z", " %z")
    offset = timedelta(minutes=at_random.choice([0, 90, -330, 14 * 60]))
    text = moment.replace(tzinfo=zoneinfo.ZoneInfo("UTC")).strftime(pattern)
    hours, minutes = divmod(abs(offset) // timedelta(minutes=1), 60)
    sign = "-" if offset < timedelta() else "+"
    text = re.sub(r"\+0000$", f"{sign}{hours:02}{minutes:02}", text)
    changed = [
        text,
        text.lower(),
        text.upper(),
        re.sub(r"\b0(\d)", r"\1", text),
        text.replace(" ", "  "),
        text[:-1],
        text + "1",
    ]
    digit = at_random.randrange(len(text))
    changed += [text[:digit] + at_random.choice("0123459 :") + text[digit + 1 :]]
    for changed_text, parsed in zip(changed, read(pattern, *changed), strict=True):
        expected = strptime(changed_text, pattern)
        if expected is not None:
            assert parsed == expected, (pattern, changed_text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("%y-%m-%d", "68-01-02"),
        ("%y-%m-%d", "69-01-02"),
        ("%y-%m-%d", "99-01-02"),
        ("%Y-%m-%d %H:%M%z", "2024-01-15 10:00+01:30"),
        ("%Y-%m-%d %H:%M%z", "2024-01-15 10:00-0130"),
        ("%Y-%m-%d %H:%M%z", "2024-01-15 10:00Z"),
        ("%Y-%m-%d %H:%M:%S%z", "2024-01-15 10:00:00+01:30:15"),
        ("%Y-%m-%d (%j)", "2024-01-15 (015)"),
        ("%Y-%j", "2024-366"),
        ("%Y-%m-%d %H:%M:%S", "2023-02-29 10:00:00"),
        ("%Y-%m-%d %H:%M:%S", "2023-02-28 10:00:61"),
        ("%Y-%m-%d %H:%M:%S", "2023-02-28 24:00:00"),
        ("%Y-%m-%d %I:%M %p", "2023-02-28 12:30 AM"),
        ("%Y-%m-%d %I:%M %p", "2023-02-28 12:30 pm"),
        ("%Y-%m-%d %I:%M %p", "2023-02-28 13:30 pm"),
        ("100%% %Y.%m.%d [x]", "100% 2024.01.15 [x]"),
        ("%Y.%m.%d", "2024-01-15"),
    ],
)
def test_the_edges_are_those_of_strptime(pattern: str, text: str) -> None:
    assert read(pattern, text) == [strptime(text, pattern)]


def test_a_pattern_of_an_older_plan_reads_what_it_read() -> None:
    column = Column.model_validate({"name": "c", "type": "timestamp", "format": "%H:%M:%S"}, context=AS_STORED)
    (row,) = read_texts(TIMESTAMP, column, pl.Series(["10:00:00"]))[0].to_pylist()
    assert row == datetime(1, 1, 1, 10, tzinfo=UTC)


def test_a_day_that_its_year_does_not_have_is_refused() -> None:
    # strptime takes the first day of the next year.
    assert read("%Y-%j", "2023-366", "0000-001") == [None, None]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("%H:%M:%S", "names no year and no month and no day"),
        ("%H:%M", "names no year"),
        ("%d.%m. %H:%M", "names no year"),
        ("%Y-%m", "names no day"),
        ("%Y", "names no month and no day"),
        ("%Y-%m-%d %H", "write both, as in %H:%M, or neither"),
        ("%Y-%m-%d %M:%S", "write both, as in %H:%M, or neither"),
        ("%Y-%m-%d %I:%M", "hours up to 12 without AM or PM"),
        ("%I:%M", "names no year"),
        ("%Y-%m-%d %H:%M %p", "%p without %I"),
        ("%Y-%m-%d %S", "seconds without hour and minute"),
        ("%Y-%m-%d %H:%M.%f", "a fraction without seconds"),
        ("%Y-%y-%m-%d", "names the year twice"),
        ("%d/%d/%Y", "names the day twice"),
        ("%Y-%m-%d %H:%M:%f%S", "does not say where a part of a time ends"),
        ("%Y-%m-%d %Z", "'%Z', which is no part of a time"),
        ("%Y-%m-%d %U", "'%U', which is no part of a time"),
        ("%Y-%m-%d %", "'%', which is no part of a time"),
        ("%c", "'%c', which is no part of a time"),
    ],
)
def test_a_pattern_whose_times_would_not_be_certain_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        checked_format(pattern)
    assert not needs_zone(pattern)


@pytest.mark.parametrize("sign", [chr(code) for code in range(33, 127) if chr(code) not in "%0123456789"])
def test_any_sign_may_stand_between_the_parts(sign: str) -> None:
    assert read(f"%Y{sign}%m{sign}%d", f"2024{sign}01{sign}15") == [datetime(2024, 1, 15, tzinfo=UTC)]


def by_zoneinfo(local: datetime, zone: zoneinfo.ZoneInfo) -> datetime | None:
    utc = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    return utc if utc.astimezone(zone).replace(tzinfo=None) == local else None


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(
        [
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "America/Sao_Paulo",
            "Asia/Tehran",
            "Pacific/Auckland",
            "Africa/Cairo",
            "Asia/Kolkata",
        ]
    ),
    st.datetimes(datetime(1972, 1, 1), datetime(9999, 12, 30)),
)
def test_local_times_are_those_of_the_zone_in_any_year(name: str, local: datetime) -> None:
    zone = zoneinfo.ZoneInfo(name)
    local = local.replace(microsecond=0)
    changes = [
        local.replace(year=year) for year in (2037, 2099, 2100, 2101, 2400) if (local.month, local.day) != (2, 29)
    ]
    times = [local, *changes, *(time.replace(month=3, day=28, hour=2, minute=30) for time in changes)]
    expected = [by_zoneinfo(time, zone) for time in times]
    assert read("iso", *(time.isoformat() for time in times), zone=name) == expected


@pytest.mark.parametrize("name", ["posix/Europe/Berlin", "right/UTC", "localtime", "Factory", "posixrules"])
def test_a_zone_that_only_this_machine_has_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        checked_zone(name)


def test_every_named_zone_can_be_read() -> None:
    for name in sorted(zoneinfo.available_timezones() - {"Factory", "localtime"}):
        assert read("iso", "2024-01-15 12:00", "2124-01-15 12:00", zone=checked_zone(name))[1] is not None
