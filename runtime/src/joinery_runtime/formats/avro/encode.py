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

from joinery_runtime.formats.registry.output import SchemaOutput, schema_frame

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema


@dataclass(frozen=True, slots=True)
class AvroRows:
    """Encodes rows whose schema has `number` in the registry."""

    schema: str
    number: int

    def encode(self, rows: pa.Table | pa.RecordBatch) -> list[bytes]:
        """One framed record per row."""
        schema, frame = _parse_schema(self.schema), schema_frame(self.number)
        columns = []
        for column in rows.columns:
            if pa.types.is_timestamp(column.type):
                # Python's datetimes would take longer than everything else.
                columns.append(pc.cast(column, pa.int64()).to_pylist())
            else:
                columns.append((pc.cast(column, _UINT64) if column.type == pa.uint64() else column).to_pylist())
        records = []
        for values in zip(*columns, strict=True):
            row = dict(zip(rows.schema.names, values, strict=True))
            written = io.BytesIO()
            written.write(frame)
            fastavro.schemaless_writer(written, schema, row)
            records.append(written.getvalue())
        return records


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
        """Return the Avro schema of the rows, as JSON. Raises SinkError for names that Avro does not allow."""
        self.check_names("Avro")
        fields = []
        for field in self.rows:
            column = _UINT64 if field.type == pa.uint64() else field.type
            written: Any
            if pa.types.is_timestamp(column):
                written = {"type": "long", "logicalType": "timestamp-millis"}
            elif pa.types.is_decimal(column):
                digits = {"precision": column.precision, "scale": column.scale}
                written = {"type": "bytes", "logicalType": "decimal", **digits}
            else:
                written = _TYPES[column]
            fields.append({"name": field.name, "type": ["null", written], "default": None})
        name = "_" + re.sub(r"\W", "_", self.topic, flags=re.ASCII)  # a topic may begin with a digit
        return json.dumps({"type": "record", "name": name, "fields": fields})


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
