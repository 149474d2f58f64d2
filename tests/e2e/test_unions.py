"""Unions on a real Kafka and Spark: branches in several formats and one input in two branches, over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.commands import runner
from e2e.jobs import fresh_name, json_rows, produce
from e2e.kill_harness import topic_rows
from joinery_devkit.kafka_admin import KafkaAdmin

pytestmark = pytest.mark.services

_JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: "{name}"}}
spec:
  inputs:
    - name: eu
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.eu}}
      format: csv
      schema: [{{name: id, type: string}}, {{name: total, type: int64}}, {{name: created, type: timestamp}}]
      eventTime: created
    - name: us
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.us}}
      format: json
      schema: [{{name: id, type: string}}, {{name: amount, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.payments}}
      format: json
      schema: [{{name: id, type: string}}, {{name: paid, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
  sql: |
    WITH orders AS (
      SELECT id, total AS amount, created AS ts, 'eu' AS region FROM eu
      UNION ALL
      SELECT id, amount, ts, 'us' FROM us WHERE amount > 0
      UNION ALL
      SELECT id, amount, ts, 'large' FROM us large WHERE amount > 100)
    SELECT o.id, o.region, p.paid FROM orders o
    JOIN payments p ON o.id = p.id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '1' HOUR
  output: {{kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.joined}}, format: json}}
  deadLetter: {{file: {{path: "{dead}"}}}}
  stateStore: {{postgres: {{dsn: "{dsn}"}}}}
  shards: 2
"""


def _rows(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["region"], row["paid"]) for row in rows)


def test_a_union_is_read_once_over_a_restart(
    kafka_broker: KafkaAdmin,
    postgres_dsn: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process keeps its own handlers
    name, bootstrap, path = fresh_name(), kafka_broker.bootstrap, tmp_path / "job.yaml"
    for side in ("eu", "us", "payments", "joined"):
        kafka_broker.create_topic(f"{name}.{side}")
    path.write_text(_JOB.format(name=name, bootstrap=bootstrap, dead=tmp_path / "dead", dsn=postgres_dsn))
    joinery = runner(capfd)

    produce(bootstrap, f"{name}.eu", [b"a,5,1000", b"b,6,1000"])
    produce(bootstrap, f"{name}.us", [{"id": "c", "amount": 7, "ts": 1000}, {"id": "d", "amount": 700, "ts": 1000}])
    produce(bootstrap, f"{name}.us", [{"id": "e", "amount": -1, "ts": 1000}, b"not JSON"])
    produce(bootstrap, f"{name}.payments", [{"id": "a", "paid": 1, "ts": 2000}, {"id": "e", "paid": 2, "ts": 2000}])
    first = joinery("run", path, "--once", "--master", "local[2,4]")
    assert first.code == 0, first.err
    assert _rows(topic_rows(bootstrap, f"{name}.joined")) == [("a", "eu", 1)]
    letters = {(letter["input"], letter["topic"], letter["offset"]) for letter in json_rows(tmp_path / "dead")}
    assert letters == {("us", f"{name}.us", 3), ("large", f"{name}.us", 3)}

    payments = [{"id": key, "paid": 3, "ts": 3000} for key in "bcd"]
    produce(bootstrap, f"{name}.payments", payments)
    produce(bootstrap, f"{name}.us", [{"id": "b", "amount": 800, "ts": 2500}])
    second = joinery("run", path, "--once", "--master", "local[2,4]")
    assert second.code == 0, second.err
    expected = [("a", "eu", 1), ("b", "eu", 3), ("b", "large", 3), ("b", "us", 3)]
    expected += [("c", "us", 3), ("d", "large", 3), ("d", "us", 3)]
    assert _rows(topic_rows(bootstrap, f"{name}.joined")) == expected
    verified = joinery("verify", path)
    assert verified.code == 0, verified.out + verified.err
