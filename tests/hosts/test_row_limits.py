"""A job that writes to several topics with limits of their own, which the driver asks for and records in each plan. Run
whole, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest

from e2e.kill_harness import dead_letter_rows, topic_rows
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.engine.loop import JobListener
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import load_job
from joinery_runtime.state.postgres import PostgresStore

pytestmark = pytest.mark.services
JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: row-limits}}
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
  select: [{{column: orders.id}}, {{column: orders.note}}]
  outputs:
    - {{name: small, kafka: {{bootstrapServers: "{bootstrap}", topic: row-limits-small}}, when: "id < 'o4'"}}
    - {{name: large, kafka: {{bootstrapServers: "{bootstrap}", topic: row-limits-large}}, when: "id >= 'o2'"}}
    - {{name: ids, kafka: {{bootstrapServers: "{bootstrap}", topic: row-limits-ids}}, select: [{{column: id}}]}}
  deadLetter: {{kafka: {{topic: row-limits-dead}}}}
  stateStore: {{postgres: {{dsn: "{dsn}", schema: row_limits}}}}
  shards: 1
"""


def test_each_topic_takes_rows_up_to_its_own_limit(
    kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, config in {
        "small": {"max.message.bytes": "2000"},
        "large": {"max.message.bytes": "9000"},
        "ids": {},
    }.items():
        kafka_broker.create_topic(f"row-limits-{name}", config=config)
    kafka_broker.create_topic("row-limits-dead")
    sizes = {"o0": 100, "o1": 5_000, "o2": 100, "o3": 5_000, "o4": 5_000, "o5": 20_000}
    for name, rows in (
        ("orders", [{"id": order, "note": "x" * size, "ts": 1_000} for order, size in sizes.items()]),
        ("payments", [{"order": order, "ts": 1_000} for order in sizes]),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "job.yaml").write_text(JOB.format(bootstrap=kafka_broker.bootstrap, dsn=postgres_dsn))
    limits, write_plan = [], PostgresStore.write_plan

    def recorded(store: PostgresStore, job: str, generation: int, plan: dict, *rest: object, **more: object) -> object:
        limits.append(plan.get("row_limits"))
        return write_plan(store, job, generation, plan, *rest, **more)

    monkeypatch.setattr(PostgresStore, "write_plan", recorded)
    hears = JobListener(lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)))
    run_job(load_job(tmp_path / "job.yaml"), hears, Event(), master="local[2,4]", warn=lambda _: None)

    def ids(topic: str) -> list[str]:
        return sorted(row["id"] for row in topic_rows(kafka_broker.bootstrap, f"row-limits-{topic}"))

    # A row that one of its outputs does not take is in none.
    assert (ids("small"), ids("large"), ids("ids")) == (["o0", "o2"], ["o2", "o4"], ["o0", "o2", "o4"])
    letters = dead_letter_rows(kafka_broker.bootstrap, "row-limits-dead")
    assert {letter["text"][:11] for letter in letters} == {'{"id":"o1",', '{"id":"o3",', '{"id":"o5",'}
    assert all("topic row-limits-small takes 1,872 (its max.message.bytes)" in letter["reason"] for letter in letters)
    assert limits
    assert all(limit == {"small": 1_872, "large": 8_872} for limit in limits)
