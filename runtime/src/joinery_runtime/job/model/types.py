"""Column types of a resource's `schema`, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from joinery_runtime.job.model.wording import suggestion

SIMPLE_TYPES = ("boolean", "int32", "int64", "float", "double", "string", "binary", "date", "timestamp", "json")
MAX_PRECISION = 38  # the most that Arrow's decimal128 and Spark hold

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
_NESTED = ("array", "list", "struct", "map", "object", "record", "row", "variant")
_ALLOWED = f"types are {', '.join(SIMPLE_TYPES)} and decimal(p,s)"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One scalar type; `precision` and `scale` are set for `decimal` only (1 <= precision <= 38, 0 <= scale <= p)."""

    name: str
    precision: int | None = None
    scale: int | None = None

    def __post_init__(self) -> None:
        if self.name not in (*SIMPLE_TYPES, "decimal"):
            hint = suggestion(self.name, [*SIMPLE_TYPES, "decimal"])
            if re.fullmatch(r"decimal\(\s*\d+\s*", self.name):
                hint = ' (inside of {...} it needs quotes: type: "decimal(12,2)")'
            elif self.name.lower().startswith(_NESTED):
                hint = (
                    " (a json column takes an object or an array, a string column its text; path leads to a value "
                    "inside)"
                )
            raise ValueError(f"{self.name!r} is not a column type{hint}; {_ALLOWED}")
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
    """`string`, `decimal(12,2)`, ... as a ColumnType. Raises ValueError naming the allowed types."""
    decimal = _DECIMAL.fullmatch(text)
    if decimal is not None:
        return ColumnType("decimal", int(decimal[1]), int(decimal[2]))
    return ColumnType(text)
