"""What `joinery why` and `joinery state` say about a step: what is stored of a key, and what will happen to it.

Each kind of step has a module here, as it has one in `core.kinds`. The core says when rows leave
(`StepOperator.retention`); a `StepDescription` puts it into words. Times are event-time milliseconds.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from itertools import zip_longest
from pkgutil import iter_modules
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.spec import AcceptedRow, Pipeline, StepOperator, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, OutputWatermarks, Times, Watermark
from joinery_runtime.core.table.columns import DELETED, OFFSET, PARTITION, TS, partitions_of
from joinery_runtime.inspect import kinds
from joinery_runtime.job.model.duration import format_time
from joinery_runtime.job.model.wording import counted

ToJson = Callable[[pa.Table], Sequence[bytes]]
"""Renders one JSON object per row, as in the output (V3)."""


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """The watermarks and horizons of the next epoch, and up to which event times inputs were read that are behind
    (`InputTime.reached`). `output_watermarks` are those that each step sees of the inputs that steps before it
    read, by step."""

    watermarks: Mapping[str, Watermark]
    horizons: Horizons
    reached: Mapping[str, int] = field(default_factory=dict)
    output_watermarks: Mapping[int, OutputWatermarks] = field(default_factory=dict)

    @classmethod
    def of(cls, pipeline: Pipeline, input_times: Times, horizons: Horizons) -> EpochTimes:
        output_watermarks = {
            step.number: times.watermarks_before(pipeline, step, input_times, horizons) for step in pipeline.steps[1:]
        }
        watermarks = {name: input_time.watermark for name, input_time in input_times.items()}
        reached = {name: input_time.reached for name, input_time in input_times.items()}
        return cls(watermarks, horizons, reached, output_watermarks)

    def watermark_of(self, step: StepSpec) -> Watermark:
        """Return the watermark by which the only side of the step is judged; of rows in windows of joins, up to where
        these have closed (R8)."""
        (side,) = step.sides
        if side.one_window:
            return self.horizons[side.part].current
        return self.output_watermarks.get(step.number, self.watermarks)[side.time]

    @staticmethod
    def watermark_name(step: StepSpec) -> str:
        """Whose watermark that is: the input's, or the one that the step before hands on (N3)."""
        name = step.sides[0].time
        return f"{name} after step {step.number}" if step.number else name

    def watermark_text(self, step: StepSpec) -> str:
        """Name the watermark, and say where it is: `the watermark of clicks (...)`."""
        return f"the watermark of {self.watermark_name(step)} ({format_time(self.watermark_of(step))})"

    def horizon(self, part: str) -> int | None:
        return self.horizons[part].current


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of one key in a segment of a side. `flagged` (bool[n]): the row was flagged in the segment or later."""

    side: int
    rows: pa.RecordBatch
    flagged: np.ndarray


class EntryView(Protocol):
    """An entry in the list of what is stored of a key. `left`: it is out of the state, and stored only until its
    segment goes."""

    @property
    def left(self) -> bool: ...

    def document(self) -> dict[str, Any]: ...

    def line(self) -> str: ...


class Summary(Protocol):
    """What `joinery state` says about everything that a job stores."""

    def document(self) -> Mapping[str, Any]: ...

    def lines(self) -> Iterator[str]: ...


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A stored row of a side. `flagged`: it has matched or, in a session window join, been emitted (None: rows of this
    part have no flags). `deleted`: it is a table's version that deletes the key."""

    side: int
    ts: int
    partition: int
    offset: int
    columns: Mapping[str, Any]
    flagged: bool | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a kind made from several rows, by their first and last event times. `ended` says why it has gone
    out and takes no more rows, by the rule `ended_by`; empty: it is open."""

    start: int
    last: int
    ended: str = ""
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class RowStatus:
    """When a stored row leaves and whether it is emitted then, in words and as fields of a document."""

    words: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowView:
    """A `EntryView` of a row. `input` names the inputs of its side."""

    input: str
    row: StoredRow
    status: RowStatus
    left: bool = False

    def document(self) -> dict[str, Any]:
        row, left = self.row, {"left": True} if self.left else {}
        position = {"ts": row.ts, "partition": row.partition, "offset": row.offset}
        return {"input": self.input, **position, "columns": dict(row.columns), **self.status.fields, **left}

    def line(self) -> str:
        columns = ", ".join(f"{name} {json.dumps(value)}" for name, value in self.row.columns.items())
        position = f"{self.row.partition}/{self.row.offset}"
        return f"{self.input} {position} at {format_time(self.row.ts)}: {columns}; {self.status.words}"


Operator = TypeVar("Operator", bound=StepOperator)


@dataclass(frozen=True, slots=True)
class StepDescription(ABC, Generic[Operator]):
    """Describes a step of one kind."""

    describes: ClassVar[type[StepOperator]]
    """The kind."""
    merges_rows: ClassVar[bool] = False
    """Whether the state holds spans, each made of several rows, instead of single rows."""
    summary_columns: ClassVar[tuple[str, ...]] = ()
    """The columns of all stored rows that `summary` reads; empty: there is no summary."""

    step: StepSpec
    kind: Operator

    # --- what is stored -----------------------------------------------------------------------------------------------

    @abstractmethod
    def entries(self, stored: Sequence[StoredRows], epoch_times: EpochTimes, to_json: ToJson) -> Sequence[EntryView]:
        """List everything stored of one key, each entry with what will happen to it."""

    def count_text(self, entries: Sequence[EntryView]) -> str:
        """Say how much is stored of a key: `3 rows`."""
        return counted(len(entries), "row")

    def spans_of(self, entries: Sequence[EntryView]) -> Sequence[Span]:
        """Pick the spans from everything stored of one key."""
        return ()

    def summary(self, rows: pa.Table, epoch_times: EpochTimes) -> Summary | None:
        """Summarize the state. `rows` holds `summary_columns` of all rows that are in the state."""
        return None

    def stored_times(self, rows: pa.RecordBatch) -> Mapping[str, pa.Array]:
        """Return the times (int64, ms) of stored rows by the names of their columns in `joinery sql`."""
        return {"event_time": rows.column(TS)}

    # --- when it leaves -----------------------------------------------------------------------------------------------

    @abstractmethod
    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        """Say what an epoch with these horizons closes on a side that has one: `closes windows that end at ...`."""

    def is_evicted(self, row: AcceptedRow, epoch_times: EpochTimes) -> bool:
        """Tell whether the row has left the state in an epoch with these epoch times."""
        return self.kind.retention[row.side].has_ended(row, epoch_times.horizon(self.step.sides[row.side].part))

    def deciding_time(self, row: AcceptedRow) -> int | None:
        """Return the time of the row that decides when it leaves; None: not known yet."""
        return self.kind.retention[row.side].time.time_of(row)

    @abstractmethod
    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        """Say on which condition the row leaves: `the watermark of payments (...) is above ...`."""


def accepted(row: StoredRow) -> AcceptedRow:
    return AcceptedRow(row.side, row.ts, np.array([row.ts]))


ALONE = "e3"
"""The id of the rule for unmatched rows that an anti join emits, which have no other side to be padded for."""


class JoinDescription(StepDescription[Operator]):
    """Describes a step with a left and a right side, whose state is made of rows."""

    __slots__ = ()

    matches_by: ClassVar[str]
    """The id of the rule in docs/semantics.md that says which rows match."""
    padded_by: ClassVar[tuple[str, str]]
    """The ids of the rules for unmatched rows that are emitted padded: in phase CLOSING, and in phase ARRIVAL."""
    leaves_when_matched: ClassVar[bool] = False
    """Whether a left row of a semi or anti join leaves the state with its first match."""

    @property
    def unmatched_by(self) -> tuple[str, str] | None:
        """The ids of the rules for unmatched rows that are emitted, padded or alone, by phase as in `padded_by`. None:
        the step emits none."""
        match self.step.emits:
            case "pairs":
                return self.padded_by
            case "unmatched":
                return ALONE, ALONE
            case "matched":
                return None

    @abstractmethod
    def ms_out_of_reach(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return by how many milliseconds (int64[n]) pairs with these event times (int64[n] each) are out of reach; 0:
        within reach."""

    @property
    @abstractmethod
    def reach_text(self) -> str:
        """The limit within which pairs match, to follow `outside`: `the bound (right - left from -10 ms to 10 ms)`."""

    @abstractmethod
    def row_statuses(self, rows: Sequence[StoredRow], epoch_times: EpochTimes) -> Sequence[RowStatus]:
        """Say what will happen to each row. `rows` are all stored rows of one key."""

    def entries(self, stored: Sequence[StoredRows], epoch_times: EpochTimes, to_json: ToJson) -> Sequence[RowView]:
        rows = rows_of_key(self.step, stored, to_json)
        times = np.sort(np.array([row.ts for row in rows], dtype=np.int64))
        newer = [
            after.ts if after is not None and after.side == row.side else None
            for row, after in zip_longest(rows, rows[1:])
        ]
        # What is stored was not emitted when it arrived, and left by the committed horizons alone.
        horizons = {part: Horizon(at.previous, at.previous) for part, at in epoch_times.horizons.items()}
        before = replace(epoch_times, horizons=horizons, reached=dict.fromkeys(epoch_times.watermarks, BEGIN_OF_TIME))
        return [
            RowView(
                " + ".join(self.step.sides[row.side].inputs),
                row,
                status,
                self.is_evicted(AcceptedRow(row.side, row.ts, times, next_ts), before)
                or (row.flagged is True and self.kind.flagged_rows_leave(self.step)),
            )
            for row, next_ts, status in zip(rows, newer, self.row_statuses(rows, epoch_times), strict=True)
        ]

    def slower_watermark(self, epoch_times: EpochTimes | None = None) -> str:
        """Name the watermark that closes windows of both sides. With these epoch times, include its present values."""
        names = []
        for side in self.step.sides:
            chained, name = side.intake.chained, side.time
            if chained:
                name += f" after step {self.step.number}"
            if epoch_times is not None and not side.one_window:
                at = epoch_times.output_watermarks[self.step.number] if chained else epoch_times.watermarks
                name += f" ({format_time(at[side.time])})"
            names.append(name)
        late = f" - {self.kind.allowed_lateness} ms" if self.kind.allowed_lateness else ""
        return f"the lower watermark of {' and '.join(names)}{late}"


def description_of(step: StepSpec) -> StepDescription[Any]:
    """Return the description of a step, by the step's kind."""
    return _find_descriptions()[type(step.kind)](step, step.kind)


@cache
def _find_descriptions() -> Mapping[type[StepOperator], type[StepDescription[Any]]]:
    """Find the descriptions in the modules of `inspect.kinds`, by kind. A new kind only needs a module there."""
    modules = [import_module(f"{kinds.__name__}.{module_info.name}") for module_info in iter_modules(kinds.__path__)]
    return {
        value.describes: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, StepDescription) and value.__module__ == module.__name__
        if hasattr(value, "describes")
    }


def rows_of_key(step: StepSpec, stored: Sequence[StoredRows], to_json: ToJson) -> list[StoredRow]:
    """List the stored rows of one key by side, event time and place."""
    rows = []
    for segment_rows in stored:
        spec, batch = step.sides[segment_rows.side], segment_rows.rows
        documents = to_json(pa.table(batch.select(list(spec.intake.stored))))
        partitions = partitions_of(batch.column(PARTITION).to_numpy()).tolist()
        positions = zip(batch.column(TS).to_pylist(), partitions, batch.column(OFFSET).to_pylist(), strict=True)
        flagged = segment_rows.flagged.tolist() if spec.flags else [None] * batch.num_rows
        deleted = [False] * batch.num_rows
        if DELETED in batch.schema.names:
            deleted = batch.column(DELETED).to_pylist()
        rows += [
            StoredRow(segment_rows.side, ts, partition, offset, json.loads(document), flag, is_deletion)
            for (ts, partition, offset), document, flag, is_deletion in zip(
                positions, documents, flagged, deleted, strict=True
            )
        ]
    return sorted(rows, key=lambda row: (row.side, row.ts, row.partition, row.offset))
