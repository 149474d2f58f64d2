"""How much the live segments hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from joinery_runtime.core.pipeline.sides import MARKS
from joinery_runtime.core.table.segment import SegmentMeta


@dataclass(frozen=True, slots=True)
class StateSize:
    """What the live segments hold: `rows` of inputs or joins, `bytes` as stored, marks included."""

    segments: int
    rows: int
    bytes: int

    @classmethod
    def of(cls, segments: Iterable[SegmentMeta]) -> StateSize:
        live = list(segments)
        rows = sum(s.rows for s in live if not s.part.endswith(MARKS))
        return cls(len(live), rows, sum(s.bytes for s in live))

    @classmethod
    def by_part(cls, segments: Iterable[SegmentMeta], parts: Iterable[str]) -> dict[str, StateSize]:
        """Of each part, with the bytes of its marks."""
        found: dict[str, list[SegmentMeta]] = {part: [] for part in parts}
        for segment in segments:
            found.setdefault(segment.part.removesuffix(MARKS), []).append(segment)
        return {part: cls.of(listed) for part, listed in found.items()}
