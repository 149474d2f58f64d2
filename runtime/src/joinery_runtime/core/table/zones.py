"""Times by the clocks of a zone, in milliseconds since 1970 by these clocks, and by those of UTC; and a local time that
never goes back (rule G12)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

_YEAR_2100 = 4_102_444_800_000  # the end of Polars' table of zones, in milliseconds by the zone's clocks
_YEAR_9999_END = 253_402_300_799_999
_MS = timedelta(milliseconds=1)
_YEAR_1800 = -5_364_662_400_000
_GRID_MS = 6 * 3_600_000  # no zone changes its clocks twice within six hours
_EARLIEST = np.iinfo(np.int64).min


def zone_to_utc(local: pl.Series, zone: str) -> pl.Series:
    """Convert milliseconds by a zone's clocks to those of UTC. A time that occurs twice is the first one; null for
    times that the zone skips."""
    times = local.cast(pl.Datetime("ms")).dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    utc = times.dt.epoch("ms")
    if not (local >= _YEAR_2100).any():
        return utc
    # Polars knows no summer time after 2099. Few rows are from then on, and most of these have the same time.
    later = local.filter((local >= _YEAR_2100) & (local <= _YEAR_9999_END)).unique()
    own = list[int | None]()
    for time in later.to_list():
        moments = (_moment(time).replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
        before, after = (moment.utcoffset() or timedelta() for moment in moments)
        own.append(None if before < after else time - round(before / _MS))
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
    """Return the distance of a zone's clocks from those of UTC, in milliseconds. Near the ends of the calendar the
    local time may have no date, so the offset is that of a day further inside."""
    inside = min(max(moment, datetime(1, 1, 2, tzinfo=UTC)), datetime(9999, 12, 30, tzinfo=UTC))
    return round((inside.astimezone(zone).utcoffset() or timedelta()) / _MS)


# --- local time that never goes back ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class LocalClock:
    """Local time, which stands still from when clocks are set back until they show a later time than before.

    `since` (int64[m], ascending) are the times, in milliseconds of UTC, from which clocks are `ahead` (int64[m],
    milliseconds) of UTC; the first one is the earliest time. `reached` (int64[m]) are the highest local times before
    these. All times are milliseconds since 1970, by UTC or by the zone's clocks."""

    since: np.ndarray
    ahead: np.ndarray
    reached: np.ndarray

    def local(self, utc: np.ndarray) -> np.ndarray:
        """int64[n]: the highest local time that clocks have shown up to each time `utc` (int64[n])."""
        period = np.searchsorted(self.since, utc, side="right") - 1
        return np.asarray(np.maximum(utc + self.ahead[period], self.reached[period]))

    def first_at(self, local: np.ndarray) -> np.ndarray:
        """int64[n]: the first times of UTC at which clocks show each time `local` (int64[n]), or a later one if they
        skip it. Such a time is at or before `utc` exactly if `local` is at or before `local(utc)`."""
        period = np.searchsorted(self.reached[1:], local, side="left")
        return np.asarray(np.maximum(local - self.ahead[period], self.since[period]))

    def longest(self, span: int) -> int:
        """Return how many milliseconds of UTC pass at most from a local time to the one `span` milliseconds later.

        Between the local times at which clocks change, what passes only grows or shrinks, so these decide."""
        changes = np.concatenate([self.reached[1:], self.reached[1:] + 1, self.since[1:] + self.ahead[1:]])
        begin = np.concatenate([[0], changes, changes - span])
        return int((self.first_at(begin + span) - self.first_at(begin)).max())


@cache
def local_clock(zone: str) -> LocalClock:
    """Return the clocks of a zone, from the data of Polars, which functions such as DATE_TRUNC use too. From the year
    2100 on, clocks stay as they are at its beginning."""
    grid = np.arange(_YEAR_1800, _YEAR_2100, _GRID_MS)
    ahead = _ahead(grid, zone)
    changed = np.flatnonzero(np.diff(ahead))
    before, after, old = grid[changed], grid[changed + 1], ahead[changed]
    while (after - before > 1).any():
        middle = (before + after) // 2
        is_old = _ahead(middle, zone) == old
        before, after = np.where(is_old, middle, before), np.where(is_old, after, middle)
    reached = np.maximum.accumulate(after - 1 + old)
    return LocalClock(
        np.concatenate([[_EARLIEST], after]),
        np.concatenate([ahead[:1], ahead[changed + 1]]),
        np.concatenate([[_EARLIEST], reached]),
    )


def _ahead(utc: np.ndarray, zone: str) -> np.ndarray:
    """int64[n]: how far the zone's clocks are ahead of UTC."""
    return np.asarray(utc_to_zone(pl.Series(utc), zone).to_numpy() - utc)
