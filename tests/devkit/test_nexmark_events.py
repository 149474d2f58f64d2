"""Nexmark's generator: the shares, sizes and order that docs/nexmark.md names."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from joinery_devkit.nexmark.events import FIRST_ID, START_MS, NexmarkLoad, generate, json_records

LOAD = NexmarkLoad(50_000, per_second=1_000)


@pytest.fixture(scope="module")
def frames() -> dict[str, pl.DataFrame]:
    return {name: pl.DataFrame(table) for name, table in generate(LOAD).tables().items()}


def test_one_event_in_fifty_is_a_person_and_three_are_auctions(frames: dict[str, pl.DataFrame]) -> None:
    assert {name: len(frame) for name, frame in frames.items()} == {"person": 1_000, "auction": 3_000, "bid": 46_000}


def test_the_same_load_gives_the_same_events_and_another_seed_others() -> None:
    load = NexmarkLoad(500, disorder=10)
    assert generate(load) == generate(load)
    assert generate(load) != generate(NexmarkLoad(500, disorder=10, seed=2))


@pytest.mark.parametrize("events", [0, 1, 49, 500, 507])
def test_disorder_loses_no_event(events: int) -> None:
    numbers = NexmarkLoad(events, disorder=10).numbers()
    assert sorted(numbers.tolist()) == list(range(events))
    assert events < 10 or numbers.tolist() != list(range(events))
    assert np.abs(numbers - np.arange(events)).max(initial=0) < 10


def test_ids_and_times_ascend_and_span_the_load(frames: dict[str, pl.DataFrame]) -> None:
    for name in ("person", "auction"):
        assert frames[name]["id"].to_list() == list(range(FIRST_ID, FIRST_ID + len(frames[name])))
    times = frames["bid"]["dateTime"].dt.epoch("ms")
    assert times.is_sorted()
    assert (times[0], times[-1]) == (START_MS + 4, START_MS + 49_999)


def test_half_of_the_bids_are_on_a_hot_auction_and_most_are_by_a_hot_bidder(frames: dict[str, pl.DataFrame]) -> None:
    bids = frames["bid"]
    assert 0.5 < ((bids["auction"] - FIRST_ID) % 100 == 0).mean() < 0.53
    assert 0.75 < ((bids["bidder"] - FIRST_ID) % 100 == 1).mean() < 0.78
    assert 0.75 < ((frames["auction"]["seller"] - FIRST_ID) % 100 == 0).mean() < 0.79


def test_bids_are_on_auctions_that_are_open_or_come_next(frames: dict[str, pl.DataFrame]) -> None:
    bids = frames["bid"].join_asof(frames["auction"].select("dateTime", last="id"), on="dateTime")
    cold_bids = bids.filter((pl.col("auction") - FIRST_ID) % 100 != 0)
    distance = cold_bids["auction"] - cold_bids["last"]
    assert (distance.min(), distance.max()) == (-100, 10)


def test_prices_are_spread_evenly_over_their_digits(frames: dict[str, pl.DataFrame]) -> None:
    prices = frames["bid"]["price"]
    assert (prices.min() or 0) >= 100
    assert (prices.max() or 0) <= 10**8
    assert 0.49 < (prices < 10**5).mean() < 0.51


def test_an_auction_ends_after_its_beginning(frames: dict[str, pl.DataFrame]) -> None:
    lasts = (frames["auction"]["expires"] - frames["auction"]["dateTime"]).dt.total_milliseconds()
    assert (lasts.min() or 0) >= 1
    assert (lasts.max() or 0) <= 2 * 1_667


@pytest.mark.parametrize(("name", "average"), [("person", 200), ("auction", 500), ("bid", 100)])
def test_rows_have_the_sizes_of_the_reference(name: str, average: int, frames: dict[str, pl.DataFrame]) -> None:
    """As the reference counts them: 8 bytes for a number or a time, and URLs and channels count nothing."""
    frame = frames[name].drop("url", "channel", "dateTime", strict=False)
    size = sum(
        frame[column].str.len_bytes().mean() if dtype == pl.String else 8 for column, dtype in frame.schema.items()
    )
    assert size == pytest.approx(average, rel=0.1)


def test_a_record_is_json_with_times_in_milliseconds() -> None:
    (record,) = json_records(generate(NexmarkLoad(1)).person)
    decoded: dict[str, Any] = pl.read_ndjson(record).row(0, named=True)
    assert (decoded["id"], decoded["dateTime"]) == (FIRST_ID, START_MS)
