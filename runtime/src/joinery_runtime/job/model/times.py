"""How text and numbers in a column are read as times: a column's `format` and `zone`."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

EPOCH_UNITS = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}
"""For numbers since 1970, the factor to milliseconds; a negative value is a divisor."""
ISO = "iso"
TEXT = "text"
"""The format for numbers and booleans that may be in quotes."""

_DIRECTIVE = re.compile(r"%(?:\.?[369]?f|:?z|[YCyqmbBhdeHkIlPpMSTRFDjs%n t])")
_FORMS = f"write {', '.join(EPOCH_UNITS)} (numbers since 1970), iso, or a pattern as %d.%m.%Y %H:%M:%S"


def checked_format(text: str) -> str:
    """Returns the format. Raises ValueError if it is not one."""
    if text in {*EPOCH_UNITS, ISO, TEXT}:
        return text
    if "%" not in text:
        raise ValueError(f"{text!r} is no format; {_FORMS}; for numbers in quotes: text")
    unknown = re.search(r"%..?", _DIRECTIVE.sub("", text)) or re.search(r"%$", _DIRECTIVE.sub("", text))
    if unknown is not None:
        raise ValueError(f"{text!r} has {unknown[0]!r}, which is no part of a time; use %Y %m %d %H %M %S %.f %b %z")
    return text


def checked_zone(name: str) -> str:
    """Returns the name of the time zone. Raises ValueError if there is no such zone."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone; write a name such as Europe/Berlin or UTC") from error
    return name


def is_pattern(text: str) -> bool:
    return "%" in text


def has_offset(pattern: str) -> bool:
    """Whether text in this pattern states its own zone, or counts seconds since 1970."""
    return re.search(r"%:?z|%s", pattern) is not None
