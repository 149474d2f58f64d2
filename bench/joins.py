"""The interval join of orders and payments, by Joinery and every peer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from bench import flink_peer, joinery_jobs, spark_peer, streams_peer
from bench.outputs import Schema
from bench.peer import Figures, Peer, typical
from bench.raw_read import measure_raw
from bench.section import PARTITIONS, Candidates, Ground, only, run_all
from bench.topics import Workload, expected_pairs, produce
from joinery_devkit.kafka import KafkaBroker

WINDOW_MS = 60_000
TOPICS = ("orders", "payments")
ROW: Schema = {
    "order_id": pl.String,
    "customer": pl.String,
    "amount": pl.Float64,
    "payment_id": pl.String,
    "method": pl.String,
}


def run(work: Path, records: int, slugs: list[str] | None, runs: int) -> list[Figures]:
    """2 x `records`, `runs` times; `slugs` names some of the peers, None all of them."""
    workload = Workload(records, PARTITIONS, paid_within_ms(records))
    with KafkaBroker() as broker:
        for topic in TOPICS:
            broker.create_topic(topic, PARTITIONS)
        produce(broker.bootstrap, workload, TOPICS)
        ground = Ground(broker, work, 2 * records, ROW, runs)
        reads = [(topic, list(range(PARTITIONS)), records) for topic in TOPICS]
        raw = typical(lambda _: measure_raw(broker.bootstrap, reads), runs)
        return [raw, *run_all(ground, only(PEERS, slugs), expected_pairs(workload, WINDOW_MS))]


def paid_within_ms(records: int) -> int:
    """In small runs payments follow sooner, so that most have an order."""
    return min(WINDOW_MS, records // 20)


def job_spec(bootstrap: str) -> dict[str, Any]:
    """Joinery's job, without what the comparisons' jobs share."""
    step = {
        "right": "payments",
        "keys": {"orders.order_id": "payments.order_id"},
        "interval": {"of": "orders", "lower": f"-{WINDOW_MS}ms", "upper": f"{WINDOW_MS}ms"},
    }
    columns = ("orders.order_id", "orders.customer", "orders.amount", "payments.payment_id", "payments.method")
    return {
        "inputs": [joinery_jobs.kafka_input(topic, bootstrap) for topic in TOPICS],
        "joins": [step],
        "select": [{"column": column, "as": column.partition(".")[2]} for column in columns],
    }


def _joinery_peer(
    ground: Ground,
    slug: str,
    *,
    name: str,
    delivery: str = "exactlyOnce",
    setup: joinery_jobs.Setup = joinery_jobs.BY_DEFAULT,
) -> Peer:
    spec = job_spec(ground.bootstrap) | {"delivery": delivery}
    return joinery_jobs.compared("StreamJoin", name, spec, ground, slug, setup)


def _spark_candidate(ground: Ground, slug: str, *, release: Callable[[], spark_peer.Spark]) -> Peer:
    settings = {"bootstrap": ground.bootstrap, "topic": slug, "window_ms": WINDOW_MS, "per_batch": ground.batch_rows(2)}
    return spark_peer.peer(release(), "join", settings, ground.folder(slug))


def _flink_candidate(ground: Ground, slug: str, *, setup: flink_peer.Setup) -> Peer:
    seconds = WINDOW_MS // 1000
    columns = "order_id STRING, customer STRING, amount DOUBLE, payment_id STRING, `method` STRING"
    statements = [
        flink_peer.input_table("orders", ground.bootstrap, "order_id STRING, customer STRING, amount DOUBLE"),
        flink_peer.input_table("payments", ground.bootstrap, "payment_id STRING, order_id STRING, `method` STRING"),
        flink_peer.output_table(slug, ground.bootstrap, columns, setup),
        f"""INSERT INTO joined SELECT o.order_id, o.customer, o.amount, p.payment_id, p.`method`
            FROM orders o JOIN payments p ON o.order_id = p.order_id
            AND p.event_time BETWEEN o.event_time - INTERVAL '{seconds}' SECOND
            AND o.event_time + INTERVAL '{seconds}' SECOND""",
    ]
    return flink_peer.peer(setup, statements, ground.folder(slug))


def _streams_candidate(ground: Ground, slug: str, *, setup: streams_peer.Setup) -> Peer:
    return streams_peer.peer(setup, "join", ground.bootstrap, slug, WINDOW_MS, ground.folder(slug))


PEERS: Candidates = {
    **joinery_jobs.with_and_without_spark(
        {
            "files": partial(_joinery_peer, name="into files"),
            "exactly-once": partial(_joinery_peer, name="into Kafka exactly once"),
            "at-least-once": partial(_joinery_peer, name="into Kafka at least once", delivery="atLeastOnce"),
        }
    ),
    "spark": partial(_spark_candidate, release=spark_peer.current),
    "spark-previous": partial(_spark_candidate, release=spark_peer.previous),
    "flink-heap": partial(_flink_candidate, setup=flink_peer.HEAP),
    "flink-rocksdb": partial(_flink_candidate, setup=flink_peer.ROCKSDB),
    "streams-at-least-once": partial(_streams_candidate, setup=streams_peer.AT_LEAST_ONCE),
    "streams-exactly-once": partial(_streams_candidate, setup=streams_peer.EXACTLY_ONCE),
}
