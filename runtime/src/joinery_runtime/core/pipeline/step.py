"""What a kernel gets and what it gives: one step of one shard in one epoch, as plain values."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from joinery_runtime.core.table.columns import MARK
from joinery_runtime.core.table.keyhash import HashRange
from joinery_runtime.core.table.segment import Run

# Order of a trace's rows (docs/trace.md): closings first, by (ts, side, partition, offset) of the row that is
# closed (of a pair: of its left row); then matches, by the later row's (side, partition, offset). The partner's place
# comes after both, -1 where there is none, and then the window's start, 0 where there is none.
PHASE, PARTNER = "$phase", "$partner_offset"
ORDER_COLUMNS = (
    PHASE,  # CLOSING or ARRIVAL
    "$order_ts",  # of a closing; 0 for matches
    "$order_side",
    "$order_partition",
    "$order_offset",
    "$partner_partition",
    PARTNER,
    "$order_window",
)
CLOSING, ARRIVAL = 0, 1


@dataclass(frozen=True, slots=True)
class Horizon:
    """See docs/architecture.md, "Horizons". None: nothing can be closed yet."""

    previous: int | None = None
    current: int | None = None


Horizons = Mapping[str, Horizon]  # by part of the state, and COMPLETE


@dataclass(frozen=True, slots=True)
class KeptRun:
    """The rows of a live segment that belong to this shard.

    `first` is the row number of the run's first row in the segment; `marked` is bool[n], all rows' marks as committed
    (None: rows of this part have no marks).
    """

    segment: str
    run: Run
    first: int = 0
    marked: np.ndarray | None = None

    @property
    def marks(self) -> np.ndarray:
        """`marked`, for kinds whose rows all have marks."""
        assert self.marked is not None, "rows of this part have marks"
        return self.marked

    def within(self, owned: HashRange) -> KeptRun:
        """The rows whose hash lies in the range."""
        rows = self.run.rows_in(owned)
        marked = self.marked[rows] if self.marked is not None else None
        return KeptRun(self.segment, self.run.within(owned), self.first + rows.start, marked)

    def where(self, chosen: np.ndarray) -> KeptRun:
        """The rows where bool[n] is true; they are no more rows of the segment, whose row numbers mean nothing now."""
        if chosen.all():
            return self
        rows = Run.view(self.run.batch.filter(pa.array(chosen)))
        return KeptRun(self.segment, rows, 0, self.marked[chosen] if self.marked is not None else None)


@dataclass(frozen=True, slots=True)
class StepWork:
    """One shard's work in a step; tuples hold a value per side: (left, right), or of sessions one.

    `arrivals` are prepared rows (None: none), with `$joinable` where the side is preserved; `kept` is what is in the
    state; `accept_from` the lowest event time of each side that is not late (None: nothing is); `ordered` asks for
    ORDER_COLUMNS after the output columns. `complete` is the horizon behind which sessions go out (S5).
    """

    arrivals: tuple[pa.RecordBatch | None, ...]
    kept: tuple[Sequence[KeptRun], ...]
    horizons: tuple[Horizon, ...]
    accept_from: tuple[int | None, ...] = (None, None)
    complete: Horizon = Horizon()
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step leaves once all of its rows are made.

    `added` are the arrivals that join the state, sorted, with `$mark` where the part has marks. `marks` gives, per side
    and segment, the row numbers in the segment (int64) that are marked from now on. `finished` names segments of which
    this shard's rows are all gone, where event times do not tell. `dropped` counts arrivals by reason (`late`, ...),
    `lookups` arrivals that were looked up in the other side, `matches` the pairs that came of it, `failed` the pairs
    for which a condition or a column could not be computed. `after_eviction` counts rows per side that were accepted
    when partners of them may have left (T10), where `Kind.complete_from` does not tell. `late` are the places of late
    arrivals per side, int64[k, 2] of partition and offset, where the kind judges them for the dead letters.
    """

    added: tuple[Run | None, ...] = (None, None)
    marks: tuple[Mapping[str, np.ndarray], ...] = field(default=({}, {}))
    finished: frozenset[str] = frozenset()
    dropped: tuple[Mapping[str, int], ...] = field(default=({}, {}))
    lookups: tuple[int, ...] = (0, 0)
    matches: int = 0
    failed: int = 0
    after_eviction: Mapping[int, int] = field(default_factory=dict)
    late: tuple[np.ndarray, ...] = ()

    @classmethod
    def nothing(cls, sides: int) -> StepResult:
        return cls(added=(None,) * sides, marks=({},) * sides, dropped=({},) * sides, lookups=(0,) * sides)


StepRun = Generator[pa.RecordBatch, None, StepResult]
"""A step's rows as they are made: batches of its output schema, with ORDER_COLUMNS if they were asked for, each of
bounded size, since a hot key makes many more rows than fit in memory. The result comes after the last one."""


def with_marks(run: Run, marked: np.ndarray) -> Run:
    """The run of a part that has marks, with its `$mark` column set."""
    batch = run.batch
    at = batch.schema.get_field_index(MARK)
    return Run.view(batch.set_column(at, batch.schema.field(at), pa.array(marked, pa.bool_())))
