"""Times by the clocks of a zone, in milliseconds since 1970 by these clocks, and by those of UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl

_YEAR_2100 = 4_102_444_800_000  # the end of Polars' table of zones, in milliseconds by the zone's clocks
_YEAR_9999_END = 253_402_300_799_999
_MS = timedelta(milliseconds=1)


def zone_to_utc(local: pl.Series, zone: str) -> pl.Series:
    """Convert milliseconds by a zone's clocks to those of UTC. A time that occurs twice is the first one; null for
    times that the zone skips."""
    times = local.cast(pl.Datetime("ms")).dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    utc = times.dt.epoch("ms")
    if not (local >= _YEAR_2100).any():
        return utc
    # Polars knows no summer time after 2099. Few rows are from then on, and most of these have the same time.
    later = local.filter((local >= _YEAR_2100) & (local <= _YEAR_9999_END)).unique()
    own = [_to_utc_by_zoneinfo(time, ZoneInfo(zone)) for time in later.to_list()]
    return _replaced(utc, local, later, own)


def utc_to_zone(utc: pl.Series, zone: str) -> pl.Series:
    """Convert milliseconds by the clocks of UTC to those of a zone."""
    times = utc.cast(pl.Datetime("ms", "UTC")).dt.convert_time_zone(zone).dt.replace_time_zone(None)
    local = times.dt.epoch("ms")
    if not (utc >= _YEAR_2100).any():
        return local
    later = utc.filter((utc >= _YEAR_2100) & (utc <= _YEAR_9999_END)).unique()
    own = [time + _offset(_moment(time).replace(tzinfo=UTC), ZoneInfo(zone)) for time in later.to_list()]
    return _replaced(local, utc, later, own)


def _replaced(converted: pl.Series, source: pl.Series, later: pl.Series, own: list[int | None]) -> pl.Series:
    """Take the values of `later` for the times from the year 2100 on; null beyond the year 9999."""
    by_zoneinfo = source.replace_strict(later, pl.Series(own, dtype=pl.Int64), default=None, return_dtype=pl.Int64)
    return pl.select(pl.when(source >= _YEAR_2100).then(by_zoneinfo).otherwise(converted)).to_series()


def _moment(ms: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(milliseconds=ms)


def _offset(moment: datetime, zone: ZoneInfo) -> int:
    """The distance of a zone's clocks from those of UTC, in milliseconds. Near the ends of the calendar the local time
    may have no date, so the offset is that of a day further inside."""
    inside = min(max(moment, datetime(1, 1, 2, tzinfo=UTC)), datetime(9999, 12, 30, tzinfo=UTC))
    return round((inside.astimezone(zone).utcoffset() or timedelta()) / _MS)


def _to_utc_by_zoneinfo(local: int, zone: ZoneInfo) -> int | None:
    before, after = (_moment(local).replace(tzinfo=zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
    return None if before < after else local - round(before / _MS)
