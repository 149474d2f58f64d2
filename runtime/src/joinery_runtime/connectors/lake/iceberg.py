"""Iceberg tables through PyIceberg. The mark is a property of the table, set in the same commit as the snapshot, so
that it outlives expired snapshots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.table import Table, TableProperties
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from joinery_runtime.connectors.lake.iceberg_classes import ForeignCode, load_own_classes_only
from joinery_runtime.connectors.lake.sink import Added, CommitConflict, Mark, OpenedTable, properties_of
from joinery_runtime.errors import SinkError

load_own_classes_only()  # in the driver, and in the executors that open an IcebergStorage

# PyIceberg's errors have no common base class.
_ERRORS: tuple[type[Exception], ...] = (
    *(error for error in vars(exceptions).values() if isinstance(error, type) and issubclass(error, Exception)),
    *(OSError, ValueError, SQLAlchemyError),
)


@dataclass(frozen=True, slots=True)
class IcebergStorage:
    location: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self) -> tuple[pafs.FileSystem, str]:
        properties = dict(self.properties)
        scheme, netloc, path = PyArrowFileIO.parse_location(self.location, properties)
        try:
            fs: pafs.FileSystem = PyArrowFileIO(properties).fs_by_scheme(scheme, netloc)
        except ForeignCode as error:
            message = f"The files of the Iceberg table at {self.location} cannot be opened"
            raise SinkError(message, facts=error.facts, todo=error.todo) from error
        # PyIceberg's own local file system reads files in another way, and does not fsync them.
        return (pafs.LocalFileSystem() if scheme == "file" else fs), path


class IcebergTable(OpenedTable[Table]):
    _todo = "Check output.iceberg: the catalog's type, uri and warehouse, and that this user may write there"
    _errors = _ERRORS
    _outage_errors = (OperationalError, CommitStateUnknownException, ServerError, ServiceUnavailableError)

    def __init__(self, catalog: str, table: str, properties: Mapping[str, str]) -> None:
        super().__init__()
        self.name = f"Iceberg table {table}"
        self._catalog_name, self._identifier, self._properties = catalog, table, dict(properties)
        self._catalog: Catalog | None = None

    def create(self, schema: pa.Schema) -> bool:
        if self._find_table() is not None:
            return False
        with self._translate_errors("cannot be created"):
            catalog = self._connected()
            with contextlib.suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(self._identifier.rsplit(".", 1)[0])
            with contextlib.suppress(TableAlreadyExistsError):  # by another job at the same time
                catalog.create_table(self._identifier, schema)
        return self._find_table() is not None

    def columns(self) -> pa.Schema:
        table = self._table()
        if not table.spec().is_unpartitioned():
            names = ", ".join(field.name for field in table.spec().fields)
            raise SinkError(
                f"The {self.name} has partitions",
                facts=f"it is partitioned by {names}, and the job's files have rows of many",
                todo="Name a table without partitions",
            )
        return table.schema().as_arrow()

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        with self._translate_errors("does not take new columns"), self._table().update_schema() as update:
            update.union_by_name(pa.schema(fields))

    def id(self) -> str | None:
        table = self._find_table()
        return None if table is None else str(table.metadata.table_uuid)

    def storage(self) -> IcebergStorage:
        table = self._table()
        return IcebergStorage(f"{table.location().rstrip('/')}/data", table.io.properties)

    def mark(self, job: str, incarnation: str) -> Mark | None:
        text = self._table().properties.get(_mark_key(job, incarnation))
        return None if text is None else Mark(*map(int, text.split("-")))

    def add(self, added: Added) -> None:
        table = self._table()
        # The library's own retries would commit on top of a newer driver's commit without checking its mark. This
        # changes only this copy of the table's properties.
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        root = f"{table.location().rstrip('/')}/data"
        with self._translate_errors(f"rejects the rows of epoch {added.mark.epoch}"):
            try:
                with table.transaction() as transaction:
                    transaction.set_properties(
                        {_mark_key(added.job, added.incarnation): "-".join(map(str, added.mark))}
                    )
                    transaction.add_files(
                        [f"{root}/{file['path']}" for file in added.files],
                        snapshot_properties=dict(properties_of(added)),
                        check_duplicate_files=False,  # the mark rules them out, without reading every manifest
                    )
            except CommitFailedException as error:
                self._opened = None
                raise CommitConflict(str(error)) from error

    def read(self) -> pa.Table:
        table = self._reopen_table()
        with self._translate_errors("cannot be read"):
            return table.scan().to_arrow()

    def files(self) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        table = self._table()
        with self._translate_errors("cannot be read"):
            scan = table.scan()
            rows = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
            for task in scan.plan_files():
                yield task.file.file_path, self._read_batches(rows.to_record_batches([task]))

    def _connected(self) -> Catalog:
        if self._catalog is None:
            properties, uri = dict(self._properties), self._properties.get("uri", "")
            if uri.startswith(("postgresql://", "postgresql+psycopg2://")):
                # A SQL catalog in Postgres uses the state store's driver: psycopg2 would bring a libpq of its own. It
                # is also SQLAlchemy's default before 2.1, and what jobs of earlier releases name.
                url = make_url(uri).set(drivername="postgresql+psycopg")
                properties["uri"] = url.render_as_string(hide_password=False)
            self._catalog = load_catalog(self._catalog_name, **properties)
        return self._catalog

    def _find_table(self) -> Table | None:
        with self._translate_errors("cannot be opened"):
            try:
                self._opened = self._connected().load_table(self._identifier)
            except NoSuchTableError:
                self._opened = None
        return self._opened

    @contextlib.contextmanager
    def _translate_errors(self, failure: str) -> Iterator[None]:
        try:
            with super()._translate_errors(failure):
                yield
        except ForeignCode as error:
            named = f"The {self.name} of the catalog {self._catalog_name} {failure}"
            raise SinkError(named, facts=error.facts, todo=error.todo) from error

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        self._catalog = self._opened = None


def _mark_key(job: str, incarnation: str) -> str:
    return f"joinery.{job}.{incarnation}"
