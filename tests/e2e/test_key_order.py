"""Records of one key in a topic are in the order of rule J2 within an epoch, whichever shards make them and wherever
the job dies."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import read_topic

pytestmark = pytest.mark.services
JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: NAME}
spec:
  inputs:
    - {name: l, file: {path: l.jsonl}, format: json, eventTime: ts,
       schema: [{name: id, type: string}, {name: cust, type: string}, {name: n, type: int64},
                {name: ts, type: timestamp}]}
    - {name: r, file: {path: r.jsonl}, format: json, eventTime: ts,
       schema: [{name: id, type: string}, {name: m, type: int64}, {name: ts, type: timestamp}]}
  joins: [{right: r, keys: {l.id: r.id}, interval: {of: l, lower: 0s, upper: 1h}}]
  select: [{column: l.id}, {column: l.cust}, {column: l.n}, {column: r.m}]
  output: {kafka: {bootstrapServers: "BROKER", topic: NAME.out, KEY}}
  stateStore: {postgres: {dsn: "DSN", schema: SCHEMA}}
  delivery: DELIVERY
  shards: 4
"""
IDS, CUSTOMERS = 60, 5
BY_CUSTOMER = "key: [cust], keyOrder: true"
KILLED = 128 + 9


class Scene:
    """A job whose inputs have rows of each id several times, in no order of time. All pairs match, and they do so when
    the right row arrives: an epoch takes its left rows first."""

    def __init__(self, kafka: KafkaAdmin, dsn: str, folder: Path, name: str, key: str, delivery: str) -> None:
        self._folder, self._broker, self._topic = folder, kafka.bootstrap, f"{name}.out"
        kafka.create_topic(self._topic, partitions=3)
        numbers = random.Random(name)
        ids = [str(number) for number in range(IDS)] * 3
        self._left = [
            {
                "id": text,
                "cust": None if text == "0" else f"c{int(text) % CUSTOMERS}",
                "n": n,
                "ts": numbers.randrange(60),
            }
            for n, text in enumerate(numbers.sample(ids, len(ids)))
        ]
        self._right = [
            {"id": text, "m": m, "ts": 60 + numbers.randrange(60)}
            for m, text in enumerate(numbers.sample(ids, len(ids)))
        ]
        for input_name, rows in (("l", self._left), ("r", self._right)):
            (folder / f"{input_name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        text = JOB.replace("NAME", name).replace("BROKER", kafka.bootstrap).replace("DSN", dsn).replace("KEY", key)
        text = text.replace("SCHEMA", name.replace("-", "_")).replace("DELIVERY", delivery)
        (folder / "job.yaml").write_text(text)

    def run(self, *where: str, fault: str = "") -> int:
        ended = subprocess.run(
            [sys.executable, "-m", "joinery_runtime", "run", "job.yaml", *where], cwd=self._folder, text=True,
            env={**os.environ, "JOINERY_WAIT_FOR_SPARK": "1", "JOINERY_FAULT": fault}, capture_output=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode in (0, -9, KILLED), ended.stderr
        return ended.returncode

    def expected(self, key: str) -> dict[Any, list[tuple[int, int]]]:
        """By key, (n, m) of each row in the order of J2: right rows as they arrive, each with its partners."""
        pairs: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for right in self._right:
            for left in self._left:
                if left["id"] == right["id"]:
                    pairs[left[key]].append((left["n"], right["m"]))
        return dict(pairs)

    def written(self) -> dict[Any, list[tuple[int, int]]]:
        pairs: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for record in read_topic(self._broker, self._topic):
            row = json.loads(record.value or b"")
            pairs[None if record.key is None else record.key.decode()].append((row["n"], row["m"]))
        return dict(pairs)


@pytest.mark.parametrize(
    ("name", "key", "column", "where", "delivery"),
    [
        ("routed", BY_CUSTOMER, "cust", ["--local"], "exactlyOnce"),
        ("routed-again", BY_CUSTOMER, "cust", ["--local"], "atLeastOnce"),
        ("executors", BY_CUSTOMER, "cust", ["--master", "local-cluster[2,1,1024]"], "exactlyOnce"),
        ("in-shards", "key: [id]", "id", ["--local"], "exactlyOnce"),
    ],
)
def test_records_of_a_key_are_in_the_order_of_their_rows(
    kafka_broker: KafkaAdmin,
    postgres_dsn: str,
    tmp_path: Path,
    name: str,
    key: str,
    column: str,
    where: list[str],
    delivery: str,
) -> None:
    scene = Scene(kafka_broker, postgres_dsn, tmp_path, f"key-order-{name}", key, delivery)
    assert scene.run(*where) == 0
    written, expected = scene.written(), scene.expected(column)
    assert sorted(written.pop(None, [])) == sorted(expected.pop(None, []))  # without a key there is no order
    assert written == expected


@pytest.mark.parametrize("point", ["staged", "transaction-committed", "output-written", "before-commit"])
def test_a_driver_that_dies_in_the_middle_of_an_epoch(
    kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path, point: str
) -> None:
    scene = Scene(kafka_broker, postgres_dsn, tmp_path, f"key-order-dies-{point}", BY_CUSTOMER, "exactlyOnce")
    assert scene.run("--local", fault=f"{point}@1") in (-9, KILLED)
    partly = scene.written()
    assert scene.run("--local") == 0
    written, expected = scene.written(), scene.expected("cust")
    assert all(written[name][: len(rows)] == rows for name, rows in partly.items() if name is not None)
    assert sorted(written.pop(None)) == sorted(expected.pop(None))
    assert written == expected


def test_an_epoch_that_was_planned_without_the_order_ends_without_it(
    kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path
) -> None:
    """Some shards have written the epoch; the others end it as it was begun, and no row is there twice or missing."""
    scene = Scene(kafka_broker, postgres_dsn, tmp_path, "key-order-edited", "key: [cust]", "exactlyOnce")
    assert scene.run("--local", fault="transaction-committed@1") in (-9, KILLED)
    partly = scene.written()
    assert partly
    path = tmp_path / "job.yaml"
    path.write_text(path.read_text().replace("key: [cust]", BY_CUSTOMER))
    assert scene.run("--local") == 0
    written = scene.written()
    assert {key: sorted(rows) for key, rows in written.items()} == {
        key: sorted(rows) for key, rows in scene.expected("cust").items()
    }
