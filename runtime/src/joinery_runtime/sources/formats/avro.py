"""Records of Avro's binary encoding, written with the schema that each names in a registry, or with one of the job.

Each record is read by the schema that it was written with, so the schema may change while the job runs: a column is the
field of its name or path in whatever record has it, and null in others. Values are then what JSON of the same content
would be (decision 35): a logical timestamp is a time, a decimal its digits, bytes base64, an enum its symbol; objects
and arrays in string columns are JSON.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Self

import fastavro
import pyarrow as pa

from joinery_runtime.errors import SourceError
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.paths import Path
from joinery_runtime.sources.json_faults import FRAME
from joinery_runtime.sources.one_by_one import OneByOne, RefusedRecord, inside
from joinery_runtime.sources.schema_registry import AvroSchema, Schemas, UnknownSchema, schema_number


class AvroDecoder(OneByOne):
    """`written` is the registry's schemas, or the one of all records."""

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        return cls(schema, {column.name: column.steps for column in model.columns}, written_with(model))

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path], written: Schemas | AvroSchema) -> None:
        super().__init__(schema, paths)
        self._written = written

    def values_of(self, record: bytes) -> Mapping[str, Any]:
        written, start = self._schema_of(record)
        source = io.BytesIO(record)
        source.seek(start)
        try:
            value = fastavro.schemaless_reader(source, written, None)
        except Exception as error:  # bytes that are something else fail in as many ways as there are
            raise RefusedRecord(f"not Avro of this schema: {type(error).__name__}: {error}"[:200]) from error
        if source.tell() != len(record):
            raise RefusedRecord(f"not Avro of this schema: {len(record) - source.tell()} bytes are left over")
        return {name: _found(value, path) for name, path in self._columns}

    def _schema_of(self, record: bytes) -> tuple[AvroSchema, int]:
        """What the record was written with, and where it begins."""
        if not isinstance(self._written, Schemas):
            return self._written, 0
        try:
            return self._written.avro(schema_number(record)), FRAME
        except UnknownSchema as unknown:
            raise RefusedRecord(str(unknown)) from unknown


def written_with(model: Input) -> Schemas | AvroSchema:
    """The schemas that the input's records name, or the one of the job. Raises SourceError for one that is none."""
    if model.avro_schema is None:
        return Schemas.of(model)
    try:
        return fastavro.parse_schema(json.loads(model.avro_schema))
    except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise SourceError(
            f"Input {model.name}: avroSchema is no schema of Avro", facts=str(error), todo="Correct it"
        ) from error


def _found(value: Any, path: Path) -> Any:
    """What a path leads to; None where it leads nowhere, or to a number that JSON does not have."""
    found = inside(value, path)
    return None if isinstance(found, float) and found - found != 0 else found


DECODER = AvroDecoder
