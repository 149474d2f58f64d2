"""Finds out which numbers are times or dates in schemas of Kafka Connect: by a field's `name` in JSON, or its type's
`connect.name` in Avro."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joinery_runtime.job.model.paths import Path

TIMES: Mapping[str, int] = {
    "io.debezium.time.Timestamp": 1,
    "org.apache.kafka.connect.data.Timestamp": 1,
    "io.debezium.time.MicroTimestamp": 1_000,
    "io.debezium.time.NanoTimestamp": 1_000_000,
}
"""Types of times. Dividing their numbers since 1970 by these values gives milliseconds."""
DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
"""Types of dates, which are days since 1970."""


def name_in_json(schema: Any, path: Path) -> str | None:
    """The type name of the value at this path, by the schema that comes with a JSON payload."""
    for step in path:
        if not isinstance(schema, dict):
            return None
        if isinstance(step, int):
            schema = schema.get("items")
        elif schema.get("type") == "map":
            schema = schema.get("values")
        else:
            fields = schema.get("fields")
            among = fields if isinstance(fields, list) else ()
            schema = next((each for each in among if isinstance(each, dict) and each.get("field") == step), None)
    name = schema.get("name") if isinstance(schema, dict) else None
    return name if isinstance(name, str) else None


def name_in_avro(schema: Any, path: Path) -> str | None:
    """The type name of the value at this path, by a schema that fastavro has parsed."""
    return _in_avro(schema, path, schema.get("__named_schemas", {}) if isinstance(schema, dict) else {})


def _in_avro(schema: Any, path: Path, named: Mapping[str, Any]) -> str | None:
    if isinstance(schema, list):  # mostly one type of a union leads on, and the other one is null
        return next((name for each in schema if (name := _in_avro(each, path, named)) is not None), None)
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if not isinstance(schema, dict):
        return None
    if not path:
        return schema.get("connect.name")
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return _in_avro(schema.get("items"), rest, named)
    if schema.get("type") == "map":
        return _in_avro(schema.get("values"), rest, named)
    found = [field["type"] for field in schema.get("fields", ()) if field["name"] == step]
    return _in_avro(found[0], rest, named) if found else None
