"""What the core needs to know of a job: plain values, compiled once from the resource by `core.compile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from joinery_runtime.core.expression import Expression

LEFT: Final = 0
RIGHT: Final = 1
PARTS: Final = ("left", "right")

# Watermark of an input that has ended (rule T7); printed as it is.
END_OF_TIME: Final = 2**63 - 1

Watermark = int | None  # None: nothing known yet


@dataclass(frozen=True, slots=True)
class SideSpec:
    """One side of a two-way join.

    A row at `ts` matches rows of the other side in [ts + partner_lower_ms, ts + partner_upper_ms], both included.
    `stored` lists the user columns that segments keep (without the event time, which is `$ts`).
    """

    input: str
    schema: pa.Schema
    event_time: str
    keys: tuple[str, ...]
    stored: tuple[str, ...]
    predicate: Expression | None
    partner_lower_ms: int
    partner_upper_ms: int


@dataclass(frozen=True, slots=True)
class OutputColumn:
    side: int
    column: str
    name: str


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """An inner interval join (rules J1-J10). Durations are milliseconds."""

    sides: tuple[SideSpec, SideSpec]
    residual: Expression | None
    output: tuple[OutputColumn, ...]
    allowed_lateness_ms: int
    drop_late: bool

    def watermarks(self, by_input: Mapping[str, Watermark]) -> tuple[Watermark, Watermark]:
        left, right = self.sides
        return by_input[left.input], by_input[right.input]

    def keep_from(self, side: int, watermarks: tuple[Watermark, Watermark]) -> int | None:
        """The lowest event time of `side` that is still kept (J3), None where nothing can be dropped yet."""
        other = watermarks[1 - side]
        if other is None:
            return None
        return _clamp(other - self.sides[side].partner_upper_ms - self.allowed_lateness_ms)

    def kept_for_ms(self, side: int) -> int:
        """For how long of event time a row of `side` is kept, apart from the other input's watermark delay."""
        return max(0, self.sides[side].partner_upper_ms + self.allowed_lateness_ms)

    def accept_from(self, watermarks: tuple[Watermark, Watermark]) -> int | None:
        """The lowest event time that is not dropped as late (J6, J7), None where nothing is."""
        left, right = watermarks
        if not self.drop_late or left is None or right is None:
            return None
        reach = max(side.partner_upper_ms for side in self.sides)
        return _clamp(min(left, right) - reach - self.allowed_lateness_ms)

    def output_schema(self) -> pa.Schema:
        return pa.schema([self.sides[c.side].schema.field(c.column).with_name(c.name) for c in self.output])

    def side_of(self, name: str) -> int:
        return LEFT if self.sides[LEFT].input == name else RIGHT


def _clamp(ts: int) -> int:
    return max(-(2**63), min(2**63 - 1, ts))
