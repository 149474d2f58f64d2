"""Protobuf records, by the schema that each names in a registry, or by one in the job.

Each record is read by its writer schema, so the schema may change while the job runs. A column is the field with its
name or path in records whose schema has it, and null in others. A field that tracks presence (`optional`, in a oneof, a
message, or proto2) is null if it is not set; any other field then has its default. Values are treated like JSON
(decisions 35 and 49): a Timestamp is a time, an enum its name, bytes are base64, wrappers their value, a Struct the
JSON that it stands for; messages, lists and maps in string columns are JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import pyarrow as pa
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor

from joinery_runtime.errors import SourceError
from joinery_runtime.formats.records import FRAME, read_varint
from joinery_runtime.formats.registry.protobuf_schemas import InvalidSchema, compile_schema
from joinery_runtime.formats.registry.schemas import Schemas, UnknownSchema, schema_number
from joinery_runtime.formats.row_decoder import RejectedRecord, RowDecoder, value_at
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.references import Path

_WRAPPERS = {
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_TEXTS = {f"google.protobuf.{kind}" for kind in ("Timestamp", "Duration", "FieldMask")}
_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
_JSON = {f"google.protobuf.{kind}" for kind in ("Struct", "Value", "ListValue", "Any")}


class ProtobufDecoder(RowDecoder):
    """Decodes Protobuf records. `written` is the registry's schemas, or the message descriptor of all records."""

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        return cls(schema, {column.name: column.steps for column in model.columns}, written_with(model))

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path], written: Any) -> None:
        super().__init__(schema, paths)
        self._schemas = written if isinstance(written, Schemas) else None
        self._plain_value = None if isinstance(written, Schemas) else _Reader(written, self._columns)
        self._readers: dict[bytes, _Reader] = {}  # by the schema's number and the positions, as encoded in records

    def values_of(self, record: bytes) -> Mapping[str, Any]:
        if self._plain_value is not None:
            return self._plain_value.read(record)
        assert self._schemas is not None, "without a registry there is one reader"
        try:
            number = schema_number(record)
            indexes, start = message_indexes(record, FRAME)
            begins = record[:start]
            if begins not in self._readers:
                self._readers[begins] = _Reader(self._schemas.protobuf(number).message_at(indexes), self._columns)
        except (UnknownSchema, ValueError) as unknown:
            raise RejectedRecord(str(unknown)) from unknown
        except LookupError as missing:
            raise RejectedRecord(f"schema {number}: {missing.args[0]}") from missing
        return self._readers[begins].read(record[start:])


class _Reader:
    """Reads records of one message into a value for each column."""

    def __init__(self, descriptor: Any, columns: list[tuple[str, Path]]) -> None:
        self._name = descriptor.full_name
        self._parse = message_factory.GetMessageClass(descriptor).FromString
        self._columns = [(name, _make_getter(descriptor, path)) for name, path in columns]

    def read(self, record: bytes) -> dict[str, Any]:
        """Read a record's values by column. Raises RejectedRecord."""
        try:
            message = self._parse(record)
        except (MemoryError, OSError):  # which may be the machine's
            raise
        except Exception as error:  # each implementation of the library has its own error
            looks = "; it looks like JSON" if record[:1] == b"{" else ""
            raise RejectedRecord(f"not Protobuf of message {self._name}: {error}{looks}"[:300]) from error
        values = {}
        for name, get in self._columns:
            try:
                values[name] = get(message)
            except (MemoryError, OSError):
                raise
            except Exception as error:  # a Timestamp of the year 10000, an Any of an unknown message
                raise RejectedRecord(f"column {name}: {error}"[:300]) from error
        return values


def _make_getter(descriptor: Any, path: Path) -> Callable[[Any], Any]:
    field = descriptor.fields_by_name.get(path[0]) if len(path) == 1 else None
    if field is None or field.is_repeated or field.message_type is not None or field.has_presence:
        return lambda message: _value_at(message, path)
    name, plain = field.name, field.enum_type is None and field.cpp_type not in _FLOATS
    # A fast path for most columns of most schemas.
    return (
        (lambda message: getattr(message, name))
        if plain
        else (lambda message: _element_value(field, getattr(message, name)))
    )


def _value_at(message: Any, path: Path) -> Any:
    """Return the value in a message at a path; None if the path leads nowhere."""
    if not path:
        return _message_value(message)
    descriptor, step = message.DESCRIPTOR, path[0]
    if descriptor.full_name in _JSON:
        return value_at(_message_value(message), path)
    field = descriptor.fields_by_name.get(step) if isinstance(step, str) else None
    if field is None or (field.has_presence and not message.HasField(step)):
        return None
    value, rest = getattr(message, field.name), path[1:]
    if not rest:
        return _plain_value(field, value)
    if field.is_repeated and not _is_map(field):
        if not isinstance(rest[0], int) or rest[0] >= len(value):
            return None
        value, rest = value[rest[0]], rest[1:]
        if not rest:
            return _element_value(field, value)
    if _is_map(field):
        return value_at(_plain_value(field, value), rest)
    return None if field.message_type is None else _value_at(value, rest)


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def _plain_value(field: Any, value: Any) -> Any:
    """Return a field's value as `json_text` takes it."""
    if _is_map(field):
        value_field = field.message_type.fields_by_name["value"]
        return {
            (str(key).lower() if isinstance(key, bool) else str(key)): _element_value(value_field, element)
            for key, element in value.items()
        }
    return [_element_value(field, element) for element in value] if field.is_repeated else _element_value(field, value)


def _element_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _message_value(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return None if field.cpp_type in _FLOATS and not math.isfinite(value) else value


def _message_value(message: Any) -> Any:
    descriptor = message.DESCRIPTOR
    if descriptor.full_name in _TEXTS:
        return message.ToJsonString()
    if descriptor.full_name in _WRAPPERS:
        return _element_value(descriptor.fields_by_name["value"], message.value)
    if descriptor.full_name in _JSON:
        pool = descriptor.file.pool
        return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)
    return {field.name: _value_at(message, (field.name,)) for field in descriptor.fields}


def written_with(model: Input) -> Any:
    """Return the schemas that the input's records name, or the message of the schema in the job. Raises SourceError if
    either of these is not valid."""
    if model.protobuf_schema is None:
        return Schemas.of(model)
    try:
        return compile_schema(model.protobuf_schema, {}).message_named(model.protobuf_message)
    except InvalidSchema as error:
        raise SourceError(
            f"Input {model.name}: protobufSchema is no schema of Protobuf", facts=str(error), todo="Correct it"
        ) from error
    except LookupError as error:
        raise SourceError(
            f"Input {model.name}: protobufMessage is not in protobufSchema", facts=error.args[0], todo="Correct it"
        ) from error


def message_indexes(record: bytes, start: int) -> tuple[list[int], int]:
    """Read which message of its schema a framed record is: a count and as many positions, in zigzag varints, where a
    single zero stands for the first message. Returns the positions, and where the message begins. Raises ValueError if
    there is no such list."""
    count, at = _read_zigzag(record, start)
    indexes = []
    if not 0 <= count <= len(record) - at:
        raise ValueError("the list of message positions is longer than the record")
    for _ in range(count):
        index, at = _read_zigzag(record, at)
        indexes.append(index)
    return indexes or [0], at


def _read_zigzag(record: bytes, at: int) -> tuple[int, int]:
    try:
        number, end = read_varint(record, at)
    except ValueError:
        raise ValueError("it has no positions of a message after the schema's number") from None
    return number >> 1 ^ -(number & 1), end


DECODER = ProtobufDecoder
