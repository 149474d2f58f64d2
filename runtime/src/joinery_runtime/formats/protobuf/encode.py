"""Encodes output rows as Protobuf, framed like Confluent's serializers: a zero byte, the number of the schema, a zero
byte that stands for its first message, the message.

A field's number identifies its column for ever, because readers have it compiled in. So the subject's newest schema
decides. If it has all columns, it is used unchanged, even if it has more fields. If a job wrote it, a new column gets
the number after the highest that any version of the subject has had. Fields are `optional`: a null is an unset field.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from joinery_runtime.errors import OutputUnavailable, SinkError
from joinery_runtime.formats.registry.client import SchemaRejected
from joinery_runtime.formats.registry.output import SchemaOutput, schema_frame
from joinery_runtime.formats.registry.protobuf_schemas import InvalidSchema, compile_schema, imports_of

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient

_FIRST_MESSAGE = b"\0"  # the first message's position in the schema, as abbreviated by Confluent's serializers
_TIMESTAMP = "google.protobuf.Timestamp"
_NAMES = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name
    for name in (
        "bool", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64",
        "float", "double", "string", "bytes",
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProtobufRows:
    """Encodes rows whose schema has `number` in the registry. `imports` are the files that the schema imports."""

    schema: str
    imports: tuple[tuple[str, str], ...]
    number: int

    def encode(self, rows: pa.Table | pa.RecordBatch) -> list[bytes]:
        """One framed record per row."""
        message, frame = _message_class(self.schema, self.imports), schema_frame(self.number) + _FIRST_MESSAGE
        names = rows.schema.names
        columns: list[list[Any]] = []  # with the values as a message takes them; None for an unset field
        for column in rows.columns:
            if pa.types.is_timestamp(column.type):
                times = pc.cast(pc.cast(column, pa.timestamp("ms", column.type.tz)), pa.int64()).to_pylist()
                columns.append(
                    [None if ms is None else {"seconds": ms // 1000, "nanos": ms % 1000 * 1_000_000} for ms in times]
                )
            else:
                columns.append((pc.cast(column, pa.string()) if _in_text(column.type) else column).to_pylist())
        return [
            frame + message(**dict(zip(names, values, strict=True))).SerializeToString()
            for values in zip(*columns, strict=True)
        ]


@functools.lru_cache(maxsize=16)
def _message_class(schema: str, imports: tuple[tuple[str, str], ...]) -> Any:
    return message_factory.GetMessageClass(compile_schema(schema, dict(imports)).message_at([0]))


def _read_column(message: Any, column: pa.Field) -> Any:
    """Read back a column's value that `ProtobufRows` has written. None if the message, of an older schema, lacks the
    field."""
    field = message.DESCRIPTOR.fields_by_name.get(column.name)
    if field is None or (field.has_presence and not message.HasField(column.name)):
        return None
    value = getattr(message, column.name)
    if pa.types.is_timestamp(column.type):
        return value.ToMilliseconds()
    if _in_text(column.type):
        return pa.scalar(value).cast(column.type).as_py() if value else None
    return value


def _in_text(column: pa.DataType) -> bool:
    """Return whether the column is written as text. An empty text is never one of its values."""
    return bool(pa.types.is_decimal(column) or pa.types.is_date(column))


@dataclass(frozen=True, slots=True)
class ProtobufOutput(SchemaOutput):
    """Registers a schema that keeps the field numbers of the subject's newest one."""

    def _register(self) -> ProtobufRows:
        self.check_names("Protobuf")
        client = self.client()
        newest = self._newest_schema(client)
        try:
            return self._registered_after(newest, client)
        except SchemaRejected:
            # Somebody else may have registered the next version meanwhile, with the numbers that this one would use.
            client = self.client()  # a new client, without cached answers
            now = self._newest_schema(client)
            if now is None or (newest is not None and newest.version == now.version):
                raise
            return self._registered_after(now, client)

    def _newest_schema(self, client: SchemaRegistryClient) -> RegisteredSchema | None:
        return self.ask(lambda: client.get_latest_version(self.subject))

    def _registered_after(self, newest: RegisteredSchema | None, client: SchemaRegistryClient) -> ProtobufRows:
        if newest is None:
            return self._registered_as(client, self.schema({}, 0), 0)
        if newest.schema.schema_type != "PROTOBUF":
            summary = f"its registered schema is of {newest.schema.schema_type}, and output.format is protobuf"
            todo = "Write another topic, or in the format that this one has"
            raise self.problem(summary, f"{self.url}, subject {self.subject}, version {newest.version}", todo)
        where = f"version {newest.version} of {self.subject}"
        imports = imports_of(newest.schema, self._referenced_files)
        message = self._compile_message(newest.schema.schema_str, imports, where)
        self._check_fields(message, where)
        fields = {field.name: field for field in message.fields}
        if fields.keys() >= set(self.rows.names):
            return ProtobufRows(newest.schema.schema_str, tuple(sorted(imports.items())), newest.schema_id)
        # Only its authors may extend a schema that this class could not have written for its fields.
        written = all(_field_kind(field) in _WRITTEN for field in message.fields)
        if not written or _file_descriptor(message) != _file_descriptor(
            self._compile_message(self.schema(fields), {}, where)
        ):
            missing = [f"{column.name} ({kind_of(column.type)})" for column in self.rows if column.name not in fields]
            raise self.problem(
                f"message {message.full_name} has no field for {', '.join(missing)}",
                f"{where} was not registered by a job",
                "Add the fields to that schema and register it, or write another topic",
            )
        return self._registered_as(client, self.schema(fields, self._highest_number(client)), newest.version or 0)

    def _registered_as(self, client: SchemaRegistryClient, text: str, after: int) -> ProtobufRows:
        """Register a schema. `after` is the newest version that the schema takes into account."""
        message = self._compile_message(text, {}, "the schema of the job's columns")
        number = self.register(client, text, "PROTOBUF")
        client = self.client()  # a new client, without cached answers
        own, other = self._came_before(client, number, after, message)
        if other is None:
            return ProtobufRows(text, (), number)
        try:
            self.ask(functools.partial(client.delete_version, self.subject, own))
        except OutputUnavailable:
            raise
        except (SchemaRejected, SinkError) as error:
            raise self.problem(
                "two jobs have registered its schema at the same time, and gave their columns different numbers",
                f"{self.url}, subject {self.subject}, versions {other.version} and {own}; the later one cannot be "
                f"taken back: {error}",
                f"Delete version {own} of the subject and start the job again: it takes the numbers of the other one",
            ) from error
        return self._registered_after(other, self.client())

    def _came_before(
        self, client: SchemaRegistryClient, number: int, after: int, message: Any
    ) -> tuple[int, RegisteredSchema | None]:
        """Return the version of the schema with this number, and a version between `after` and it that contradicts it,
        if any. A registry that does not check compatibility accepts two schemas that both follow the same one."""
        other: RegisteredSchema | None = None
        for version in sorted(self.ask(lambda: client.get_versions(self.subject)) or ()):
            if version <= after:
                continue
            registered = self.ask(functools.partial(client.get_version, self.subject, version))
            if registered is not None and registered.schema_id == number:
                return version, other
            if registered is not None and other is None and registered.schema.schema_type == "PROTOBUF":
                imports = imports_of(registered.schema, self._referenced_files)
                earlier = self._compile_message(
                    registered.schema.schema_str, imports, f"version {version} of {self.subject}"
                )
                other = registered if _messages_contradict(earlier, message) else None
        return after, None

    def _reader(self, schema: Schema) -> Callable[[bytes], dict[str, Any]]:
        imports = imports_of(schema, self._referenced_files)
        try:
            message = _message_class(schema.schema_str or "", tuple(sorted(imports.items())))
        except InvalidSchema as error:
            raise ValueError(str(error)) from error
        columns = [column for column in self.rows if column.name in message.DESCRIPTOR.fields_by_name]
        if not columns or any(
            _is_other(message.DESCRIPTOR.fields_by_name[column.name], column.type) for column in columns
        ):
            raise LookupError("the schema is not of these rows")

        def read(record: bytes) -> dict[str, Any]:
            if not record.startswith(_FIRST_MESSAGE):
                raise ValueError("not the schema's first message")
            try:
                row = message.FromString(record[1:])
            except DecodeError as error:
                raise ValueError(str(error)) from error
            return {column.name: _read_column(row, column) for column in self.rows}

        return read

    def _referenced_files(self, schema: Any) -> Iterator[tuple[str, Any]]:
        for reference in schema.references or ():
            version = self.ask(functools.partial(self.client().get_version, reference.subject, reference.version))
            if version is not None:
                yield reference.name, version.schema

    def _compile_message(self, text: str, imports: Mapping[str, str], where: str) -> Any:
        """Compile a schema, and return its first message."""
        try:
            return compile_schema(text, imports).message_at([0])
        except (InvalidSchema, LookupError) as error:
            todo = "Name other columns with `as` in select, or register a schema of Protobuf that has such a message"
            raise self.problem(f"{where} is not valid", str(error).rstrip("."), todo) from error

    def _check_fields(self, message: Any, where: str) -> None:
        """Check that fields have the types of their columns, that any column may be null, and that any two columns may
        have values at once."""
        for column in self.rows:
            field = message.fields_by_name.get(column.name)
            if field is not None and _is_other(field, column.type):
                actual = f"repeated {_field_kind(field)}" if field.is_repeated else _field_kind(field)
                raise self.problem(
                    f"column {column.name} is {kind_of(column.type)}, and the field of that name is {actual}",
                    f"{where}, message {message.full_name}",
                    "Name the column differently with `as` in select: readers take the field for what it was",
                )
        todo = "Register a schema in which they are `optional`, or write another topic"
        required = [field.name for field in message.fields if field.is_required]
        if required:
            raise self.problem(
                f"the fields {', '.join(required)} are `required`, and a row may have no value for them",
                f"{where}, message {message.full_name}",
                todo,
            )
        for oneof in message.oneofs:
            columns = [field.name for field in oneof.fields if field.name in self.rows.names]
            if len(columns) > 1:
                raise self.problem(
                    f"columns {', '.join(columns)} are one oneof, {oneof.name}: only one of them would keep its value",
                    f"{where}, message {message.full_name}",
                    todo,
                )

    def _highest_number(self, client: SchemaRegistryClient) -> int:
        """Return the highest number that any version of the subject, deleted ones included, has used or reserved."""
        numbers = {0}
        for message in self._version_messages(client):
            numbers.update(field.number for field in message.fields)
            (text,) = [
                candidate for candidate in _file_descriptor(message).message_type if candidate.name == message.name
            ]
            numbers.update(reserved.end - 1 for reserved in text.reserved_range)
        return max(numbers)

    def _version_messages(self, client: SchemaRegistryClient) -> Iterator[Any]:
        """Yield the messages of the subject's schemas, deleted ones included."""
        for version in self.ask(lambda: client.get_versions(self.subject, deleted=True)) or ():
            registered = self.ask(functools.partial(client.get_version, self.subject, version, deleted=True))
            if registered is not None and registered.schema.schema_type == "PROTOBUF":
                imports = imports_of(registered.schema, self._referenced_files)
                yield self._compile_message(
                    registered.schema.schema_str, imports, f"version {version} of {self.subject}"
                )

    def defaults(self) -> Mapping[str, Any]:
        """Return the defaults of fields that lack `optional` in some version. A record with such a value may have had
        null."""
        defaults: dict[str, Any] = {}
        for message in self._version_messages(self.client()):
            for column in self.rows:
                field = message.fields_by_name.get(column.name)
                plain = field is not None and not field.has_presence and not field.is_repeated
                if plain and _field_kind(field) == kind_of(column.type):
                    defaults[column.name] = field.default_value
        return {name: value for name, value in defaults.items() if not _in_text(self.rows.field(name).type)}

    def schema(self, existing: Mapping[str, Any], highest: int | None = None) -> str:
        """Return the schema of the `existing` fields (descriptors by name). If the `highest` number ever used is given,
        the schema also has fields for the other columns."""
        fields = {field.number: (_field_kind(field), name) for name, field in existing.items()}
        if highest is not None:
            new = [column for column in self.rows if column.name not in existing]
            fields |= {number: (kind_of(column.type), column.name) for number, column in enumerate(new, highest + 1)}
        words = re.split(r"[^A-Za-z0-9]+", self.topic)
        message = "".join(word[:1].upper() + word[1:] for word in words)
        lines = ['syntax = "proto3";']
        if any(kind == _TIMESTAMP for kind, _ in fields.values()):
            lines.append('import "google/protobuf/timestamp.proto";')
        lines.append(f"message {message if message[:1].isalpha() else f'Topic{message}'} {{")
        lines += [f"  optional {kind} {name} = {number};" for number, (kind, name) in sorted(fields.items())]
        return "\n".join([*lines, "}\n"])


def _is_other(field: Any, column: pa.DataType) -> bool:
    """Return whether the field differs from the one that a column of this type would have."""
    return bool(field.is_repeated) or _field_kind(field) != kind_of(column)


def _messages_contradict(message: Any, other: Any) -> bool:
    """Return whether a field of one message differs, by name or by number, from one in the other message."""
    numbers = {field.name: (field.number, _field_kind(field)) for field in other.fields}
    names = {field.number: field.name for field in other.fields}
    return any(
        numbers.get(field.name, (field.number, _field_kind(field))) != (field.number, _field_kind(field))
        or names.get(field.number, field.name) != field.name
        for field in message.fields
    )


def _field_kind(field: Any) -> str:
    if field.message_type is not None:
        return str(field.message_type.full_name)
    return "enum" if field.enum_type is not None else _NAMES.get(field.type, f"type {field.type}")


def _file_descriptor(message: Any) -> descriptor_pb2.FileDescriptorProto:
    """Return the file that contains a message, without comments and blanks."""
    file = descriptor_pb2.FileDescriptorProto()
    message.file.CopyToProto(file)
    return file


def kind_of(column: pa.DataType) -> str:
    """Return the Protobuf type as which a column is written."""
    return _TIMESTAMP if pa.types.is_timestamp(column) else _KINDS.get(column, "string")


# Dates and decimals are text, as in JSON.
_KINDS: Mapping[pa.DataType, str] = {
    pa.bool_(): "bool",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint64(): "uint64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "bytes",
}
_WRITTEN = {_TIMESTAMP, "string", *_KINDS.values()}
