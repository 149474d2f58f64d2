"""Records in Avro's binary encoding, by the schema that each names in a registry, or by one in the job.

Each record is read by its writer schema, so the schema may change while the job runs. A column is the field with its
name or path in records that have it, and null in others. Values are then treated like JSON of the same content
(decision 35): a logical timestamp is a time, a decimal its digits, bytes are base64, an enum its symbol; objects and
arrays in string columns are JSON. A number that the schema declares as a time or a date of Kafka Connect is one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Self

import fastavro
import pyarrow as pa

from joinery_runtime.errors import SourceError
from joinery_runtime.formats.connect_types import (
    DATES,
    TIMES,
    VARIABLE_DECIMAL,
    decimal_of,
    name_in_avro,
    scale_in_avro,
    variable_decimal,
)
from joinery_runtime.formats.records import FRAME
from joinery_runtime.formats.registry.avro_bounds import Nanos, OutOfBounds, check, first_fault, schema_document
from joinery_runtime.formats.registry.schemas import AvroSchema, Schemas, UnknownSchema, schema_number
from joinery_runtime.formats.row_decoder import RejectedRecord, RowDecoder, value_at
from joinery_runtime.job.model.inputs import Column, Input
from joinery_runtime.job.model.references import Path
from joinery_runtime.job.model.time_formats import ISO, is_pattern, needs_zone


class AvroDecoder(RowDecoder):
    """Decodes Avro records. `written` is the registry's schemas, or the one schema of all records. Of the schema's text
    columns, those in `formats` have a format."""

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        paths = {column.name: column.steps for column in model.columns}
        return cls(schema, paths, written_with(model), columns_with_format(model))

    def __init__(
        self,
        schema: pa.Schema,
        paths: Mapping[str, Path],
        written: Schemas | AvroSchema,
        formats: Mapping[str, Column] = MappingProxyType({}),
    ) -> None:
        super().__init__(schema, paths)
        self._written = written
        self._dates = {field.name for field in schema if pa.types.is_date(field.type)}
        self._times = {field.name for field in schema if pa.types.is_timestamp(field.type)}
        text_columns = [(field.name, formats[field.name]) for field in schema if field.name in formats]
        self._as_times = self._times | {
            name for name, column in text_columns if column.format == ISO or is_pattern(column.format or "")
        }
        # A local time counts by the column's zone. Without a zone, it is text with an offset of zero.
        self._as_local = [
            name
            for name, column in text_columns
            if column.zone is not None and (column.format == ISO or needs_zone(column.format or ""))
        ]
        self._decimals = {field.name for field in schema if pa.types.is_decimal(field.type)}
        # By the id() of schemas, which stay alive.
        self._readers_by_schema: dict[int, Mapping[str, Callable[[Any], Any]]] = {}

    def values_of(self, record: bytes) -> Mapping[str, Any]:
        written: AvroSchema = self._written
        start = 0
        if isinstance(written, Schemas):
            try:
                written, start = written.avro(schema_number(record)), FRAME
            except UnknownSchema as unknown:
                raise RejectedRecord(str(unknown)) from unknown
        content = read_record(record, start, written)
        values: dict[str, Any] = {}
        for name, path in self._columns:
            value = value_at(content, path)
            # JSON has no NaN and no infinity.
            values[name] = None if isinstance(value, float) and value - value != 0 else value
        for name in self._as_times:
            if isinstance(values[name], Nanos):
                values[name] = values[name].time()
        for name in self._as_local:
            if isinstance(values[name], datetime) and values[name].tzinfo is None:
                values[name] = values[name].isoformat()
        for name, read_value in self._number_readers(written).items():
            with suppress(OverflowError, ValueError):  # the value stays as it is, and is rejected later like any other
                values[name] = read_value(values[name])
        return values

    def _number_readers(self, written: AvroSchema) -> Mapping[str, Callable[[Any], Any]]:
        """For each column whose numbers the schema declares as times or dates, or whose bytes as decimals: how to read
        one."""
        readers = self._readers_by_schema.get(id(written))
        if readers is None:
            readers = {}
            for column, path in self._columns:
                if column in self._dates | self._times:
                    name = name_in_avro(written, path) or ""
                    if column in self._times and name in TIMES:
                        readers[column] = _time_by(TIMES[name])
                    elif column in self._dates and name in DATES:
                        readers[column] = _read_day
                elif column in self._decimals:
                    scale = scale_in_avro(written, path)
                    if scale is not None:
                        readers[column] = partial(_read_decimal, scale=scale)
                    elif name_in_avro(written, path) == VARIABLE_DECIMAL:
                        readers[column] = variable_decimal
            self._readers_by_schema[id(written)] = readers
        return readers


def read_record(record: bytes, start: int, written: AvroSchema) -> Any:
    """Read a record's content, which begins at byte `start`. Raises RejectedRecord."""
    source = io.BytesIO(record)
    source.seek(start)
    try:
        value = fastavro.schemaless_reader(source, check(record, start, written), None)
    except (MemoryError, OSError):  # which may be the machine's
        raise
    except Exception as error:  # bytes that are not Avro can raise any error
        words = str(error) if isinstance(error, OutOfBounds) else f"{type(error).__name__}: {error}"
        reason = first_fault(record, start, written) or words
        raise RejectedRecord(f"not Avro of this schema: {reason}"[:200]) from error
    if source.tell() != len(record):
        raise RejectedRecord(f"not Avro of this schema: {len(record) - source.tell()} bytes are left over")
    return value


def written_with(model: Input) -> Schemas | AvroSchema:
    """Return the schemas that the input's records name, or the one in the job. Raises SourceError if that is not
    valid."""
    if model.avro_schema is None:
        return Schemas.of(model)
    try:
        return fastavro.parse_schema(schema_document(model.avro_schema))
    except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise SourceError(
            f"Input {model.name}: avroSchema is no schema of Avro", facts=str(error), todo="Correct it"
        ) from error


def columns_with_format(model: Input) -> Mapping[str, Column]:
    return {column.name: column for column in model.columns if column.format is not None}


def _time_by(divisor: int) -> Callable[[Any], Any]:
    def read_time(number: Any) -> Any:
        if not isinstance(number, int):
            return number
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number // divisor)

    return read_time


def _read_day(number: Any) -> Any:
    return date(1970, 1, 1) + timedelta(days=number) if isinstance(number, int) else number


def _read_decimal(value: Any, scale: int) -> Any:
    """Avro's own logical type has made a number of it already, if the schema has that too."""
    return decimal_of(value, scale) if isinstance(value, bytes) else value


DECODER = AvroDecoder
