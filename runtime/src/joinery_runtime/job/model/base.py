"""What all resource models share: configuration, scalar field types, and the rejection of what is not supported yet.

A value that the interface defines but this release does not support is declared with `not_yet`, so that it is rejected
at its own path. Building the feature means replacing that one declaration.
"""

from __future__ import annotations

import re
from datetime import datetime
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
from joinery_runtime.job.model.quantity import format_bytes, parse_bytes
from joinery_runtime.job.model.types import ColumnType, parse_type


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
    """The annotation of single values that are not supported yet; `{}` in `feature` is replaced by the value."""

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


def _duration(value: Any, info: ValidationInfo) -> int:
    """Return milliseconds; only with PLAIN_NUMBERS an integer other than 0 is a duration."""
    ms = parse_duration(value)
    plain = isinstance(info.context, dict) and info.context.get("plain_numbers")
    if isinstance(value, int) and value and not plain:
        raise PydanticCustomError(NO_UNIT, "{text}", {"text": without_unit(str(value))})
    return ms


def _duration_or_off(value: Any, info: ValidationInfo) -> int | None:
    """Return milliseconds, or None for `off`. YAML 1.1, which Kubernetes reads, takes an unquoted `off` for false."""
    if value is False or value == OFF:
        return None
    if value == FILLED_IN_MS:
        return FILLED_IN_MS
    try:
        ms = _duration(value, info)
    except PydanticCustomError:
        raise
    except ValueError as error:
        raise ValueError(f"{error}, or {OFF}") from error
    if ms < 0:
        raise ValueError(f"must not be negative; write {OFF!r} for no limit")
    return ms


def format_duration_or_off(ms: int | None) -> str:
    return OFF if ms is None else format_duration(ms)


def _share_or_off(value: Any) -> str:
    """YAML 1.1, which Kubernetes reads, takes an unquoted `off` for false."""
    text = OFF if value is False else value
    if isinstance(text, str) and re.fullmatch(_SHARE, text):
        return text
    raise ValueError(f"must be a share in percent, for example 1% or 0.5%, or {OFF}")


def _column_type(value: Any) -> ColumnType:
    if isinstance(value, ColumnType):
        return value
    if not isinstance(value, str):
        raise ValueError("a column type must be text, for example string or decimal(12,2)")
    return parse_type(value)


def _epoch_ms(value: Any) -> int:
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


def _setting(value: Any) -> Any:
    """A setting as text, as librdkafka and Spark want it; in YAML, numbers and booleans are usually unquoted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _resolve(path: str, info: ValidationInfo) -> str:
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
Duration = Annotated[
    int,
    BeforeValidator(_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]
PositiveDuration = Annotated[Duration, Field(ge=0)]
DurationOrOff = Annotated[
    int | None,
    BeforeValidator(_duration_or_off),
    PlainSerializer(format_duration_or_off),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]
ShareOrOff = Annotated[
    str, BeforeValidator(_share_or_off), WithJsonSchema({"type": "string", "pattern": _SHARE, "maxLength": 8})
]
ByteCount = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(ge=1),
    PlainSerializer(format_bytes, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]
EpochMs = Annotated[
    int, BeforeValidator(_epoch_ms), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})
]
TypeField = Annotated[
    ColumnType, PlainValidator(_column_type), PlainSerializer(str, return_type=str), WithJsonSchema({"type": "string"})
]
Setting = Annotated[str, BeforeValidator(_setting)]
# `load_job` passes the file's folder, so that a job means the same wherever it is started from.
FilePath = Annotated[Text, AfterValidator(_resolve)]
TablePath = Annotated[Text, AfterValidator(lambda path, info: path if "://" in path else _resolve(path, info))]
Length = Annotated[PositiveDuration, Field(gt=0)]


def _bound(value: Any, info: ValidationInfo) -> int:
    try:
        return _duration(value, info)
    except PydanticCustomError:
        raise
    except ValueError as error:
        raise ValueError(f"{error} (a bound is constant, it cannot depend on a column)") from error


Bound = Annotated[int, BeforeValidator(_bound), PlainSerializer(format_duration)]


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
