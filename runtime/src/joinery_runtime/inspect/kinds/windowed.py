"""What is said about aggregates of tumbling, hopping and cumulative windows (rules G1 to G12).

The state holds a group's panes: the longest spans of time that each window holds whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.kinds.folding import Folding
from joinery_runtime.core.kinds.windowed.kind import WindowAggregation
from joinery_runtime.core.pipeline.spec import AcceptedRow, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons
from joinery_runtime.core.pipeline.watermark import clamp
from joinery_runtime.core.table.columns import TS
from joinery_runtime.core.table.segment import concat
from joinery_runtime.inspect.kinds.base import EntryView, EpochTimes, Span, StepDescription, StoredRows, ToJson
from joinery_runtime.job.model.duration import format_time
from joinery_runtime.job.model.wording import counted

_NAMED_WINDOWS = 4  # of a pane, in a line; the document has all


class WindowedDescription(StepDescription[WindowAggregation]):
    """See G2: a pane leaves when its last window has been emitted."""

    __slots__ = ()

    describes: ClassVar[type[WindowAggregation]] = WindowAggregation
    merges_rows: ClassVar[bool] = True
    summary_columns: ClassVar[tuple[str, ...]] = (TS,)

    def entries(self, stored: Sequence[StoredRows], epoch_times: EpochTimes, to_json: ToJson) -> Sequence[PaneView]:
        """List the panes that no later row has replaced, by time."""
        if not stored:
            return []
        rows = concat(segment_rows.rows.filter(pa.array(~segment_rows.flagged)) for segment_rows in stored)
        timers = PaneTimers(self.kind, self.step, epoch_times)
        rows = rows.filter(pa.array(timers.is_kept(rows.column(TS).to_numpy())))
        rows = rows.take(pc.sort_indices(pa.table([rows.column(TS)], names=[TS]), [(TS, "ascending")]))
        starts, calls = rows.column(TS).to_pylist(), self.kind.aggregates
        results = pa.table(Folding(calls).results(rows), names=[call.name for call in calls])
        documents = [json.loads(text) for text in to_json(results)] if calls else [{} for _ in starts]
        return [PaneView(timers, start, document) for start, document in zip(starts, documents, strict=True)]

    def count_text(self, entries: Sequence[EntryView]) -> str:
        return counted(len(entries), "span")

    def spans_of(self, entries: Sequence[EntryView]) -> Sequence[Span]:
        return [Span(pane.start, pane.end - 1) for pane in entries if isinstance(pane, PaneView)]

    def summary(self, rows: pa.Table, epoch_times: EpochTimes) -> PaneCounts:
        return PaneCounts.of(PaneTimers(self.kind, self.step, epoch_times), rows.column(TS).to_numpy())

    def stored_times(self, rows: pa.RecordBatch) -> Mapping[str, pa.Array]:
        starts = rows.column(TS)
        return {"pane_start": starts, "pane_end": pa.array(self.kind.windows.pane_ends(starts.to_numpy()))}

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        spec = self.step.sides[side]
        ended = horizons[spec.complete if self.kind.reopens else spec.part].current
        ends = f"emits windows that end at {format_time(ended)} or before"
        early = horizons.get(spec.early, Horizon())
        return f"{ends}, and early results" if early.current != early.previous else ends

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        timers = PaneTimers(self.kind, self.step, epoch_times)
        leaves = "leaves" if self.kind.reopens else "is emitted"
        return f"{timers.at(self.deciding_time(row) or 0)}: then its last window {leaves}"


@dataclass(frozen=True, slots=True)
class PaneTimers:
    """When a job's windows are emitted."""

    kind: WindowAggregation
    step: StepSpec
    epoch_times: EpochTimes

    def at(self, end: int) -> str:
        """Say when a window that ends at `end` (ms) leaves: `the watermark of clicks (...) is at ... or above`."""
        reached = format_time(end + self.kind.allowed_lateness)
        return f"{self.epoch_times.watermark_text(self.step)} is at {reached} or above"

    @property
    def emitted_after(self) -> int:
        """How long after its end a window is emitted (ms)."""
        return 0 if self.kind.reopens else self.kind.allowed_lateness

    @property
    def ended(self) -> str:
        """The name of the horizon that emits windows."""
        side = self.step.sides[0]
        return side.complete if self.kind.reopens else side.part

    def is_kept(self, starts: np.ndarray) -> np.ndarray:
        """bool[n]: the panes (by start, int64[n]) that no committed epoch has evicted. Their rows may stay stored for
        longer, with their segment."""
        horizon = self.epoch_times.horizons[self.step.sides[0].part].previous
        if horizon is None:
            return np.ones(len(starts), dtype=bool)
        return np.asarray(starts >= self.kind.windows.open_from(horizon))

    def next_ends(self, starts: np.ndarray, horizon: str) -> np.ndarray:
        """int64[n]: for panes that are kept, the end of the first window that no committed epoch has closed by the
        horizon of this name."""
        first = self.kind.windows.numbers_of(starts)[0]
        closed = self.epoch_times.horizons[horizon].previous
        if closed is not None:
            first = np.maximum(first, clamp(self.kind.windows.last_closed(closed) + 1))
        return self.kind.windows.ends(first)

    def is_due(self, ends: np.ndarray) -> np.ndarray:
        """bool[n]: whether the next epoch emits windows with these ends (int64[n])."""
        closed = self.epoch_times.horizon(self.ended)
        return np.zeros(len(ends), dtype=bool) if closed is None else ends <= closed


@dataclass(frozen=True, slots=True)
class PaneView:
    """A pane of one group, by its `start` (ms), with its aggregates so far."""

    timers: PaneTimers
    start: int
    aggregates: Mapping[str, Any]

    @property
    def end(self) -> int:
        return int(self.timers.kind.windows.pane_ends(np.array([self.start]))[0])

    @property
    def windows(self) -> list[tuple[int, int]]:
        """The windows that hold the pane and still take rows, by start and end (ms)."""
        windows, starts = self.timers.kind.windows, np.array([self.start])
        first = int(self.timers.next_ends(starts, self.timers.step.sides[0].part)[0])
        _, numbers = windows.expand(windows.numbers_of(starts))
        spans = zip(windows.starts(numbers).tolist(), windows.ends(numbers).tolist(), strict=True)
        return [span for span in spans if span[1] >= first]

    @property
    def left(self) -> bool:
        return False  # a pane that has left is not listed

    def document(self) -> dict[str, Any]:
        timers, (first, *_) = self.timers, self.windows
        return {
            "input": timers.step.sides[0].time,
            "start": self.start,
            "end": self.end,
            "windows": [list(span) for span in self.windows],
            "until_input": timers.epoch_times.watermark_name(timers.step),
            "until": first[1] + timers.kind.allowed_lateness,
            "aggregates": dict(self.aggregates),
        }

    def line(self) -> str:
        values = ", ".join(f"{name} {json.dumps(value)}" for name, value in self.aggregates.items())
        windows = self.windows
        named = ", ".join(f"{format_time(start)} to {format_time(end)}" for start, end in windows[:_NAMED_WINDOWS])
        more = f" and {len(windows) - _NAMED_WINDOWS:,} more" if len(windows) > _NAMED_WINDOWS else ""
        windows_text = f"in the windows {named}{more}" if len(windows) > 1 else f"in the window {named}"
        span = f"rows from {format_time(self.start)} to before {format_time(self.end)}"
        due = bool(self.timers.is_due(np.array([windows[0][1]]))[0])
        at = self.timers.at(windows[0][1])
        coming = f"the first one is emitted {'with the next epoch' if due else f'when {at}'}"
        if self.timers.kind.reopens:
            coming = f"the first one takes rows until {at}"
        return f"{span}: {values}{'; ' if values else ''}{windows_text}; {coming}"


@dataclass(frozen=True, slots=True)
class PaneCounts:
    """Numbers of panes: all that are `kept`, and `due` ones, which are in a window that the next epoch emits. `until`
    is the watermark (ms) of `until_input` at which the first window that is not due is emitted (None: there is none).
    """

    kept: int
    due: int
    until_input: str
    until: int | None

    @classmethod
    def of(cls, timers: PaneTimers, starts: np.ndarray) -> PaneCounts:
        """Count the panes. `starts` (int64[n]) are those of all rows that no later one has replaced."""
        stored, windows = starts[timers.is_kept(starts)], timers.kind.windows
        ends = timers.next_ends(stored, timers.ended)
        ends = ends[ends <= windows.ends(windows.numbers_of(stored)[1])]  # others have been emitted, and are kept
        due = timers.is_due(ends)
        until = int(ends[~due].min()) + timers.emitted_after if (~due).any() else None
        return cls(len(stored), int(due.sum()), timers.epoch_times.watermark_name(timers.step), until)

    def document(self) -> Mapping[str, Any]:
        return {"windows": asdict(self)}

    def lines(self) -> Iterator[str]:
        spans = f"{counted(self.kept, 'span')} of a group"
        yield f"windows: {spans}, {self.due:,} in a window that the next epoch emits"
        if self.until is not None:
            reached = format_time(self.until)
            yield f"  the next window is emitted when the watermark of {self.until_input} is at {reached} or above"
