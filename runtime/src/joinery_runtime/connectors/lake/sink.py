"""Tables of Parquet files with commits of their own (Iceberg, Delta), exactly once.

A task writes a file under the table's location. No reader sees it before a commit of the table names it. The state's
commit names the attempts. Then the driver makes one commit of the table, which adds exactly their files and records
that in a *mark*: (generation, epoch), for the job's incarnation in its state store. After a crash between the two
commits, recovery finds the mark or makes the table's commit. The mark grows with every published epoch, even after a
savepoint was restored. A driver that slept and was replaced finds a newer mark. If the newer driver commits at the same
time, the older one's commit conflicts, and it reads the mark again (docs/decisions/0050).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import stamina

from joinery_runtime.connectors.files.sink import MAKE_ROOM, write_parquet
from joinery_runtime.connectors.sink import (
    Attempt,
    AttemptRows,
    NamesNoStore,
    Receipt,
    RecoveryContext,
    short_incarnation,
)
from joinery_runtime.errors import OutputUnavailable, SinkError, is_full
from joinery_runtime.job.model.wording import counted

Opened = TypeVar("Opened")

_FOLDER = "joinery"
_CONFLICTS = 20  # this many conflicts in a row mean that somebody commits without a pause


class Mark(NamedTuple):
    """The newest epoch of a job's incarnation that is in a table."""

    generation: int
    epoch: int


class CommitConflict(Exception):
    """Another writer's commit came first. Nothing of this one is in the table."""


@dataclass(frozen=True, slots=True)
class Added:
    """What one commit adds to a table. Paths are relative to the table's location. `incarnation` is the owner of the
    mark."""

    job: str
    incarnation: str
    mark: Mark
    files: Sequence[Receipt]


class Storage(Protocol):
    """The place of a table's files. It can be pickled."""

    def open(self) -> tuple[pafs.FileSystem, str]:
        """Return the file system, and the table's location in it."""
        ...


class LakeTable(Protocol):
    """A table, in the driver. Methods raise SinkError and OutputUnavailable."""

    name: str

    def create(self, schema: pa.Schema) -> bool:
        """Create the table if it is missing. Returns whether it was. `schema` comes from `lake_schema`."""
        ...

    def columns(self) -> pa.Schema:
        """Return the table's present columns. Raises SinkError if files cannot simply be added to the table
        (partitions)."""
        ...

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add nullable columns after the others."""
        ...

    def id(self) -> str | None:
        """Return the identity of the present table. It survives a move, but not a recreation under the same name. None:
        the table is missing."""
        ...

    def storage(self) -> Storage: ...

    def mark(self, job: str, incarnation: str) -> Mark | None:
        """Return the mark, as of the last time the table was read. After a CommitConflict the table is read again."""
        ...

    def add(self, added: Added) -> None:
        """Commit, on top of the state that was read last. Raises CommitConflict if there is a newer state."""
        ...

    def read(self) -> pa.Table: ...

    def files(self) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """Yield the path and the rows of each data file, as of the last time the table was read."""
        ...

    def close(self) -> None: ...


class OpenedTable(ABC, Generic[Opened]):
    """The common part of both kinds of `LakeTable`, which keep their library's own object of a table."""

    name: str
    _todo: ClassVar[str]
    """What to do if the library rejects a change."""
    _errors: ClassVar[tuple[type[Exception], ...]]
    """The library's errors."""
    _outage_errors: ClassVar[tuple[type[Exception], ...]] = ()
    """The library's errors for which waiting may help."""

    def __init__(self) -> None:
        self._opened: Opened | None = None

    @abstractmethod
    def _find_table(self) -> Opened | None:
        """Read the present table; None if it is missing."""

    def _reopen_table(self) -> Opened:
        """Read the present table. Raises SinkError if it is missing."""
        table = self._find_table()
        if table is None:
            raise SinkError(f"The {self.name} is missing", todo="Start the job again: it recreates the table")
        return table

    def _table(self) -> Opened:
        """Return the table as of the last time it was read. Raises SinkError if it is missing."""
        return self._reopen_table() if self._opened is None else self._opened

    def _read_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._translate_errors("cannot be read"):
            yield from batches

    @contextmanager
    def _translate_errors(self, failure: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            kind = OutputUnavailable if isinstance(error, self._outage_errors) or is_unavailable(error) else SinkError
            raise kind(f"The {self.name} {failure}", facts=str(error), todo=self._todo) from error


@dataclass(frozen=True, slots=True)
class LakeWriter:
    """The task half. `table` is the id of the table for which the files are."""

    storage: Storage
    job: str
    table: str

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        fs, root = self.storage.open()
        folder = folder_of(self.job, short_incarnation(attempt.incarnation), attempt.id.epoch)
        path = f"{folder}/{attempt.id}.parquet"
        full_path = f"{root}/{path}"
        try:
            fs.create_dir(f"{root}/{folder}", recursive=True)
            with fs.open_output_stream(full_path) as file:
                count = write_parquet(file, (batch.cast(lake_schema(batch.schema)) for batch in rows.to_batches()))
            if isinstance(fs, pafs.LocalFileSystem):
                _sync_up_to(Path(full_path), Path(root))
            size = fs.get_file_info(full_path).size
        except OSError as error:
            todo = MAKE_ROOM if is_full(error) else "Check the table's location and that this user may write there"
            kind = OutputUnavailable if is_unavailable(error) else SinkError
            raise kind(
                f"The data file {full_path} cannot be written", facts=error.strerror or str(error), todo=todo
            ) from error
        attempt_id = attempt.id
        named = {
            "attempt": str(attempt_id),
            "shard": attempt_id.shard,
            "generation": attempt_id.generation,
            "lineage": attempt.incarnation,
        }
        return {**named, "table": self.table, "path": path, "rows": count, "size": size}


class LakeSink(NamesNoStore):
    """The driver half. `schema` is the output's."""

    def __init__(self, table: LakeTable, job: str, schema: pa.Schema) -> None:
        self.table, self._job, self._schema = table, job, lake_schema(schema)
        self._elsewhere = False

    def prepare(self, schema: pa.Schema) -> str | None:
        self._schema = lake_schema(schema)
        if self.table.create(self._schema):
            return f"the {self.table.name}"
        existing = {field.name: field for field in self.table.columns()}
        for field in self._schema:
            column = existing.get(field.name)
            if column is not None and (now := plain_type(column.type)) != field.type:
                raise SinkError(
                    f"The {self.table.name} does not fit the job's output",
                    facts=f"its column {field.name} is {now}, and the job's is {field.type}",
                    todo="Change the job's select (name the column differently with `as`), or name another table",
                )
        needed = [name for name, field in existing.items() if not field.nullable and name not in self._schema.names]
        if needed:
            raise SinkError(
                f"The {self.table.name} does not fit the job's output",
                facts=f"its column {needed[0]} may not be null, and the job has no such column",
                todo="Add that column to the job's select, allow nulls in the table, or name another table",
            )
        new = [field for field in self._schema if field.name not in existing]
        if new:
            self.table.add_columns(new)
        return None

    def writer(self) -> LakeWriter:
        table_id = self.table.id()
        if table_id is None:
            raise SinkError(
                f"The {self.table.name} is gone",
                facts="somebody has dropped it while the job runs",
                todo="Start the job again: it recreates the table, without the rows from before",
            )
        return LakeWriter(self.table.storage(), self._job, table_id)

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Check that the table's commit, which follows the state's, will be possible."""
        missing = self._missing_files(receipts)
        if missing:
            raise SinkError(
                f"The output of epoch {epoch} cannot be seen from the driver",
                facts=f"a task has written {missing[0]}, and it is not there; nothing of the epoch was committed",
                todo="Driver and tasks must share the table's location: name one on a shared file system",
            )

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Commit the files to the table. Receipts without a path come from another kind of output, which the job had
        before an edit."""
        named = [receipt for receipt in receipts if receipt["rows"] and "path" in receipt]
        if not named:
            return
        table_id = self.table.id()
        self._elsewhere = any(receipt["table"] != table_id for receipt in named)
        if self._elsewhere:
            return
        generation = max(receipt["generation"] for receipt in named)
        added = Added(self._job, short_incarnation(named[0]["lineage"]), Mark(generation, epoch), named)
        try:
            for attempt in stamina.retry_context(on=CommitConflict, attempts=_CONFLICTS, timeout=None, wait_max=2.0):
                with attempt:
                    published = self._add_once(added)
        except CommitConflict as error:
            raise OutputUnavailable(
                f"The {self.table.name} cannot take the rows of epoch {epoch}",
                facts=f"other writers' commits came first {_CONFLICTS} times in a row",
                todo="Pause the other writers; the job tries again",
            ) from error
        if published:
            self._sweep_files(
                added.incarnation, epoch, lambda mark: mark.generation == generation, {r["path"] for r in named}
            )

    def _add_once(self, added: Added) -> bool:
        """Add the files unless the table's mark says that they are there. Returns whether this epoch is now the job's
        newest in the table."""
        mark = self.table.mark(added.job, added.incarnation)
        if mark is not None and mark >= added.mark:
            return mark == added.mark
        missing = self._missing_files(added.files)
        if missing:
            raise SinkError(
                f"Output of epoch {added.mark.epoch}, the newest one, is gone: {counted(len(missing), 'file')}",
                facts=f"{missing[0]} is not there, and the epoch is committed; somebody deleted it",
                todo="Put it back, or set the job back to a savepoint from before that epoch (joinery state restore)",
            )
        self.table.add(added)
        return True

    def _missing_files(self, receipts: Sequence[Receipt]) -> list[str]:
        paths = [receipt["path"] for receipt in receipts if "path" in receipt]
        if not paths:
            return []
        fs, root = self.table.storage().open()
        infos = fs.get_file_info([f"{root}/{path}" for path in paths])
        return [info.path for info in infos if info.type != pafs.FileType.File]

    def recover(self, recovery: RecoveryContext) -> bool:
        """Delete files of older drivers that are newer than the table's mark: no commit has named them."""
        if self._elsewhere and recovery.pending is not None:
            raise SinkError(
                f"Rows of epoch {recovery.committed_epoch} are of another table than the {self.table.name}",
                facts="the output has changed, or the table was recreated, and the job was not stopped in order "
                "before: the other table may miss those rows",
                todo="Name the earlier table, start the job, stop it in order (SIGTERM, suspend: true), then change "
                "it; or start from the beginning: joinery state delete JOB.yaml --yes",
            )
        if self.table.id() is None:
            return False
        incarnation = short_incarnation(recovery.incarnation)
        mark = self.table.mark(self._job, incarnation) or Mark(0, 0)
        # At most one epoch beyond the committed one is ever written.
        self._sweep_files(
            incarnation,
            recovery.committed_epoch + 1,
            lambda written: mark < written and written.generation < recovery.generation,
        )
        return False

    def _sweep_files(
        self, incarnation: str, epoch: int, garbage: Callable[[Mark], bool], named: Collection[str] = frozenset()
    ) -> None:
        """Delete the files of an epoch's attempts that are not `named` and for which `garbage` is true."""
        fs, root = self.table.storage().open()
        folder = folder_of(self._job, incarnation, epoch)
        for info in fs.get_file_info(pafs.FileSelector(f"{root}/{folder}", allow_not_found=True)):
            if info.is_file and f"{folder}/{info.base_name}" not in named:
                generation = int(info.base_name.split("-")[0])
                if garbage(Mark(generation, epoch)):
                    fs.delete_file(info.path)

    def close(self) -> None:
        self.table.close()


def lake_schema(schema: pa.Schema) -> pa.Schema:
    """Return the output's columns, in types that both kinds of table have."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the table's type for an Arrow type: the same for types that differ only in memory layout. Neither kind of
    table has unsigned integers."""
    if pa.types.is_uint64(arrow_type):
        return pa.decimal128(20, 0)
    if pa.types.is_timestamp(arrow_type):
        return pa.timestamp("us", arrow_type.tz and "UTC")
    if pa.types.is_large_string(arrow_type) or pa.types.is_string_view(arrow_type):
        return pa.string()
    if pa.types.is_large_binary(arrow_type) or pa.types.is_binary_view(arrow_type):
        return pa.binary()
    return arrow_type


def is_unavailable(error: Exception) -> bool:
    """Return whether waiting may help: for errors of networks, not of names and rights."""
    return isinstance(error, OSError) and not isinstance(
        error, FileNotFoundError | PermissionError | NotADirectoryError
    )


def folder_of(job: str, incarnation: str, epoch: int) -> str:
    """Return the folder of the epoch's files, relative to the table's location."""
    return f"{_FOLDER}/{job}-{incarnation}/{epoch:012d}"


def _sync_up_to(file: Path, root: Path) -> None:
    """Make a file durable, and the names that lead to it from the table's folder."""
    for path in (file, *file.parents):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path == root:
            break


def properties_of(added: Added) -> Mapping[str, str]:
    """Return the properties that a commit of the table says about itself."""
    return {
        "joinery.job": added.job,
        "joinery.job-life": added.incarnation,
        "joinery.generation": str(added.mark.generation),
        "joinery.epoch": str(added.mark.epoch),
    }
