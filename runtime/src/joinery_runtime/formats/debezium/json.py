"""Debezium change events in JSON, with or without schemas (`{"schema": ..., "payload": ...}`)."""

from __future__ import annotations

from typing import ClassVar, Self

import pyarrow as pa

from joinery_runtime.formats.debezium.events import ChangeEvents
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.records import ByValue, Decoded, FormatDecoder
from joinery_runtime.job.model.inputs import Input


class DebeziumJsonDecoder(ByValue, FormatDecoder):
    """Decodes change events into rows of `schema`."""

    tells_deletions: ClassVar[bool] = True
    tombstones_repeat: ClassVar[bool] = True

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        return cls(ChangeEvents(schema, model, JsonDecoder, JsonDecoder, around=((), ("payload",))))

    def __init__(self, events: ChangeEvents) -> None:
        self._events = events

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return self._events.decode(values)


DECODER = DebeziumJsonDecoder
