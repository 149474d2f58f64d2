"""Delta tables through delta-rs. The mark is the transaction identifier that the protocol provides for such writers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from joinery_runtime.connectors.lake.sink import Added, CommitConflict, Mark, OpenedTable, properties_of
from joinery_runtime.errors import SinkError

_EPOCH_BITS = 40  # a version is one 64-bit number made of generation and epoch


@dataclass(frozen=True, slots=True)
class DeltaStorage:
    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self) -> tuple[pafs.FileSystem, str]:
        local = self.location.removeprefix("file://")
        if "://" not in local:
            return pafs.LocalFileSystem(), str(Path(local).absolute())
        return pafs.PyFileSystem(DeltaStorageHandler(self.location, dict(self.options))), ""


class DeltaLakeTable(OpenedTable[DeltaTable]):
    _todo = "Check output.delta: the path, its storage options, and what the table's protocol asks of writers"
    _errors = (DeltaError, OSError)

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        super().__init__()
        self.name = f"Delta table {location}"
        self._location, self._options = location, dict(options)

    def create(self, schema: pa.Schema) -> bool:
        if self._find_table() is not None:
            return False
        with self._translate_errors("cannot be created"):
            # Another job may create it at the same time.
            self._opened = DeltaTable.create(
                self._location, schema, mode="ignore", storage_options=self._options or None
            )
        return True

    def columns(self) -> pa.Schema:
        table = self._table()
        partitions = table.metadata().partition_columns
        if partitions:
            raise SinkError(
                f"The {self.name} has partitions",
                facts=f"it is partitioned by {', '.join(partitions)}, and the job's files have rows of many",
                todo="Name a table without partitions",
            )
        return pa.schema(table.schema().to_arrow())

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        with self._translate_errors("does not take new columns"):
            self._table().alter.add_columns([Field.from_arrow(field) for field in fields])

    def id(self) -> str | None:
        table = self._find_table()
        return None if table is None else str(table.metadata().id)

    def storage(self) -> DeltaStorage:
        return DeltaStorage(self._location, self._options)

    def mark(self, job: str, incarnation: str) -> Mark | None:
        with self._translate_errors("cannot be read"):
            version = self._table().transaction_version(_app_id(job, incarnation))
        return None if version is None else Mark(*divmod(version, 1 << _EPOCH_BITS))

    def add(self, added: Added) -> None:
        table, now = self._table(), int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file["path"], file["size"], {}, now, True, json.dumps({"numRecords": file["rows"]}))
            for file in added.files
        ]
        version = (added.mark.generation << _EPOCH_BITS) + added.mark.epoch
        # The library's own retries would commit on top of a newer driver's commit without checking its mark.
        commit = CommitProperties(
            dict(properties_of(added)),
            max_commit_retries=0,
            app_transactions=[Transaction(_app_id(added.job, added.incarnation), version)],
        )
        with self._translate_errors(f"rejects the rows of epoch {added.mark.epoch}"):
            try:
                table.create_write_transaction(
                    actions, "append", table.schema(), commit_properties=commit,
                    post_commithook_properties=PostCommitHookProperties(),
                )  # fmt: skip
            except CommitFailedError as error:
                self._opened = None
                raise CommitConflict(str(error)) from error

    def read(self) -> pa.Table:
        with self._translate_errors("cannot be read"):
            return self._reopen_table().to_pyarrow_table()

    def files(self) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        table = self._table()
        with self._translate_errors("cannot be read"):
            dataset = table.to_pyarrow_dataset()
            for fragment in dataset.get_fragments():
                yield fragment.path, self._read_batches(fragment.to_batches(schema=dataset.schema))

    def _find_table(self) -> DeltaTable | None:
        with self._translate_errors("cannot be opened"):
            try:
                if self._opened is None:
                    self._opened = DeltaTable(self._location, storage_options=self._options or None)
                else:
                    self._opened.update_incremental()
            except TableNotFoundError:
                self._opened = None
        return self._opened

    def close(self) -> None:
        self._opened = None


def _app_id(job: str, incarnation: str) -> str:
    return f"joinery-{job}-{incarnation}"
