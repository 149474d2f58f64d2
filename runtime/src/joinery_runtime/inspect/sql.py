"""`joinery sql`: a query over what a job has written and what it keeps. Polars runs it in this process, or Postgres if
the query is over an output table in Postgres alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.connectors.files.rolling import held_parts
from joinery_runtime.connectors.outputs import Outputs, OutputTarget
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.connectors.sink import short_incarnation
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.sides import stored_rows
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import Horizon, StateRun
from joinery_runtime.core.table.columns import OFFSET, PARTITION, partitions_of
from joinery_runtime.core.table.segment import Run
from joinery_runtime.engine.job_state import stored_floors
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.inspect.kinds.base import description_of
from joinery_runtime.inspect.output_rows import ask_postgres, output_rows
from joinery_runtime.inspect.stored_state import durable, open_also_moved, record_of
from joinery_runtime.job import Job, with_stored_names
from joinery_runtime.job.model.wording import counted, listed
from joinery_runtime.state.migrations import flagged_rows, read_runs
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord, StateReader

EPOCHS = "epochs"
_WHOLE_LOG = 1_000_000  # epochs; the stored log is bounded anyway


def run_query(job: Job, text: str) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows of a SELECT over `output`, or the job's outputs by their names, `epochs`, and the parts of the
    state (`state_left`, `state_right`, `state_left_2`, ...; `state_sessions`; `state_aggregate`, ...), and what outputs
    do not show, in words. Reads as much of the outputs as the query needs, and all of the
    other tables that it names. Raises JoineryError."""
    job = durable(job)
    query = _parse_query(text)
    cte_names = {cte.alias for cte in query.find_all(exp.CTE)}
    names = {table.name for table in query.find_all(exp.Table)} - cte_names
    with open_also_moved(job) as store, ExitStack() as stack:
        record = record_of(job, store)
        job = with_stored_names(job, record.definition)
        tables = _table_readers(job, store, record)
        targets = {target.name: target for target in Outputs.of(job).targets}
        if unknown := sorted(names - targets.keys() - tables.keys()):
            outputs = {name: target.output.postgres for name, target in targets.items()}
            words = [f"{name} for the rows of {table.table}" for name, table in outputs.items() if table is not None]
            raise JoineryError(
                f"There is no table {', '.join(unknown)} of job {job.name}",
                facts=f"its tables are {', '.join(sorted((*targets, *tables)))}",
                todo=f"Write {listed(words)}" if words else "",
            )
        read = [target for name, target in targets.items() if name in names]
        buffered_notes = {target.name: _buffered_note(target, record) for target in read}
        notes = [note for note in buffered_notes.values() if note is not None]
        if len(names) == len(read) == 1 and (table := read[0].output.postgres) is not None:
            return ask_postgres(query, read[0].name, TargetTable(table.table), table.dsn or store.dsn), notes
        frames = {name: tables[name]().lazy() for name in sorted(names & tables.keys())}

        def run_select(*, typed: bool) -> pl.DataFrame:
            outputs = {
                target.name: output_rows(job, target, store.dsn, stack, notes, buffered_notes[target.name], typed=typed)
                for target in read
            }
            return pl.SQLContext({**frames, **outputs}, eager=False).execute(text).collect(engine="streaming")

        try:
            return _by_types(read, run_select), notes
        except pl.exceptions.PolarsError as error:
            # Behind the first paragraph is polars' plan, which says nothing of the query.
            raise JoineryError("The query cannot be run", facts=str(error).partition("\n\nResolved plan")[0]) from error


def read_output(job: Job, name: str | None = None) -> pl.DataFrame:
    """All rows of one output, including earlier runs; none, with its columns, if the job has emitted none. `name` may
    be None if the job has one. Raises JoineryError if they cannot be read back, or there is no such output."""
    names = [output.name for output in job.outputs]
    if len(names) > 1 if name is None else name not in names:
        raise JoineryError(
            f"Job {job.name} has {'several outputs' if name is None else f'no output {name}'}",
            facts=f"its outputs are {', '.join(names)}",
            todo=f"Ask for one, as in output({names[0]!r})",
        )
    number = 0 if name is None else names.index(name)
    postgres = job.outputs[number].postgres
    with ExitStack() as stack:
        if postgres is None or postgres.is_external:
            job, dsn = with_secrets(job), ""
        else:
            job = durable(job)
            dsn = stack.enter_context(open_also_moved(job)).dsn
        target = Outputs.of(job).targets[number]

        def rows(*, typed: bool) -> pl.DataFrame:
            return output_rows(job, target, dsn, stack, [], typed=typed, may_be_empty=True).collect(engine="streaming")

        return _by_types([target], rows)


def _by_types(targets: Sequence[OutputTarget], read: Callable[..., pl.DataFrame]) -> pl.DataFrame:
    """Read with the job's types. If rows in files from before an edit have other types, reads with the types found."""
    try:
        return read(typed=True)
    except pl.exceptions.ComputeError:
        if all(target.output.file is None for target in targets):
            raise
        return read(typed=False)


def _buffered_note(target: OutputTarget, record: JobRecord) -> str | None:
    """In words, which rows of this incarnation of the job the output does not show yet; None if there are none."""
    file = target.output.file
    parts = held_parts(Path(file.path), short_incarnation(record.incarnation)) if file is not None else []
    if not parts:
        return None
    rows, since = sum(part.rows for part in parts), parts[0].epoch
    buffered = f"{counted(rows, 'row', 'are')} held for a larger file"
    return f"{target.name} does not show what epochs since {since} have emitted: {buffered} (rollSize)"


def shown(frame: pl.DataFrame, rows: int) -> str:
    """Return the first rows as a table for a terminal."""
    with pl.Config(
        tbl_rows=rows,
        tbl_cols=-1,
        fmt_str_lengths=60,
        tbl_hide_column_data_types=True,
        tbl_hide_dataframe_shape=True,
        tbl_formatting="ASCII_MARKDOWN",
        tbl_width_chars=10_000,
    ):
        more = f"\n{counted(frame.height - rows, 'more row')}" if frame.height > rows else ""
        return f"{frame.head(rows)}{more}"


def json_rows(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows with values that JSON can hold: times in ISO 8601, decimals as text, bytes as hexadecimal
    digits."""
    times = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Datetime | pl.Date)]
    # Python has no years after 9999, which an expression or a table of others may give.
    beyond = [name for name in times if not frame[name].dt.year().is_between(1, 9999).all()]
    texts = frame.with_columns(pl.col(name).dt.to_string("iso:strict") for name in beyond)
    for row in texts.iter_rows(named=True):
        for name, value in row.items():
            if isinstance(value, bytes):
                row[name] = value.hex()
            elif isinstance(value, datetime | date):
                row[name] = value.isoformat()
            elif value is not None and not isinstance(value, bool | int | float | str):
                row[name] = str(value)
        yield row


def _parse_query(text: str) -> exp.Query:
    try:
        (statement,) = sqlglot.parse(text, dialect="postgres")
    except RecursionError:
        raise JoineryError("The query is nested too deep to be read", todo="Write it in a simpler way") from None
    except (SqlglotError, ValueError) as error:
        raise JoineryError("The query is no SQL statement", facts=str(error)) from error
    if not isinstance(statement, exp.Query):
        raise JoineryError("The query is no SELECT", facts="nothing of a job is changed by it")
    return statement


def _table_readers(job: Job, store: PostgresStore, record: JobRecord) -> dict[str, Callable[[], pl.DataFrame]]:
    """Return the tables other than outputs, each with the function that reads it."""
    readers: dict[str, Callable[[], pl.DataFrame]] = {EPOCHS: lambda: _read_epochs(store, job)}
    pipeline = compile_job(job)
    for part in pipeline.parts():
        step, side = pipeline.side(part)
        readers[f"state_{part.replace('.', '_')}"] = partial(_live_rows, store, record, step, side)
    return readers


def _read_epochs(store: StateReader, job: Job) -> pl.DataFrame:
    rows = [
        {
            "epoch": entry.epoch,
            "generation": entry.generation,
            "committed_at": entry.committed_at,
            "rows_in": sum(entry.result.get("rows_in", {}).values()),
            "rows_out": entry.result.get("rows_out", 0),
            "dropped": sum(sum(counts.values()) for counts in entry.result.get("dropped", {}).values()),
            "dead_letters": entry.result.get("dead", 0),
        }
        for entry in store.epochs(job.name, limit=_WHOLE_LOG)
    ]
    names = ("epoch", "generation", "committed_at", "rows_in", "rows_out", "dropped", "dead_letters")
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64))
    return frame.with_columns(pl.col("committed_at").cast(pl.Datetime("ms", "UTC"))).sort("epoch")


def _live_rows(store: StateReader, record: JobRecord, step: StepSpec, side: int) -> pl.DataFrame:
    """Return the rows of a side that are part of the state after the newest epoch."""
    spec = step.sides[side]
    parts = {spec.part, spec.flags_part}
    record, runs = read_runs(store, record, lambda meta: meta.part in parts, lambda _, run: run)
    flags = [runs[meta.key].batch for meta in record.segments if meta.part == spec.flags_part]
    floors = stored_floors(record)
    horizon = Horizon(floors.get(spec.part), floors.get(spec.part))
    batches = []
    for key in sorted(meta.key for meta in record.segments if meta.part == spec.part):
        rows = runs[key].batch
        flagged = flagged_rows(rows, key, flags) if spec.flags else None
        state_run = StateRun(key, Run.view(stored_rows(spec, rows)), 0, flagged)
        live = step.kind.live_rows(step, side, state_run, horizon, floors.get(spec.complete))
        batches.append(_user_columns(step, side, live))
    nothing = pa.RecordBatch.from_pylist([], schema=spec.segment_schema())
    batches.append(_user_columns(step, side, StateRun("", Run.view(nothing), 0, np.zeros(0, dtype=bool))))
    return pl.concat([pl.DataFrame(batch) for batch in batches])


def _user_columns(step: StepSpec, side: int, state_run: StateRun) -> pa.RecordBatch:
    """Return the user's columns, with the event time, where the row was read and whether it had a match; of merged rows
    the groups and times. If the user has a column of such a name, the user's stays."""
    spec, batch, times = step.sides[side], state_run.run.batch, description_of(step).stored_times(state_run.run.batch)
    added = {name: column.cast(pa.timestamp("ms", "UTC")) for name, column in times.items()}
    if spec.state is not None:
        users = [name for name in spec.intake.keys if name in batch.schema.names]
    else:
        users = list(spec.intake.stored)
        added |= {
            "partition": pa.array(partitions_of(batch.column(PARTITION).to_numpy()), pa.int32()),
            "offset": batch.column(OFFSET),
        }
        if spec.flags:
            added["matched"] = pa.array(state_run.flags)
    columns = {name: batch.column(name) for name in users}
    return pa.RecordBatch.from_pydict({**columns, **{name: added[name] for name in added if name not in columns}})
