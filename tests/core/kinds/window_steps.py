"""Window steps built by hand, and the state of one shard that goes through epochs of them: for the kernels' tests.

Both sides have columns k (the key, text), v (a number that names the row) and ts; the output is both sides' v and
the window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from core.step_runs import Ran, ran
from joinery_runtime.core.kinds.session_join import SessionWindowJoin
from joinery_runtime.core.kinds.window import WindowJoin
from joinery_runtime.core.pipeline.expression import parse_expression
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SIDES, Intake, OutputColumn, SideSpec
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS, Horizon, StateRun, StepWork, with_flags
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.core.table.segment import Run, merge
from joinery_runtime.job.model.references import WINDOW_COLUMNS

Joined = tuple[int | None, int | None, int, int]  # v of the left row, of the right row, window start and end
Hasher = Callable[[Sequence[str | None]], np.ndarray]
WindowRule = WindowJoin | SessionWindowJoin

PRESERVED = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}


@dataclass(frozen=True)
class Row:
    """`good` False: the row's own side's predicate is false."""

    key: str | None
    ts: int
    v: int
    good: bool = True

    @property
    def joinable(self) -> bool:
        return self.good and self.key is not None


def real_hash(keys: Sequence[str | None]) -> np.ndarray:
    return key_hash([pa.array(keys, pa.string())])


def one_hash(keys: Sequence[str | None]) -> np.ndarray:
    return np.full(len(keys), 7, dtype=np.uint64)


def window_step(rule: WindowRule, kind: str = "inner", residual: str | None = None) -> StepSpec:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("ms", "UTC"))])
    flags = isinstance(rule, SessionWindowJoin)
    sides = [
        SideSpec(part, (name,), name, Intake(schema, "ts", ("k",), ("k", "v"), preserved=PRESERVED[kind][side]), flags)
        for side, (part, name) in enumerate((("left", "l"), ("right", "r")))
    ]
    output = [OutputColumn(f"{name}_v", pa.int64(), side, "v") for side, name in enumerate("lr")]
    output += [OutputColumn(name, pa.int64(), step_column=name) for name in WINDOW_COLUMNS]
    return StepSpec(0, (sides[0], sides[1]), rule, parse_expression(residual) if residual else None, tuple(output))


def prepared(step: StepSpec, side: int, rows: Sequence[Row], hasher: Hasher = real_hash) -> pa.RecordBatch | None:
    """What `prepare` makes of the rows: those that cannot match stay on a preserved side only."""
    intake = step.sides[side].intake
    rows = [row for row in rows if intake.preserved or row.joinable]
    if not rows:
        return None
    keys = [row.key for row in rows]
    columns = {
        "$hash": pa.array(hasher(keys)),
        "$ts": pa.array([row.ts for row in rows], pa.int64()),
        "$partition": pa.array([0] * len(rows), pa.int32()),
        "$offset": pa.array([row.v for row in rows], pa.int64()),
        "$joinable": pa.array([row.joinable for row in rows]),
        "k": pa.array(keys, pa.string()),
        "v": pa.array([row.v for row in rows], pa.int64()),
    }
    schema = intake.prepared_schema()
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


@dataclass
class Segment:
    key: str
    run: Run
    flagged: np.ndarray | None
    first: int


class Shard:
    """One shard's state, kept as the engine keeps it; `epoch` is what comes out of one, `late` of the last."""

    def __init__(self, step: StepSpec, hasher: Hasher = real_hash) -> None:
        self.step, self.hasher = step, hasher
        self.segments: tuple[list[Segment], list[Segment]] = ([], [])
        self.before: int | None = None
        self.last = Ran()
        self._named = 0

    def epoch(self, now: int | None, left: Sequence[Row] = (), right: Sequence[Row] = ()) -> Counter[Joined]:
        self.last = ran(self.step.kind.run(self.step, self.work(now, left, right)))
        self.before = now
        for side in SIDES:
            self._commit(side)
        return outcome(self.step, self.last)

    def work(
        self, now: int | None, left: Sequence[Row] = (), right: Sequence[Row] = (), *, ordered: bool = False
    ) -> StepWork:
        arrivals = [prepared(self.step, side, rows, self.hasher) for side, rows in enumerate((left, right))]
        horizon = Horizon(self.before, now)
        kept_runs = (self.state_runs(LEFT), self.state_runs(RIGHT))
        return StepWork((arrivals[LEFT], arrivals[RIGHT]), kept_runs, (horizon, horizon), ordered=ordered)

    def state_runs(self, side: int) -> list[StateRun]:
        return [StateRun(s.key, s.run, s.first, s.flagged) for s in self.segments[side]]

    def late(self) -> tuple[int, int]:
        return self.last.dropped[LEFT].get("late", 0), self.last.dropped[RIGHT].get("late", 0)

    def names(self, side: int) -> list[int]:
        """v of the rows that are kept, each segment sorted."""
        return [v for s in self.segments[side] for v in s.run.batch.column("v").to_pylist()]

    def compact(self) -> None:
        """All segments of a side become one, as a compaction makes it."""
        for side in SIDES:
            horizon = Horizon(self.before, self.before)
            survivors = list(self.step.kind.survivors(self.step, side, self.state_runs(side), horizon))
            runs = [with_flags(k.run, k.flagged) if k.flagged is not None else k.run for k in survivors if len(k.run)]
            self.segments[side].clear()
            if runs:
                self._add(side, merge(runs))

    def _commit(self, side: int) -> None:
        for segment in self.segments[side]:
            if segment.key in self.last.flags[side]:
                rows = self.last.flags[side][segment.key] - segment.first
                assert not segment.flagged[rows].any(), "a row is flagged once"
                segment.flagged[rows] = True
        self.segments[side][:] = [s for s in self.segments[side] if s.key not in self.last.finished]
        added = self.last.added[side]
        if added is not None:
            assert added.batch.schema == self.step.sides[side].segment_schema()
            assert len(added)
            self._add(side, added)

    def _add(self, side: int, run: Run) -> None:
        """Segments begin in the middle, as those that several shards share do."""
        self._named += 1
        flags = self.step.sides[side].flags
        flagged = run.batch.column("$mark").to_numpy(zero_copy_only=False).copy() if flags else None
        self.segments[side].append(Segment(f"s{self._named}", run, flagged, 10 * self._named))


def outcome(step: StepSpec, result: Ran) -> Counter[Joined]:
    rows: Counter[Joined] = Counter()
    for batch in result.output:
        assert batch.schema == step.output_schema()
        rows.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return rows


def in_trace_order(result: Ran) -> list[tuple[int | None, int | None, int]]:
    """Left v, right v and window start of each row, in the order of a trace."""
    rows = pa.Table.from_batches(result.output).sort_by([(name, "ascending") for name in ORDER_COLUMNS]).to_pylist()
    return [(row["l_v"], row["r_v"], row["window_start"]) for row in rows]
