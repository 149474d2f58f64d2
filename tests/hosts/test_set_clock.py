"""A job goes on while the machine's clock is set, by an hour to either side, and while it is set back."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen, run

import pytest

from e2e.kill_harness import topic_rows
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.processes import free_port
from joinery_devkit.set_clock import SetClock
from joinery_devkit.topics import ordered_producer

HOUR, PATIENCE_S = 3600, 60.0
JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: set-clock}
spec:
  inputs:
    - {name: l, kafka: {bootstrapServers: "BROKER", topic: set-clock.l}, format: json, eventTime: ts,
       watermark: {delay: 10s}, schema: [{name: k, type: string}, {name: ts, type: timestamp}]}
    - {name: r, kafka: {bootstrapServers: "BROKER", topic: set-clock.r}, format: json, eventTime: ts,
       watermark: {delay: 10s}, schema: [{name: k, type: string}, {name: ts, type: timestamp}]}
  joins: [{right: r, keys: {l.k: r.k}, interval: {of: l, lower: 0s, upper: 10s}}]
  select: [{column: l.k}]
  output: {kafka: {bootstrapServers: "BROKER", topic: set-clock.out}}
  stateStore: {memory: {}}
"""


def test_the_double_sets_the_clock_of_the_wall_alone(tmp_path: Path) -> None:
    clock = SetClock(tmp_path)
    clock.advance(-HOUR)
    code = "import time; print(time.time(), time.monotonic())"
    stdout = run([sys.executable, "-c", code], env=os.environ | clock.environment, stdout=PIPE, check=True).stdout
    wall, monotonic = map(float, stdout.split())
    assert abs(wall - (time.time() - HOUR)) < PATIENCE_S
    assert abs(monotonic - time.monotonic()) < PATIENCE_S


class Job:
    def __init__(self, process: Popen[str], port: int) -> None:
        self.process, self._port = process, port
        self.read = 0
        self._counting = threading.Thread(target=self._count, daemon=True)
        self._counting.start()

    def _count(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.read += sum(event["rows_in"].values()) if event["event"] == "epoch" else 0

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._counting.join()
        return code

    def reads(self, records: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.read < records:
            assert time.monotonic() < deadline, f"stalled after {self.read} of {records} records"
            assert self.process.poll() is None
            time.sleep(0.05)

    def is_ready(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=20) as answer:
            return bool(answer.status == 200)


@pytest.mark.services
def test_a_job_reads_on_whatever_the_clock_is_set_to_and_stops(kafka_broker: KafkaAdmin, tmp_path: Path) -> None:
    for name in ("l", "r", "out"):
        kafka_broker.create_topic(f"set-clock.{name}")
    (tmp_path / "job.yaml").write_text(JOB.replace("BROKER", kafka_broker.bootstrap))
    clock, port, numbers = SetClock(tmp_path), free_port(), count()
    producer = ordered_producer(kafka_broker.bootstrap, {"linger.ms": 0})

    def send() -> None:
        """Sends pairs by the clock of the others, which is right."""
        for number in (next(numbers) for _ in range(20)):
            for name in ("l", "r"):
                producer.produce(f"set-clock.{name}", json.dumps({"k": str(number), "ts": round(time.time() * 1000)}))
        assert producer.flush(PATIENCE_S) == 0

    command = [sys.executable, "-m", "joinery_runtime", "run", "--local", "job.yaml", "--status-port", str(port)]
    with ExitStack() as stack:
        process = stack.enter_context(
            Popen(command, cwd=tmp_path, env=os.environ | clock.environment, stdout=PIPE, text=True)
        )
        stack.callback(process.kill)
        job, sent = Job(process, port), 0
        for offset in (0, -HOUR, 0, HOUR, -HOUR):
            clock.advance(offset)
            for _ in range(2):
                send()
                sent += 40
                job.reads(sent)
            assert job.is_ready()
        process.send_signal(signal.SIGINT)
        assert job.ended() == 0
    assert Counter(row["k"] for row in topic_rows(kafka_broker.bootstrap, "set-clock.out")) == Counter(
        str(number) for number in range(sent // 2)
    )
