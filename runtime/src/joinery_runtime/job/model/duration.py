"""Durations as people write them: Go style (`1h30m`, `250ms`, `-1m`). Stored jobs may hold plain milliseconds."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from joinery_runtime.job.model.wording import either

# Go's time.Duration counts nanoseconds in 64 bits; the same limit keeps sums of times inside int64 milliseconds.
MAX_MS = (2**63 - 1) // 1_000_000

_MS_PER_UNIT = {
    "ns": Fraction(1, 1_000_000),
    "us": Fraction(1, 1_000),
    "µs": Fraction(1, 1_000),
    "ms": Fraction(1),
    "s": Fraction(1_000),
    "m": Fraction(60_000),
    "h": Fraction(3_600_000),
}
_HOURS_PER_UNIT = {"d": 24, "w": 168}
"""Units that Go lacks."""
_PART = re.compile(r"(\d+\.?\d*|\.\d+)([a-zµ]*)", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(rf"([+-]?)((?:{_PART.pattern})+)", re.ASCII | re.IGNORECASE)


def parse_duration(value: str | int, least: int | None = None) -> int:
    """Return the duration in milliseconds; an integer is a number of them. Raises ValueError, which says what is wrong
    with the text and how to write it: with a duration of `least` milliseconds or more (None: also a negative one).
    A shorter duration is no error here."""
    if isinstance(value, float):
        raise ValueError(without_unit(str(value), least))
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"a duration must be text; {_hint(least)}")
    ms = value if isinstance(value, int) else _parse_text(value.strip(), least)
    if abs(ms) > MAX_MS:
        raise ValueError(f"{value!r} is longer than the longest duration, {MAX_MS} ms (292 years)")
    return ms


def without_unit(text: str, least: int | None = None) -> str:
    """Say of a number what is missing, and the durations of `least` milliseconds or more that it may stand for."""
    durations = []
    for duration in (f"{text}s", f"{text}ms"):
        with suppress(ValueError):
            ms = parse_duration(duration)
            durations += [duration] if least is None or ms >= least else []
    return f"{text} has no unit; {f'write {either(durations)}' if durations else _hint(least)}"


def _hint(least: int | None) -> str:
    return "write it like 1h30m, 10s, 250ms or -1m" if least is None else "write it like 1h30m, 10s or 250ms"


def format_duration(ms: int) -> str:
    """Return the shortest text in whole units from which `parse_duration` gets `ms`."""
    if ms == 0:
        return "0s"
    text, rest = "-" if ms < 0 else "", abs(ms)
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text


_END = 2**63 - 1  # the watermark of an input that has ended
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def format_time(ms: int | None) -> str:
    """Write event time for people. A time outside the calendar, such as the watermark of an ended input, stays a
    number."""
    if ms is None:
        return "not known yet"
    try:
        # Not `fromtimestamp`: seconds of a far year have no milliseconds as a float.
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return "the end" if ms == _END else f"{ms} ms"


def time_value(ms: int | None) -> int | str | None:
    """Write event time in JSON: milliseconds, "end" if the input has ended, None if it is not known yet."""
    return "end" if ms is not None and ms >= _END else ms


def _parse_text(text: str, least: int | None) -> int:
    if text in {"0", "+0", "-0"}:
        return 0
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; {_hint(least)}")
    parts = _PART.findall(match[2])
    if not parts[-1][1]:
        raise ValueError(without_unit(text, least))
    total, in_days = Fraction(0), ""
    for number, unit in parts:
        if unit in _MS_PER_UNIT:
            total += Fraction(number) * _MS_PER_UNIT[unit]
        elif not unit:
            raise ValueError(f"{text!r} has no unit after {number}; {_hint(least)}")
        elif unit in _HOURS_PER_UNIT:
            total += Fraction(number) * _HOURS_PER_UNIT[unit] * _MS_PER_UNIT["h"]
            in_days = in_days or unit
        elif unit.lower().rstrip("s") in {"mo", "mon", "month", "q", "quarter", "y", "year"}:
            facts = f"{text!r} has the unit {unit!r}, which differs in length"
            raise ValueError(f"{facts}; write hours, as 24h for a day, and add up days where rows are read")
        else:
            raise ValueError(f"{text!r} has the unknown unit {unit!r}; units are h, m, s, ms, us and ns")
    ms = -total if match[1] == "-" else total
    if in_days:
        is_valid = ms.denominator == 1 and abs(ms) <= MAX_MS and (least is None or ms >= least)
        todo = f"write hours: {format_duration(int(ms))}" if is_valid else _hint(least)
        raise ValueError(f"{text!r} has the unit {in_days!r}, which Go durations lack; {todo}")
    if ms.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of milliseconds, the smallest step of event time")
    return int(ms)
