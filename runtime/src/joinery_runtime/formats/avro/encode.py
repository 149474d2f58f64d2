"""Encodes output rows as Avro, framed like Confluent's serializers: a zero byte, the number of the schema, the record.

Each column is a nullable field with null as its default. Registries therefore treat a new or a removed column as a
change that is compatible both ways.
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.formats.registry.output import SchemaOutput, framed

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema


@dataclass(frozen=True, slots=True)
class AvroRows:
    """Encodes rows whose schema has `number` in the registry."""

    schema: str
    number: int

    def encode(self, rows: pa.Table | pa.RecordBatch) -> list[bytes]:
        """One framed record per row."""
        schema, frame = _parse_schema(self.schema), framed(self.number)
        records = []
        for values in zip(*(_encodable_column(column).to_pylist() for column in rows.columns), strict=True):
            row = dict(zip(rows.schema.names, values, strict=True))
            written = io.BytesIO()
            written.write(frame)
            fastavro.schemaless_writer(written, schema, row)
            records.append(written.getvalue())
        return records


def _encodable_column(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return pc.cast(column, pa.int64())  # Python's datetimes would take longer than everything else
    return pc.cast(column, _UINT64) if column.type == pa.uint64() else column


@functools.lru_cache(maxsize=16)
def _parse_schema(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


@dataclass(frozen=True, slots=True)
class AvroOutput(SchemaOutput):
    """Registers a schema that follows from the rows alone, whatever was registered before."""

    def _register(self) -> AvroRows:
        text = self.schema()
        return AvroRows(text, self.register(self.client(), text, "AVRO"))

    def _reader(self, schema: Schema) -> Callable[[bytes], dict[str, Any]]:
        parsed = _parse_schema(schema.schema_str or "")
        unsigned = [field.name for field in self.rows if field.type == pa.uint64()]

        def read(record: bytes) -> dict[str, Any]:
            row: Any = fastavro.schemaless_reader(io.BytesIO(record), parsed, None)
            return {**row, **{name: int(row[name]) for name in unsigned if row.get(name) is not None}}

        return read

    def schema(self) -> str:
        """The Avro schema of the rows, as JSON. Raises SinkError for names that Avro does not allow."""
        self.check_names("Avro")
        fields = [
            {"name": field.name, "type": ["null", _avro_type(field.type)], "default": None} for field in self.rows
        ]
        name = "_" + re.sub(r"\W", "_", self.topic, flags=re.ASCII)  # a topic may begin with a digit
        return json.dumps({"type": "record", "name": name, "fields": fields})


def _avro_type(column: pa.DataType) -> Any:
    column = _UINT64 if column == pa.uint64() else column
    if pa.types.is_timestamp(column):
        return {"type": "long", "logicalType": "timestamp-millis"}
    if pa.types.is_decimal(column):
        return {"type": "bytes", "logicalType": "decimal", "precision": column.precision, "scale": column.scale}
    return _TYPES[column]


_UINT64 = pa.decimal128(20, 0)  # Avro has no unsigned numbers
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
