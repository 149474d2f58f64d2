"""What the benchmark expects of every engine, against a computation that knows only the records."""

from __future__ import annotations

import polars as pl
import pytest
from bench.sessions import GAP_S, expected_sessions, scattered
from bench.topics import TOPICS, Workload, expected_pairs

from joinery_devkit import clicks


def records(topic: str, workload: Workload) -> pl.DataFrame:
    return pl.read_ndjson(b"\n".join(record for _, _, record in TOPICS[topic](workload)))


@pytest.mark.parametrize("window_ms", [1_000, 60_000])
def test_pairs(window_ms: int) -> None:
    workload = Workload(3_000, 4, paid_within_ms=1_500)
    orders, payments = records("orders", workload), records("payments", workload)
    both = orders.join(payments, on="order_id", suffix="_paid")
    both = both.filter((pl.col("ts_paid") - pl.col("ts")).abs() <= window_ms)
    pairs = both.select("order_id", "customer", "amount", "payment_id", "method")
    expected = expected_pairs(workload, window_ms)
    assert expected.sort("payment_id").equals(pairs.sort("payment_id"))
    assert 500 < len(expected) < 3_000


def test_records_of_one_key_are_in_one_partition_of_both_topics() -> None:
    workload = Workload(500, 4, paid_within_ms=100)
    where = {}
    for topic in ("orders", "payments"):
        for number, key, record in TOPICS[topic](workload):
            assert b'"order_id":"%b"' % key in record
            assert where.setdefault(key, number % workload.partitions) == number % workload.partitions


def test_sessions() -> None:
    drawn = scattered(clicks.ClickLoad(2_000, 60, 4, per_second=1))
    open_sessions: dict[int, tuple[int, int, list[str]]] = {}
    expected_rows = []
    for user, page, ts in sorted(
        zip(drawn.user.tolist(), drawn.page.tolist(), drawn.ts.tolist(), strict=True), key=lambda c: c[2]
    ):
        last, events, pages = open_sessions.get(user, (ts - GAP_S * 1000 - 1, 0, []))
        if ts - last > GAP_S * 1000 and events:
            expected_rows.append((f"u{user:06d}", events, min(pages)))
            events, pages = 0, []
        open_sessions[user] = (ts, events + 1, [*pages, f"/p{page}"])
    expected_rows += [(f"u{user:06d}", events, min(pages)) for user, (_, events, pages) in open_sessions.items()]
    assert sorted(expected_sessions(drawn).rows()) == sorted(expected_rows)
    assert len(expected_rows) > 100
