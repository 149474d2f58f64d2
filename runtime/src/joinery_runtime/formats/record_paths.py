"""Lists the paths of a record's values, to show beside a path of the job that leads nowhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import pyarrow as pa

from joinery_runtime.formats.records import FRAME
from joinery_runtime.job.model.inputs import Input

MOST_PATHS = 50
_PLAIN_NAME = re.compile(r'[^."\[\]$][^."\[\]]*')


def record_paths(model: Input, record: bytes) -> tuple[str, ...]:
    """Return the paths in a record as a column's `path` has them. They are missing where a record is not of nested
    fields (CSV), or cannot be read."""
    value: Any = None
    with suppress(Exception):  # the paths are only shown
        value = _decode_record(model, record)
    if model.format.startswith("debezium"):
        event = value.get("payload", value) if isinstance(value, dict) else {}
        value = event.get("after") or event.get("before")  # the row, in which the columns' paths begin
    return tuple(islice(_list_paths(value, ""), MOST_PATHS)) if isinstance(value, dict) else ()


def paths_of(inputs: Iterable[Input]) -> Callable[[str, bytes], tuple[str, ...]]:
    """Return a function that gives the paths in a record of the input, or of a union's branch, with a name."""
    by_name = {part.name: part for model in inputs for part in model.parts}
    return lambda name, record: record_paths(by_name[name], record)


def _decode_record(model: Input, record: bytes) -> Any:
    """Decode a record as a whole. Files of a history, rows of Parquet and steps of a trace are JSON in any format."""
    if record.lstrip()[:1] == b"{":
        return json.loads(record)
    if record[:1] == b"\0" and record[FRAME:].lstrip()[:1] == b"{":
        return json.loads(record[FRAME:])
    schema = pa.schema([pa.field("record", pa.string())])
    if model.format == "protobuf":
        from joinery_runtime.formats.protobuf.decoder import ProtobufDecoder, written_with  # noqa: PLC0415

        return ProtobufDecoder(schema, {"record": ()}, written_with(model)).values_of(record)["record"]
    if model.format in ("avro", "debezium-avro"):
        from joinery_runtime.formats.avro import decoder as avro  # noqa: PLC0415

        return avro.AvroDecoder(schema, {"record": ()}, avro.written_with(model)).values_of(record)["record"]
    return None


def _list_paths(value: Any, before: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            step = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
            yield from _list_paths(inner, f"{before}.{step}" if before else step)
    elif isinstance(value, list) and value:
        yield from _list_paths(value[0], f"{before}[0]")
    else:
        yield before
