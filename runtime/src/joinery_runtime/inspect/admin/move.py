"""`joinery state move`: moves a job's state to another Postgres."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from joinery_runtime.errors import JoineryError
from joinery_runtime.job import Job
from joinery_runtime.job.model.wording import counted, size_text
from joinery_runtime.state.moving import MovableStore, Moving
from joinery_runtime.state.postgres import PostgresStore

DSN_VARIABLE = "JOINERY_MOVE_DSN"
"""The variable for the target's DSN: on the command line, a list of processes would show its password."""


@dataclass(frozen=True, slots=True)
class StateMove:
    job: str
    source: str
    target: str
    contents: Moving
    moved: bool

    def document(self) -> Mapping[str, Any]:
        return {"job": self.job, "from": self.source, "to": self.target, "moved": self.moved, **asdict(self.contents)}

    def lines(self) -> Iterator[str]:
        contents = self.contents
        segments, savepoints = counted(contents.segments, "segment"), counted(contents.savepoints, "savepoint")
        size = f"{segments} ({size_text(contents.bytes)}), {savepoints}, {counted(contents.epochs, 'epoch')}"
        if not self.moved:
            yield f"job {self.job}: {size} would be moved to {self.target}"
            return
        yield f"job {self.job}: {size} moved to {self.target}"
        yield "Name that place in stateStore before the job is started again; here it does not start any more."


def move(job: Job, store: PostgresStore, to: str | None, schema: str | None, *, dry_run: bool) -> StateMove:
    """Moves the state. After a JoineryError, a move that has begun can be repeated."""
    dsn = to or os.environ.get(DSN_VARIABLE)
    if not dsn:
        raise JoineryError("It is not said where to", todo=f"Give --to DSN, or set {DSN_VARIABLE}")
    # Both change in one transaction: such a table has to be in the state's database, and would stay behind.
    tables = [output.postgres for output in job.outputs if output.postgres is not None]
    for table in (table for table in tables if not table.is_external):
        raise JoineryError(
            f"Job {job.name} writes to the table {table.table}, which is in the state's database and would stay behind",
            facts="both change in one transaction, so they have to move together",
            todo="Stop the job, take the whole database along with pg_dump and pg_restore, and name it in stateStore; "
            "then make sure that the job is not started at the old place",
        )
    with (
        closing(MovableStore(store.dsn, store.schema)) as source,
        closing(MovableStore(dsn, schema or store.schema)) as target,
    ):
        contents = source.contents(job.name)
        if not dry_run:
            source.move_to(target, job.name)
        elif target.knows(job.name):
            raise JoineryError(f"There is state of a job {job.name} at the target already", facts=target.location)
        return StateMove(job.name, source.location, target.location, contents, moved=not dry_run)


def stay(job: Job, store: PostgresStore) -> None:
    with closing(MovableStore(store.dsn, store.schema)) as source:
        source.stay(job.name)
