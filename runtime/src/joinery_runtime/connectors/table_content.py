"""Reads the present content of an output table in Postgres, Iceberg or Delta."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from psycopg import sql

from joinery_runtime.connectors.content import Piece
from joinery_runtime.connectors.lake.sink import LakeTable, folder_of, lake_schema
from joinery_runtime.connectors.postgres.client import connect
from joinery_runtime.connectors.postgres.sink import REPLACEMENT, problem_of
from joinery_runtime.connectors.postgres.table import TargetTable, columns_of
from joinery_runtime.connectors.sink import short_incarnation
from joinery_runtime.errors import SinkError
from joinery_runtime.formats.json.encode import rows_to_json

_CSV_BYTES = 8 << 20
# A role's or an environment's own settings (PGDATESTYLE) would change the text of dates and the last digits of floats.
_AS_WRITTEN = "SET LOCAL datestyle = 'ISO'; SET LOCAL extra_float_digits = 1"
_SNAPSHOTS = 1000  # tries, of some milliseconds each


class PostgresContent:
    """A table in one snapshot. `schema` is the output's. A table in the state's database changes with the state's
    commit; `committed` gives the last committed epoch. For a table elsewhere, `published` reads from the snapshot up to
    which epoch it has all rows."""

    exact: ClassVar[bool] = True
    heads: ClassVar[Mapping[int, Sequence[bytes]]] = {}
    notes: ClassVar[Sequence[str]] = ()

    def __init__(
        self,
        dsn: str,
        table: TargetTable,
        schema: pa.Schema,
        committed: Callable[[], int],
        published: Callable[[psycopg.Connection[Any]], int] | None,
    ) -> None:
        self._table, self._schema = table, table.columns(schema)
        self.upsert_key, self.retracted = table.upsert_key, table.retracted
        with self._translate_errors():
            self._connection = connect(dsn)
            try:
                self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                self._connection.read_only = True
                self._table = table.with_schema(self._connection)
                self._connection.rollback()
                self.complete_to = self._begin(committed, published)
            except BaseException:
                self._connection.close()
                raise

    def _begin(self, committed: Callable[[], int], published: Callable[[psycopg.Connection[Any]], int] | None) -> int:
        """Take the snapshot, and return the epoch up to which it has all rows."""
        for _ in range(_SNAPSHOTS):
            before = committed()
            self._connection.execute(_AS_WRITTEN)
            if not columns_of(self._connection, self._table.identifier):
                raise SinkError(
                    f"The output table {self._table.name} is missing", todo="It is created when the job starts"
                )
            if published is not None:
                return published(self._connection)
            if committed() == before:
                return before
            self._connection.rollback()
        raise SinkError(
            f"The output table {self._table.name} cannot be read between two commits",
            facts=f"tried {_SNAPSHOTS} times",
            todo="Run the command again when the job commits less often",
        )

    def texts(self, rows: pa.Table) -> list[bytes]:
        for index, field in enumerate(rows.schema):
            if pa.types.is_string(field.type):
                rows = rows.set_column(index, field, pc.replace_substring(rows[index], "\0", REPLACEMENT.decode()))
        return self._lines(rows)

    def _lines(self, rows: pa.Table) -> list[bytes]:
        """Encode rows with JSON columns in one spelling: jsonb keeps neither the order of fields, nor blanks, nor the
        spelling of numbers."""
        for index, field in enumerate(rows.schema):
            if field.name in self._table.nested:
                spelled = [
                    None
                    if text is None
                    else json.dumps(json.loads(text, parse_int=_number, parse_float=_number), sort_keys=True)
                    for text in rows[index].to_pylist()
                ]
                rows = rows.set_column(index, field, pa.array(spelled, pa.string()))
        return rows_to_json(rows)

    def pieces(self) -> Iterator[Piece]:
        columns = sql.SQL(", ").join(map(_as_text, self._schema))
        copy = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(columns, self._table.identifier)
        with tempfile.TemporaryDirectory(prefix="joinery-verify-") as folder:
            path = Path(folder) / "rows.csv"
            with self._translate_errors(), path.open("wb") as file, self._connection.cursor().copy(copy) as stream:
                for piece in stream:
                    file.write(piece)
            if not path.stat().st_size:
                return
            batches = _csv_batches(path, self._schema)
            while True:
                with self._translate_errors():
                    batch = next(batches, None)
                if batch is None:
                    return
                texts = self._lines(batch)
                yield Piece(texts, [""] * len(texts), [0] * len(texts))

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        summary = f"The output table {self._table.name} cannot be read"
        try:
            yield
        except psycopg.Error as error:
            raise problem_of(summary, error, external=True) from error
        except pa.ArrowInvalid as error:
            todo = "Correct the value, or let the column have the type that the job's output has"
            raise SinkError(
                summary, facts=f"it has a value that its job cannot have written: {error}", todo=todo
            ) from error

    def close(self) -> None:
        self._connection.close()


def _number(text: str) -> str:
    """Normalise a number. A character that jsonb cannot contain tells it from text."""
    value = Decimal(text)
    return "\0" + format(value if value else abs(value), "f")


def _as_text(column: pa.Field) -> sql.Composed:
    """Return a column of the query, in a form that `_csv_batches` reads."""
    name = sql.Identifier(column.name)
    if pa.types.is_timestamp(column.type):
        return sql.SQL("(extract(epoch FROM {}) * 1000)::bigint").format(name)
    return sql.SQL("pg_catalog.encode({}, 'hex'::text)" if pa.types.is_binary(column.type) else "{}").format(name)


def _csv_batches(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows that Postgres has copied to a file, in pieces, with the columns of the output."""
    written: dict[str, pa.DataType] = {}
    for column in schema:
        in_text = pa.types.is_binary(column.type)
        number = pa.types.is_timestamp(column.type) or pa.types.is_int32(column.type)  # a value may exceed int32
        written[column.name] = pa.string() if in_text else pa.int64() if number else column.type
    with pacsv.open_csv(
        path,
        read_options=pacsv.ReadOptions(column_names=list(written), block_size=_CSV_BYTES),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pacsv.ConvertOptions(
            column_types=written, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False,
            true_values=["t"], false_values=["f"],
        ),
    ) as reader:  # fmt: skip
        for batch in reader:
            yield pa.table([_as_column(batch[column.name], column.type) for column in schema], schema.names)


def _as_column(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        decoded: pa.Array = pl.Series(pl.from_arrow(values)).str.decode("hex").to_arrow()
        return decoded.cast(kind)
    return values.cast(kind) if pa.types.is_timestamp(kind) else values


class LakeContent:
    """An Iceberg or Delta table at one of its own commits. `schema` is the output's. `certain` is the newest epoch that
    has to be in the table, whatever its mark says."""

    exact: ClassVar[bool] = True
    heads: ClassVar[Mapping[int, Sequence[bytes]]] = {}
    notes: ClassVar[Sequence[str]] = ()
    upsert_key: ClassVar[tuple[str, ...]] = ()
    retracted: ClassVar[str | None] = None

    def __init__(self, table: LakeTable, job: str, incarnation: str, schema: pa.Schema, certain: int) -> None:
        self._table, self._schema, incarnation = table, schema, short_incarnation(incarnation)
        mark = table.mark(job, incarnation)
        self.complete_to = max(0 if mark is None else mark.epoch, certain)
        self._folder = f"/{folder_of(job, incarnation, 0).rsplit('/', 1)[0]}/"

    def texts(self, rows: pa.Table) -> list[bytes]:
        return rows_to_json(rows.cast(lake_schema(rows.schema)))

    def pieces(self) -> Iterator[Piece]:
        """Yield the rows of each file. A file that this job has not written comes from another writer, or from a
        compaction that combined the job's files with others."""
        number = 0
        for path, batches in self._table.files():
            own = self._folder in f"/{path}"
            for batch in batches:
                rows = batch.select([name for name in self._schema.names if name in batch.schema.names])
                texts = rows_to_json(rows.cast(lake_schema(rows.schema)))
                yield Piece(texts, [path] * len(texts), list(range(number, number + len(texts))), own)
                number += len(texts)

    def close(self) -> None:
        self._table.close()
