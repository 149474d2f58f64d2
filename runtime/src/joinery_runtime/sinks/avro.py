"""Output rows as Avro, in the form of Confluent's serializers: a zero byte, the number of the schema, the record.

Each column is a field that may be null, with null as its default. So a new column, and one less, is a change that
registries call compatible, both ways.
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

from joinery_runtime.errors import JoineryError, OutputUnavailable, SinkError
from joinery_runtime.registry_client import registry_client
from joinery_runtime.sinks.encode import rows_to_json

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What this process has registered; drivers do so before their workers.
_REGISTERED: dict[tuple[str, str, str], AvroRows] = {}
# Schemas of records that were read, "" where there is none.
_READ: dict[tuple[str, int], str] = {}
_REFUSED, _INVALID, _MISSING, _DENIED = 409, 422, 404, (401, 403)  # of HTTP


@dataclass(frozen=True, slots=True)
class AvroRows:
    """Rows whose schema the registry has under `number`."""

    schema: str
    number: int

    def encode(self, rows: pa.Table | pa.RecordBatch) -> list[bytes]:
        """One framed record per row."""
        schema, frame = _parsed(self.schema), b"\0" + self.number.to_bytes(4)
        records = []
        # Python's datetimes would take longer than all else.
        plain = [pc.cast(each, pa.int64()) if pa.types.is_timestamp(each.type) else each for each in rows.columns]
        for values in zip(*(each.to_pylist() for each in plain), strict=True):
            row = dict(zip(rows.schema.names, values, strict=True))
            written = io.BytesIO()
            written.write(frame)
            fastavro.schemaless_writer(written, schema, row)
            records.append(written.getvalue())
        return records


@functools.lru_cache(maxsize=16)
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


@dataclass(frozen=True, slots=True)
class AvroOutput:
    """The registry in which the schema of the topic's rows is, as `<topic>-value`. `rows` is their schema in Arrow."""

    topic: str
    rows: pa.Schema
    url: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def registered(self) -> AvroRows:
        """Registers the schema, or finds it registered; a process asks once. Raises SinkError for rows that Avro has
        no schema for, and for a schema that the registry refuses; OutputUnavailable where it does not answer."""
        text = self.schema()
        key = (self.topic, self.url, text)
        if key not in _REGISTERED:
            _REGISTERED[key] = AvroRows(text, self._register(text))
        return _REGISTERED[key]

    def _register(self, text: str) -> int:
        subject = f"{self.topic}-value"
        with self._asking(f"subject {subject}"):
            number: int = self._client().register_schema(subject, Schema(text, "AVRO"))
        return number

    def _client(self) -> SchemaRegistryClient:
        try:
            return registry_client(self.url, self.properties)
        except (ValueError, TypeError) as error:
            todo = "Use the names and values of confluent-kafka's SchemaRegistryClient"
            raise self._problem("output.schemaRegistry.properties are not valid", str(error), todo) from error

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Errors of the registry as ours."""
        try:
            yield
        except SchemaRegistryError as error:
            facts = f"{self.url}, {what}: {error}"
            if error.http_status_code in (_REFUSED, _INVALID):
                todo = "Leave columns' types as they were, write another topic, or change the subject's compatibility"
                raise self._problem("the registry refuses the schema of its rows", facts, todo) from error
            if error.http_status_code in _DENIED:
                todo = "Check basic.auth.user.info in output.schemaRegistry.propertiesSecretRef"
                raise self._problem("the schema registry refuses access", facts, todo) from error
            raise self._away(facts) from error
        except JoineryError:
            raise
        except Exception as error:  # of whatever the client uses for HTTP
            raise self._away(f"{self.url}: {error}") from error

    def _written_under(self, number: int) -> str:
        """The schema that the registry has under this number. Raises KeyError where it has none."""
        if (self.url, number) not in _READ:
            with self._asking(f"schema {number}"):
                try:
                    _READ[self.url, number] = self._client().get_schema(number).schema_str or ""
                except SchemaRegistryError as error:
                    if error.http_status_code != _MISSING:
                        raise
                    _READ[self.url, number] = ""
        if not (text := _READ[self.url, number]):
            raise KeyError(number)
        return text

    def lines(self, records: Sequence[bytes]) -> list[bytes]:
        """Framed records as lines of JSON with the rows' columns; one that is none of the rows' stays as it is. Raises
        SinkError and OutputUnavailable as `registered` does."""
        rows: list[dict[str, Any]] = []
        other = {}
        for place, record in enumerate(records):
            try:
                number, written = int.from_bytes(record[1:5]), io.BytesIO(record[5:])
                row: Any = fastavro.schemaless_reader(written, _parsed(self._written_under(number)), None)
                pa.Table.from_pylist([row], schema=self.rows)
            except (ValueError, TypeError, LookupError, EOFError, pa.ArrowException):
                row, other[place] = {}, record
            rows.append(row)
        lines = rows_to_json(pa.Table.from_pylist(rows, schema=self.rows))
        return [other.get(place, line) for place, line in enumerate(lines)]

    def schema(self) -> str:
        """The schema of the rows in Avro, as JSON. Raises SinkError for names that Avro does not have."""
        wrong = [name for name in self.rows.names if not _NAME.fullmatch(name)]
        if wrong:
            todo = "Name them with `as` in select: letters, digits and _, no digit first"
            raise self._problem("Avro cannot have columns of these names", ", ".join(wrong), todo)
        fields = [{"name": each.name, "type": ["null", _type(each.type)], "default": None} for each in self.rows]
        name = "_" + re.sub(r"\W", "_", self.topic, flags=re.ASCII)  # a topic may begin with a digit
        return json.dumps({"type": "record", "name": name, "fields": fields})

    def _problem(self, what: str, facts: str, todo: str) -> SinkError:
        return SinkError(f"Output topic {self.topic}: {what}", facts=facts, todo=todo)

    def _away(self, facts: str) -> OutputUnavailable:
        what = f"Output topic {self.topic}: the schema registry does not answer"
        return OutputUnavailable(what, facts=facts, todo="Check output.schemaRegistry.url and that it can be reached")


def _type(column: pa.DataType) -> Any:
    if pa.types.is_timestamp(column):
        return {"type": "long", "logicalType": "timestamp-millis"}
    if pa.types.is_decimal(column):
        return {"type": "bytes", "logicalType": "decimal", "precision": column.precision, "scale": column.scale}
    return _TYPES[column]


_TYPES: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}
