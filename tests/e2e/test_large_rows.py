"""An output row that its topic does not take is a dead letter and not the end of the job (rule T8)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.kill_harness import dead_letter_rows, topic_rows
from joinery_devkit.kafka_admin import KafkaAdmin

pytestmark = pytest.mark.services
JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: NAME}
spec:
  inputs:
    - {name: a, file: {path: a.jsonl}, format: json, eventTime: ts,
       schema: [{name: id, type: string}, {name: v, type: string}, {name: ts, type: timestamp}]}
    - {name: b, file: {path: b.jsonl}, format: json, eventTime: ts,
       schema: [{name: id, type: string}, {name: ts, type: timestamp}]}
  joins: [{right: b, keys: {a.id: b.id}, interval: {of: a, lower: 0s, upper: 10s}}]
  select: [{column: a.id}, {column: a.v}]
  output: {kafka: {bootstrapServers: "BROKER", topic: NAME.out}}
  deadLetter: {kafka: {topic: NAME.dead}}
  stateStore: {postgres: {dsn: "DSN", schema: SCHEMA}}
  delivery: DELIVERY
  shards: 4
"""
LARGE, COUNT = {"2", "4"}, 40


CLIENT, TOPIC = (1_500_000, "999,872 (message.max.bytes)"), (60_000, "49,872 (its max.message.bytes)")


@pytest.mark.parametrize(
    ("name", "where", "size", "takes", "delivery"),
    [
        ("here", ["--local"], *CLIENT, "exactlyOnce"),
        ("executors", ["--master", "local-cluster[2,1,1024]"], *CLIENT, "exactlyOnce"),
        ("topic", ["--local"], *TOPIC, "exactlyOnce"),
        ("topic-again", ["--local"], *TOPIC, "atLeastOnce"),
    ],
)
def test_a_row_that_is_too_large(
    kafka_broker: KafkaAdmin,
    postgres_dsn: str,
    tmp_path: Path,
    name: str,
    where: list[str],
    size: int,
    takes: str,
    delivery: str,
) -> None:
    name = f"large-rows-{name}"
    kafka_broker.create_topic(f"{name}.out", config={"max.message.bytes": "50000"} if "its" in takes else {})
    kafka_broker.create_topic(f"{name}.dead")
    keys = list(map(str, range(COUNT)))
    for each in ("a", "b"):
        rows = [{"id": key, "v": "x" * (size if key in LARGE else 9_000), "ts": 1_000} for key in keys]
        (tmp_path / f"{each}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = JOB.replace("NAME", name).replace("BROKER", kafka_broker.bootstrap).replace("DSN", postgres_dsn)
    text = text.replace("SCHEMA", name.replace("-", "_")).replace("DELIVERY", delivery)
    (tmp_path / "job.yaml").write_text(text)

    def joinery(*arguments: str) -> list[dict[str, Any]]:
        ended = subprocess.run(
            [sys.executable, "-m", "joinery_runtime", *arguments], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "JOINERY_WAIT_FOR_SPARK": "1"}, timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines()]

    epochs = [event for event in joinery("run", "job.yaml", *where) if event["event"] == "epoch"]
    assert sum(epoch["dropped"].get("b", {}).get("failed", 0) for epoch in epochs) == len(LARGE)
    assert sorted(row["id"] for row in topic_rows(kafka_broker.bootstrap, f"{name}.out")) == sorted({*keys} - LARGE)
    letters = dead_letter_rows(kafka_broker.bootstrap, f"{name}.dead")
    assert {letter["text"][:9] for letter in letters} == {f'{{"id":"{key}"' for key in LARGE}
    assert all(f"topic {name}.out takes {takes}" in letter["reason"] for letter in letters)
    (verdict,) = joinery("verify", "job.yaml")
    assert (verdict["verified"], verdict["rows"], verdict["dead_letters"]) == (True, COUNT - len(LARGE), len(LARGE))
