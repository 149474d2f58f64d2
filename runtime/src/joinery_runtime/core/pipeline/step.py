"""What a kernel takes and returns for one step of one shard in one epoch, as plain values."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME
from joinery_runtime.core.table.columns import FLAG
from joinery_runtime.core.table.keyhash import HashRange
from joinery_runtime.core.table.segment import Run

# The order of a trace's rows (docs/trace.md). Closings come first, by (ts, side, partition, offset) of the closed row
# (of a pair, its left row). Matches follow, by (side, partition, offset) of the later row. Ties are broken by the
# partner's place (-1 without a partner), then by the window's start (0 without a window). Of a session the
# first and the last of the times are those of its first and its last row, and it has no partner.
PHASE, PARTNER, FIRST_TIME, LAST_TIME = "$phase", "$partner_offset", "$order_ts", "$order_window"
ARRIVED_PARTITION, ARRIVED_OFFSET = "$order_partition", "$order_offset"
PARTNER_PARTITION = "$partner_partition"  # of sessions: 0 for a retraction, else 1
ORDER_COLUMNS = (
    PHASE,  # CLOSING or ARRIVAL
    FIRST_TIME,  # of a closing; 0 for matches
    "$order_side",
    ARRIVED_PARTITION,
    ARRIVED_OFFSET,
    PARTNER_PARTITION,
    PARTNER,
    LAST_TIME,
)
RETRACTIONS_FIRST = (
    PHASE,
    PARTNER_PARTITION,
    *(name for name in ORDER_COLUMNS if name not in (PHASE, PARTNER_PARTITION)),
)
"""The order of sessions that are taken back: those that replace them follow, whichever began first."""
CLOSING, ARRIVAL = 0, 1
FILTERED_ROWS = "filtered_rows"
"""The reason for which rows that a step's filter leaves out are counted, at the step's right input (J11)."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far a part of the state was and is closed (docs/architecture.md, "Horizons"). None: nothing can be closed."""

    previous: int | None = None
    current: int | None = None

    def passes(self, ts: np.ndarray) -> np.ndarray:
        """bool[n]: which of the event times (int64[n]) lie in `previous <= ts < current`, so that this epoch closes
        them and no other one does."""
        if self.current is None:
            return np.zeros(len(ts), dtype=bool)
        closed = ts < self.current
        return np.asarray(closed if self.previous is None else closed & (ts >= self.previous))


Horizons = Mapping[str, Horizon]  # by part of the state, and COMPLETE


@dataclass(frozen=True, slots=True)
class StateRun:
    """The rows of a live segment that belong to this shard.

    `first` is the number of the run's first row in the segment. `flagged` (bool[n]) holds the rows' flags as committed
    (None: rows of this part have no flags).
    """

    segment: str
    run: Run
    first: int = 0
    flagged: np.ndarray | None = None

    @property
    def flags(self) -> np.ndarray:
        """`flagged`, for kinds whose rows all have flags."""
        assert self.flagged is not None, "rows of this part have flags"
        return self.flagged

    def within(self, owned: HashRange) -> StateRun:
        """Return the rows whose hash lies in the range."""
        rows = self.run.rows_in(owned)
        flagged = self.flagged[rows] if self.flagged is not None else None
        return StateRun(self.segment, self.run.within(owned), self.first + rows.start, flagged)

    def where(self, chosen: np.ndarray) -> StateRun:
        """Return the rows for which bool[n] is true. Row numbers of the segment no longer apply to them."""
        if chosen.all():
            return self
        rows = Run.view(self.run.batch.filter(pa.array(chosen)))
        return StateRun(self.segment, rows, 0, self.flagged[chosen] if self.flagged is not None else None)


@dataclass(frozen=True, slots=True)
class StepWork:
    """One shard's work in a step. Tuples hold one value per side: (left, right), or a single value for sessions.

    `arrivals` are prepared rows (None: no rows), with `$joinable` where the side is preserved. `state_runs` are the
    state. `accept_from` is the lowest event time of each side that is not late (None: nothing is late). `ordered` asks
    for ORDER_COLUMNS after the output columns. `complete` is the horizon behind which sessions are emitted (S5).
    `reached` is the event time up to which a table was read (`InputTime.reached`). `early` is the horizon up to which
    early results are emitted (G8).
    """

    arrivals: tuple[pa.RecordBatch | None, ...]
    state_runs: tuple[Sequence[StateRun], ...]
    horizons: tuple[Horizon, ...]
    accept_from: tuple[int | None, ...] = (None, None)
    complete: Horizon = Horizon()
    ordered: bool = False
    reached: int = END_OF_TIME
    early: Horizon = Horizon()

    @property
    def written_at(self) -> int:
        """The `$early` of rows that this epoch writes: they are emitted early once that horizon passes this time."""
        return BEGIN_OF_TIME if self.early.current is None else self.early.current


@dataclass(frozen=True, slots=True)
class UnfitRows:
    """Rows of an aggregate with values that do not fit their types (S7): the groups, of which `keys` are the columns,
    columns of the window and aggregates of each, and why (`reasons`)."""

    rows: pa.RecordBatch
    keys: Sequence[str]
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step returns once it has produced all of its rows.

    - `added`: the arrivals that join the state, sorted, with `$mark` where the part has flags.
    - `flags`: per side and segment, the row numbers in the segment (int64) that are flagged from now on.
    - `finished`: segments that have no more rows of this shard, where event times do not show it.
    - `dropped`: the number of dropped arrivals by reason (`late`, ...).
    - `lookups`: the number of arrivals looked up in the other side. `matches`: the number of pairs found.
    - `failed`: the number of pairs for which a condition or a column could not be computed.
    - `filtered`: the number of rows that the step's filter left out (J11).
    - `after_eviction`: per side, the number of accepted rows whose partners may be evicted already (T10), where
      `StepOperator.complete_from` does not say.
    - `late`: per side, partition and offset (int64[k, 2]) of late arrivals, where the kind judges them for the dead
      letters.
    - `unfit`: rows that do not fit, in the order in which they were made. `failed` counts them, too.
    - `lost`: a stored row that has lost values, with its group and the start of its window (None: none has).
    """

    added: tuple[Run | None, ...] = (None, None)
    flags: tuple[Mapping[str, np.ndarray], ...] = field(default=({}, {}))
    finished: frozenset[str] = frozenset()
    dropped: tuple[Mapping[str, int], ...] = field(default=({}, {}))
    lookups: tuple[int, ...] = (0, 0)
    matches: int = 0
    failed: int = 0
    filtered: int = 0
    after_eviction: Mapping[int, int] = field(default_factory=dict)
    late: tuple[np.ndarray, ...] = ()
    unfit: tuple[UnfitRows, ...] = ()
    lost: UnfitRows | None = None

    @classmethod
    def nothing(cls, sides: int) -> StepResult:
        return cls(added=(None,) * sides, flags=({},) * sides, dropped=({},) * sides, lookups=(0,) * sides)


StepRun = Generator[pa.RecordBatch, None, StepResult]
"""Yields a step's rows as they are made, then returns the result. Batches have the output schema, plus ORDER_COLUMNS
if asked for. Each is of bounded size, because a hot key produces far more rows than fit into memory."""


def with_flags(run: Run, flagged: np.ndarray) -> Run:
    """Return the run, of a part that has flags, with `$mark` set to `flagged`."""
    batch = run.batch
    at = batch.schema.get_field_index(FLAG)
    return Run.view(batch.set_column(at, batch.schema.field(at), pa.array(flagged, pa.bool_())))
