"""What tests that kill, pause and cut off drivers need: records that keep coming, a job, and what it must give."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, Self

import psycopg
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from deltalake import DeltaTable
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from pyiceberg.catalog import load_catalog

from e2e.driver_process import PATIENCE_S, Run
from e2e.jobs import json_rows, parquet_rows
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.oracle import Oracle, Row, differences, output_columns, output_row
from joinery_devkit.topics import Record, milliseconds, ordered_producer, read_dead_letters, read_topic, readable
from joinery_devkit.verify import JoinVerdict, verify
from joinery_runtime.job import Job as AnyJob
from joinery_runtime.job import StreamJoin, load_job
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord

_COMMITTED = IsolationLevel.READ_COMMITTED
_SETTLES_WITHIN_S = 40  # less than the least time after which a broker itself ends a transaction, one minute
INPUTS = {"orders": 2, "payments": 3}  # topics, named `<job>.<input>`, with this many partitions
TICK_S = 0.03  # the feeder's pace: records arrive all the time, whatever the driver does

_JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: {name}}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.orders, properties: {properties}}}
      format: json
      schema: [{{name: id, type: string}}, {{name: amount, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
      watermark: {{delay: 2s, idleTimeout: 0}}
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.payments, properties: {properties}}}
      format: json
      schema: [{{name: order, type: string}}, {{name: paid, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
      watermark: {{delay: 2s, idleTimeout: 0}}
  joins:
    - right: payments
      keys: {{orders.id: payments.order}}
      interval: {{of: orders, lower: -1s, upper: 10s}}
      {where}
  prefixes: always
  output: {output}
  deadLetter: {dead}
  stateStore: {{postgres: {{dsn: "{dsn}", schema: "{schema}"}}, checkpointInterval: 5s}}
  shards: {shards}
  spark:
    conf: {conf}
  {extra}
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A job over two topics that a `Feeder` fills; the fields are parts of its file. Without `output` and `dead` rows
    and dead letters go to the topics `<name>.out` and `<name>.dead`."""

    name: str
    bootstrap: str
    dsn: str
    schema: str = "joinery"
    output: str = ""
    dead: str = ""
    where: str = ""
    properties: str = "{}"
    shards: int = 4
    conf: str = "{}"
    extra: str = ""

    def write(self, path: Path) -> Path:
        parts = {name: getattr(self, name) for name in Job.__slots__}
        parts["output"] = self.output or f'{{kafka: {{bootstrapServers: "{self.bootstrap}", topic: {self.name}.out}}}}'
        parts["dead"] = self.dead or f"{{kafka: {{topic: {self.name}.dead}}}}"
        path.write_text(_JOB.format(**parts))
        return path

    def topics(self) -> dict[str, int]:
        """Names and partitions of the topics that are read, and of those that may be written."""
        inputs = {f"{self.name}.{name}": partitions for name, partitions in INPUTS.items()}
        return {**inputs, f"{self.name}.out": 2, f"{self.name}.dead": 1}


class Feeder:
    """Produces orders and payments at a steady pace until it is stopped: some late, some out of order, some broken."""

    def __init__(self, bootstrap: str, job: str, seed: int) -> None:
        self._producer = ordered_producer(bootstrap, {"linger.ms": 0})
        self._job, self._random = job, random.Random(seed)
        self._clock_ms = 1_760_000_000_000
        self._number = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._done.clear()
        self._thread = threading.Thread(target=self._run, name="feeder")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """After this, no record follows until it is entered again."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def tick(self) -> None:
        """Some records, and on goes their clock. Not while it runs by itself."""
        for _ in range(4):
            self._pair()
        self._clock_ms += 60
        self._producer.flush()

    def _run(self) -> None:
        while not self._done.wait(TICK_S):
            self.tick()

    def _pair(self) -> None:
        self._number += 1
        name = f"o{self._number - self._random.randrange(3)}"  # keys repeat now and then
        self._send("orders", {"id": name, "amount": self._number}, self._time())
        if self._random.random() < 0.8:
            self._send("payments", {"order": name, "paid": self._number}, self._time() + self._random.randrange(12_000))

    def _time(self) -> int:
        late = self._random.random() < 0.03
        return self._clock_ms - self._random.randrange(30_000 if late else 1_500)

    def _send(self, topic: str, row: dict[str, Any], ts: int) -> None:
        value = json.dumps({**row, "ts": ts}) if self._random.random() > 0.005 else "{broken"
        self._producer.produce(f"{self._job}.{topic}", value, partition=self._random.randrange(INPUTS[topic]))


# --- what came out ----------------------------------------------------------------------------------------------------


def output_to(target: str, folder: Path, dsn: str, table: str = "killed") -> dict[str, Any]:
    """The `output` of a job, apart from topics: in a folder, or the `table` of the state's database ("table") or
    of the one at `dsn` ("apart"). "held" are files of several epochs."""
    outputs: dict[str, dict[str, Any]] = {
        "table": {"postgres": {"table": table}},
        "apart": {"postgres": {"table": table, "dsn": dsn}},
        "json": {"file": {"path": str(folder)}},
        "parquet": {"file": {"path": str(folder)}, "format": "parquet"},
        "held": {"file": {"path": str(folder), "rollInterval": "500ms"}, "format": "parquet"},
        "delta": {"delta": {"path": f"{folder}/out"}},
        "iceberg": {"iceberg": {"table": "db.out", "properties": _catalog(folder)}},
    }
    return outputs[target]


def _catalog(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def written_to(target: str, folder: Path, dsn: str, table: str = "killed") -> list[dict[str, Any]]:
    """All rows that a reader sees there; times are milliseconds."""
    match target:
        case "json":
            rows = json_rows(folder)
        case "parquet" | "held":
            rows = parquet_rows(folder)
        case "delta":
            rows = DeltaTable(f"{folder}/out").to_pyarrow_table().to_pylist()
        case "iceberg":
            rows = load_catalog("default", **_catalog(folder)).load_table("db.out").scan().to_arrow().to_pylist()
        case _:
            with psycopg.connect(dsn, row_factory=dict_row) as connection:
                rows = connection.execute(SQL("SELECT * FROM {}").format(Identifier(table))).fetchall()
    return [{k: milliseconds(v) if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]


class Log:
    """What a store knows of a job."""

    def __init__(self, name: str, dsn: str, schema: str) -> None:
        self._name, self._store = name, PostgresStore(dsn, schema)

    def close(self) -> None:
        self._store.close()

    def record(self) -> JobRecord | None:
        return self._store.record(self._name)

    def committed(self) -> int:
        record = self.record()
        return record.epoch if record else 0

    def entries(self) -> list[dict[str, Any]]:
        entries = self._store.epochs(self._name, limit=100_000)
        return [{"epoch": e.epoch, "generation": e.generation, "plan": e.plan, "result": e.result} for e in entries]

    def read(self) -> int:
        """Records of the inputs in committed epochs."""
        ends: dict[tuple[str, int], int] = {}
        for entry in self.entries():
            for _, topic, partition, _, end in entry["plan"]["ranges"]:
                ends[topic, partition] = max(end, ends.get((topic, partition), 0))
        return sum(ends.values())

    def commits(self) -> list[int]:
        """When each epoch was committed, in milliseconds by the store's clock."""
        return [entry.committed_at for entry in self._store.epochs(self._name, limit=100_000)]


class Stored(Protocol):
    """A job, and where its state is."""

    name: str
    dsn: str
    schema: str


@contextmanager
def log_of(job: Stored) -> Iterator[Log]:
    log = Log(job.name, job.dsn, job.schema)
    try:
        yield log
    finally:
        log.close()


def wait_until_read(run: Run, log: Log, job: Job) -> None:
    """Waits until all records of the inputs, whose feeder has stopped, are in committed epochs. That the newest epoch
    leaves no backlog says nothing: it may have been planned before the last records came."""
    sent = sum(sum(_ends(job.bootstrap, f"{job.name}.{name}", _COMMITTED).values()) for name in INPUTS)
    deadline = time.monotonic() + PATIENCE_S
    while (read := log.read()) < sent:
        assert run.process.poll() is None, f"the driver ended before the last record\n{run.last_words}"
        assert time.monotonic() < deadline, f"{read} of {sent} records are read after {PATIENCE_S} s"
        time.sleep(0.1)


def topic_rows(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """All rows that a `read_committed` consumer sees. Nothing may be left open: it would hide what follows."""
    _wait_until_nothing_is_open(bootstrap, topic)
    return [json.loads(record.value or b"") for record in read_topic(bootstrap, topic)]


def dead_letter_rows(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """All dead letters that a `read_committed` consumer sees."""
    _wait_until_nothing_is_open(bootstrap, topic)
    return read_dead_letters(bootstrap, topic)


def _wait_until_nothing_is_open(bootstrap: str, topic: str) -> None:
    """A broker writes the end of a transaction into its partitions some time after it has answered."""
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    while _ends(bootstrap, topic, _COMMITTED) != _ends(bootstrap, topic, IsolationLevel.READ_UNCOMMITTED):
        assert time.monotonic() < deadline, f"{topic}: a transaction is open"
        time.sleep(0.1)


def _ends(bootstrap: str, topic: str, level: IsolationLevel) -> dict[int, int]:
    """By partition."""
    admin: Any = AdminClient({"bootstrap.servers": bootstrap})
    partitions = [TopicPartition(topic, number) for number in admin.list_topics(topic).topics[topic].partitions]
    futures = admin.list_offsets({partition: OffsetSpec.latest() for partition in partitions}, isolation_level=level)
    return {partition.partition: future.result().offset for partition, future in futures.items()}


def judge(job: StreamJoin, bootstrap: str, log: Sequence[Mapping[str, Any]], output: Any, dead: Any) -> JoinVerdict:
    """Output and dead letters against the topics and the epoch log, by two oracles that share no code; every row and
    every dead letter must be there exactly once."""
    records = read_inputs(job, bootstrap)
    assert not differences(expected_rows(job, log, records), output)
    verdict = verify(records, log, output, job, dead_letters=dead)
    assert verdict.ok, str(verdict)
    assert not verdict.unread
    return verdict


def judge_topics(path: Path, job: Job, log: Sequence[Mapping[str, Any]]) -> JoinVerdict:
    """The same, of a job with both outputs in Kafka."""
    output, dead = topic_rows(job.bootstrap, f"{job.name}.out"), dead_letter_rows(job.bootstrap, f"{job.name}.dead")
    return judge(load_job(path), job.bootstrap, log, output, dead)


def read_inputs(job: AnyJob, bootstrap: str) -> dict[str, list[Record]]:
    topics = {side.name: side.kafka.topic for side in job.inputs if side.kafka is not None}
    return {name: read_topic(bootstrap, topic or "") for name, topic in topics.items()}


def expected_rows(
    job: StreamJoin, log: Sequence[Mapping[str, Any]], records: Mapping[str, Sequence[Record]]
) -> list[dict[str, Any]]:
    """What the output must hold: the epoch log replayed record by record in plain Python."""
    return [row for _, rows in expected_epochs(Oracle.of_job(job), lambda _: job, log, records) for row in rows]


def expected_epochs(
    oracle: Oracle,
    job_of: Callable[[int], StreamJoin],
    log: Sequence[Mapping[str, Any]],
    records: Mapping[str, Sequence[Record]],
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The output rows of each epoch. `job_of` is asked before each epoch for the job as it was then."""
    at = {(name, r.partition, r.offset): r for name, listed in records.items() for r in listed}
    for entry in log:
        job = job_of(entry["epoch"])
        read: dict[str, list[Row]] = {side.name: [] for side in job.spec.inputs}
        for name, _, partition, start, end in entry["plan"]["ranges"]:
            side = next(side for side in job.spec.inputs if side.name == name)
            for offset in range(start, end):
                values = readable(side, at[name, partition, offset].value)
                if values is not None:
                    read[name].append(Row(partition, offset, values["ts"], values))
        columns = output_columns(job)
        outcome = oracle.epoch(entry["plan"]["watermarks"], read)
        yield entry["epoch"], [output_row(row, columns) for row in outcome.joined]


def repeated(log: Sequence[Mapping[str, Any]]) -> list[int]:
    """The epochs of which a replay found output that had been written before: it met marks."""
    return [
        entry["epoch"]
        for entry in log
        if any(receipt.get("repeated") for receipt in [*entry["result"]["output"], *entry["result"]["dead_letters"]])
    ]


def create_topics(broker: KafkaAdmin, job: Job) -> None:
    for topic, partitions in job.topics().items():
        broker.create_topic(topic, partitions)
