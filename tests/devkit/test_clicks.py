"""The clicks of the demo and of the benchmark."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from joinery_devkit.clicks import (
    DELAY_MS,
    FIRST_CLICK_MS,
    GAP_MS,
    LATENESS_MS,
    PAGES,
    ClickLoad,
    Clicks,
    by_partition,
    draw,
    make,
    records,
)
from joinery_devkit.datagen import GeneratedRecord, kinds
from joinery_devkit.demo_scenarios import SESSION_EXAMPLE, SessionsOfClicks
from joinery_devkit.topics import readable
from joinery_runtime.job import SessionWindow, parse_job

LOAD = ClickLoad(clicks=60_000, users=2_000, partitions=3, per_second=20)
MALFORMED = {"cut_off", "no_object", "null_time", "no_time", "unreadable_time", "no_value"}


@pytest.fixture(scope="module")
def drawn() -> Clicks:
    return draw(LOAD)


@pytest.fixture(scope="module")
def generated() -> list[GeneratedRecord]:
    return make(7, 20_000, 3)


@pytest.fixture(scope="module")
def job(generated: list[GeneratedRecord]) -> SessionWindow:
    job = parse_job(SessionsOfClicks().job("b:1", "postgresql://", generated), "demo.yaml")
    assert isinstance(job, SessionWindow)
    return job


# --- any number -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clicks", [1, 7, 60_000])
def test_there_are_as_many_as_were_asked_for(clicks: int) -> None:
    assert len(draw(replace(LOAD, clicks=clicks))) == clicks


def test_the_seed_decides(drawn: Clicks) -> None:
    assert records(draw(LOAD)) == records(drawn)
    assert records(draw(replace(LOAD, seed=2))) != records(drawn)
    assert make(1, 500, 3) == make(1, 500, 3)
    assert make(1, 500, 3) != make(2, 500, 3)


def test_users_pages_and_times_are_what_the_load_says(drawn: Clicks) -> None:
    assert len(np.unique(drawn.user)) > 0.98 * LOAD.users
    assert drawn.user.max() < LOAD.users
    assert (drawn.page.min(), drawn.page.max()) == (1, PAGES)
    assert FIRST_CLICK_MS <= drawn.ts.min() < FIRST_CLICK_MS + 1_000
    assert 0.98 < (drawn.ts.max() - FIRST_CLICK_MS) / LOAD.span_ms < 1.5


def test_they_are_sent_a_little_out_of_order(drawn: Clicks) -> None:
    behind = np.maximum.accumulate(drawn.ts) - drawn.ts
    assert 0.9 * LOAD.disorder_ms < behind.max() <= LOAD.disorder_ms
    assert draw(replace(LOAD, disorder_ms=0)).ts.tolist() == sorted(drawn.ts.tolist())


def test_visits_are_bursts(drawn: Clicks) -> None:
    order = np.lexsort((drawn.ts, drawn.user))
    user, ts = drawn.user[order], drawn.ts[order]
    pauses = np.diff(ts)[user[1:] == user[:-1]]
    sessions = LOAD.users + (pauses > GAP_MS).sum()
    assert 4 < LOAD.clicks / sessions < 9
    assert np.median(pauses) < GAP_MS / 4


def test_a_user_s_clicks_are_in_one_partition(drawn: Clicks) -> None:
    parts = by_partition(drawn, 3)
    assert sum(map(len, parts)) == LOAD.clicks
    assert not set.intersection(*(set(part.user.tolist()) for part in parts))
    assert min(map(len, parts)) > 0.3 * LOAD.clicks


def test_records_say_what_was_drawn(drawn: Clicks) -> None:
    few = drawn.where(np.arange(LOAD.clicks) < 100)
    rows = [json.loads(record) for record in records(few)]
    assert [row["ts"] for row in rows] == few.ts.tolist()
    assert [row["user_id"] for row in rows] == [f"u{user:06d}" for user in few.user]
    assert [row["page"] for row in rows] == [f"/p{page}" for page in few.page]
    assert set(rows[0]) == {"user_id", "page", "ts"}


# --- the demo's -------------------------------------------------------------------------------------------------------


def test_the_example_says_what_the_clicks_are_meant_against(job: SessionWindow) -> None:
    assert SESSION_EXAMPLE.is_file()
    assert job.spec.input.watermark.delay == DELAY_MS
    assert (job.sessions.gap, job.spec.allowed_lateness) == (GAP_MS, LATENESS_MS)
    assert job.spec.emit_retractions


def test_every_kind_of_trouble_is_there(generated: list[GeneratedRecord]) -> None:
    counts = kinds(generated)
    assert set(counts) == {"usual", "slow", "late", "null_key", *MALFORMED}
    assert counts["usual"] > 0.9 * len(generated)


def test_exactly_the_malformed_records_are_for_the_dead_letters(
    generated: list[GeneratedRecord], job: SessionWindow
) -> None:
    readings = [(record.kind, readable(job.spec.input, record.value)) for record in generated]
    assert {kind for kind, columns in readings if columns is None} == MALFORMED
    assert not {kind for kind, columns in readings if columns is not None} & MALFORMED
    assert {columns["user_id"] for kind, columns in readings if kind == "null_key" and columns} == {None}


def test_slow_clicks_are_in_time_whatever_the_epochs_and_late_ones_are_not(
    generated: list[GeneratedRecord], job: SessionWindow
) -> None:
    """The watermark of a partition is at most that of all records that were sent before."""
    highest = 0
    for record in generated:
        columns = readable(job.spec.input, record.value)
        if columns is None:
            continue
        watermark = highest - DELAY_MS
        assert record.arrival_ms >= columns["ts"]
        if record.kind == "late":
            assert columns["ts"] < watermark - LATENESS_MS - GAP_MS
        else:
            assert columns["ts"] >= watermark - LATENESS_MS
        highest = max(highest, columns["ts"])


def test_those_who_are_late_have_no_other_clicks(generated: list[GeneratedRecord]) -> None:
    late = [record.key for record in generated if record.kind == "late"]
    assert len(late) == len(set(late))
    assert not set(late) & {record.key for record in generated if record.kind != "late"}


def test_the_job_ends_where_the_records_do(generated: list[GeneratedRecord], job: SessionWindow) -> None:
    assert job.spec.input.kafka is not None
    assert job.spec.input.kafka.stop_at is not None
    assert sum(job.spec.input.kafka.stop_at.offsets.values()) == len(generated)
    assert {record.partition for record in generated} == {0, 1, 2}
