"""`joinery trace`, `why` and `verify`: where steps, log and records come from, the job's own or those of a trace."""

from __future__ import annotations

import json
import re
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.python_functions import with_functions
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.stores import EMBEDDED_SCHEMA, OpenStore, open_store, store_address
from joinery_runtime.hosts.worker_builder import JobInputs
from joinery_runtime.inspect.stored_state import durable, has_committed, record_of, without_epochs
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.trace_environment import StepInputs
from joinery_runtime.inspect.trace_steps import StepLog, rows_by_input, united_step
from joinery_runtime.inspect.verify import Verdict, verify
from joinery_runtime.inspect.why import Answer, explain_records
from joinery_runtime.job import Job, with_stored_names
from joinery_runtime.state.embedded import embedded_postgres
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import StateStore

_PLACE = re.compile(r"(?P<topic>.+):(?P<partition>\d+)=(?P<offset>\d+)")

_EPOCHS = re.compile(r"(\d*)\.\.(\d*)")


def why_command(job: Job, key: Sequence[str], record: str | None, until: int | None, steps: Path | None) -> Answer:
    """Raise JoineryError that says what is wrong with the question, or why there is no answer."""
    if bool(key) == (record is not None):
        raise JoineryError(
            "The question needs either a key or a record", todo="Give either --key COLUMN=VALUE or --record"
        )
    at: tuple[str, int, int] | None = None
    if record is not None:
        match = _PLACE.fullmatch(record)
        if match is None:
            raise JoineryError(
                f"--record {record} names no record",
                facts="a record is TOPIC:PARTITION=OFFSET, of a file PATH:0=BYTE, of a trace INPUT:PARTITION=NUMBER",
                todo="Take it from a dead letter, from `joinery state show`, or from the topic",
            )
        at = match["topic"], int(match["partition"]), int(match["offset"])
    job = with_functions(job)
    if steps is not None:
        store, trace_steps = MemoryStore(), [step for _, step in read_steps(steps)]
        for _ in run_trace(job, trace_steps, store):
            """What the steps emitted is asked for afterwards."""
        logs = {side.name: StepLog(side) for side in job.inputs}
        for step in trace_steps:
            for name, rows in rows_by_input(united_step(step, job.inputs)).items():
                logs[name].append(rows)
        return explain_records(job, store, StepInputs(job, logs), key, at, until)
    with _open_for_reading(job) as (filled, opened, inputs):
        return explain_records(filled, opened.store, inputs, key, at, until)


def verify_command(job: Job, epochs: str | None) -> Verdict:
    """`epochs` is FIRST..LAST, either may be left out."""
    match = _EPOCHS.fullmatch(epochs or "..")
    first, last = (int(text) if text else None for text in match.groups()) if match is not None else (None, None)
    if match is None or (first is not None and last is not None and first > last):
        raise JoineryError(f"--epochs {epochs} are no epochs", todo="Give FIRST..LAST, FIRST.. or ..LAST")
    with _open_for_reading(with_functions(job)) as (filled, opened, inputs):
        return verify(filled, opened.store, inputs, first, last, opened.address)


@contextmanager
def _open_for_reading(job: Job) -> Iterator[tuple[Job, OpenStore, JobInputs]]:
    """Yield the job with its secrets, its store and its inputs. Raises JoineryError if there is no state of the job."""
    job = durable(job)
    with open_store(job, lambda _: None) as opened, closing(JobInputs(job.inputs)) as inputs:
        record = record_of(job, opened.store)
        if not has_committed(opened.store, record):
            raise without_epochs(record)
        yield with_stored_names(job, record.definition), opened, inputs


def trace_command(
    job: Job, steps: Path, store: str, shards: int | None, *, verbose: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield one result per step. Raises JoineryError naming the line of the step that failed."""
    listed = list(read_steps(steps))
    # A trace never touches the state of the job itself.
    name = f"trace-{uuid.uuid4().hex}"
    private = with_functions(job).model_copy(update={"metadata": job.metadata.model_copy(update={"name": name})})
    with _open_store(job, store) as opened:
        done = 0
        try:
            for result in run_trace(private, [step for _, step in listed], opened, shards, verbose=verbose):
                yield result
                done += 1
        except JoineryError as error:
            line_name = f"{steps}, line {listed[done][0]}"
            raise type(error)(f"{line_name}: {error.summary}", facts=error.facts, todo=error.todo) from error
        finally:
            opened.delete_job(private.name)


def read_steps(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the steps of a JSON lines file with their line numbers. Raises JoineryError naming a line that is not a
    JSON object."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JoineryError(f"cannot read the steps {path}", facts=str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise JoineryError(f"cannot read the steps {path}", facts=f"byte {error.start} is not UTF-8") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            step = json.loads(line)
        except json.JSONDecodeError as error:
            raise JoineryError(f"{path}, line {number}: not JSON", facts=str(error)) from error
        if not isinstance(step, dict):
            raise JoineryError(f"{path}, line {number}: a step is a JSON object", facts=f"found {line.strip()[:40]!r}")
        yield number, step


@contextmanager
def _open_store(job: Job, kind: str) -> Iterator[StateStore]:
    if kind == "memory":
        yield MemoryStore()
    elif job.spec.state_store.postgres is not None:
        with closing(store_address(with_secrets(job)).connect()) as opened:
            yield opened
    else:
        with (
            tempfile.TemporaryDirectory(prefix="joinery-trace-") as directory,
            embedded_postgres(Path(directory)) as dsn,
            closing(PostgresStore(dsn, EMBEDDED_SCHEMA)) as opened,
        ):
            yield opened
