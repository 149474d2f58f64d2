"""`joinery trace`: reads the steps, opens a store, runs them."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.stores import EMBEDDED_SCHEMA, store_address
from joinery_runtime.hosts.trace import run_trace
from joinery_runtime.job import Job
from joinery_runtime.state.embedded import embedded_postgres
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import StateStore


def trace_command(
    job: Job, steps: Path, store: str, shards: int | None, *, verbose: bool = False
) -> Iterator[dict[str, Any]]:
    """Yields one result per step. Raises JoineryError naming the line of the step that failed."""
    listed = list(read_steps(steps))
    # A trace never touches the state of the job itself.
    name = f"trace-{uuid.uuid4().hex}"
    private = job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": name})})
    with _store(job, store) as opened:
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
    """Yields the steps of a JSON lines file with their line numbers. Raises JoineryError naming a line that is not a
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
def _store(job: Job, kind: str) -> Iterator[StateStore]:
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
