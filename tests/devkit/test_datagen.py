from __future__ import annotations

import json
from typing import get_args

import pytest

from joinery_devkit.datagen import DELAY_MS, INTERVAL_MS, LATENESS_MS, MALFORMED, GeneratedRecord, Kind, kinds, make
from joinery_devkit.demo_scenarios import job_text
from joinery_devkit.topics import milliseconds, readable
from joinery_runtime.job import StreamJoin, parse_job

ORDERS = 20_000


@pytest.fixture(scope="module")
def generated() -> list[GeneratedRecord]:
    return make(7, ORDERS)


@pytest.fixture(scope="module")
def job() -> StreamJoin:
    return parse_job(job_text("b:1", "postgresql://"), "demo.yaml")


def of_kind(generated: list[GeneratedRecord], kind: Kind) -> list[GeneratedRecord]:
    return [record for record in generated if record.kind == kind]


def event_time(record: GeneratedRecord) -> int:
    return milliseconds(json.loads(record.value or b"")["ts"])


def test_the_seed_decides() -> None:
    assert make(1, 500) == make(1, 500)
    assert make(1, 500) != make(2, 500)


def test_every_kind_of_trouble_is_there(generated: list[GeneratedRecord]) -> None:
    counts = kinds(generated)
    assert set(counts) == set(get_args(Kind))
    assert counts["usual"] > 0.9 * len(generated)


def test_both_topics_meet_with_accidents(generated: list[GeneratedRecord]) -> None:
    for topic in ("orders", "payments"):
        assert {"usual", "slow", "late", "repeated"} <= {record.kind for record in generated if record.topic == topic}


def test_there_are_fewer_payments_than_orders(generated: list[GeneratedRecord]) -> None:
    payments = sum(record.topic == "payments" for record in generated)
    assert ORDERS * 0.8 < payments < ORDERS * 0.9


def test_exactly_the_malformed_records_are_for_the_dead_letters(
    generated: list[GeneratedRecord], job: StreamJoin
) -> None:
    sides = {side.name: side for side in job.spec.inputs}
    dead = {record.kind for record in generated if readable(sides[record.topic], record.value) is None}
    usable = {record.kind for record in generated if readable(sides[record.topic], record.value) is not None}
    assert dead == set(MALFORMED)
    assert not dead & usable


def test_records_without_a_key_have_all_else(generated: list[GeneratedRecord], job: StreamJoin) -> None:
    sides = {side.name: side for side in job.spec.inputs}
    for record in of_kind(generated, "null_key"):
        columns = readable(sides[record.topic], record.value)
        assert columns is not None
        assert [name for name, value in columns.items() if value is None] == ["order_id"]


def test_they_come_in_the_order_of_sending_which_is_not_event_time(generated: list[GeneratedRecord]) -> None:
    assert [r.arrival_ms for r in generated] == sorted(r.arrival_ms for r in generated)
    times = [event_time(record) for record in generated if record.kind == "usual" and record.topic == "orders"]
    assert times != sorted(times)


def test_usual_records_are_within_the_watermarks_delay_and_late_ones_beyond_all_bounds(
    generated: list[GeneratedRecord],
) -> None:
    assert all(r.arrival_ms - event_time(r) < DELAY_MS for r in of_kind(generated, "usual"))
    reach = max(INTERVAL_MS[1], -INTERVAL_MS[0]) + LATENESS_MS + DELAY_MS
    assert all(r.arrival_ms - event_time(r) > reach for r in of_kind(generated, "late"))
    assert all(DELAY_MS <= r.arrival_ms - event_time(r) < reach for r in of_kind(generated, "slow"))


def test_unmatched_payments_have_no_order(generated: list[GeneratedRecord]) -> None:
    ordered = {record.key for record in generated if record.topic == "orders"}
    assert not ordered & {record.key for record in of_kind(generated, "unmatched")}


def test_payments_outside_come_after_the_interval(generated: list[GeneratedRecord]) -> None:
    ordered_at = {
        r.key: event_time(r) for r in generated if r.topic == "orders" and r.kind in {"usual", "slow", "late"}
    }
    outside = [r for r in of_kind(generated, "outside") if r.key in ordered_at]
    assert outside
    assert all(event_time(r) - ordered_at[r.key] > INTERVAL_MS[1] for r in outside)


def test_repeated_keys_repeat(generated: list[GeneratedRecord]) -> None:
    keys = [record.key for record in generated if record.topic == "orders"]
    assert all(
        keys.count(record.key) == 2 for record in of_kind(generated, "repeated")[:20] if record.topic == "orders"
    )
