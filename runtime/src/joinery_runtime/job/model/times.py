"""How text and numbers in a column are read as times: a column's `format` and `zone`."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from joinery_runtime.job.model.time_patterns import parse_pattern

EPOCH_UNITS = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}
"""For numbers since 1970, the factor to milliseconds; a negative value is a divisor."""
ISO = "iso"
TEXT = "text"
"""The format for numbers and booleans that may be in quotes."""
BUCKETS_START_MS = 946_857_600_000
"""Monday, 2000-01-03: where the ranges of TIME_BUCKET start, in Timescale and DuckDB too."""

_FORMS = f"write {', '.join(EPOCH_UNITS)} (numbers since 1970), iso, or a pattern as %d.%m.%Y %H:%M:%S"


def checked_format(text: str) -> str:
    """Return the format. Raises ValueError if it is not one, or if it is a pattern whose times are not certain."""
    if text in {*EPOCH_UNITS, ISO, TEXT}:
        return text
    if "%" not in text:
        raise ValueError(f"{text!r} is no format; {_FORMS}; for numbers in quotes: text")
    parse_pattern(text)
    return text


def checked_zone(name: str) -> str:
    """Returns the name of the time zone. Raises ValueError if there is no such zone."""
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
    """Whether text in this pattern states no zone of its own. False for what is no pattern of times."""
    try:
        return not parse_pattern(text).has_offset
    except ValueError:
        return False
