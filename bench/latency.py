"""How long a row takes from its later input record to a `read_committed` reader of the output topic, at a steady rate,
under both delivery guarantees. Prints p50 and p99 in milliseconds, and writes them as JSON.

    python bench/latency.py --rate 2000 --seconds 30 --out build/latency.json

A quarter of the time is warm-up and not counted. Sender, broker, Spark, Postgres and reader share the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from joinery_devkit.kafka import KafkaBroker

TICK_S = 0.01
PAY_AFTER_TICKS = 5

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: {name}}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: orders, startFrom: latest}}
      format: json
      schema: [{{name: id, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: payments, startFrom: latest}}
      format: json
      schema: [{{name: order, type: int64}}, {{name: sent, type: double}}, {{name: ts, type: timestamp}}]
      eventTime: ts
  joins:
    - right: payments
      keys: {{orders.id: payments.order}}
      interval: {{of: orders, lower: 0s, upper: 10s}}
  select: [{{column: orders.id}}, {{column: payments.sent}}]
  output: {{kafka: {{bootstrapServers: "{bootstrap}", topic: "{delivery}"}}}}
  delivery: {delivery}
  shards: {shards}
"""


class Sender:
    """Sends orders, and a payment for each a little later, `rate` records a second in all, until it is stopped."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._per_tick = max(1, int(rate * TICK_S / 2))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        started, tick = time.monotonic(), 0
        while not self._done.wait(max(0.0, started + tick * TICK_S - time.monotonic())):
            now = time.time()
            for number in range(tick * self._per_tick, (tick + 1) * self._per_tick):
                self._send("orders", {"id": number, "ts": int(now * 1000)})
                paid = number - PAY_AFTER_TICKS * self._per_tick
                if paid >= 0:
                    self._send("payments", {"order": paid, "sent": now, "ts": int(now * 1000)})
            self._producer.poll(0)
            tick += 1
        self._producer.flush(10)

    def _send(self, topic: str, row: dict[str, Any]) -> None:
        self._producer.produce(topic, json.dumps(row))


def measure(bootstrap: str, delivery: str, arguments: argparse.Namespace, work: Path) -> dict[str, float]:
    job = work / f"{delivery}.yaml"
    job.write_text(JOB.format(name=delivery.lower(), bootstrap=bootstrap, delivery=delivery, shards=arguments.shards))
    command = [str(Path(sys.executable).with_name("joinery")), "run", str(job), "--master", "local[2,4]"]
    environment = os.environ | {"JOINERY_HOME": str(work / "home")}
    with Sender(bootstrap, arguments.rate):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        lines: list[dict[str, Any]] = []
        reader = threading.Thread(target=lambda: lines.extend(map(json.loads, process.stdout or ())))
        reader.start()
        try:
            delays = _read(bootstrap, delivery, arguments.seconds)
        finally:
            process.terminate()
            process.wait(60)
            reader.join()
    epochs = [line["seconds"] for line in lines if line["event"] == "epoch"]
    p50, p99 = np.percentile(delays, [50, 99]) * 1000
    return {"rows": len(delays), "p50_ms": p50, "p99_ms": p99, "epoch_p50_ms": 1000 * float(np.median(epochs))}


def _read(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Seconds from sending to reading, per joined row, after the warm-up that begins with the first row."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "latency", "isolation.level": "read_committed",
                         "enable.auto.commit": False, "fetch.wait.max.ms": 5})  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    delays: list[float] = []
    first: float | None = None
    while first is None or time.monotonic() < first + 1.25 * seconds:
        for message in consumer.consume(1000, 0.01):
            now = time.time()
            first = first or time.monotonic()
            if message.error() is None and time.monotonic() > first + 0.25 * seconds:
                delays.append(now - json.loads(message.value())["sent"])
    consumer.close()
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2_000, help="records per second, both topics together")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = {}
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as work:
        for topic in ("orders", "payments", "exactlyOnce", "atLeastOnce"):
            broker.create_topic(topic)
        for delivery in ("atLeastOnce", "exactlyOnce"):
            result = results[delivery] = measure(broker.bootstrap, delivery, arguments, Path(work))
            print(f"{delivery:12} p50 {result['p50_ms']:.0f} ms, p99 {result['p99_ms']:.0f} ms "
                  f"({result['rows']:,} rows, epochs of {result['epoch_p50_ms']:.0f} ms)")  # fmt: skip
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"arguments": vars(arguments) | {"out": None}, **results}, indent=2))


if __name__ == "__main__":
    main()
