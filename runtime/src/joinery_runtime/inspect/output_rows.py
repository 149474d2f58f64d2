"""Reads the rows of a job's output for `joinery sql`. Polars reads what a query needs from files, topics and tables,
and Postgres answers a query over a table of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message
from polars.io.plugins import register_io_source
from psycopg import sql
from psycopg.types.string import TextLoader
from sqlglot import exp

from joinery_runtime.connectors.content import KafkaRecords
from joinery_runtime.connectors.kafka.target import KafkaTarget
from joinery_runtime.connectors.lake.sink import LakeTable
from joinery_runtime.connectors.outputs import OutputTarget, lake_table
from joinery_runtime.connectors.postgres.client import connect, is_unavailable
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import Job
from joinery_runtime.job.model.outputs import FileOutput
from joinery_runtime.job.model.wording import counted

_GROUP = "joinery.sql"

Types = Mapping[str, pl.DataType]


def output_rows(
    job: Job,
    target: OutputTarget,
    dsn: str,
    stack: ExitStack,
    notes: list[str],
    buffered_note: str | None = None,
    *,
    typed: bool = True,
    may_be_empty: bool = False,
) -> pl.LazyFrame:
    """Return the rows of one output, to be collected before `stack` ends. Collecting reads them, and adds to `notes`
    what could not be read. `dsn` is the state's database. Columns of JSON files have the types that the job gives them
    or, with `typed` False, those found in the files. Raises JoineryError, also if no file has been written, unless the
    output `may_be_empty`."""
    output = target.output
    if output.postgres is not None:
        table = TargetTable(output.postgres.table)
        with closing(_connect_to_table(table, output.postgres.dsn or dsn)) as connection:
            try:
                query = (
                    sql.SQL("SELECT * FROM {}").format(table.with_schema(connection).identifier).as_string(connection)
                )
                rows = _with_any_times(connection, lambda: pl.read_database(query, connection))
                return _with_job_types(rows, target.schema).lazy()
            except psycopg.Error as error:
                raise _unreadable_table(table, error) from error
    if output.iceberg is not None or output.delta is not None:
        return _scan_lake(stack.enter_context(closing(lake_table(output))))
    if output.kafka is not None:
        return _scan_topic(target.topic(), _json_types(target), notes)
    if output.file is None:
        raise JoineryError(
            f"The output of job {job.name} cannot be queried",
            facts="it goes to the console, which keeps no rows",
            todo="Ask for another table",
        )
    return _scan_files(job, target, output.file, buffered_note, typed=typed, may_be_empty=may_be_empty)


def ask_postgres(query: exp.Query, name: str, table: TargetTable, dsn: str) -> pl.DataFrame:
    """Has Postgres answer a query over the output called `name` alone. Raises JoineryError."""
    schema, _, table_name = table.name.rpartition(".")

    def replace_name(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Table) or node.name != name:
            return node
        target = exp.table_(table_name, db=schema or None, quoted=True)
        target.set("alias", node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(name)))
        return target

    # Keeps names as written, as polars does.
    text = query.transform(replace_name).sql(dialect="postgres", identify=True)
    with closing(_connect_to_table(table, dsn)) as connection:
        connection.adapters.register_loader("numeric", TextLoader)  # of any scale, and NaN

        def ask() -> pl.DataFrame:
            connection.execute("SET LOCAL TIME ZONE 'UTC'")
            cursor = connection.execute(text)
            assert cursor.description is not None, "it is a SELECT"
            names, rows = [column.name for column in cursor.description], cursor.fetchall()
            return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)

        try:
            return _with_any_times(connection, ask)
        except (psycopg.Error, pl.exceptions.PolarsError) as error:
            if isinstance(error, psycopg.Error) and is_unavailable(error):
                raise _unreadable_table(table, error) from error
            raise JoineryError(
                "The query cannot be run", facts=f"Postgres says: {' '.join(str(error).split())}"
            ) from error


def _with_any_times(connection: psycopg.Connection[Any], ask: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Return what Postgres answers. If a time is none that Python has (after the year 9999, `infinity`), all are
    text."""
    try:
        return ask()
    except psycopg.DataError as error:
        if error.sqlstate is not None:  # it is from the server, not from a loader
            raise
    connection.rollback()
    for kind in ("timestamptz", "timestamp", "date"):
        connection.adapters.register_loader(kind, TextLoader)
    return ask()


def _with_job_types(rows: pl.DataFrame, schema: pa.Schema) -> pl.DataFrame:
    """Give columns of a table the types that the job has for them. Polars takes types from values, which do not tell
    that of a column without any, the digits of a decimal or the zone of a time. A column that a person has given
    another type, or whose values do not fit, stays as it is."""
    for name, job_type in pl.DataFrame(schema.empty_table()).schema.items():
        table_type = rows.schema.get(name, job_type)
        numbers = table_type.is_decimal() and (job_type.is_decimal() or job_type.is_integer())
        times = isinstance(table_type, pl.Datetime) and isinstance(job_type, pl.Datetime)
        if table_type != job_type and (table_type == pl.Null or numbers or times):
            with suppress(pl.exceptions.PolarsError):
                rows = rows.with_columns(pl.col(name).cast(job_type))
    return rows


def _connect_to_table(table: TargetTable, dsn: str) -> psycopg.Connection[Any]:
    try:
        connection = connect(dsn)
    except psycopg.Error as error:
        raise _unreadable_table(table, error) from error
    connection.read_only = True
    for kind in ("json", "jsonb"):  # else polars would make structs with the fields of the first rows
        connection.adapters.register_loader(kind, TextLoader)
    return connection


def _unreadable_table(table: TargetTable, error: psycopg.Error) -> JoineryError:
    return JoineryError(f"The table {table.name} cannot be read", facts=" ".join(str(error).split()))


def _scan_lake(lake: LakeTable) -> pl.LazyFrame:
    columns = lake.columns()
    types = dict(pl.DataFrame(columns.empty_table()).schema)

    def read_batches() -> Iterator[pl.DataFrame]:
        for _, rows in lake.files():
            for batch in rows:
                yield pl.DataFrame(batch).select(pl.col(name).cast(kind) for name, kind in types.items())

    return _in_batches(read_batches, types)


def _in_batches(read_batches: Callable[[], Iterator[pl.DataFrame]], types: Types) -> pl.LazyFrame:
    """Return a frame that reads batches only as far as a query needs."""

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        for batch in chain([pl.DataFrame(schema=types)], read_batches()):  # polars needs at least one batch
            selected = batch if predicate is None else batch.filter(predicate)
            selected = selected if columns is None else selected.select(columns)
            if n_rows is not None:
                selected = selected.head(n_rows)
                n_rows -= selected.height
            yield selected
            if n_rows == 0:
                return

    return register_io_source(read, schema=types, is_pure=True)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json_types(target: OutputTarget) -> Types:
    """Return the types of the JSON that the encoder writes for the columns (`formats.json.encode`)."""
    types: dict[str, pl.DataType] = {}
    for field in target.schema:
        in_millis = pa.types.is_timestamp(field.type) and target.output.timestamps == "epochMillis"
        if pa.types.is_boolean(field.type):
            types[field.name] = pl.Boolean()
        elif pa.types.is_uint64(field.type):  # ids of sessions are too large for int64
            types[field.name] = pl.UInt64()
        elif pa.types.is_integer(field.type) or in_millis:
            types[field.name] = pl.Int64()
        else:
            types[field.name] = pl.Float64() if pa.types.is_floating(field.type) else pl.String()
    return types


def _scan_topic(target: KafkaTarget, types: Types, notes: list[str]) -> pl.LazyFrame:
    """Return the committed records of a topic, up to its present end."""
    with closing(KafkaRecords(target, _GROUP)) as records:
        ranges = records.ranges
        notes += records.notes

    def read_batches() -> Iterator[pl.DataFrame]:
        other: list[str] = []
        with closing(KafkaRecords(target, _GROUP, ranges)) as reader:
            for messages in reader.messages():
                values = reader.values(messages)
                yield _decode_lines(values, messages, types, other)
        if other:
            omitted = f"{counted(len(other), 'record', 'are')} left out that no row of this job can be"
            note = f"{omitted}; the first one is {target.topic}-{other[0]}"
            if note not in notes:  # a query may read the topic several times
                notes.append(note)

    return _in_batches(read_batches, types)


def _decode_lines(values: Sequence[bytes], messages: Sequence[Message], types: Types, other: list[str]) -> pl.DataFrame:
    """Decode lines of JSON to rows. Adds the places of lines that are not rows to `other`, as PARTITION@OFFSET. Halves
    what cannot be decoded as a whole, since polars takes as long for one line as for hundreds."""
    if len(values) == 1:
        try:
            return pl.read_ndjson(json.dumps(json.loads(values[0])).encode(), schema=types)
        except (ValueError, pl.exceptions.PolarsError):
            other.append(f"{messages[0].partition()}@{messages[0].offset()}")
            return pl.DataFrame(schema=types)
    try:
        decoded = pl.read_ndjson(b"\n".join(values), schema=types)
        if decoded.height == len(values):
            return decoded
    except pl.exceptions.PolarsError:
        """Then by halves."""
    middle = len(values) // 2
    halves = (slice(None, middle), slice(middle, None))
    return pl.concat([_decode_lines(values[half], messages[half], types, other) for half in halves])


# --- files ------------------------------------------------------------------------------------------------------------


def _scan_files(
    job: Job, target: OutputTarget, file: FileOutput, buffered_note: str | None, *, typed: bool, may_be_empty: bool
) -> pl.LazyFrame:
    folder = Path(file.path)
    # Files in the other format are from before an edit of the job.
    lines, columns = sorted(folder.glob("*.jsonl")), sorted(folder.glob("*.parquet"))
    if not lines and not columns and not may_be_empty:
        facts = f"no file is in {folder}"
        raise JoineryError(
            f"There is no output of job {job.name} yet", facts=f"{facts}; {buffered_note}" if buffered_note else facts
        )
    types = _json_types(target)
    frames = [
        *(
            _scan_json(paths, types, typed=typed)
            for paths in _group_by_shape(lines, _names_of if typed else Path).values()
        ),
        *(
            pl.scan_parquet(paths)
            for paths in _group_by_shape(
                columns, lambda path: tuple((field.name, field.type) for field in pq.read_schema(path))
            ).values()
        ),
    ]
    try:
        if frames:
            frame = pl.concat(frames, how="diagonal_relaxed")
        elif target.output.format == "parquet":
            frame = pl.DataFrame(target.schema.empty_table()).lazy()
        else:
            frame = pl.LazyFrame(schema=types)
        frame.collect_schema()
    except pl.exceptions.PolarsError as error:
        raise JoineryError(
            f"The files of {folder} make no table",
            facts=str(error),
            todo="Move the files of one definition of the job to a folder of their own and read each folder",
        ) from error
    return frame


def _group_by_shape(paths: Sequence[Path], shape_of: Callable[[Path], Any]) -> dict[Any, list[Path]]:
    """Group files by the shape of their rows (`shape_of`), so that one scan can read a group."""
    groups: dict[Any, list[Path]] = {}
    for path in paths:
        if path.stat().st_size:
            try:
                groups.setdefault(shape_of(path), []).append(path)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise _unreadable_file(path, error) from error
    return groups


def _names_of(path: Path) -> tuple[str, ...]:
    """Return the columns of a JSON file, from its first line: all lines have the same, except columns that an edit
    added."""
    with path.open("rb") as file:
        row = json.loads(file.readline())
    if not isinstance(row, dict):
        raise ValueError("its first line is no object")
    return tuple(row)


def _scan_json(paths: list[Path], types: Types, *, typed: bool) -> pl.LazyFrame:
    """Scan JSON files. Polars reads whole files to infer types, so types are inferred only if the job does not name
    them."""
    if not typed or not set(_names_of(paths[0])) <= types.keys():
        try:
            inferred = dict(pl.scan_ndjson(paths, infer_schema_length=None).collect_schema())
        except pl.exceptions.PolarsError as error:
            raise _unreadable_file(paths[0], error) from error
        declared = (
            types if typed else {name: kind for name, kind in types.items() if kind == pl.UInt64 and name in inferred}
        )
        types = {**inferred, **declared}
    return pl.scan_ndjson(paths, schema=types)


def _unreadable_file(path: Path, error: Exception) -> JoineryError:
    return JoineryError(f"The file {path} of the output cannot be read", facts=str(error))
