"""Builds the worker of an executor process. Imports no more than a worker needs, because a cold start waits for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from joinery_runtime.connectors.inputs import decoder_for, guarded, reader_for
from joinery_runtime.connectors.outputs import dead_letter_sink, replaces_rows, row_limit, sink_for
from joinery_runtime.connectors.source import SourceReader
from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.engine.cache import DEFAULT_MAX_BYTES
from joinery_runtime.engine.worker import Worker, WorkerParts
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.formats.compiled import compiled_key_hash, kernels
from joinery_runtime.formats.record_paths import paths_of
from joinery_runtime.formats.records import Decoder
from joinery_runtime.hosts.own_secrets import with_own_secrets
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.shared_memory import MemoryStoreAddress
from joinery_runtime.hosts.stores import PostgresStoreAddress, store_address
from joinery_runtime.job import Job
from joinery_runtime.job.model.quantity import parse_bytes
from joinery_runtime.state.store import TaskStore

CACHE_BYTES = "JOINERY_CACHE_BYTES"
"""The environment variable for the size limit of a segment cache, as `20Gi` or in bytes."""


@dataclass(frozen=True, slots=True)
class WorkerBuilder:
    """Builds an executor process's worker. The builder pickles and holds no secret: the process looks up secrets that
    `job` refers to, and reads those written in the job itself from `job_file` (None: there are none). `memory` is the
    store in the driver's memory; None: the job names a Postgres."""

    job: Job
    job_file: Path | None
    memory: MemoryStoreAddress | None

    @property
    def digest(self) -> str:
        # Two runs of one job on one session have the same workers, but each its own store in the driver's memory.
        columns = [column.name for column in self.job.output_columns]  # whose names may be those of stored state
        return hashlib.sha256(f"{self.job.model_dump_json()}\n{columns}\n{self.memory}".encode()).hexdigest()[:12]

    def __call__(self, cache: Path) -> Worker:
        """Builds the worker. Raises EnvironmentProblem if a secret cannot be read."""
        job = with_secrets(self.job if self.job_file is None else with_own_secrets(self.job, self.job_file))
        load_kernels(job)  # here, which the first epoch on Spark does not wait for if another one runs meanwhile
        if self.memory is not None:
            return worker_of(job, self.memory.connect(), None, cache)
        address = store_address(job)
        return worker_of(job, address.connect(), address, cache)


@contextmanager
def local_worker(job: Job, store: TaskStore, tables: PostgresStoreAddress | None, cache: Path) -> Iterator[Worker]:
    """Yields a worker as `worker_of` makes it, and closes its readers at the end."""
    inputs = JobInputs(job)
    try:
        yield worker_of(job, store, tables, cache, inputs)
    finally:
        inputs.close()


def worker_of(
    job: Job,
    store: TaskStore,
    tables: PostgresStoreAddress | None,
    cache: Path,
    inputs: JobInputs | None = None,
) -> Worker:
    """A worker of a job with its secrets filled in. `tables` is where output tables are; None: there can be none."""
    output, dead_letters = sink_for(job, tables), dead_letter_sink(job)
    dead_writer = None if dead_letters is None else dead_letters.writer()
    access = inputs or JobInputs(job)
    # A worker that reads from Kafka loads kernels anyway; others would lose more time by loading than they save.
    hasher = compiled_key_hash() if any(side.kafka is not None for side in job.inputs) else key_hash
    parts = WorkerParts(job.name, compile_job(job), access, store, output.writer(), dead_writer, cache, hasher=hasher)
    parts = replace(parts, cache_bytes=cache_bytes(), row_limit=row_limit(job))
    return Worker(replace(parts, ordered=replaces_rows(job), paths_of=paths_of(job)))


def load_kernels(job: Job) -> None:
    """Loads the compiled kernels that readers and decoders of the job need."""
    formats = {side.format for side in job.inputs if side.kafka is not None}
    if formats:
        kernels("messages")
        kernels("xxh3")
    if "json" in formats:
        kernels("json")


def cache_bytes() -> int:
    """The size limit of a segment cache. Raises EnvironmentProblem if the variable holds no size."""
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

    def __init__(self, job: Job) -> None:
        self._sides = {side.name: side for side in job.inputs}
        self._readers: dict[tuple[str, int], SourceReader] = {}
        self._decoders: dict[tuple[str, int], Decoder] = {}

    def reader(self, name: str, lane: int) -> SourceReader:
        if (name, lane) not in self._readers:
            self._readers[name, lane] = reader_for(self._sides[name])
        return self._readers[name, lane]

    def decoder(self, name: str, lane: int) -> Decoder:
        if (name, lane) not in self._decoders:
            side = self._sides[name]
            self._decoders[name, lane] = guarded(side, decoder_for(side))
        return self._decoders[name, lane]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
