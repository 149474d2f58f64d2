"""A job with rows in Kafka whose first epoch failed, edited: what nobody can see is planned again. Run whole, without
Spark."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from e2e.kill_harness import topic_rows
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.engine.loop import JobListener
from joinery_runtime.errors import SinkError
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import load_job
from joinery_runtime.state.postgres import PostgresStore

pytestmark = pytest.mark.services
JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: first-plan}}
spec:
  inputs:
    - name: orders
      file: {{path: orders.jsonl}}
      format: json
      schema: [{{name: id, type: string}}, {{name: note, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
    - name: payments
      file: {{path: payments.jsonl}}
      format: json
      schema: [{{name: order, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
  joins: [{{right: payments, keys: {{orders.id: payments.order}}, interval: {{of: orders, lower: 0s, upper: 1h}}}}]
  select: [{{column: orders.id}}{more}]
  output: {{kafka: {{bootstrapServers: "{bootstrap}", topic: first-plan}}}}
  stateStore: {{postgres: {{dsn: "{dsn}", schema: first_plan}}}}
  shards: 1
"""


def test_a_row_that_kafka_refuses_is_mended_by_an_edit(
    kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path
) -> None:
    """A task had claimed the output by then; its transaction shows nothing."""
    warnings: list[str] = []
    kafka_broker.create_topic("first-plan", config={"max.message.bytes": "2000"})
    ids = [f"o{number}" for number in range(5)]
    for name, rows in (
        ("orders", [{"id": name, "note": random.Random(name).randbytes(4_000).hex(), "ts": 1_000} for name in ids]),
        ("payments", [{"order": name, "ts": 1_000} for name in ids]),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def run(more: str = "") -> None:
        path = tmp_path / "job.yaml"
        path.write_text(JOB.format(more=more, bootstrap=kafka_broker.bootstrap, dsn=postgres_dsn))
        hears = JobListener(lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)))
        run_job(load_job(path), hears, Event(), master="local[2,4]", warn=warnings.append)

    with pytest.raises(SinkError, match="first-plan"):
        run(", {column: orders.note}")
    with closing(PostgresStore(postgres_dsn, "first_plan")) as store:
        assert list(store.claims("first-plan"))
    run()
    counts = Counter(row["id"] for row in topic_rows(kafka_broker.bootstrap, "first-plan"))
    assert counts == Counter(ids)
    assert "Job first-plan was edited before it has committed anything: its first epoch is planned again" in warnings
