"""Where the tasks of a trace run, and where their rows wait until the step prints them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from joinery_runtime.connectors.inputs import json_decoder_for, with_record_boundary
from joinery_runtime.connectors.sink import Attempt, AttemptRows, NamesNoStore, Receipt, RecoveryContext, Sink
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.engine.driver import Host
from joinery_runtime.engine.tasks import LocalHost
from joinery_runtime.engine.worker import Worker, WorkerParts
from joinery_runtime.formats.json.encode import PLAIN, JsonStyle, rows_to_json
from joinery_runtime.formats.record_paths import paths_of
from joinery_runtime.formats.records import Decoder
from joinery_runtime.inspect.trace_steps import StepLog
from joinery_runtime.job import Job
from joinery_runtime.state.store import StateStore


class CaptureSink(Sink, Protocol):
    """A sink from which the caller can take the visible rows; their last columns are ORDER_COLUMNS."""

    def take(self) -> list[pa.Table]: ...


class TraceEnvironment(Protocol):
    """Runs the tasks of a trace over the records of its steps; the tasks write to `output` and `dead_letters`."""

    @property
    def output(self) -> CaptureSink: ...

    @property
    def dead_letters(self) -> CaptureSink: ...

    def host(self, job: Job, pipeline: Pipeline, logs: Mapping[str, StepLog]) -> Host: ...


def sorted_json_rows(tables: Sequence[pa.Table], style: JsonStyle = PLAIN) -> list[dict[str, Any]]:
    """Return rows of a step as JSON values, in the defined order."""
    return [json.loads(line) for line in rows_to_json(sort_rows(tables), style)] if tables else []


def sort_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Return rows of a step in the defined order, without ORDER_COLUMNS. There has to be at least one table."""
    table = pa.concat_tables(tables)
    rows = table.drop_columns(list(ORDER_COLUMNS))
    # Rows of a chain of joins may share a place, that of the record that arrived last. Then their values decide.
    keys = list(zip(*(table.column(name).to_pylist() for name in ORDER_COLUMNS), rows_to_json(rows), strict=True))
    return rows.take(sorted(range(len(keys)), key=keys.__getitem__))


class StepInputs:
    def __init__(self, job: Job, logs: Mapping[str, StepLog]) -> None:
        self._logs = logs
        self._decoders = {side.name: with_record_boundary(side, json_decoder_for(side)) for side in job.inputs}

    def reader(self, name: str, lane: int) -> StepLog:
        return self._logs[name]

    def decoder(self, name: str, lane: int) -> Decoder:
        return self._decoders[name]


class LocalCapture(NamesNoStore):
    """A sink that hands its rows back. It is driver's and tasks' half in one, because all tasks run in this process."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        table = pa.Table.from_batches(rows.to_batches())
        self._tables.append(table)
        return {"attempt": str(attempt.id), "rows": table.num_rows}

    def take(self) -> list[pa.Table]:
        tables, self._tables = self._tables, []
        return tables

    def prepare(self, schema: pa.Schema) -> None:
        """Take any schema."""

    def writer(self) -> LocalCapture:
        return self

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Do nothing: rows become visible when they are taken."""

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Do nothing: rows become visible when they are taken."""

    def recover(self, recovery: RecoveryContext) -> bool:
        """There is nothing to recover."""
        return False

    def close(self) -> None:
        """Do nothing: nothing is open."""


@contextmanager
def local_environment(store: StateStore) -> Iterator[TraceEnvironment]:
    """Run all tasks in this process."""
    with tempfile.TemporaryDirectory(prefix="joinery-trace-") as cache:
        yield _LocalEnvironment(store, Path(cache))


@dataclass(frozen=True, slots=True)
class _LocalEnvironment:
    store: StateStore
    cache: Path
    output: LocalCapture = field(default_factory=LocalCapture)
    dead_letters: LocalCapture = field(default_factory=LocalCapture)

    def host(self, job: Job, pipeline: Pipeline, logs: Mapping[str, StepLog]) -> Host:
        inputs, dead = StepInputs(job, logs), self.dead_letters if job.spec.dead_letter else None
        parts = WorkerParts(
            job.name,
            pipeline,
            inputs,
            self.store,
            self.output,
            dead,
            self.cache,
            ordered=True,
            paths_of=paths_of(job.inputs),
        )
        return LocalHost(Worker(parts))
