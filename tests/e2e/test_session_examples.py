"""The sessions over a join's output in examples/session-over-join: two jobs, with a real topic between them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from core.table.reference_keyhash import reference_hash
from e2e.jobs import produce
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import read_topic

pytestmark = [pytest.mark.services, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "examples" / "session-over-join"
MINUTE = 60_000
# The examples' topics, under names that no other test has on this broker.
TOPICS = {topic: f"over-{topic}" for topic in ("orders", "payments", "paid-orders")}

# One process for both: Spark's Java process starts once.
RUN_ALL = """
import sys
from joinery_runtime.cli import main
for path in sys.argv[1:]:
    try:
        main(["run", path, "--master", "local[2]"])
    except SystemExit as end:
        if end.code:
            raise
"""


def order(order_id: str, customer_id: str | None, amount: str, minutes: float) -> dict[str, Any]:
    return {"order_id": order_id, "customer_id": customer_id, "amount": amount, "ts": int(minutes * MINUTE)}


def payment(order_id: str, minutes: float) -> dict[str, Any]:
    return {"order_id": order_id, "ts": int(minutes * MINUTE)}


ORDERS = [
    order("a1", "ann", "10.00", 0),
    order("a2", "ann", "5.50", 20),
    order("a3", "ann", "0.10", 120),
    order("b1", "bob", "99.00", 1),  # never paid
    order("b2", "bob", "98.00", 2),  # paid too late
    order("c2", "cid", "2.00", 50),
    order("c1", "cid", "1.00", 30),
    order("n1", None, "7.00", 3),
]
PAYMENTS = [
    payment("a1", 1),
    payment("a2", 25),
    payment("a3", 121),
    payment("b2", 12.1),
    payment("c2", 51),
    payment("c1", 31),
    payment("n1", 4),
    payment("unknown", 5),
]


def session(
    customer: str | None, first: float, last: float, orders: int, spent: str, last_order: str
) -> tuple[Any, ...]:
    start, end = int(first * MINUTE), int(last * MINUTE)
    return (customer, start, end, reference_hash([customer, start]), orders, Decimal(spent), last_order)


SESSIONS = [
    session("ann", 1, 25, 2, "15.50", "a2"),
    session("ann", 121, 121, 1, "0.10", "a3"),
    session("cid", 31, 51, 2, "3.00", "c2"),
    session(None, 4, 4, 1, "7.00", "n1"),
]


def written(name: str, folder: Path, broker: KafkaAdmin, dsn: str) -> Path:
    """The example on this broker and Postgres, which ends where its topics end."""
    text = (FOLDER / name).read_text().replace("startFrom: earliest", "startFrom: earliest, stopAt: latest")
    text = text.replace("localhost:9092", broker.bootstrap)
    for topic, own in TOPICS.items():
        text = text.replace(f"topic: {topic},", f"topic: {own},")
    path = folder / name
    path.write_text(f'{text}  stateStore: {{postgres: {{dsn: "{dsn}", schema: over_join}}}}\n  shards: 2\n')
    return path


def run(jobs: Sequence[Path]) -> None:
    command = [sys.executable, "-c", RUN_ALL, *map(str, jobs)]
    ended = subprocess.run(command, cwd=jobs[0].parent, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_sessions_over_what_a_join_writes(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> None:
    records: Mapping[str, Sequence[dict[str, Any]]] = {"orders": ORDERS, "payments": PAYMENTS, "paid-orders": ()}
    for topic, sent in records.items():
        kafka_broker.create_topic(TOPICS[topic], 2)
        produce(kafka_broker.bootstrap, TOPICS[topic], sent)
    run([written(path.name, tmp_path, kafka_broker, postgres_dsn) for path in sorted(FOLDER.glob("*.yaml"))])

    between = [json.loads(record.value or b"") for record in read_topic(kafka_broker.bootstrap, TOPICS["paid-orders"])]
    assert sorted(row["order_id"] for row in between) == ["a1", "a2", "a3", "c1", "c2", "n1"]
    with psycopg.connect(postgres_dsn) as connection:
        rows = connection.execute("SELECT * FROM spending ORDER BY customer_id, window_start").fetchall()
    assert rows == SESSIONS
