"""How text and numbers in a column are read as times: a column's `format` and `zone`.

A format is a unit of numbers since 1970, `iso`, or a pattern such as `%d.%m.%Y %H:%M:%S`, which is translated to a
regular expression. A pattern has the directives of Python's strptime, which mean here what they mean there, and those
that Polars adds (`%.f`, `%3f`, `%T`). It must name a day and, if it names a time of day, the hour and the minute:
otherwise all of its times would be one, or an hour off. Each pattern is tried on known times when the job is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

EPOCH_UNITS = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}
"""For numbers since 1970, the factor to milliseconds; a negative value is a divisor."""
ISO = "iso"
TEXT = "text"
"""The format for numbers and booleans that may be in quotes."""
BUCKETS_START_MS = 946_857_600_000
"""Monday, 2000-01-03: where the ranges of TIME_BUCKET start, in Timescale and DuckDB too."""

_FORMATS_HINT = f"write {', '.join(EPOCH_UNITS)} (numbers since 1970), iso, or a pattern as %d.%m.%Y %H:%M:%S"

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONG_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_LONGER = {"F": "%Y-%m-%d", "D": "%m/%d/%y", "T": "%H:%M:%S", "R": "%H:%M", "n": " ", "t": " "}
_SAME = {"e": "d", "h": "b", "k": "H", "l": "I", "P": "p", ":z": "z"}
_TOKEN = re.compile(r"(?P<point>[.,])%f|%(?P<directive>:z|\.?[369]?f|.)|(?P<blanks>\s+)|(?P<letter>.)", re.DOTALL)
USUAL = "%Y %m %d %H %M %S %f %b %z"


@dataclass(frozen=True, slots=True)
class _Form:
    """How a directive is written. `part` is what it says of a time, and the name of its group; None: nothing."""

    part: str | None
    form: str
    write: Callable[[datetime], str]


_FORMS: Mapping[str, _Form] = {
    "Y": _Form("year", "[0-9]{4}", lambda time: f"{time.year:04}"),
    "y": _Form("year_of_century", "[0-9]{2}", lambda time: f"{time.year % 100:02}"),
    "m": _Form("month", "1[0-2]|0[1-9]| ?[1-9]", lambda time: f"{time.month:02}"),
    "b": _Form("month_name", "|".join(MONTHS), lambda time: MONTHS[time.month - 1]),
    "B": _Form("month_name", "|".join(_LONG_MONTHS), lambda time: _LONG_MONTHS[time.month - 1]),
    "d": _Form("day", "3[01]|[12][0-9]|0[1-9]| ?[1-9]", lambda time: f"{time.day:02}"),
    "j": _Form("day_of_year", "36[0-6]|3[0-5][0-9]|[12][0-9]{2}|0?[1-9][0-9]|0{0,2}[1-9]", "{:%j}".format),
    "H": _Form("hour", "2[0-3]|[01][0-9]| ?[0-9]", lambda time: f"{time.hour:02}"),
    "I": _Form("hour_of_half", "1[0-2]|0[1-9]| ?[1-9]", lambda time: f"{time.hour % 12 or 12:02}"),
    "p": _Form("half", "[ap]m", lambda time: "pm" if time.hour >= 12 else "am"),
    "M": _Form("minute", "[0-5][0-9]| ?[0-9]", lambda time: f"{time.minute:02}"),
    "S": _Form("second", "[0-5][0-9]| ?[0-9]", lambda time: f"{time.second:02}"),
    "f": _Form("fraction", "[0-9]+", lambda time: f"{time.microsecond:06}"),
    "z": _Form("offset", "Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9](?::?[0-5][0-9])?)?", lambda _: "+0000"),
    "s": _Form("epoch", "[+-]?[0-9]{1,12}", lambda time: f"{time.timestamp():.0f}"),
    "a": _Form(None, "|".join(day[:3] for day in _DAYS), lambda time: _DAYS[time.weekday()][:3]),
    "A": _Form(None, "|".join(_DAYS), lambda time: _DAYS[time.weekday()]),
    "%": _Form(None, "%", lambda _: "%"),
}
# Times whose parts all differ from each other, each with two digits or more.
_KNOWN = (datetime(2024, 10, 29, 13, 45, 56, 789_012, UTC), datetime(1987, 12, 31, 11, 59, 10, 20_304, UTC))


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A pattern that is translated: a regular expression, the same in Python and in Polars, for the whole text. Its
    named groups are the `parts` that texts have."""

    expression: str
    parts: frozenset[str]

    @property
    def has_offset(self) -> bool:
        """Whether text in this pattern states its own zone, or counts seconds since 1970."""
        return not self.parts.isdisjoint({"offset", "epoch"})


def checked_format(text: str) -> str:
    """Return the format. Raises ValueError if it is not one, or if it is a pattern whose times are not certain."""
    if text in {*EPOCH_UNITS, ISO, TEXT}:
        return text
    if "%" not in text:
        raise ValueError(f"{text!r} is no format; {_FORMATS_HINT}; for numbers in quotes: text")
    parse_pattern(text)
    return text


def alignment_fields(offset: int, time_zone: str | None) -> dict[str, Any]:
    """Return the fields of a window that say from where windows count: none if that is midnight UTC. `offset` is in
    milliseconds."""
    zone = {"timeZone": time_zone} if time_zone is not None else {}
    return {**({"offset": offset} if offset else {}), **zone}


def checked_zone(name: str) -> str:
    """Return the name of the time zone. Raises ValueError if there is no such zone."""
    try:
        if name.startswith(("posix", "right/")) or name in {"Factory", "localtime"}:
            raise ValueError("a file beside those of the zones")
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone; write a name such as Europe/Berlin or UTC") from error
    return name


def is_pattern(text: str) -> bool:
    return "%" in text


def needs_zone(text: str) -> bool:
    """Say whether text in this pattern states no zone of its own. False for what is no pattern of times."""
    try:
        return not parse_pattern(text).has_offset
    except ValueError:
        return False


@lru_cache(maxsize=1_000)
def parse_pattern(text: str, *, complete: bool = True) -> TimePattern:
    """Translate a pattern. Raises ValueError if it is not one or, with `complete`, if its times would not be certain.
    Earlier releases took patterns without a day, which plans of theirs may still have to read; so without `complete`
    only what cannot be translated is an error."""
    expanded = re.sub(r"%(.)", lambda directive: _LONGER.get(directive[1], directive[0]), text, flags=re.DOTALL)
    forms = [_form_of(token, text) for token in _TOKEN.finditer(expanded)]
    parts = [form.part for form in forms if form.part is not None]
    twice = {part for part in parts if parts.count(part) > 1}
    if twice:
        raise ValueError(f"{text!r} names the {min(twice).replace('_', ' ')} twice; name each part of a time once")
    pattern = TimePattern("".join(map(_group_of_form, forms)), frozenset(parts))
    if not complete:
        return pattern
    _require_complete(text, pattern.parts)
    for example in _KNOWN:
        written = [form.write(example) for form in forms]
        read = re.fullmatch(pattern.expression, "".join(written), re.IGNORECASE)
        pieces = {form.part: piece.lstrip(".,") for form, piece in zip(forms, written, strict=True) if form.part}
        if read is None or read.groupdict() != pieces:
            raise ValueError(
                f"{text!r} does not say where a part of a time ends: {''.join(written)!r} can be read in several ways; "
                "write something between the parts"
            )
    return pattern


def _form_of(token: re.Match[str], text: str) -> _Form:
    """Return the form of a token: of a directive, with the sign before a fraction, of blanks, or of a letter."""
    if token["blanks"]:
        return _Form(None, r"\s+", lambda _: " ")
    if token["point"]:
        return _fraction_form(token["point"], "[0-9]+")
    name = token["directive"]
    if name is None and token["letter"] != "%":
        return _Form(None, re.escape(token["letter"]), lambda _: token["letter"])
    if name is not None and name.endswith("f") and name != "f":
        digits = f"[0-9]{{{name[-2]}}}" if name[-2:-1].isdigit() else "[0-9]+"
        if name[0] == ".":
            return _fraction_form(".", digits)
        return _Form("fraction", digits, lambda time: f"{time.microsecond:06}000"[: int(name[-2])])
    form = _FORMS.get(_SAME.get(name or "", name or ""))
    if form is None:
        hint = "; for texts that end in UTC or GMT write the word itself, and zone: UTC" if name == "Z" else ""
        raise ValueError(f"{text!r} has {token[0]!r}, which is no part of a time; use {USUAL}{hint}")
    return form


def _fraction_form(point: str, digits: str) -> _Form:
    """Return a fraction behind its sign, which texts leave out together, as Python's isoformat does."""
    width = int(digits[6]) if digits.endswith("}") else 6
    return _Form("fraction", f"{point}{digits}", lambda time: point + f"{time.microsecond:06}000"[:width])


def _group_of_form(form: _Form) -> str:
    if form.part is None:
        return f"(?:{form.form})"
    if form.form[0] in ".,":
        return f"(?:{re.escape(form.form[0])}(?P<{form.part}>{form.form[1:]}))?"
    return f"(?P<{form.part}>{form.form})"


def _require_complete(text: str, parts: frozenset[str]) -> None:
    """Require that the pattern's times are certain to the day or, with a time of day, to the minute. Raises
    ValueError."""
    if "epoch" not in parts:
        missing = [] if parts & {"year", "year_of_century"} else ["year"]
        if "day_of_year" not in parts:
            missing += [] if parts & {"month", "month_name"} else ["month"]
            missing += [] if "day" in parts else ["day"]
        if missing:
            raise ValueError(
                f"{text!r} names no {' and no '.join(missing)}, so times of different days would be the same; "
                "write a pattern that has the date, or read the column as string"
            )
    for first, other in (("year", "year_of_century"), ("month", "month_name"), ("hour", "hour_of_half")):
        if {first, other} <= parts:
            raise ValueError(f"{text!r} names the {first} twice; name each part of a time once")
    hour = parts & {"hour", "hour_of_half"}
    if "hour_of_half" in parts and "half" not in parts:
        raise ValueError(f"{text!r} has hours up to 12 without AM or PM; write %p beside %I, or %H for hours up to 23")
    if "half" in parts and "hour_of_half" not in parts:
        raise ValueError(f"{text!r} has %p without %I; write %I for hours up to 12, or leave %p out")
    if "epoch" not in parts and (bool(hour) != ("minute" in parts)):
        raise ValueError(f"{text!r} has the hour or the minute alone; write both, as in %H:%M, or neither")
    if "second" in parts and "minute" not in parts:
        raise ValueError(f"{text!r} has seconds without hour and minute; write %H:%M:%S")
    if "fraction" in parts and parts.isdisjoint({"second", "epoch"}):
        raise ValueError(f"{text!r} has a fraction without seconds; write %S before %f")
