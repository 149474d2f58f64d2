"""Finds out which numbers are times or dates, and which bytes are decimals, in schemas of Kafka Connect: by a field's
`name` in JSON, or its type's `connect.name` in Avro. A decimal is the bytes of a whole number, highest first, which
JSON has in base64; how many of its digits are behind the point is in the schema."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from joinery_runtime.job.model.references import Path

TIMES: Mapping[str, int] = {
    "io.debezium.time.Timestamp": 1,
    "org.apache.kafka.connect.data.Timestamp": 1,
    "io.debezium.time.MicroTimestamp": 1_000,
    "io.debezium.time.NanoTimestamp": 1_000_000,
}
"""Types of times. Dividing their numbers since 1970 by these values gives milliseconds."""
DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
"""Types of dates, which are days since 1970."""
DECIMAL = "org.apache.kafka.connect.data.Decimal"
"""The type of decimals whose scale is a parameter of their schema."""
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
"""The type of objects with a `scale` and a `value`, for columns of databases that have no scale."""
MOST_DECIMAL_BYTES = 512  # more than the digits of any column take, and few enough for arithmetic that is quadratic
_MOST_SCALE = 1_000
_NUMBER = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def decimal_of(unscaled: bytes, scale: int) -> Decimal:
    """Return the number of a Connect Decimal. Raises ValueError if it is longer than any column."""
    if len(unscaled) > MOST_DECIMAL_BYTES or abs(scale) > _MOST_SCALE:
        raise ValueError(f"a decimal of {len(unscaled):,} bytes and scale {scale}")
    digits = str(abs(number := int.from_bytes(unscaled, signed=True)))
    return Decimal((int(number < 0), tuple(map(int, digits)), -scale))


def decimal_in_base64(text: str, scale: int) -> Decimal:
    """Return the number of a Connect Decimal as JSON has it. Raises ValueError if the text is not one."""
    if not text or len(text) > 2 * MOST_DECIMAL_BYTES or not _BASE64.fullmatch(text):
        raise ValueError("no base64")
    return decimal_of(base64.b64decode(text), scale)


def variable_decimal(value: Any) -> Decimal:
    """Return the number of an object with a scale and a value, in bytes or in base64. Raises ValueError if it is not
    one."""
    scale, unscaled = (value.get("scale"), value.get("value")) if isinstance(value, dict) else (None, None)
    if type(scale) is int and isinstance(unscaled, bytes):
        return decimal_of(unscaled, scale)
    if type(scale) is int and isinstance(unscaled, str):
        return decimal_in_base64(unscaled, scale)
    raise ValueError("no object with a scale and a value")


def decimal_hint(value: object) -> str:
    """Return what to do about a value that is no number and may be one of Connect's decimals; "" if it cannot be
    one."""
    try:
        if isinstance(value, str):
            if _NUMBER.fullmatch(value):
                return ""
            decimal_in_base64(value, 0)
        else:
            variable_decimal(value)
    except ValueError:
        return ""
    name = DECIMAL.rpartition(".")[2] if isinstance(value, str) else VARIABLE_DECIMAL.rpartition(".")[2]
    return (
        f"; it may be the bytes of Kafka Connect's {name}, which no schema says here: let the connector write text "
        "(decimal.handling.mode: string), or its schemas (schemas.enable: true)"
    )


def name_in_json(schema: Any, path: Path) -> str | None:
    """Return the type name of the value at this path, by the schema that comes with a JSON payload."""
    field_schema = _in_json(schema, path)
    name = field_schema.get("name") if field_schema is not None else None
    return name if isinstance(name, str) else None


def scale_in_json(schema: Any, path: Path) -> int | None:
    """Return the scale of the Connect Decimal at this path, by the schema that comes with a JSON payload; None if it is
    none."""
    field_schema = _in_json(schema, path)
    if field_schema is None or field_schema.get("name") != DECIMAL:
        return None
    return _read_scale(field_schema.get("parameters"))


def _read_scale(parameters: Any) -> int | None:
    scale = str(parameters.get("scale")) if isinstance(parameters, dict) else ""
    return int(scale) if re.fullmatch(r"-?[0-9]{1,4}", scale) else None


def _in_json(schema: Any, path: Path) -> Mapping[str, Any] | None:
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
            schema = next((field for field in among if isinstance(field, dict) and field.get("field") == step), None)
    return schema if isinstance(schema, dict) else None


def name_in_avro(schema: Any, path: Path) -> str | None:
    """Return the type name of the value at this path, by a schema that fastavro has parsed."""
    type_schema = _in_avro(schema, path, named_schemas(schema))
    return None if type_schema is None else type_schema.get("connect.name")


def scale_in_avro(schema: Any, path: Path) -> int | None:
    """Return the scale of the Connect Decimal at this path, by a schema that fastavro has parsed; None if it is
    none."""
    type_schema = _in_avro(schema, path, named_schemas(schema))
    if type_schema is None or type_schema.get("connect.name") != DECIMAL:
        return None
    return _read_scale(type_schema.get("connect.parameters"))


def named_schemas(schema: Any) -> Mapping[str, Any]:
    """Return the types that a schema defines, as fastavro has parsed it. Each branch of a union has its own."""
    named: dict[str, Any] = {}
    for branch in schema if isinstance(schema, list) else [schema]:
        named |= branch.get("__named_schemas", {}) if isinstance(branch, dict) else {}
    return named


def _in_avro(schema: Any, path: Path, named: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if isinstance(schema, list):  # mostly one type of a union leads on, and the other one is null
        types = (_in_avro(branch, path, named) for branch in schema)
        return next((type_ for type_ in types if type_ is not None and "connect.name" in type_), None)
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if not isinstance(schema, dict):
        return None
    if not path:
        return schema
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return _in_avro(schema.get("items"), rest, named)
    if schema.get("type") == "map":
        return _in_avro(schema.get("values"), rest, named)
    field_types = [field["type"] for field in schema.get("fields", ()) if field["name"] == step]
    return _in_avro(field_types[0], rest, named) if field_types else None
