"""What all resource models share: configuration, scalar field types, column types, numbers of bytes, references to
secrets, and the rejection of what is not supported yet.

A value that the interface defines but this release does not support is declared with `not_yet`, so that it is rejected
at its own path. Building the feature means replacing that one declaration.

A secret is a directory with one file per key, which is what Kubernetes mounts; `hosts/secrets.py` reads it. Nothing
here reads a value, so a job can be checked and explained on a machine without its secrets.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from joinery_runtime.job.model.duration import format_duration, parse_duration, without_unit
from joinery_runtime.job.model.wording import suggestion

SIMPLE_TYPES = ("boolean", "int32", "int64", "float", "double", "string", "binary", "date", "timestamp", "json")
MAX_PRECISION = 38  # the most that Arrow's decimal128 and Spark hold

_DECIMAL_TYPE = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
_NESTED_TYPES = ("array", "list", "struct", "map", "object", "record", "row", "variant")
_TYPES_ELSEWHERE = {
    **dict.fromkeys(("tinyint", "smallint", "short", "int", "integer", "int16", "int4"), "int32"),
    **dict.fromkeys(("long", "bigint", "uint32", "serial", "bigserial"), "int64"),
    **dict.fromkeys(("real", "float4", "float32"), "float"),
    **dict.fromkeys(("float8", "float64", "double precision"), "double"),
    **dict.fromkeys(("text", "varchar", "char", "character varying", "str", "uuid", "enum"), "string"),
    **dict.fromkeys(("bytes", "bytea", "varbinary", "blob"), "binary"),
    **dict.fromkeys(("datetime", "timestamptz", "timestamp_ltz", "timestamp_ntz"), "timestamp"),
    **dict.fromkeys(("numeric", "bigdecimal"), "decimal(p,s)"),
    "number": "double or decimal(p,s)",
    **dict.fromkeys(("bool", "bit"), "boolean"),
    "jsonb": "json",
}
"""The types of other systems, and those of a column that hold their values. A length in brackets is left out."""
_ALLOWED_TYPES = f"types are {', '.join(SIMPLE_TYPES)} and decimal(p,s)"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One scalar type; `precision` and `scale` are set for `decimal` only (1 <= precision <= 38, 0 <= scale <= p)."""

    name: str
    precision: int | None = None
    scale: int | None = None

    def __post_init__(self) -> None:
        if self.name not in (*SIMPLE_TYPES, "decimal"):
            hint = suggestion(self.name, [*SIMPLE_TYPES, "decimal"])
            elsewhere = _TYPES_ELSEWHERE.get(self.name.lower().partition("(")[0].strip())
            if elsewhere is not None:
                hint = f" (write {elsewhere})"
            elif re.fullmatch(r"decimal\(\s*\d+\s*", self.name):
                hint = ' (inside of {...} it needs quotes: type: "decimal(12,2)")'
            elif self.name.lower().startswith(_NESTED_TYPES):
                hint = (
                    " (a json column takes an object or an array, a string column its text; path leads to a value "
                    "inside)"
                )
            raise ValueError(f"{self.name!r} is not a column type{hint}; {_ALLOWED_TYPES}")
        if self.name != "decimal":
            if self.precision is not None or self.scale is not None:
                raise ValueError(f"{self.name} takes no precision or scale")
        elif self.precision is None or self.scale is None:
            raise ValueError("decimal needs its precision and scale: write decimal(p,s), for example decimal(12,2)")
        elif not 1 <= self.precision <= MAX_PRECISION or not 0 <= self.scale <= self.precision:
            raise ValueError(f"{self} is out of range: 1 <= precision <= {MAX_PRECISION}, 0 <= scale <= precision")

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name

    @property
    def key_type(self) -> str:
        """The type that must be the same on both sides of a key: int32 and int64 count as one (rules V1 and V2)."""
        return "int64" if self.name == "int32" else str(self)


def parse_type(text: str) -> ColumnType:
    """Parse `string`, `decimal(12,2)`, ... to a ColumnType. Raises ValueError naming the allowed types."""
    decimal = _DECIMAL_TYPE.fullmatch(text)
    if decimal is not None:
        return ColumnType("decimal", int(decimal[1]), int(decimal[2]))
    return ColumnType(text)


_BINARY_UNITS = {unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)}
_DECIMAL_UNITS = {unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), start=1)}
_UNITS = {"": 1, **_BINARY_UNITS, **_DECIMAL_UNITS}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P|)")
MAX_BYTES = 2**63 - 1


def parse_bytes(value: object) -> int:
    """Return the bytes in `10Gi`, `1.5G`, `1024` or an integer. Raises ValueError, which says how to write a size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked_size(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no number of bytes; write it as 10Gi, 500M or 1073741824")
    size = Decimal(match[1]) * _UNITS[match[2]]
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes; write {math.ceil(size)}")
    return _checked_size(int(size))


def format_bytes(size: int) -> str:
    """Return the shortest text from which `parse_bytes` gets the size: with the largest binary unit that divides it."""
    for unit, factor in reversed(_BINARY_UNITS.items()):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _checked_size(size: int) -> int:
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes are over {MAX_BYTES}; write less")
    return size


class Model(BaseModel):
    """camelCase in YAML, snake_case in Python (either may be used to construct); frozen; unknown fields are rejected.
    The text under a field is its description, also in the CRDs."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # pydantic's own messages would print secrets
    )


def not_yet(feature: str, *values: object, todo: str = "") -> Any:
    """Return the annotation of single values that are not supported yet; `{}` in `feature` is replaced by the value."""

    def refuse(value: object) -> object:
        if any(value is unbuilt or (isinstance(value, str) and value == unbuilt) for unbuilt in values):
            template = "{what} is not supported yet" + ("; {todo}" if todo else "")
            raise PydanticCustomError("not_yet", template, {"what": feature.format(value), "todo": todo})
        return value

    return BeforeValidator(refuse)


PLAIN_NUMBERS = {"plain_numbers": True}
"""The context of a validation that takes integers as milliseconds: for stored jobs and for traces. Elsewhere people
write the job, and 30 may mean seconds to them."""
AS_STORED = {**PLAIN_NUMBERS, "as_stored": True}
"""The context of a validation of what a job was: it takes names that earlier releases took and Postgres cut, and
all of their patterns of times."""
FILLED_IN_MS = 24 * 3_600_000
"""A number that nobody has written: API servers filled it in as the default of `maxFuture`, before they knew units."""
NO_UNIT = "no_unit"
"""The type of pydantic's error for a number without a unit."""


def _parse_duration_field(value: Any, info: ValidationInfo, *, least: int | None = None) -> int:
    """Return milliseconds; only with PLAIN_NUMBERS an integer other than 0 is a duration. Messages propose durations of
    `least` milliseconds or more. That the value itself is not less is the field's own bound."""
    ms = parse_duration(value, least)
    plain = isinstance(info.context, dict) and info.context.get("plain_numbers")
    if isinstance(value, int) and value and not plain and (least is None or value >= least):
        raise PydanticCustomError(NO_UNIT, "{text}", {"text": without_unit(str(value), least)})
    return ms


def _parse_duration_or_off(value: Any, info: ValidationInfo) -> int | None:
    """Return milliseconds, or None for `off`. YAML 1.1, which Kubernetes reads, takes an unquoted `off` for false."""
    if value is False or value == OFF:
        return None
    if value == FILLED_IN_MS:
        return FILLED_IN_MS
    try:
        ms = _parse_duration_field(value, info, least=0)
    except PydanticCustomError:
        raise
    except ValueError as error:
        raise ValueError(f"{error}, or {OFF}") from error
    if ms < 0:
        raise ValueError(f"must not be negative; write {OFF!r} for no limit")
    return ms


def format_duration_or_off(ms: int | None) -> str:
    return OFF if ms is None else format_duration(ms)


def _parse_share_or_off(value: Any) -> str:
    """Check a share or `off`. YAML 1.1, which Kubernetes reads, takes an unquoted `off` for false."""
    text = OFF if value is False else value
    if isinstance(text, str) and re.fullmatch(_SHARE, text):
        return text
    raise ValueError(f"must be a share in percent, for example 1% or 0.5%, or {OFF}")


def _parse_column_type(value: Any) -> ColumnType:
    if isinstance(value, ColumnType):
        return value
    if not isinstance(value, str):
        raise ValueError("a column type must be text, for example string or decimal(12,2)")
    return parse_type(value)


def _parse_epoch_ms(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            "a time must be whole milliseconds since 1970 or RFC 3339 text with its offset, "
            "for example 2026-01-15T10:00:00Z"
        )
    return round(moment.timestamp() * 1000)


def _setting_text(value: Any) -> Any:
    """Return a setting as text, as librdkafka and Spark want it; in YAML, numbers and booleans are usually unquoted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _resolve_path(path: str, info: ValidationInfo) -> str:
    scheme, separator, rest = path.partition("://")
    if separator:
        local = f"write {rest}" if scheme == "file" else "mount it as a folder and write that path, or use Kafka"
        raise ValueError(f"is an address ({scheme}://), and only files of this machine are read and written; {local}")
    base = info.context.get("base") if isinstance(info.context, dict) else None
    return str(Path(base, path)) if base is not None else path


OFF = "off"
_SHARE = r"^(off|100%|[0-9]{1,2}(\.[0-9]{1,4})?%)$"
Int = Annotated[int, Strict()]
Bool = Annotated[bool, Strict()]
Text = Annotated[str, StringConstraints(min_length=1)]
_WrittenDuration = Annotated[
    int,
    PlainSerializer(format_duration),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]
PositiveDuration = Annotated[_WrittenDuration, BeforeValidator(partial(_parse_duration_field, least=0)), Field(ge=0)]
DurationOrOff = Annotated[
    int | None,
    BeforeValidator(_parse_duration_or_off),
    PlainSerializer(format_duration_or_off),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]
ShareOrOff = Annotated[
    str, BeforeValidator(_parse_share_or_off), WithJsonSchema({"type": "string", "pattern": _SHARE, "maxLength": 8})
]
ByteCount = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(ge=1),
    PlainSerializer(format_bytes, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]
EpochMs = Annotated[
    int, BeforeValidator(_parse_epoch_ms), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})
]
TypeField = Annotated[
    ColumnType,
    PlainValidator(_parse_column_type),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string"}),
]
Setting = Annotated[str, BeforeValidator(_setting_text)]
# `load_job` passes the file's folder, so that a job means the same wherever it is started from.
FilePath = Annotated[Text, AfterValidator(_resolve_path)]
TablePath = Annotated[Text, AfterValidator(lambda path, info: path if "://" in path else _resolve_path(path, info))]
Length = Annotated[_WrittenDuration, BeforeValidator(partial(_parse_duration_field, least=1)), Field(gt=0)]


def _parse_bound(value: Any, info: ValidationInfo) -> int:
    try:
        return _parse_duration_field(value, info)
    except PydanticCustomError:
        raise
    except ValueError as error:
        raise ValueError(f"{error} (a bound is constant, it cannot depend on a column)") from error


Bound = Annotated[int, BeforeValidator(_parse_bound), PlainSerializer(format_duration)]


class Limits(Model):
    """Caps on each side of the step, and what happens at one."""

    max_state_bytes: ByteCount | None = Field(default=None, examples=["10Gi"])
    """Maximum number of bytes of stored state on each side, as a number or as 500M or 10Gi."""
    max_records: Annotated[Int, Field(ge=1)] | None = Field(default=None, examples=[50_000_000])
    """Maximum number of stored rows on each side."""
    on_limit: Literal["fail", "pause"] = "fail"
    """`fail` stops the job before anything of the epoch is committed; `pause` reads no more of that side until its
    state has shrunk."""
    hot_key_warning: Annotated[Int, Field(ge=1)] = Field(default=100_000, examples=[1_000_000])
    """A key with more stored rows than this is warned about."""


# Kubernetes's rules, without keys that begin with a dot, which Kubernetes uses for its own files beside the keys.
_SECRET_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SECRET_KEY = re.compile(r"[-_a-zA-Z0-9][-._a-zA-Z0-9]*")


def _matching(pattern: re.Pattern[str], rule: str) -> AfterValidator:
    """Make the validator of a name in Kubernetes; `rule` is its message."""

    def check_name(value: str) -> str:
        if len(value) > 253 or not pattern.fullmatch(value):
            raise ValueError(rule)
        return value

    return AfterValidator(check_name)


SecretName = Annotated[str, _matching(_SECRET_NAME, "a secret's name has lower-case letters, digits, '-' and '.'")]
"""The name of a Secret, or of a ConfigMap."""


class SecretRef(Model):
    """A secret whose every key is the name of a setting."""

    name: SecretName = Field(examples=["orders-paid"])
    """The object's name, in the job's namespace."""


class SecretKeyRef(SecretRef):
    """One key of a secret."""

    key: Annotated[
        str, _matching(_SECRET_KEY, "a secret's key has letters, digits, '-', '_' and '.', and does not start with '.'")
    ] = Field(examples=["dsn"])
    """The key in the secret."""
