"""What `joinery state` asks the kinds of step for: stored rows, and what will happen to them. Times are event-time
milliseconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.core.pipeline.watermark import Watermark
from joinery_runtime.job.model.duration import format_time

ToJson = Callable[[pa.Table], Sequence[bytes]]
"""Renders one JSON object per row, as in the output (V3)."""


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """The watermarks and horizons of the next epoch, and up to which event times inputs were read that are behind
    (`InputTime.reached`)."""

    watermarks: Mapping[str, Watermark]
    horizons: Horizons
    reached: Mapping[str, int] = field(default_factory=dict)

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
class AcceptedRow:
    """A row that the job has taken in. `times` (int64[n], ascending) are the event times of all rows of its key, on all
    sides. `newer` is the event time of the next row of its own side, if any."""

    side: int
    ts: int
    times: np.ndarray
    newer: int | None = None


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
