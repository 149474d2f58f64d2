"""Debezium change events in Avro, by the schema that each record names in a registry."""

from __future__ import annotations

from typing import Self

import pyarrow as pa

from joinery_runtime.formats.avro.decoder import AvroDecoder, columns_with_format, written_with
from joinery_runtime.formats.debezium.events import BEFORE, ChangeEvents, DebeziumJsonDecoder
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.job.model.inputs import Input


class DebeziumAvroDecoder(DebeziumJsonDecoder):
    """Decodes change events into rows of `schema`."""

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        written = written_with(model)
        formats = columns_with_format(model)
        formats = {**formats, **{BEFORE + name: column for name, column in formats.items()}}
        return cls(
            ChangeEvents(
                schema, model, lambda columns, paths: AvroDecoder(columns, paths, written, formats), JsonDecoder
            )
        )


DECODER = DebeziumAvroDecoder
