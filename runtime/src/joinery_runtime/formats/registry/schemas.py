"""Framed records and their schemas. Confluent's serializers write a zero byte, the number of the schema in four bytes
(highest first), and the record proper. A registry has the schemas."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.errors import JoineryError, SourceError, SourceUnavailable
from joinery_runtime.formats.records import FRAME, ByValue, Decoded, is_framed
from joinery_runtime.formats.registry.avro_bounds import schema_document
from joinery_runtime.formats.registry.client import Registry, SchemaRejected, references_of
from joinery_runtime.formats.registry.protobuf_schemas import ProtobufSchema, compile_schema, imports_of
from joinery_runtime.job.model.inputs import Input

_LONGEST = 2**31 - 1  # bytes of a record
_MOST_KEPT = 1_000  # schemas, versions and unknown numbers that are remembered
_MOST_SECONDS = 60  # for all that one schema refers to
_ASK_AGAIN_S = 10.0  # after an answer that there is no such schema, or none that can be used
_QUOTED = 500  # characters of an error in a reason

AvroSchema = Any  # a schema as parsed by fastavro


class UnknownSchema(Exception):
    """A record names no schema, one that the registry does not have, or one of another format. The text says which."""


def schema_number(record: bytes) -> int:
    """Return the number of the schema with which the record begins. Raises UnknownSchema if it begins otherwise."""
    if record[:1] == b"\0" and len(record) >= FRAME:
        return int.from_bytes(record[1:FRAME])
    looks = "; it looks like JSON" if record[:1] == b"{" else ""
    raise UnknownSchema(f"it does not begin with the number of a schema, as schemaRegistry says{looks}")


class Framed(ByValue):
    """Removes the frame from records that have one, and gives the records to `values`. A topic whose producers have
    changed has both kinds. JSON never begins with a zero byte, so they can be told apart."""

    def __init__(self, values: ByValue) -> None:
        self._values = values

    def decode(self, values: pa.BinaryArray) -> Decoded:
        filled = pc.fill_null(values, b"")  # Arrow's slices fail on arrays with nulls
        # With the default end, Arrow fails on some arrays: apache/arrow#51222.
        return self._values.decode(pc.if_else(is_framed(values), pc.binary_slice(filled, FRAME, _LONGEST), values))


class Schemas:
    """The schemas of an input's records, each fetched and parsed once. A number that the registry does not have is
    asked for again after a while. Used by one thread at a time."""

    def __init__(self, registry: Registry, client: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._registry, self._client, self._now = registry, client, now
        self._parsed_schemas: dict[int, Any] = {}
        self._registered_schemas: dict[int, Any] = {}  # as the registry returned them
        self._versions: dict[tuple[str, int], Any] = {}
        self._unknown: dict[int, tuple[float, UnknownSchema]] = {}  # with the time until which they are not asked for
        self._began = 0.0  # when the references of the newest schema were first asked for

    @classmethod
    def of(cls, model: Input) -> Schemas:
        """Return the schemas of an input that names a registry. Raises SourceError for settings that the client
        rejects."""
        named = model.schema_registry
        assert named is not None, "only an input with one asks"
        registry = Registry(named.url, f"Input {model.name}", "schemaRegistry", SourceError, SourceUnavailable)
        return cls(registry, registry.client(named.properties))

    def check(self) -> None:
        """Raise SourceUnavailable if no registry answers, and SourceError if it denies access."""
        self._registry.check(self._client)

    def kind(self, number: int) -> str:
        """AVRO, JSON or PROTOBUF. Raises as `avro` does."""
        self._raise_if_unknown(number)
        return str(self._registered_schema(number).schema_type)

    def avro(self, number: int) -> AvroSchema:
        """Return the Avro schema with this number. Raises UnknownSchema, SourceUnavailable if the registry does not
        answer, and SourceError if it denies access."""
        return self._schema_of(number, "AVRO", self._parse_avro)

    def protobuf(self, number: int) -> ProtobufSchema:
        """Return the Protobuf schema with this number. Raises as `avro` does."""
        schema: ProtobufSchema = self._schema_of(
            number,
            "PROTOBUF",
            lambda registered: compile_schema(registered.schema_str, imports_of(registered, self._referenced_schemas)),
        )
        return schema

    def _schema_of(self, number: int, kind: str, parse: Callable[[Any], Any]) -> Any:
        if number not in self._parsed_schemas:
            self._raise_if_unknown(number)
            try:
                self._parsed_schemas[number] = self._parse_schema(number, kind, parse)
            except UnknownSchema as unknown:
                if len(self._unknown) >= _MOST_KEPT:
                    self._unknown.clear()
                self._unknown[number] = self._now() + _ASK_AGAIN_S, unknown
                raise
        return self._parsed_schemas[number]

    def _parse_schema(self, number: int, kind: str, parse: Callable[[Any], Any]) -> Any:
        registered = self._registered_schema(number)
        if registered.schema_type != kind:
            raise UnknownSchema(f"schema {number} is of {registered.schema_type}, not of {kind}")
        self._began = self._now()
        try:
            try:
                return parse(registered)
            except MemoryError:  # perhaps of another thread's doing
                return parse(registered)
        except (JoineryError, UnknownSchema, OSError):
            raise
        except Exception as error:  # a schema is input: whatever it is, only its own records are bad
            words = str(error) or type(error).__name__
            raise UnknownSchema(f"schema {number} is not valid: {words[:_QUOTED]}") from error

    def _raise_if_unknown(self, number: int) -> None:
        until, unknown = self._unknown.get(number, (0.0, None))
        if unknown is not None and self._now() < until:
            raise UnknownSchema(str(unknown))

    def _registered_schema(self, number: int) -> Any:
        if number not in self._registered_schemas:
            if len(self._registered_schemas) >= _MOST_KEPT:
                self._registered_schemas.clear()
            self._registered_schemas[number] = self._fetch_once(
                functools.partial(self._client.get_schema, number), f"schema {number}"
            )
        return self._registered_schemas[number]

    def _parse_avro(self, registered: Any) -> AvroSchema:
        named: dict[str, Any] = {}
        for _, schema in references_of(registered, self._referenced_schemas):
            fastavro.parse_schema(schema_document(schema.schema_str), named)
        return fastavro.parse_schema(schema_document(registered.schema_str), named)

    def _referenced_schemas(self, registered: Any) -> Iterator[tuple[str, Any]]:
        """Yield the schemas that a schema refers to, with the names that it uses for them."""
        for reference in registered.references or ():
            version = (reference.subject, reference.version)
            if version not in self._versions:
                if self._now() - self._began > _MOST_SECONDS:
                    raise self._registry.slow_error(f"the schemas that one schema refers to, for {_MOST_SECONDS} s")
                ask = functools.partial(self._client.get_version, *version)
                if len(self._versions) >= _MOST_KEPT:
                    self._versions.clear()
                self._versions[version] = self._fetch_once(ask, f"{version[0]} version {version[1]}").schema
            yield reference.name, self._versions[version]

    def _fetch_once(self, ask: Callable[[], Any], description: str) -> Any:
        try:
            answer = self._registry.ask(ask, description)
        except SchemaRejected as error:  # not a possible version
            raise UnknownSchema(str(error)) from error
        if answer is None:
            raise UnknownSchema(f"the registry {self._registry.url} has no {description}")
        return answer
