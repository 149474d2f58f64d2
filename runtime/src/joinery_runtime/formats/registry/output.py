"""Output whose rows have a schema in a registry: registers the schema, and reads records back."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.errors import OutputUnavailable, SinkError
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.formats.registry.client import Answer, Registry, SchemaRejected

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_ROW = (ValueError, TypeError, pa.ArrowException)


class EncodedRows(Protocol):
    """Encodes rows whose schema the registry has. It can be pickled."""

    def encode(self, rows: pa.Table | pa.RecordBatch) -> list[bytes]:
        """One framed record per row."""
        ...


# The schemas that this process has registered. Drivers register them before their workers.
_REGISTERED: dict[tuple[type, str, str, pa.Schema], EncodedRows] = {}
# The readers of records, by schema; None if the registry has no schema with that number.
_READERS: dict[tuple[type, str, pa.Schema, int], Callable[[bytes], dict[str, Any]] | None] = {}


@dataclass(frozen=True, slots=True)
class SchemaOutput(ABC):
    """The rows of a topic, whose schema is in a registry as `<topic>-value`. `rows` is their Arrow schema."""

    topic: str
    rows: pa.Schema
    url: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def register_once(self) -> EncodedRows:
        """Register the schema, or find it registered, once per process. Raises SinkError for rows that the format
        cannot describe and for a schema that the registry rejects, and OutputUnavailable if it does not answer."""
        key = (type(self), self.topic, self.url, self.rows)
        if key not in _REGISTERED:
            try:
                _REGISTERED[key] = self._register()
            except SchemaRejected as rejected:
                todo = "Leave columns' types as they were, write another topic, or change the subject's compatibility"
                raise self.problem("the registry rejects the schema of its rows", str(rejected), todo) from rejected
        return _REGISTERED[key]

    @abstractmethod
    def _register(self) -> EncodedRows:
        """Register the schema. Also raises SchemaRejected."""

    @property
    def subject(self) -> str:
        return f"{self.topic}-value"

    def check_names(self, language: str) -> None:
        """Raise SinkError for columns that the format cannot name."""
        wrong = [name for name in self.rows.names if not _NAME.fullmatch(name)]
        if wrong:
            todo = "Name them with `as` in select: letters, digits and _, no digit first"
            raise self.problem(f"{language} cannot have columns of these names", ", ".join(wrong), todo)

    def client(self) -> SchemaRegistryClient:
        return self._output_registry.client(self.properties)

    def register(self, client: SchemaRegistryClient, text: str, kind: str) -> int:
        """Register a schema, and return its number. Also raises SchemaRejected."""
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - see `Registry.client`

        number: int | None = self.ask(lambda: client.register_schema(self.subject, Schema(text, kind)))
        if number is None:
            todo = "Check output.schemaRegistry.url"
            raise self.problem("the schema registry takes no schemas", f"{self.url}, subject {self.subject}", todo)
        return number

    def ask(self, ask: Callable[[], Answer]) -> Answer | None:
        """Return the registry's answer. None: it has no such thing."""
        return self._output_registry.ask(ask, f"subject {self.subject}")

    def defaults(self) -> Mapping[str, Any]:
        """By column, what a null is read as, if some schema of the subject has no null for the column. Raises SinkError
        and OutputUnavailable as `register_once` does."""
        return {}

    def lines(self, records: Sequence[bytes], defaults: Mapping[str, Any] = MappingProxyType({})) -> list[bytes]:
        """Decode framed records into lines of JSON with the rows' columns, with `defaults` for nulls. A record that is
        not such a row stays unchanged. Raises SinkError and OutputUnavailable as `register_once` does."""
        rows: list[dict[str, Any]] = []
        other: dict[int, bytes] = {}
        for index, record in enumerate(records):
            try:
                row = self._reader_of(int.from_bytes(record[1:5]))(record[5:])
            except (*_NO_ROW, LookupError, EOFError, SchemaRejected):
                row, other[index] = {}, record
            rows.append(row)
        misfits: list[int] = []
        table = self._fitting_table(rows, 0, misfits)
        other |= {index: records[index] for index in misfits}
        lines = rows_to_json(without_nulls(table, defaults))
        return [other.get(index, line) for index, line in enumerate(lines)]

    def _fitting_table(self, rows: Sequence[dict[str, Any]], first: int, misfits: list[int]) -> pa.Table:
        """Return a table with an empty row for each of `rows` whose values are not of the columns' types. Adds the
        places of these, counted from `first`, to `misfits`. Halves what does not fit as a whole: Arrow takes as long
        for one row as for many."""
        try:
            return pa.Table.from_pylist(rows, schema=self.rows)
        except _NO_ROW:
            if len(rows) == 1:
                misfits.append(first)
                return pa.Table.from_pylist([{}], schema=self.rows)
        middle = len(rows) // 2
        halves = (
            self._fitting_table(rows[:middle], first, misfits),
            self._fitting_table(rows[middle:], first + middle, misfits),
        )
        return pa.concat_tables(halves)

    @abstractmethod
    def _reader(self, schema: Schema) -> Callable[[bytes], dict[str, Any]]:
        """Make a function that reads the values, by column, of a record written with this schema. Both raise
        ValueError, TypeError, LookupError or EOFError for schemas and records that are not of such rows."""

    def _reader_of(self, number: int) -> Callable[[bytes], dict[str, Any]]:
        """Return the reader for a schema. Raises LookupError if the registry has no schema with this number."""
        key = (type(self), self.url, self.rows, number)
        if key not in _READERS:
            client = self.client()
            schema = self.ask(lambda: client.get_schema(number))
            _READERS[key] = None if schema is None else self._reader(schema)
        reader = _READERS[key]
        if reader is None:
            raise LookupError(f"no schema {number}")
        return reader

    def problem(self, summary: str, facts: str, todo: str) -> SinkError:
        return SinkError(f"Output topic {self.topic}: {summary}", facts=facts, todo=todo)

    @property
    def _output_registry(self) -> Registry:
        return Registry(self.url, f"Output topic {self.topic}", "output.schemaRegistry", SinkError, OutputUnavailable)


def without_nulls(rows: pa.Table, defaults: Mapping[str, Any]) -> pa.Table:
    """Replace nulls by `defaults`, which are by column."""
    for name, default in defaults.items():
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(index), pc.fill_null(rows[name], default))
    return rows


def schema_frame(number: int) -> bytes:
    """Return the bytes with which a record of this schema begins."""
    return b"\0" + number.to_bytes(4)
