"""What the kill test needs: records that keep coming, and drivers that are killed and started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyspark
from confluent_kafka import Producer

POINTS = ("planned", "reading", "staged", "output-written", "before-commit", "after-commit")
MASTER = "local-cluster[2,1,1024]"
PATIENCE_S = 180
TICK_S = 0.03  # the feeder's pace: records arrive all the time, whatever the driver does

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: kill-test}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: orders}}
      format: json
      schema: [{{name: id, type: string}}, {{name: amount, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
      watermark: {{delay: 2s, idleTimeout: 0}}
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: payments}}
      format: json
      schema: [{{name: order, type: string}}, {{name: paid, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
      watermark: {{delay: 2s, idleTimeout: 0}}
  joins:
    - right: payments
      keys: {{orders.id: payments.order}}
      interval: {{of: orders, lower: -1s, upper: 10s}}
  output: {{postgres: {{table: joined}}}}
  deadLetter: {{file: {{path: "{dead}"}}}}
  stateStore: {{postgres: {{dsn: "{dsn}"}}, checkpointInterval: 5s}}
  shards: {shards}
  spark:
    conf: {{spark.task.maxFailures: "8", spark.deploy.maxExecutorRetries: "-1"}}
"""


class Feeder:
    """Produces orders and payments at a steady pace until it is stopped: some late, some out of order, some broken."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._random = random.Random(seed)
        self._clock_ms = 1_760_000_000_000
        self._number = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder")

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """After this, no record follows."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(TICK_S):
            for _ in range(4):
                self._pair()
            self._clock_ms += 60
            self._producer.flush()

    def _pair(self) -> None:
        self._number += 1
        name = f"o{self._number - self._random.randrange(3)}"  # keys repeat now and then
        self._send("orders", 2, {"id": name, "amount": self._number}, self._time())
        if self._random.random() < 0.8:
            self._send(
                "payments", 3, {"order": name, "paid": self._number}, self._time() + self._random.randrange(12_000)
            )

    def _time(self) -> int:
        late = self._random.random() < 0.03
        return self._clock_ms - self._random.randrange(30_000 if late else 1_500)

    def _send(self, topic: str, partitions: int, row: dict[str, Any], ts: int) -> None:
        value = json.dumps({**row, "ts": ts}) if self._random.random() > 0.005 else "{broken"
        self._producer.produce(topic, value, partition=self._random.randrange(partitions))


@dataclass(slots=True)
class Run:
    """One driver process. Its JSON lines are read as they come; `lines` has those so far."""

    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    _readers: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def start(cls, job: Path, fault: str | None) -> Run:
        environment = os.environ | {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
        if fault is not None:
            environment["JOINERY_FAULT"] = fault
        command = [str(Path(sys.executable).with_name("joinery")), "run", str(job), "--master", MASTER]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=job.parent
        )
        run = cls(process)
        run._readers = [threading.Thread(target=target) for target in (run._read_lines, run._read_errors)]
        for reader in run._readers:
            reader.start()
        return run

    def wait(self) -> int:
        """The driver's exit code. What it started may live on for a moment and keep its output open."""
        code = self.process.wait(timeout=PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait_for(self, what: str, ready: Any) -> None:
        """Until `ready(epoch lines)` holds; fails when the driver ends first or time runs out."""
        with self.changed:
            met = self.changed.wait_for(lambda: ready(self.epochs) or self.process.poll() is not None, PATIENCE_S)
        assert self.process.poll() is None, f"{what}: the driver ended\n" + "".join(self.errors[-30:])
        assert met, f"{what}: not within {PATIENCE_S} s"

    @property
    def epochs(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "epoch"]

    @property
    def replayed(self) -> bool:
        """Whether it found a pending plan."""
        return any(line["event"] == "started" and line["replays"] for line in self.lines)

    def task_processes(self) -> list[psutil.Process]:
        """Executors and Python workers of this driver."""
        return [p for p in psutil.Process(self.process.pid).children(recursive=True) if _is_task_process(p)]

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self.changed:
                    self.lines.append(json.loads(line))
                    self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.errors.append(line)


def _is_task_process(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "CoarseGrainedExecutorBackend" in command or "pyspark.daemon" in command


def caught_up(epochs: list[Mapping[str, Any]]) -> bool:
    return bool(epochs) and not any(epochs[-1]["backlog"].values())


def kill_task_processes(run: Run, times: int, choose: random.Random) -> list[str]:
    """SIGKILLs a random executor or Python worker, `times` times, with committed epochs between; their commands."""
    killed = []
    for _ in range(times):
        seen = len(run.epochs)
        run.wait_for("epochs between kills", lambda epochs, seen=seen: len(epochs) >= seen + 3)
        victim = choose.choice(run.task_processes())
        killed.append(" ".join(victim.cmdline()))
        victim.kill()
    return killed
