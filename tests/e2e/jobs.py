"""A small job over two Kafka topics, its records, and what it makes of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
from confluent_kafka import Producer

from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import ordered_producer

_JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: "{name}"}}
spec:
  inputs:
    - name: orders
      kafka:
        bootstrapServers: "{bootstrap}"
        topic: {name}.orders
        stopAt: {stop_at}
        onDataLoss: {on_data_loss}
        properties: {properties}
      format: json
      schema: [{{name: id, type: string}}, {{name: amount, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.payments, stopAt: {stop_at}}}
      format: json
      schema: [{{name: order, type: string}}, {{name: paid, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
  joins:
    - right: payments
      keys: {keys}
      interval: {{of: orders, lower: {lower}, upper: 1h}}
      allowedLateness: {allowed_lateness}
  select: [{{column: orders.id}}, {{column: orders.amount}}, {{column: payments.paid}}]
  output: {output}
  stateStore: {store}
  shards: {shards}
  {extra}
"""

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Job:
    """Every field is a part of the job file. Its topics are `<name>.orders` and `<name>.payments`. What `latest` means
    is stored by the first run: a later one that is to read more says `until`."""

    name: str
    bootstrap: str
    store: str
    output: str = "{postgres: {table: joined}}"
    on_data_loss: str = "fail"
    stop_at: str = "latest"
    properties: str = "{}"
    keys: str = "{orders.id: payments.order}"
    lower: str = "0s"
    allowed_lateness: str = "0s"
    shards: int = 2
    extra: str = ""

    def write(self, folder: Path, **changes: Any) -> Path:
        changed = replace(self, **changes)
        path = folder / f"{self.name}-{next(_numbers)}.yaml"
        path.write_text(_JOB.format(**{name: getattr(changed, name) for name in Job.__slots__}))
        return path


def unbounded_job(broker: KafkaAdmin, store: str, folder: Path) -> tuple[Job, Path]:
    """A job into files that goes on for ever, with its topics."""
    job = Job(fresh_name(), broker.bootstrap, store, f'{{file: {{path: "{folder / "out"}"}}}}')
    for side in ("orders", "payments"):
        broker.create_topic(f"{job.name}.{side}")
    path = job.write(folder)
    path.write_text(path.read_text().replace("stopAt: latest", ""))
    return job, path


def until(offset: int) -> str:
    """A `stop_at` of partition 0."""
    return f"{{offsets: {{'0': {offset}}}}}"


def fresh_name() -> str:
    return f"bad-input-{os.getpid()}-{next(_numbers)}"


def order(number: int, **changes: Any) -> dict[str, Any]:
    return {"id": f"o{number}", "amount": number, "ts": 1_000 * number, **changes}


def payment(number: int, **changes: Any) -> dict[str, Any]:
    return {"order": f"o{number}", "paid": 10 * number, "ts": 1_000 * number + 5, **changes}


def joined(*numbers: int) -> list[tuple[Any, ...]]:
    return [(f"o{number}", number, 10 * number) for number in numbers]


def produce(bootstrap: str, topic: str, records: Sequence[dict[str, Any] | bytes]) -> None:
    """In order, into partition 0."""
    send(prompt_producer(bootstrap), topic, records)


def prompt_producer(bootstrap: str) -> Producer:
    return ordered_producer(bootstrap, {"linger.ms": 0})


def send(producer: Producer, topic: str, records: Sequence[dict[str, Any] | bytes]) -> None:
    """In order, into partition 0. A producer of its own for each call would take a quarter of a second."""
    for record in records:
        value = record if isinstance(record, bytes) else json.dumps(record).encode()
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def table_rows(dsn: str, table: str = "joined") -> list[tuple[Any, ...]]:
    """Sorted rows of the output table, none if there is no such table."""
    with psycopg.connect(dsn) as connection:
        if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,):
            return []
        return sorted(connection.execute(f'SELECT id, amount, paid FROM "{table}"').fetchall())


def json_rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]


def parquet_rows(directory: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(directory.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def traceback_of_ours(text: str) -> bool:
    """PySpark's daemon prints one of its own when its worker is writing while the context stops."""
    return (
        "Traceback" in text and "joinery_runtime" in text[text.index("Traceback") :].split("joinery: ", maxsplit=1)[0]
    )
