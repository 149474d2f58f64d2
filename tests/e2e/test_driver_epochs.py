"""A job whose first epochs are the driver's, and all others Spark's, into Kafka exactly once: each row comes once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.jobs import Job, fresh_name, joined, order, payment, prompt_producer, send, traceback_of_ours
from e2e.kill_harness import topic_rows
from joinery_devkit.kafka_admin import KafkaAdmin

pytestmark = [pytest.mark.services, pytest.mark.slow]

LARGE = 20_000  # of each topic
SMALL = 60  # epochs in a row
PATIENCE_S = 480.0


class Feeder:
    """Sends orders and their payments; waits for epochs of the job by what it prints."""

    def __init__(self, job: Job, printed: Path) -> None:
        self._job, self._printed, self.sent = job, printed, 0
        self._producer = prompt_producer(job.bootstrap)

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        send(self._producer, f"{self._job.name}.orders", [order(number) for number in numbers])
        send(self._producer, f"{self._job.name}.payments", [payment(number) for number in numbers])
        self.sent += count

    def hosts(self) -> list[str]:
        """Where each epoch so far ran."""
        lines = [json.loads(line) for line in self._printed.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        return [line["runs_on"] for line in lines if line["event"] == "epoch"]

    def trickle(self, host: str, epochs: int) -> None:
        """Sends few records at a time until that many more epochs have run at the place."""
        until, deadline = self.hosts().count(host) + epochs, time.monotonic() + PATIENCE_S
        while self.hosts().count(host) < until:
            assert time.monotonic() < deadline, f"no {epochs} epochs on {host} within {PATIENCE_S:.0f} s"
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
    log, printed = tmp_path / "log", tmp_path / "printed"
    with log.open("w") as stderr, printed.open("w") as stdout:
        driver = subprocess.Popen(
            [*command, "--master", "local[2,4]"],
            env=os.environ | {"JOINERY_WAIT_FOR_SPARK": ""},
            stdout=stdout,
            stderr=stderr,
        )
    feeder = Feeder(job, printed)
    try:
        feeder.trickle("driver", 1)
        feeder.trickle("spark", SMALL)
        driver.send_signal(signal.SIGSTOP)  # else it would read them in small epochs while they are sent
        feeder.send(LARGE)
        driver.send_signal(signal.SIGCONT)
        feeder.trickle("spark", SMALL)
        driver.terminate()
        assert driver.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        driver.kill()
    hosts = feeder.hosts()
    assert hosts == sorted(hosts), "the driver's epochs come first"
    rows = [(row["id"], row["amount"], row["paid"]) for row in topic_rows(job.bootstrap, f"{name}.joined")]
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(joined(*range(feeder.sent)))
    assert len(rows) > LARGE
    assert not traceback_of_ours(log.read_text())
