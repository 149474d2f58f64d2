"""Functions between times and text: patterns of Java's letters, as Spark and Flink have them, and of directives."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.functions.base import (
    Family,
    Parameter,
    computed_by_polars,
    constant,
    double,
    optional,
    require,
    string,
)
from joinery_runtime.core.pipeline.functions.times import local_ms, ms_of, timestamps, to_utc
from joinery_runtime.core.pipeline.operators import Value

TIME_TEXTS = Family("Times and text")
_TIME, _ZONE = Parameter("time", "timestamp"), optional(constant(string("zone")))
# What a directive reads. Patterns are constants, and the texts are checked first: Polars would take more.
_DIRECTIVES = {
    "%Y": r"\d{4}", "%y": r"\d{2}", "%m": r"\d{1,2}", "%d": r"\d{1,2}", "%j": r"\d{3}", "%b": "[A-Za-z]{3}",
    "%B": "[A-Za-z]+", "%H": r"\d{1,2}", "%I": r"\d{1,2}", "%p": "(?:AM|PM|am|pm)", "%M": r"\d{1,2}", "%S": r"\d{1,2}",
    "%3f": r"\d{3}", "%%": "%", "%a": None, "%A": None,
}  # fmt: skip
_JAVA = {
    "yyyy": "%Y", "uuuu": "%Y", "yy": "%y", "MM": "%m", "MMM": "%b", "MMMM": "%B", "dd": "%d", "DDD": "%j", "HH": "%H",
    "hh": "%I", "a": "%p", "mm": "%M", "ss": "%S", "SSS": "%3f", "E": "%a", "EEE": "%a", "EEEE": "%A",
}  # fmt: skip
_TOKEN = re.compile(r"%\d?[A-Za-z%]|[^%]+|%")
_JAVA_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'")


def _checked_pattern(pattern: str) -> list[str]:
    """Cut a pattern into directives and literal text. Raises ArrowTypeError for an unknown directive."""
    tokens = _TOKEN.findall(pattern)
    unknown = next((token for token in tokens if token.startswith("%") and token not in _DIRECTIVES), None)
    if unknown is not None:
        raise pa.ArrowTypeError(f"its pattern has {unknown!r}, known are {', '.join(_DIRECTIVES)}")
    return tokens


def _from_java(pattern: str) -> str:
    """Write a pattern of Java's letters, as Spark and Flink have them, with directives."""
    text = ""
    for match in _JAVA_TOKEN.finditer(pattern):
        token = match[0]
        if token[0] == "'":
            text += (match[1] or "").replace("''", "'").replace("%", "%%") or "'"
        elif token.isalpha() and token not in _JAVA:
            raise pa.ArrowTypeError(f"its pattern has {token!r}, known are {', '.join(_JAVA)}")
        else:
            text += _JAVA.get(token, token.replace("%", "%%"))
    return text


def _formatted(time: Value, pattern: str, zone: str | None) -> Value:
    _checked_pattern(pattern)
    local = pa.array(local_ms(time, zone), pa.int64()).cast(pa.timestamp("ms"))
    return computed_by_polars(lambda time: time.dt.strftime(pattern), local)


def _parsed(text: Value, pattern: str | None, zone: str | None) -> Value:
    """Return the times of texts in a pattern of directives; None: in ISO 8601."""
    if pattern is None:
        return _parsed_iso(text, zone)
    tokens = _checked_pattern(pattern)
    readers = [_DIRECTIVES[token] if token.startswith("%") else re.escape(token) for token in tokens]
    if None in readers or len({"%Y", "%y"} & set(tokens)) != 1 or not {"%j", "%d"} & set(tokens):
        raise pa.ArrowTypeError("its pattern must name the year and the day, and cannot name a day of the week")
    matching = pc.match_substring_regex(text, f"^(?:{''.join(filter(None, readers))})$")
    # Polars reads a time only with hour and minute.
    missing = "%H:%M" if not {"%H", "%I"} & set(tokens) else "" if "%M" in tokens else "%M"
    zeros = missing.replace("%H", "00").replace("%M", "00")
    times = computed_by_polars(
        lambda text, matching: (
            pl.when(matching)
            .then(text + f" {zeros}")
            .str.to_datetime(f"{pattern} {missing}", time_unit="ms", strict=False)
        ),
        text,
        matching,
    )
    require(pc.or_(pc.is_valid(times), pc.is_null(text)), f"the text is no time in the pattern {pattern!r}")
    local = timestamps(*ms_of(times.cast(pa.timestamp("ms"))))
    return local if zone is None else to_utc(local, zone)


# Not \d, which are the digits of all scripts.
_ISO = r"^([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[ T]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?$"


def _parsed_iso(text: Value, zone: str | None) -> Value:
    def parse(text: pl.Expr) -> pl.Expr:
        hour, minute, second, fraction = (text.str.extract(_ISO, group).fill_null("0") for group in range(2, 6))
        ms_of_fraction = (fraction + "00").str.slice(0, 3).cast(pl.Int64)
        hours, minutes, seconds = (part.cast(pl.Int64) for part in (hour, minute, second))
        in_day = ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms_of_fraction
        day = text.str.extract(_ISO, 1).str.to_date("%Y-%m-%d", strict=False).cast(pl.Int64) * 86_400_000
        return pl.when((hours < 24) & (minutes < 60) & (seconds < 60)).then(day + in_day)

    ms = computed_by_polars(parse, text)
    require(pc.or_(pc.is_valid(ms), pc.is_null(text)), "the text is no date or time such as 2024-07-01 12:30:00")
    times = timestamps(*ms_of(ms))
    return times if zone is None else to_utc(times, zone)


_PATTERN = constant(string("pattern"))
TIME_TEXTS.define(
    "DAYNAME",
    _TIME,
    _ZONE,
    returns="string",
    meaning="the day's English name",
    example="DAYNAME(DATE '2024-07-01')",
    result="'Monday'",
)(lambda time, zone=None: _formatted(time, "%A", zone))
TIME_TEXTS.define(
    "MONTHNAME",
    _TIME,
    _ZONE,
    returns="string",
    meaning="the month's English name",
    example="MONTHNAME(DATE '2024-07-01')",
    result="'July'",
)(lambda time, zone=None: _formatted(time, "%B", zone))
TIME_TEXTS.define(
    "DATE_FORMAT FORMAT_TIMESTAMP",
    _TIME,
    _PATTERN,
    _ZONE,
    returns="string",
    meaning="the time as text, in the letters of Spark and Flink: `yyyy`, `MM`, `dd`, `HH`, `mm`, `ss`, `SSS`, "
    "`MMM`, `EEE`, `a`",
    example="DATE_FORMAT(TIMESTAMP '2024-07-01 12:30:00', 'yyyy-MM-dd HH:mm')",
    result="'2024-07-01 12:30'",
)(lambda time, pattern, zone=None: _formatted(time, _from_java(pattern), zone))
TIME_TEXTS.define(
    "STRFTIME",
    _TIME,
    _PATTERN,
    _ZONE,
    returns="string",
    meaning="likewise with directives: `%Y`, `%m`, `%d`, `%H`, `%M`, `%S`, `%3f` (milliseconds), `%j`, `%b`, "
    "`%a`, `%p`",
    example="STRFTIME(TIMESTAMP '2024-07-01 12:30:00', '%d.%m.%Y')",
    result="'01.07.2024'",
)(lambda time, pattern, zone=None: _formatted(time, pattern, zone))
TIME_TEXTS.define(
    "TO_TIMESTAMP PARSE_TIMESTAMP",
    string("text"),
    optional(_PATTERN),
    _ZONE,
    returns="timestamp",
    meaning="the time of a text in the letters of `DATE_FORMAT`, by the clocks of UTC or of the zone; without a "
    "pattern, of an ISO date with or without a time of day, cut to milliseconds. Fails for other text",
    example="TO_TIMESTAMP('2024-07-01 12:30', 'yyyy-MM-dd HH:mm')",
    result="TIMESTAMP '2024-07-01 12:30:00'",
    fails=True,
)(lambda text, pattern=None, zone=None: _parsed(text, pattern and _from_java(pattern), zone))
TIME_TEXTS.define(
    "STRPTIME",
    string("text"),
    _PATTERN,
    _ZONE,
    returns="timestamp",
    meaning="likewise with the directives of `STRFTIME`",
    example="STRPTIME('01.07.2024', '%d.%m.%Y')",
    result="TIMESTAMP '2024-07-01'",
    fails=True,
)(lambda text, pattern, zone=None: _parsed(text, pattern, zone))
TIME_TEXTS.define(
    "TO_DATE PARSE_DATE",
    string("text"),
    optional(_PATTERN),
    returns="date",
    meaning="the date of a text in the letters of `DATE_FORMAT`; without a pattern, of an ISO date with or without a "
    "time of day. Fails for other text",
    example="TO_DATE('20240701', 'yyyyMMdd')",
    result="DATE '2024-07-01'",
    fails=True,
)(lambda text, pattern=None: _parsed(text, pattern and _from_java(pattern), None).cast(pa.date32()))


# --- numbers and text -------------------------------------------------------------------------------------------------


@TIME_TEXTS.define(
    "FROM_UNIXTIME",
    double("seconds"),
    optional(_PATTERN),
    _ZONE,
    returns="string",
    meaning="the time so many whole seconds after 1970 (UTC), as text in the letters of `DATE_FORMAT`; without a "
    "pattern `yyyy-MM-dd HH:mm:ss`",
    example="FROM_UNIXTIME(1719837000)",
    result="'2024-07-01 12:30:00'",
    fails=True,
)
def _from_unixtime(seconds: Value, pattern: str = "yyyy-MM-dd HH:mm:ss", zone: str | None = None) -> Value:
    return _formatted(_of_number(pc.floor(seconds), 1_000), _from_java(pattern), zone)


@TIME_TEXTS.define(
    "TO_TIMESTAMP_LTZ",
    double("number"),
    optional(constant(Parameter("precision", "integer"))),
    returns="timestamp",
    meaning="the time so many seconds (precision 0) or milliseconds (3, also without one) after 1970, as in Flink",
    example="TO_TIMESTAMP_LTZ(1719837000, 0)",
    result="TIMESTAMP '2024-07-01 12:30:00'",
    fails=True,
)
def _to_timestamp_ltz(number: Value, precision: int = 3) -> Value:
    if precision not in {0, 3}:
        raise pa.ArrowTypeError(f"its precision must be 0 or 3, found {precision}")
    return _of_number(number, 1_000 if precision == 0 else 1)


def _of_number(number: Value, unit_ms: int) -> Value:
    """Return the times so many units after 1970, cut to milliseconds."""
    ms = pc.floor(pc.multiply(pc.fill_null(number, 0.0), float(unit_ms)))
    is_time = pc.and_(pc.is_finite(ms), pc.less(pc.abs(ms), 1e15))  # years 1 to 9999 are within
    (cut_ms,) = ms_of(pc.if_else(is_time, ms, 0.0).cast(pa.int64()))
    return timestamps(cut_ms, np.asarray(is_time))
