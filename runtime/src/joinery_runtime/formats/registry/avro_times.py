"""Reads Avro's times and dates without a limit of Python's types: a number that `datetime` cannot hold stays a number.

fastavro raises for such a number, also in a field that no column names. Its readers of logical types belong to the
process, so schemas get names of our own in place of theirs. A time keeps its microseconds: only a timestamp column cuts
them off. One in nanoseconds stays its number, as in the library, except where a timestamp column asks for the time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import fastavro.read

_PREFIX = "joinery-"
_EPOCH, _LOCAL_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_DAY = timedelta(days=1)
_US = {"millis": 1_000, "micros": 1}


def with_own_times(document: Any) -> Any:
    """The schema, as JSON, with our names for times and dates."""
    if isinstance(document, list):
        return [with_own_times(inner) for inner in document]
    if not isinstance(document, dict):
        return document
    named = {key: with_own_times(inner) for key, inner in document.items()}
    logical = named.get("logicalType")
    if isinstance(logical, str) and f"{named.get('type')}-{_PREFIX}{logical}" in _READERS:
        named["logicalType"] = _PREFIX + logical
    return named


def _or_number(read: Callable[[int], Any]) -> Callable[..., Any]:
    """A reader as fastavro calls it, which leaves numbers alone that Python's type cannot hold."""

    def read_if_possible(number: int, *_schemas: Any) -> Any:
        try:
            return read(number)
        except (OverflowError, ValueError):
            return number

    return read_if_possible


class Nanos(int):
    """Nanoseconds since 1970."""

    epoch = _EPOCH

    def time(self) -> datetime:
        """Return the time without the digits below a microsecond."""
        return self.epoch + timedelta(microseconds=self // 1_000)


class LocalNanos(Nanos):
    """Nanoseconds since 1970 by a clock whose zone is unknown."""

    epoch = _LOCAL_EPOCH


def _instant(epoch: datetime, unit: str) -> Callable[..., Any]:
    return _or_number(lambda number: epoch + timedelta(microseconds=number * _US[unit]))


def _clock(unit: str) -> Callable[..., Any]:
    return _or_number(lambda number: _time_of_day(timedelta(microseconds=number * _US[unit])))


def _time_of_day(since_midnight: timedelta) -> time:
    if since_midnight >= _DAY:
        raise ValueError("no time of a day")
    return (datetime.min + since_midnight).time()


_READERS: dict[str, Callable[..., Any]] = {
    f"int-{_PREFIX}date": _or_number(lambda number: date(1970, 1, 1) + timedelta(days=number)),
    f"int-{_PREFIX}time-millis": _clock("millis"),
    f"long-{_PREFIX}time-micros": _clock("micros"),
    **{f"long-{_PREFIX}timestamp-{unit}": _instant(_EPOCH, unit) for unit in _US},
    **{f"long-{_PREFIX}local-timestamp-{unit}": _instant(_LOCAL_EPOCH, unit) for unit in _US},
    f"long-{_PREFIX}timestamp-nanos": _or_number(Nanos),
    f"long-{_PREFIX}local-timestamp-nanos": _or_number(LocalNanos),
}
fastavro.read.LOGICAL_READERS.update(_READERS)
