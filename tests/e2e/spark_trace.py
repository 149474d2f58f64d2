"""Traces on real Spark: the steps' records, and the rows that tasks write, travel through a directory that driver and
executors share. Task halves are picked up in the executors by their names, so this module must be
importable there: `TASK_CONF`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import SparkContext

from joinery_runtime.connectors.inputs import json_decoder_for
from joinery_runtime.connectors.sink import Attempt, AttemptRows, NamesNoStore, Receipt, RecoveryContext, SinkWriter
from joinery_runtime.connectors.source import Range
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.engine.driver import Host
from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.engine.worker import Worker, WorkerParts
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import Decoder
from joinery_runtime.hosts.spark import SparkHost
from joinery_runtime.hosts.spark_tasks import WorkerSetup
from joinery_runtime.hosts.stores import PostgresStoreAddress
from joinery_runtime.inspect.trace_steps import StepLog
from joinery_runtime.job import Job

TASK_CONF = {"spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1])}

Around = Callable[[SinkWriter], SinkWriter]


def unchanged(writer: SinkWriter) -> SinkWriter:
    return writer


@dataclass(frozen=True)
class SparkTrace:
    """`around` may put a writer of its own around the task half of the output."""

    context: SparkContext
    store: PostgresStoreAddress
    directory: Path
    around: Around = unchanged
    output: Files = field(init=False)
    dead_letters: Files = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", Files(self.directory / "output", self.around))
        object.__setattr__(self, "dead_letters", Files(self.directory / "dead"))

    def host(self, job: Job, pipeline: Pipeline, logs: Mapping[str, StepLog]) -> Host:
        dead = self.dead_letters.writer() if job.spec.dead_letter else None
        records = self.directory / "records"
        build = BuildWorker(job, self.store, records, self.output.writer(), dead)
        setup = WorkerSetup(uuid.uuid4().hex, build, len(pipeline.steps), pipeline.finds_late_records)
        return _WithRecords(SparkHost(self.context, setup, job.name), logs, records)


@dataclass(frozen=True)
class _WithRecords:
    """Writes down what the steps gave before the tasks read it."""

    host: Host
    logs: Mapping[str, StepLog]
    directory: Path
    cores: int | None = None  # a step of a trace may rescale: its epochs have the shards that it names

    @property
    def processes(self) -> int:
        return self.host.processes

    def run(self, work: EpochWork) -> EpochOutcome:
        self.directory.mkdir(parents=True, exist_ok=True)
        for log in self.logs.values():
            for ref, records in log.partitions.items():
                _file(self.directory, ref).write_bytes(b"".join(record.value + b"\n" for record in records))
        return self.host.run(work)


def _file(directory: Path, ref: PartitionRef) -> Path:
    return directory / f"{ref.input}-{ref.topic}-{ref.partition}.jsonl"


class Files(NamesNoStore):
    """The driver half of the sink: visible rows are those of the receipts that were published."""

    def __init__(self, directory: Path, around: Around = unchanged) -> None:
        self._writer = around(FileOfRows(directory))
        self._directory = directory
        self._published: set[str] = set()
        self._tables: list[pa.Table] = []

    def writer(self) -> SinkWriter:
        return self._writer

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            if receipt["attempt"] not in self._published:
                self._published.add(receipt["attempt"])
                with pa.ipc.open_file(self._directory / receipt["attempt"]) as file:
                    self._tables.append(file.read_all())

    def take(self) -> list[pa.Table]:
        tables, self._tables = self._tables, []
        return tables

    def prepare(self, schema: pa.Schema) -> None:
        """Takes any schema."""

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Rows are visible when they are published."""

    def recover(self, recovery: RecoveryContext) -> bool:
        """Nothing is in the way."""
        return False

    def close(self) -> None:
        """Nothing is open."""


# --- inside the tasks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuildWorker:
    job: Job
    store: PostgresStoreAddress
    records: Path
    output: SinkWriter
    dead_letters: SinkWriter | None

    @contextmanager
    def __call__(self, cache: Path) -> Iterator[Worker]:
        pipeline, inputs = compile_job(self.job), _Inputs(self.job, self.records)
        with closing(self.store.connect()) as store:
            yield Worker(
                WorkerParts(self.job.name, pipeline, inputs, store, self.output, self.dead_letters, cache, ordered=True)
            )


class _Inputs:
    def __init__(self, job: Job, records: Path) -> None:
        self._reader = _Reader(records)
        self._decoders = {side.name: json_decoder_for(side) for side in job.inputs}

    def reader(self, name: str, lane: int) -> _Reader:
        return self._reader

    def decoder(self, name: str, lane: int) -> Decoder:
        return self._decoders[name]


@dataclass(frozen=True)
class _Reader:
    """Offsets are record numbers."""

    directory: Path

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        return map(self._read, planned)

    def _read(self, planned: Range) -> RawBatch:
        ref = planned.partition
        file = _file(self.directory, ref)
        records = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        offsets = np.arange(planned.start, planned.end_exclusive, dtype=np.int64)
        return RawBatch(ref, offsets, pa.array(records[planned.start : planned.end_exclusive], pa.binary()))

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class FileOfRows:
    """The task half of the sink: one Arrow file per attempt."""

    directory: Path

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        self.directory.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_batches(rows.to_batches())
        with pa.ipc.new_file(self.directory / str(attempt.id), table.schema) as file:
            file.write_table(table)
        return {"attempt": str(attempt.id), "rows": table.num_rows}


def first_time(marker: Path) -> bool:
    """Whether no process has asked for this marker before."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
