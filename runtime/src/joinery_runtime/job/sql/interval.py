"""Reads INTERVAL '24' HOUR as a length of time."""

from __future__ import annotations

from fractions import Fraction

from sqlglot import exp

_UNIT_MS = {"MILLISECOND": 1, "SECOND": 1_000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000}
_UNITS = "the unit is MILLISECOND, SECOND, MINUTE, HOUR or DAY"


class NoBoundError(ValueError):
    """A comparison is not a bound, or an INTERVAL is not a length of time; the text says why."""


def interval_ms(node: exp.Interval) -> Fraction:
    """Milliseconds, which need not be whole. Raises NoBoundError."""
    unit = str(node.args.get("unit") or "").upper().removesuffix("S")
    if unit not in _UNIT_MS:
        raise NoBoundError(f"{node.sql(comments=False)}: {_UNITS}")
    negative = isinstance(node.this, exp.Neg)
    length = node.this.this if negative else node.this
    if not isinstance(length, exp.Literal):
        raise NoBoundError(f"{node.sql(comments=False)}: the length of an interval must be a number")
    try:
        ms = Fraction(length.name.strip()) * _UNIT_MS[unit]
    except (ValueError, ZeroDivisionError) as error:
        raise NoBoundError(f"{node.sql(comments=False)}: the length of an interval must be a number") from error
    return -ms if negative else ms
