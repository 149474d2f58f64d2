"""How a column's texts and numbers are read as times: `format` and `zone` of a column."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

EPOCH_UNITS = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}
"""Of numbers since 1970: by what they are multiplied, or if negative divided, to be milliseconds."""
ISO = "iso"
TEXT = "text"
"""The format of numbers and booleans that may be in quotes."""

_DIRECTIVE = re.compile(r"%(?:\.?[369]?f|:?z|[YCyqmbBhdeHkIlPpMSTRFDjs%n t])")
_FORMS = f"write {', '.join(EPOCH_UNITS)} (numbers since 1970), iso, or a pattern as %d.%m.%Y %H:%M:%S"


def checked_format(text: str) -> str:
    """Raises ValueError for what is no format."""
    if text in {*EPOCH_UNITS, ISO, TEXT}:
        return text
    if "%" not in text:
        raise ValueError(f"{text!r} is no format; {_FORMS}; for numbers in quotes: text")
    unknown = re.search(r"%..?", _DIRECTIVE.sub("", text)) or re.search(r"%$", _DIRECTIVE.sub("", text))
    if unknown is not None:
        raise ValueError(f"{text!r} has {unknown[0]!r}, which is no part of a time; use %Y %m %d %H %M %S %.f %b %z")
    return text


def checked_zone(name: str) -> str:
    """Raises ValueError for what is no time zone."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone; write a name such as Europe/Berlin or UTC") from error
    return name


def is_pattern(text: str) -> bool:
    return "%" in text


def has_offset(pattern: str) -> bool:
    """Whether texts of the pattern say their own zone, or count seconds since 1970."""
    return re.search(r"%:?z|%s", pattern) is not None
