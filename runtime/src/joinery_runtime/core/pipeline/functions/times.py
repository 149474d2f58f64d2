"""Functions of times. A timestamp is shown and taken apart by the clocks of UTC, or of a zone that the call names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.functions.base import (
    Family,
    Parameter,
    constant,
    integer,
    optional,
    require,
    string,
)
from joinery_runtime.core.pipeline.operators import (
    EVENT_TIME_MAX,
    EVENT_TIME_MIN,
    TIMESTAMP,
    Value,
    row_count,
    to_array,
)
from joinery_runtime.core.table.zones import utc_to_zone, zone_to_utc
from joinery_runtime.job.model.time_formats import BUCKETS_START_MS, checked_zone

TIMES = Family("Times")
_TIME, _DATE = Parameter("time", "timestamp"), Parameter("date", "date")
_UNIT, _ZONE = constant(string("unit")), optional(constant(string("zone")))
_DAY = 86_400_000
_OUTSIDE = "the time is outside the years 1 to 9999"
_FIXED = {"MILLISECOND": 1, "SECOND": 1_000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": _DAY, "WEEK": 7 * _DAY}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_MONDAY = -3 * _DAY  # the Monday before 1970


def _unit_of(unit: str, units: dict[str, Any]) -> str:
    name = unit.upper()
    name = name if name in units else name.removesuffix("S")
    if name not in units:
        raise pa.ArrowTypeError(f"its unit must be one of {', '.join(units)}, found {unit!r}")
    return name


# --- milliseconds and calendars ---------------------------------------------------------------------------------------


def ms_of(*values: Value) -> list[Any]:
    """Return times and integers as NumPy's int64 of one length, with 0 for a NULL."""
    length = row_count(values)
    arrays = [to_array(value, length) for value in values]
    return [pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False) for array in arrays]


def local_ms(time: Value, zone: str | None) -> Any:
    """Return the milliseconds by the clocks of a zone."""
    (utc,) = ms_of(time)
    if zone is None:
        return utc
    return utc_to_zone(pl.Series(utc), _known_zone(zone)).to_numpy()


def _known_zone(zone: str) -> str:
    try:
        return checked_zone(zone)
    except ValueError as error:
        raise pa.ArrowTypeError(f"its zone {error}") from error


def timestamps(ms: Any, valid: Any = True) -> pa.Array:
    """Return timestamps of milliseconds. Rows outside the years 1 to 9999, and those that are not `valid`, fail."""
    inside = (ms >= EVENT_TIME_MIN) & (ms <= EVENT_TIME_MAX) & valid
    require(pa.array(inside), _OUTSIDE)
    return pa.array(ms, pa.int64()).cast(TIMESTAMP)


def _months_since_1970(ms: Any) -> Any:
    return (ms // _DAY).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def _first_ms(months: Any) -> Any:
    """Return the milliseconds at which months (since 1970) begin."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) * _DAY


def _year(ms: Any) -> Any:
    return _months_since_1970(ms) // 12 + 1970


def _day_of_month(ms: Any) -> Any:
    return (ms - _first_ms(_months_since_1970(ms))) // _DAY + 1


def _day_of_year(ms: Any) -> Any:
    return (ms - _first_ms(_months_since_1970(ms) // 12 * 12)) // _DAY + 1


def _weekday(ms: Any) -> Any:
    """0 on a Monday."""
    return (ms - _MONDAY) // _DAY % 7


def _thursday(ms: Any) -> Any:
    """Return the Thursday of the week, which decides to which year the week belongs (ISO 8601)."""
    return ms + (3 - _weekday(ms)) * _DAY


_PARTS: dict[str, Callable[[Any], Any]] = {
    "YEAR": _year,
    "QUARTER": lambda ms: _months_since_1970(ms) % 12 // 3 + 1,
    "MONTH": lambda ms: _months_since_1970(ms) % 12 + 1,
    "WEEK": lambda ms: (_day_of_year(_thursday(ms)) - 1) // 7 + 1,
    "DAY": _day_of_month,
    "DOW": lambda ms: (_weekday(ms) + 1) % 7,
    "ISODOW": lambda ms: _weekday(ms) + 1,
    "DOY": _day_of_year,
    "ISOYEAR": lambda ms: _year(_thursday(ms)),
    "HOUR": lambda ms: ms // 3_600_000 % 24,
    "MINUTE": lambda ms: ms // 60_000 % 60,
    "SECOND": lambda ms: ms // 1_000 % 60,
    "MILLISECOND": lambda ms: ms % 60_000,
    "EPOCH": lambda ms: ms // 1_000,
}

# --- parts ------------------------------------------------------------------------------------------------------------


@TIMES.define(
    "DATE_PART",
    _UNIT,
    _TIME,
    _ZONE,
    returns="int64",
    meaning="a part: YEAR, QUARTER, MONTH, WEEK (ISO), DAY, DOW (0 on Sunday), ISODOW (1 on Monday), DOY, "
    "ISOYEAR, HOUR, MINUTE, "
    "SECOND (whole ones), MILLISECOND (with those of the seconds), EPOCH. Also `EXTRACT(unit FROM time)`",
    example="EXTRACT(HOUR FROM TIMESTAMP '2024-07-01 12:30:00')",
    result="12",
)
def _date_part(unit: str, time: Value, zone: str | None = None) -> Value:
    name = _unit_of(unit, _PARTS)
    # The epoch is the same by all clocks.
    return pa.array(_PARTS[name](local_ms(time, None if name == "EPOCH" else zone)), pa.int64())


def _define_part(names: str, unit: str, meaning: str, result: str) -> None:
    TIMES.define(
        names,
        _TIME,
        _ZONE,
        returns="int64",
        meaning=meaning,
        example=f"{names.split(maxsplit=1)[0]}(TIMESTAMP '2024-07-01 12:30:15')",
        result=result,
    )(lambda time, zone=None: _date_part(unit, time, zone))


_define_part("YEAR", "YEAR", "the year", "2024")
_define_part("QUARTER", "QUARTER", "the quarter, 1 to 4", "3")
_define_part("MONTH", "MONTH", "the month, 1 to 12", "7")
_define_part("WEEK WEEKOFYEAR", "WEEK", "the week of ISO 8601, 1 to 53", "27")
_define_part("DAY DAYOFMONTH", "DAY", "the day of the month", "1")
_define_part("DAYOFYEAR", "DOY", "the day of the year", "183")
_define_part("HOUR", "HOUR", "the hour, 0 to 23", "12")
_define_part("MINUTE", "MINUTE", "the minute", "30")
_define_part("SECOND", "SECOND", "the whole second", "15")
TIMES.define(
    "DAYOFWEEK",
    _TIME,
    _ZONE,
    returns="int64",
    meaning="the day of the week, 1 on Sunday, as in Flink and Spark",
    example="DAYOFWEEK(DATE '2024-07-01')",
    result="2",
)(lambda time, zone=None: pa.array((_weekday(local_ms(time, zone)) + 1) % 7 + 1, pa.int64()))

# --- rounding ---------------------------------------------------------------------------------------------------------


@TIMES.define(
    "DATE_TRUNC",
    _UNIT,
    _TIME,
    _ZONE,
    returns="timestamp",
    meaning="the start of its MILLISECOND, SECOND, MINUTE, HOUR, DAY, WEEK (Monday), MONTH, QUARTER or YEAR. By "
    "a zone's clocks "
    "a day that skips midnight begins when its clocks do. Also `TIMESTAMP_TRUNC(time, unit)`",
    example="DATE_TRUNC('month', TIMESTAMP '2024-07-15 12:30:00')",
    result="TIMESTAMP '2024-07-01'",
    fails=True,
)
def _date_trunc(unit: str, time: Value, zone: str | None = None) -> Value:
    name = _unit_of(unit, {**_FIXED, **_MONTHS})
    local = local_ms(time, zone)
    if name in _MONTHS:
        start = _first_ms(_months_since_1970(local) // _MONTHS[name] * _MONTHS[name])
    else:
        origin = _MONDAY if name == "WEEK" else 0
        start = (local - origin) // _FIXED[name] * _FIXED[name] + origin
    if zone is None:
        return timestamps(start)
    (utc,) = ms_of(time)
    if _FIXED.get(name, _DAY) < _DAY:
        return timestamps(start - (local - utc))  # the clocks are not set within it, or both hours of the name count
    starts = zone_to_utc(pl.Series(start), zone)
    # The last moment before a skipped start is by the old offset, and the start is the same by it.
    before = start - (local - utc) - 2 * 3_600_000
    old = utc_to_zone(pl.Series(before), zone).to_numpy() - before
    return timestamps(starts.fill_null(pl.Series(start - old)).to_numpy())


@TIMES.define(
    "LAST_DAY",
    _DATE,
    returns="date",
    meaning="the last day of the month",
    example="LAST_DAY(DATE '2024-02-10')",
    result="DATE '2024-02-29'",
)
def _last_day(date: pa.Array) -> Value:
    ms = pc.fill_null(date.cast(pa.int32()), 0).to_numpy(zero_copy_only=False).astype(np.int64) * _DAY
    return _dates(_first_ms(_months_since_1970(ms) + 1) - _DAY)


@TIMES.define(
    "DATE_BIN",
    constant(Parameter("width", "interval")),
    _TIME,
    optional(constant(_TIME)),
    returns="timestamp",
    meaning="the start of the range of this width that holds the time; ranges start at `time constant`, or at 1970",
    example="DATE_BIN(INTERVAL '15' MINUTE, TIMESTAMP '2024-07-01 12:40:00')",
    result="TIMESTAMP '2024-07-01 12:30:00'",
    fails=True,
)
def _date_bin(width: Any, time: Value, origin: Any = None) -> Value:
    return _range_start(width, time, origin, 0)


@TIMES.define(
    "TIME_BUCKET",
    constant(Parameter("width", "interval")),
    _TIME,
    optional(constant(_TIME)),
    returns="timestamp",
    meaning="as `DATE_BIN`, but ranges start at `time constant`, or at Monday, 2000-01-03, as in Timescale and DuckDB",
    example="TIME_BUCKET(INTERVAL '7' DAY, TIMESTAMP '2024-07-04 12:40:00')",
    result="TIMESTAMP '2024-07-01 00:00:00'",
    fails=True,
)
def _time_bucket(width: Any, time: Value, origin: Any = None) -> Value:
    return _range_start(width, time, origin, BUCKETS_START_MS)


def _range_start(width: Any, time: Value, origin: Any, usual_ms: int) -> Value:
    """Return the start of the range that holds the time. One starts at the `origin` (None: `usual_ms` after 1970)."""
    first = usual_ms if origin is None else round(origin.timestamp() * 1000)
    step = round(width.total_seconds() * 1000)
    if step <= 0:
        raise pa.ArrowTypeError("its width must be more than nothing")
    (ms,) = ms_of(time)
    return timestamps((ms - first) // step * step + first)


def _dates(ms: Any) -> pa.Array:
    return timestamps(ms).cast(pa.date32())


# --- arithmetic -------------------------------------------------------------------------------------------------------


@TIMES.define(
    "TIMESTAMPADD DATEADD",
    _UNIT,
    integer("count"),
    _TIME,
    returns="timestamp",
    meaning="the time so many units later; the last day of a month that has no such day",
    example="TIMESTAMPADD(MONTH, 1, TIMESTAMP '2024-01-31 08:00:00')",
    result="TIMESTAMP '2024-02-29 08:00:00'",
    fails=True,
)
def _timestampadd(unit: str, count: Value, time: Value) -> Value:
    name = _unit_of(unit, {**_FIXED, **_MONTHS})
    counts, ms = ms_of(count, time)
    # No more units than the calendar has, so that nothing leaves int64.
    limit = (EVENT_TIME_MAX - EVENT_TIME_MIN) // _FIXED.get(name, 28 * _DAY) + 1
    valid = (counts >= -limit) & (counts <= limit)
    steps = np.where(valid, counts, 0)
    if name in _FIXED:
        return timestamps(ms + steps * _FIXED[name], valid)
    month = _months_since_1970(ms) + steps * _MONTHS[name]
    start, end = _first_ms(month), _first_ms(month + 1)
    day = np.minimum(start + (_day_of_month(ms) - 1) * _DAY, end - _DAY)
    return timestamps(day + ms % _DAY, valid)


@TIMES.define(
    "TIMESTAMPDIFF",
    _UNIT,
    Parameter("start", "timestamp"),
    Parameter("stop", "timestamp"),
    returns="int64",
    meaning="how many whole units lie between, negative if the stop is earlier",
    example="TIMESTAMPDIFF(MONTH, DATE '2024-01-31', DATE '2024-03-30')",
    result="1",
)
def _timestampdiff(unit: str, start: Value, stop: Value) -> Value:
    name = _unit_of(unit, {**_FIXED, **_MONTHS})
    first, last = ms_of(start, stop)
    if name in _FIXED:
        distance = last - first
        whole = np.abs(distance) // _FIXED[name]
        return pa.array(np.sign(distance) * whole, pa.int64())
    months = _months_since_1970(last) - _months_since_1970(first)
    rest_first, rest_last = (ms - _first_ms(_months_since_1970(ms)) for ms in (first, last))
    months -= (months > 0) & (rest_last < rest_first)
    months += (months < 0) & (rest_last > rest_first)
    return pa.array(np.sign(months) * (np.abs(months) // _MONTHS[name]), pa.int64())


TIMES.define(
    "EPOCH",
    Parameter("distance", "interval"),
    returns="double",
    meaning="its seconds, with fractions. Also `EXTRACT(EPOCH FROM b.ts - a.ts)`",
    example="EPOCH(TIMESTAMP '2024-07-01 12:30:01' - TIMESTAMP '2024-07-01 12:30:00')",
    result="1.0",
)(lambda distance: pc.divide(distance.cast(pa.int64()).cast(pa.float64()), 1000.0))


TIMES.define(
    "DATEDIFF",
    Parameter("later", "date"),
    Parameter("earlier", "date"),
    returns="int64",
    meaning="the days from the second date to the first, as in Spark",
    example="DATEDIFF(DATE '2024-03-01', DATE '2024-02-01')",
    result="29",
)(lambda later, earlier: pc.subtract(later.cast(pa.int32()), earlier.cast(pa.int32())).cast(pa.int64()))


@TIMES.define(
    "DATE_ADD",
    _DATE,
    integer("days"),
    returns="date",
    meaning="the date so many days later, as in Spark",
    example="DATE_ADD(DATE '2024-02-28', 2)",
    result="DATE '2024-03-01'",
    fails=True,
)
def _date_add(date: Value, days: Value) -> Value:
    return _timestampadd("DAY", days, date.cast(TIMESTAMP)).cast(pa.date32())


@TIMES.define(
    "DATE_SUB",
    _DATE,
    integer("days"),
    returns="date",
    meaning="the date so many days earlier, as in Spark",
    example="DATE_SUB(DATE '2024-03-01', 1)",
    result="DATE '2024-02-29'",
    fails=True,
)
def _date_sub(date: Value, days: Value) -> Value:
    return _date_add(date, pc.negate(days))  # the lowest int64 stays, which is outside the calendar either way


# --- numbers and parts to times ---------------------------------------------------------------------------------------


@TIMES.define(
    "MAKE_DATE",
    integer("year"),
    integer("month"),
    integer("day"),
    returns="date",
    meaning="the date; fails if the calendar does not have it",
    example="MAKE_DATE(2024, 2, 29)",
    result="DATE '2024-02-29'",
    fails=True,
)
def _make_date(year: Value, month: Value, day: Value) -> Value:
    years, months, days = ms_of(year, month, day)
    valid = (years >= 1) & (years <= 9999) & (months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)
    number = np.where(valid, (years - 1970) * 12 + months - 1, 0)
    start = _first_ms(number)
    ms = start + (np.where(valid, days, 1) - 1) * _DAY
    missing = pc.or_(pc.or_(pc.is_null(year), pc.is_null(month)), pc.is_null(day))
    exists = valid & (ms < _first_ms(number + 1)) | np.asarray(missing)
    require(pa.array(exists), "the calendar has no such date")
    return _dates(ms)


for _names, _factor, _what in (
    ("TIMESTAMP_MILLIS", 1, "milliseconds"),
    ("TIMESTAMP_SECONDS", 1_000, "seconds"),
):

    def _from_number(number: Value, factor: int = _factor) -> Value:
        (numbers,) = ms_of(number)
        valid = np.abs(numbers // 2) <= EVENT_TIME_MAX // factor
        return timestamps(np.where(valid, numbers, 0) * factor, valid)

    TIMES.define(
        _names,
        integer("number"),
        returns="timestamp",
        meaning=f"the time so many {_what} after 1970 (UTC)",
        example=f"{_names}({1_719_837_000_000 // _factor})",
        result="TIMESTAMP '2024-07-01 12:30:00'",
        fails=True,
    )(_from_number)
for _names, _factor, _what in (
    ("UNIX_MILLIS EPOCH_MS", 1, "milliseconds"),
    ("UNIX_SECONDS UNIX_TIMESTAMP", 1_000, "whole seconds"),
):
    TIMES.define(
        _names,
        _TIME,
        returns="int64",
        meaning=f"the {_what} since 1970 (UTC)",
        example=f"{_names.split()[0]}(TIMESTAMP '2024-07-01 12:30:00')",
        result=str(1_719_837_000_000 // _factor),
    )(lambda time, factor=_factor: pa.array(ms_of(time)[0] // factor, pa.int64()))

# --- zones ------------------------------------------------------------------------------------------------------------


@TIMES.define(
    "FROM_UTC_TIMESTAMP",
    _TIME,
    constant(string("zone")),
    returns="timestamp",
    meaning="what a zone's clocks show at this time, as a timestamp",
    example="FROM_UTC_TIMESTAMP(TIMESTAMP '2024-07-01 12:00:00', 'Europe/Berlin')",
    result="TIMESTAMP '2024-07-01 14:00:00'",
    fails=True,
)
def _from_utc(time: Value, zone: str) -> Value:
    return timestamps(local_ms(time, zone))


@TIMES.define(
    "TO_UTC_TIMESTAMP",
    _TIME,
    constant(string("zone")),
    returns="timestamp",
    meaning="the time at which a zone's clocks show this; the first one of two, and a failure for a time that "
    "the clocks skip",
    example="TO_UTC_TIMESTAMP(TIMESTAMP '2024-07-01 14:00:00', 'Europe/Berlin')",
    result="TIMESTAMP '2024-07-01 12:00:00'",
    fails=True,
)
def to_utc(time: Value, zone: str) -> Value:
    (local,) = ms_of(time)
    utc = zone_to_utc(pl.Series(local), _known_zone(zone))
    require(utc.is_not_null().to_arrow(), f"the clocks of {zone} skip this time")
    return timestamps(utc.to_numpy())
