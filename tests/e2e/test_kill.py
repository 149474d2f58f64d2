"""The kill test: real Kafka, Postgres and Spark with two executors, while records arrive throughout.

Drivers die by SIGKILL at every named point of the epoch, executors and Python workers at random; shards change between
restarts. In the end the output table must equal what an oracle gets from the epoch log and the topics, row by row.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from e2e.kill_harness import JOB, POINTS, Feeder, Run, caught_up, kill_task_processes
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.oracle import Oracle, Row, differences, output_columns, output_row
from joinery_devkit.topics import Record, milliseconds, read_topic, readable
from joinery_devkit.verify import verify
from joinery_runtime.job import StreamJoin, load_job
from joinery_runtime.state.postgres import PostgresStore

TIMES_EACH = 3
EPOCHS_BEFORE_A_KILL = 8
RANDOM_KILLS = 10
LEAST_EPOCHS = 200
LEAST_REPLAYS = 5

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]


class Drill:
    """Drivers one after another on one job, and what was seen of them."""

    def __init__(self, folder: Path, bootstrap: str, dsn: str) -> None:
        self._folder, self._bootstrap, self._dsn = folder, bootstrap, dsn
        self._store = PostgresStore(dsn, "joinery")
        self.replays = 0
        self.deaths: Counter[str] = Counter()

    def __enter__(self) -> Drill:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def job_file(self, shards: int) -> Path:
        path = self._folder / "job.yaml"
        path.write_text(JOB.format(bootstrap=self._bootstrap, dsn=self._dsn, shards=shards, dead=self._folder / "dead"))
        return path

    def committed(self) -> int:
        record = self._store.record("kill-test")
        return record.epoch if record else 0

    def kill_at(self, point: str, shards: int) -> None:
        before = self.committed()
        run = Run.start(self.job_file(shards), f"{point}@{before + EPOCHS_BEFORE_A_KILL}")
        assert run.wait() == -signal.SIGKILL, "".join(run.errors[-30:])
        self.replays += run.replayed
        self.deaths[point] += 1
        assert self.committed() >= before + EPOCHS_BEFORE_A_KILL - 1, "the driver died where it was told to"

    def log(self) -> list[dict[str, Any]]:
        entries = self._store.epochs("kill-test", limit=100_000)
        return [{"epoch": e.epoch, "generation": e.generation, "plan": e.plan, "result": e.result} for e in entries]

    def output(self) -> list[dict[str, Any]]:
        with psycopg.connect(self._dsn, row_factory=dict_row) as connection:
            rows = connection.execute("SELECT * FROM joined").fetchall()
        return [{k: milliseconds(v) if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]

    def dead_letters(self) -> list[dict[str, Any]]:
        parts = sorted((self._folder / "dead").glob("*.jsonl"))
        return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def test_every_pair_once_whatever_is_killed(kafka_broker: KafkaBroker, postgres_dsn: str, tmp_path: Path) -> None:
    kafka_broker.create_topic("orders", partitions=2)
    kafka_broker.create_topic("payments", partitions=3)
    with Drill(tmp_path, kafka_broker.bootstrap, postgres_dsn) as drill:
        with Feeder(kafka_broker.bootstrap, seed=11) as feeder:
            kill_everything(drill, feeder, random.Random(7))
        job = load_job(drill.job_file(shards=5))
        log, output, dead_letters = drill.log(), drill.output(), drill.dead_letters()
    records = {name: read_topic(kafka_broker.bootstrap, name) for name in ("orders", "payments")}
    assert len(log) >= LEAST_EPOCHS
    assert not differences(expected_rows(job, log, records), output)
    verdict = verify(records, log, output, job, dead_letters=dead_letters)
    assert verdict.ok, str(verdict)
    assert verdict.dropped["late"] > 0
    assert verdict.dead_letters > 0


def kill_everything(drill: Drill, feeder: Feeder, choose: random.Random) -> None:
    points = [point for point in POINTS for _ in range(TIMES_EACH)]
    choose.shuffle(points)
    for number, point in enumerate(points):
        drill.kill_at(point, shards=(4, 1, 3, 7)[number % 4])
    last = Run.start(drill.job_file(shards=5), None)
    killed = kill_task_processes(last, RANDOM_KILLS, choose)
    last.wait_for("enough epochs", lambda epochs: bool(epochs) and epochs[-1]["epoch"] >= LEAST_EPOCHS)
    feeder.stop()
    last.wait_for("the last record", caught_up)
    assert last.stop() == 0, "".join(last.errors[-30:])
    drill.replays += last.replayed
    assert drill.deaths == dict.fromkeys(POINTS, TIMES_EACH)
    assert len(killed) == RANDOM_KILLS
    assert drill.replays >= LEAST_REPLAYS, f"only {drill.replays} restarts found a pending plan"


def expected_rows(job: StreamJoin, log: list[dict[str, Any]], records: dict[str, list[Record]]) -> list[dict[str, Any]]:
    """What the table must hold: the epoch log replayed record by record in plain Python."""
    oracle, columns = Oracle.of_job(job), output_columns(job)
    at = {(name, r.partition, r.offset): r for name, listed in records.items() for r in listed}
    rows = []
    for entry in log:
        read: dict[str, list[Row]] = {side.name: [] for side in job.spec.inputs}
        for name, _, partition, start, end in entry["plan"]["ranges"]:
            side = next(side for side in job.spec.inputs if side.name == name)
            for offset in range(start, end):
                values = readable(side, at[name, partition, offset].value)
                if values is not None:
                    read[name].append(Row(partition, offset, values["ts"], values))
        rows += [output_row(pair, columns) for pair in oracle.epoch(entry["plan"]["watermarks"], read).pairs]
    return rows
