"""What `joinery state` asks the kinds of step for: stored rows, and what is still to come for them. Times are
milliseconds of event time."""

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
"""A JSON object per row, as it is in the output (V3)."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The watermarks and horizons of the next epoch."""

    watermarks: Mapping[str, Watermark]
    horizons: Horizons

    def horizon(self, part: str) -> int | None:
        return self.horizons[part].current


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one key in a segment of a side; `marked` is bool[n]: the row is marked, in the segment or since."""

    side: int
    rows: pa.RecordBatch
    marked: np.ndarray


class Shown(Protocol):
    """Something that is stored of a key."""

    def document(self) -> dict[str, Any]: ...

    def line(self) -> str: ...


class Summary(Protocol):
    """What `joinery state` says of all that a job stores."""

    def document(self) -> Mapping[str, Any]: ...

    def lines(self) -> Iterator[str]: ...


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A stored row of a side. `marked` (None: rows of this part have no marks) says that it has matched, or, of a
    session window, that it has gone out; `deleted` that it is a version of a table that says the key was deleted."""

    side: int
    ts: int
    partition: int
    offset: int
    columns: Mapping[str, Any]
    marked: bool | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class TakenRow:
    """A row of a side that was taken, among those of its key: `times` are the event times of all of these, of all sides
    (int64[n], ascending), `newer` is that of the next row of its own side, if there is one."""

    side: int
    ts: int
    times: np.ndarray
    newer: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """What a kind has made of several rows, by their first and last event times. `ended` says why it takes no more rows
    and has gone out, by the rule `ended_by`; empty: it is open."""

    start: int
    last: int
    ended: str = ""
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class RowStatus:
    """When a stored row leaves, and whether it goes out then: in words, and as facts for a document."""

    words: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A `Shown`: a row, by its side's inputs."""

    input: str
    row: StoredRow
    status: RowStatus

    def document(self) -> dict[str, Any]:
        row = self.row
        place = {"ts": row.ts, "partition": row.partition, "offset": row.offset}
        return {"input": self.input, **place, "columns": dict(row.columns), **self.status.facts}

    def line(self) -> str:
        columns = ", ".join(f"{name} {json.dumps(value)}" for name, value in self.row.columns.items())
        place = f"{self.row.partition}/{self.row.offset}"
        return f"{self.input} {place} at {format_time(self.row.ts)}: {columns}; {self.status.words}"
