"""Epochs that move between the driver and Spark and back, into Kafka exactly once: each row comes once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.jobs import Job, fresh_name, joined, order, payment, produce, traceback_of_ours
from e2e.kill_harness import topic_rows
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.state.postgres import PostgresStore

pytestmark = [pytest.mark.services, pytest.mark.slow]

LARGE = 20_000  # of each topic
PATIENCE_S = 480.0


class Feeder:
    """Sends orders and their payments; waits for epochs of the job by its log."""

    def __init__(self, job: Job, dsn: str) -> None:
        self._job, self._store, self.sent = job, PostgresStore(dsn, "driver_epochs"), 0

    def close(self) -> None:
        self._store.close()

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        produce(self._job.bootstrap, f"{self._job.name}.orders", [order(number) for number in numbers])
        produce(self._job.bootstrap, f"{self._job.name}.payments", [payment(number) for number in numbers])
        self.sent += count

    def committed(self) -> int:
        record = self._store.record(self._job.name)
        return 0 if record is None else record.committed

    def in_the_driver(self) -> bool:
        """Whether the newest segments are an attempt's of the driver, which are numbered."""
        record = self._store.record(self._job.name)
        assert record is not None
        newest = max(meta.epoch for meta in record.segments)
        return any("local" in meta.key for meta in record.segments if meta.epoch == newest)

    def trickle(self, epochs: int) -> None:
        until, deadline = self.committed() + epochs, time.monotonic() + PATIENCE_S
        while self.committed() < until:
            assert time.monotonic() < deadline, f"no {epochs} epochs within {PATIENCE_S:.0f} s"
            self.send(1)


def test_each_row_comes_once(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> None:
    name = fresh_name()
    output = f'{{kafka: {{bootstrapServers: "{kafka_broker.bootstrap}", topic: "{name}.joined"}}}}'
    job = Job(name, kafka_broker.bootstrap, f'{{postgres: {{dsn: "{postgres_dsn}", schema: driver_epochs}}}}', output)
    for topic in ("orders", "payments", "joined"):
        kafka_broker.create_topic(f"{name}.{topic}")
    path = job.write(tmp_path, stop_at="never")
    path.write_text(path.read_text().replace("stopAt: never", ""))
    command = [sys.executable, "-c", "from joinery_runtime.cli import main; main()", "run", str(path)]
    log = tmp_path / "log"
    with log.open("w") as stderr:
        driver = subprocess.Popen(
            [*command, "--master", "local[2,4]"],
            env=os.environ | {"JOINERY_WAIT_FOR_SPARK": "", "JOINERY_SPARK_AFTER": "0"},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    feeder, where = Feeder(job, postgres_dsn), list[bool]()
    try:
        feeder.trickle(5)
        for _ in range(2):
            feeder.trickle(70)
            where.append(feeder.in_the_driver())
            driver.send_signal(signal.SIGSTOP)  # else it would read them in small epochs while they are sent
            feeder.send(LARGE)
            driver.send_signal(signal.SIGCONT)
            feeder.trickle(10)
            where.append(feeder.in_the_driver())
        feeder.trickle(70)
        where.append(feeder.in_the_driver())
        driver.terminate()
        assert driver.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        driver.kill()
        feeder.close()
    assert where == [True, False, True, False, True]
    found = [(row["id"], row["amount"], row["paid"]) for row in topic_rows(job.bootstrap, f"{name}.joined")]
    assert len(set(found)) == len(found)
    assert set(found) <= set(joined(*range(feeder.sent)))
    assert len(found) > 2 * LARGE
    assert not traceback_of_ours(log.read_text())
