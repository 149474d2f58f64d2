"""Joins rows in cells: a cell is one key in one window. The rows of a cell join with each other (W1) and are padded
where they are alone (W3). Window kernels differ in how rows get into cells, but treat a cell alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.rows import (
    PROJECTED_ROWS,
    PairFailures,
    Pairs,
    Selection,
    apply_filter,
    confirm,
    cut_pairs,
    pieces,
    project,
    rows_at_once,
)
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SIDES, SideSpec
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.table.columns import HASH
from joinery_runtime.core.table.segment import concat
from joinery_runtime.core.table.sort import list_pairs

Sides = tuple[list[Selection], list[Selection]]
Numbers = tuple[int, int]  # windows are numbered by n; first and last, both included
Bounds = tuple[np.ndarray, np.ndarray]  # int64[n] each: the first and the last window of each row


@dataclass(frozen=True, slots=True)
class Members:
    """n rows of a side in their cells, each row once per window that holds it.

    `cell` (int64[n]) is numbered from 0 across both sides; `start` and `end` (int64[n]) are the window's.
    """

    rows: Selection
    cell: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


class WindowOutput:
    """Makes the output rows of a window step, in batches of at most PROJECTED_ROWS. `lookups` counts rows per side,
    once per closed window; `matches` counts pairs."""

    def __init__(self, step: StepSpec, *, ordered: bool) -> None:
        self._step, self._ordered = step, ordered
        self.lookups = [0, 0]
        self.matches = 0
        self.failures = PairFailures()

    def close(self, members: tuple[Members, Members]) -> Iterator[pa.RecordBatch]:
        """Yield every pair of each cell, then the preserved rows without a partner in their cell. Of a semi join
        yields the left rows that have one instead (E2)."""
        met = [np.zeros(len(m), dtype=bool) for m in members]
        for positions in _candidates(members[LEFT].cell, members[RIGHT].cell):
            yield from self._match(members, positions, met)
        for side in SIDES:
            self.lookups[side] += len(members[side])
            chosen = ~met[side]
            if self._step.emits == "matched" and side == LEFT:
                chosen = met[side]
            elif not self._step.sides[side].preserved:
                continue
            side_members, rows = members[side], np.flatnonzero(chosen)
            yield from self._pad(
                side, side_members.rows.where(rows), side_members.start[rows], side_members.end[rows], None
            )

    def pad_arrivals(self, side: int, rows: Selection, start: np.ndarray, end: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Emit at once the rows that cannot match (O2), with the windows [start, end)."""
        return self._pad(side, rows, start, end, side)

    def _match(
        self,
        members: tuple[Members, Members],
        positions: tuple[np.ndarray, np.ndarray],
        met: Sequence[np.ndarray],
    ) -> Iterator[pa.RecordBatch]:
        left, right = (members[side].rows.where(positions[side]) for side in SIDES)
        left_members, at = members[LEFT], positions[LEFT]
        candidates = Pairs(left, right, (left_members.start[at], left_members.end[at]))
        for piece in pieces(self._step, candidates):
            sure = piece[confirm(self._step, candidates.where(piece), self.failures)]
            for side in SIDES:
                met[side][positions[side][sure]] = True
            self.matches += len(sure)
            if len(sure) and self._step.emits == "pairs":
                yield self._rows(candidates.where(sure), None)

    def _pad(
        self, side: int, rows: Selection, start: np.ndarray, end: np.ndarray, arrived: int | None
    ) -> Iterator[pa.RecordBatch]:
        for piece in cut_pairs(self._step, replace(Pairs.of(side, rows, None), windows=(start, end))):
            yield self._rows(piece, arrived)

    def _rows(self, pairs: Pairs, arrived: int | None) -> pa.RecordBatch:
        emitted = apply_filter(self._step, pairs, self.failures)
        return project(self._step, emitted, self.failures, ordered=self._ordered, arrived=arrived)


def _candidates(left: np.ndarray, right: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the positions of left and right rows in one cell: every pair once, at most PROJECTED_ROWS at a time."""
    if not len(left) or not len(right):
        return
    order = np.argsort(right, kind="stable")
    count = np.bincount(right, minlength=int(left.max()) + 1)
    stop = np.cumsum(count)
    probe = np.flatnonzero(count[left])
    cell = left[probe]
    for own, other in list_pairs((probe, stop[cell] - count[cell], stop[cell]), PROJECTED_ROWS):
        yield own, order[other]


def cut_by_hash(sides: Sides) -> Iterator[Sides]:
    """Cut the rows into pieces of about `rows_at_once` rows, never splitting a hash. This bounds the memory of a
    closing and keeps a text column below the 2 GiB that Arrow can address. Each selection is sorted by hash; a piece
    has the same number of selections, in the same order."""
    hashes = [[rows.numbers(HASH) for rows in selections] for selections in sides]
    every = np.concatenate([np.empty(0, dtype=np.uint64), *hashes[LEFT], *hashes[RIGHT]])
    at_once = rows_at_once(rows.batch for side in sides for rows in side)
    borders = np.unique(np.sort(every)[at_once::at_once])
    cuts = [
        [np.concatenate([[0], np.searchsorted(values, borders, side="left"), [len(values)]]) for values in side]
        for side in hashes
    ]
    for k in range(len(borders) + 1):
        left, right = (
            [rows.where(np.arange(at[k], at[k + 1])) for rows, at in zip(sides[side], cuts[side], strict=True)]
            for side in SIDES
        )
        yield left, right


def concat_selections(side: SideSpec, selections: Sequence[Selection]) -> pa.RecordBatch:
    """One batch of all the selected rows, in the order of the selections."""
    batches = [rows.batch.take(pa.array(rows.index)) for rows in selections if len(rows)]
    return concat(batches) if batches else pa.RecordBatch.from_pylist([], schema=side.segment_schema())


def within(bounds: Bounds, numbers: Numbers) -> Bounds:
    return np.maximum(bounds[0], numbers[0]), np.minimum(bounds[1], numbers[1])


def cut_by_window(bounds: Sequence[Bounds]) -> Iterator[Numbers]:
    """Yield spans of windows that hold at most PROJECTED_ROWS members together, or single windows. A row is a member
    of size / slide windows, so a few rows can make very many members."""
    filled = [b for b in bounds if len(b[0])]
    if filled:
        all_windows = min(int(first.min()) for first, _ in filled), max(int(last.max()) for _, last in filled)
        yield from _halve_windows(filled, all_windows)


def _halve_windows(bounds: Sequence[Bounds], numbers: Numbers) -> Iterator[Numbers]:
    first, last = numbers
    members = sum(int(np.maximum(b[1] - b[0] + 1, 0).sum()) for b in (within(b, numbers) for b in bounds))
    if members <= PROJECTED_ROWS or first == last:
        yield numbers
        return
    middle = (first + last) // 2
    yield from _halve_windows(bounds, (first, middle))
    yield from _halve_windows(bounds, (middle + 1, last))
