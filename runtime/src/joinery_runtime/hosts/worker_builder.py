"""Builds the worker of an executor process. Imports no more than a worker needs, because a cold start waits for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from joinery_runtime.connectors.inputs import decoder_for, reader_for, with_record_boundary
from joinery_runtime.connectors.outputs import Outputs, close_idle_clients
from joinery_runtime.connectors.source import SourceReader
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.engine.cache import DEFAULT_MAX_BYTES
from joinery_runtime.engine.worker import Worker, WorkerParts
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.formats.compiled import compiled_key_hash, kernels
from joinery_runtime.formats.record_paths import paths_of
from joinery_runtime.formats.records import Decoder
from joinery_runtime.hosts.own_secrets import with_own_secrets
from joinery_runtime.hosts.python_functions import with_functions
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.shared_memory import MemoryStoreAddress
from joinery_runtime.hosts.stores import PostgresStoreAddress, store_address
from joinery_runtime.job import Job
from joinery_runtime.job.model.base import parse_bytes
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.state.store import TaskStore

CACHE_BYTES = "JOINERY_CACHE_BYTES"
"""The environment variable for the size limit of a segment cache, as `20Gi` or in bytes."""


@dataclass(frozen=True, slots=True)
class TaskWiring:
    """A job, by its name, as the values that its workers are built from, here and on Spark."""

    job: str
    pipeline: Pipeline
    inputs: tuple[Input, ...]
    outputs: Outputs

    @property
    def steps(self) -> int:
        """The number of `Worker.steps`."""
        return len(self.pipeline.steps) + (self.outputs.routing is not None)

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return the values of a job whose secrets are filled in."""
        pipeline = compile_job(job)
        return cls(job.name, pipeline, job.inputs, Outputs.of(job, pipeline.output_schema()))


@dataclass(frozen=True, slots=True)
class WorkerBuilder:
    """Builds an executor process's worker. The builder pickles and holds no secret: the process looks up secrets that
    `job` refers to, and reads those written in the job itself from `job_file` (None: there are none). `memory` is the
    store in the driver's memory; None: the job names a Postgres. `earlier_cache` has the segments of epochs that
    the driver has run on this machine."""

    job: Job
    job_file: Path | None
    memory: MemoryStoreAddress | None
    earlier_cache: Path | None = None

    @property
    def digest(self) -> str:
        # Two runs of one job on one session have the same workers, but each its own store in the driver's memory.
        columns = [column.name for column in self.job.output_columns]  # whose names may be those of stored state
        return hashlib.sha256(f"{self.job.model_dump_json()}\n{columns}\n{self.memory}".encode()).hexdigest()[:12]

    @contextmanager
    def __call__(self, cache: Path) -> Iterator[Worker]:
        """Build the worker, and close at the end what it has opened. Raises EnvironmentProblem if a secret cannot be
        read."""
        job = with_secrets(self.job if self.job_file is None else with_own_secrets(self.job, self.job_file))
        with_functions(job)  # before the first epoch, so that a module that is missing here ends the start
        load_kernels(job.inputs)  # here, which the first epoch on Spark does not wait for if another one runs meanwhile
        if self.memory is not None:
            with local_worker(TaskWiring.of(job), self.memory.connect(), None, cache, self.earlier_cache) as worker:
                yield worker
            return
        address = store_address(job)
        with (
            closing(address.connect()) as store,
            local_worker(TaskWiring.of(job), store, address, cache, self.earlier_cache) as worker,
        ):
            yield worker


@contextmanager
def local_worker(
    tasks: TaskWiring,
    store: TaskStore,
    tables: PostgresStoreAddress | None,
    cache: Path,
    earlier_cache: Path | None = None,
) -> Iterator[Worker]:
    """Yield a worker as `worker_of` makes it. At the end closes it, its readers, and the clients with which it has
    written in this thread."""
    inputs = JobInputs(tasks.inputs)
    with closing(inputs), closing(worker_of(tasks, store, tables, cache, inputs, earlier_cache)) as worker:
        try:
            yield worker
        finally:
            close_idle_clients()


def worker_of(
    tasks: TaskWiring,
    store: TaskStore,
    tables: PostgresStoreAddress | None,
    cache: Path,
    inputs: JobInputs | None = None,
    earlier_cache: Path | None = None,
) -> Worker:
    """Return a worker of a job. `tables` is where output tables are; None: there can be none."""
    outputs, dead_letters = tasks.outputs, tasks.outputs.dead_letter_sink()
    # A worker that reads from Kafka loads kernels anyway; others would lose more time by loading than they save.
    hasher = (
        compiled_key_hash() if any(part.kafka is not None for side in tasks.inputs for part in side.parts) else key_hash
    )
    return Worker(
        WorkerParts(
            job=tasks.job,
            pipeline=tasks.pipeline,
            inputs=inputs or JobInputs(tasks.inputs),
            store=store,
            output=outputs.sink(tables).writer(),
            dead_letters=None if dead_letters is None else dead_letters.writer(),
            cache=cache,
            cache_bytes=cache_bytes(),
            earlier_cache=earlier_cache,
            hasher=hasher,
            row_limit=outputs.row_limit(),
            ordered=outputs.need_order,
            routing=outputs.routing,
            paths_of=paths_of(tasks.inputs),
        )
    )


def load_kernels(inputs: Iterable[Input]) -> None:
    """Load the compiled kernels that readers and decoders of these inputs need."""
    formats = {part.format for side in inputs for part in side.parts if part.kafka is not None}
    if formats:
        kernels("messages")
        kernels("xxh3")
    if "json" in formats:
        kernels("json")


def cache_bytes() -> int:
    """Return the size limit of a segment cache. Raises EnvironmentProblem if the variable holds no size."""
    text = os.environ.get(CACHE_BYTES)
    try:
        return DEFAULT_MAX_BYTES if text is None else parse_bytes(text)
    except ValueError as error:
        raise EnvironmentProblem(
            f"The environment variable {CACHE_BYTES} holds no size",
            facts=str(error),
            todo="Correct it under spark.executorEnv",
        ) from error


class JobInputs:
    """A worker's readers and decoders, by input and lane, opened at first use."""

    def __init__(self, inputs: Iterable[Input]) -> None:
        self._sides = {model.name: model for model in inputs}
        self._readers: dict[tuple[str, int], SourceReader] = {}
        self._decoders: dict[tuple[str, int], Decoder] = {}

    def reader(self, name: str, lane: int) -> SourceReader:
        if (name, lane) not in self._readers:
            self._readers[name, lane] = reader_for(self._sides[name])
        return self._readers[name, lane]

    def decoder(self, name: str, lane: int) -> Decoder:
        if (name, lane) not in self._decoders:
            side = self._sides[name]
            self._decoders[name, lane] = with_record_boundary(side, decoder_for(side))
        return self._decoders[name, lane]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
