"""Local days and hours (G12) compared with those of DuckDB, whose zones are ICU's own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from joinery_runtime.core.kinds.aligned import Windows

HOUR = 3_600_000
FIRST, LAST = (round(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (2012, 2024))
ZONES = (
    *("Europe/Zurich", "Europe/London", "America/New_York", "America/Sao_Paulo", "America/Havana", "America/St_Johns"),
    *("Asia/Beirut", "Asia/Amman", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Tehran", "Africa/Casablanca"),
    *("Australia/Lord_Howe", "Australia/Adelaide", "Pacific/Auckland", "Pacific/Chatham", "Pacific/Apia"),
    *("Asia/Tokyo", "UTC"),
)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def moments() -> np.ndarray:
    """Each hour of twelve years, and random times."""
    generator = np.random.default_rng(12)
    return np.concatenate([np.arange(FIRST, LAST, HOUR), generator.integers(FIRST, LAST, 20_000)])


MIDNIGHT_TWICE = ("America/Havana", "Asia/Amman")
"""Zones whose clocks go back from 01:00 to midnight: DuckDB takes the second one, DATE_TRUNC and windows the first."""
INTO_THE_HOUR_BEFORE = "Pacific/Chatham"
"""A zone whose clocks go back from 03:45 to 02:45."""


def truncated(database: duckdb.DuckDBPyConnection, unit: str, zone: str, ts: np.ndarray) -> tuple[np.ndarray, ...]:
    """The local starts of the times' units, and the moments that DuckDB takes for them, in milliseconds since 1970."""
    rows = pa.table({"ts": pa.array(ts).cast(pa.timestamp("ms", "UTC"))})
    assert rows.num_rows
    start = f"date_trunc('{unit}', ts AT TIME ZONE '{zone}')"
    answer = database.execute(f"SELECT epoch_ms({start}), epoch_ms({start} AT TIME ZONE '{zone}') FROM rows")
    return tuple(answer.fetchnumpy().values())


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("unit", "days", "offset"), [("day", 1, 0), ("week", 7, 4)])
def test_windows_begin_where_duckdb_truncates(
    zone: str, unit: str, days: int, offset: int, database: duckdb.DuckDBPyConnection
) -> None:
    size, ts = days * 24 * HOUR, moments()
    windows = Windows(size, size, offset * 24 * HOUR, zone=zone)
    local, starts = truncated(database, unit, zone, ts)
    assert np.array_equal(windows.numbers_of(ts)[0] * size + windows.offset, local)
    differs = windows.pane_starts(ts) != starts
    assert differs.any() == (zone in MIDNIGHT_TWICE and unit == "day")
    assert np.array_equal(windows.pane_starts(ts)[differs] + HOUR, starts[differs])


@pytest.mark.parametrize("zone", ZONES)
def test_rows_of_one_local_hour_are_in_one_window(zone: str, database: duckdb.DuckDBPyConnection) -> None:
    """Also in an hour that clocks show twice, if they do not go back into the hour before."""
    ts = moments()
    local, _ = truncated(database, "hour", zone, ts)
    differs = Windows(HOUR, HOUR, zone=zone).numbers_of(ts)[0] * HOUR != local
    assert differs.any() == (zone == INTO_THE_HOUR_BEFORE)
    assert differs.mean() < 0.001
