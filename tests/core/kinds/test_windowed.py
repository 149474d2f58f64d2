"""The kernel of windowed aggregates against rules G1 to G5 written down row by row, on random histories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core.cases import HISTORIES
from core.step_runs import Ran, ran
from joinery_devkit.oracle.model import spans_of
from joinery_runtime.core.aggregates import AggregateCall
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.windowed.kind import WindowAggregation
from joinery_runtime.core.kinds.windowed.panes import pane_schema
from joinery_runtime.core.pipeline.sides import Intake, OutputColumn, SideSpec
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import Horizon, StateRun, StepWork, with_flags
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.core.table.segment import Run, merge
from joinery_runtime.engine.output_limit import reasons_of
from joinery_runtime.job.kinds.aggregate.model import AggregateWindow
from joinery_runtime.job.kinds.aggregate.windows import AlignedWindow

TUMBLING, HOPPING, UNEVEN = Windows(10, 10), Windows(10, 5), Windows(10, 4)
CUMULATIVE = Windows(12, 4, cumulative=True)
SHIFTED = (Windows(10, 10, 3), Windows(9, 6, 4), Windows(12, 3, 5, cumulative=True))
CALLS = (
    AggregateCall("count", "rows"),
    AggregateCall("sum", "total", "v", pa.int64()),
    AggregateCall("first", "first", "v", pa.int64()),
    AggregateCall("last", "last", "v", pa.int64()),
    AggregateCall("count_distinct", "values", "v", pa.int64(), 100),
)
NAMES = ("k", "window_start", "window_end", *(call.name for call in CALLS))
Emitted = tuple[Any, ...]  # values of NAMES


@dataclass(frozen=True)
class Row:
    key: str | None
    ts: int
    v: int | None


def step_of(windows: Windows) -> StepSpec:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("ms", "UTC"))])
    intake = Intake(schema, "ts", ("k",), ("k", "v"), grouped=True)
    side = SideSpec("aggregate", ("c",), "c", intake, flags=True, state=pane_schema(intake, CALLS))
    output = [OutputColumn(name, pa.string() if name == "k" else pa.int64(), step_column=name) for name in NAMES]
    return StepSpec(0, (side,), WindowAggregation(windows, CALLS), None, tuple(output))


@dataclass
class Shard:
    """One shard's state as the engine keeps it. `colliding`: all keys have one hash."""

    step: StepSpec
    colliding: bool = False
    segments: dict[str, tuple[Run, np.ndarray]] = field(default_factory=dict)
    before: int | None = None
    last: Ran = field(default_factory=Ran)
    offset: int = 0

    def epoch(self, now: int | None, rows: Sequence[Row] = ()) -> Counter[Emitted]:
        stored = tuple(StateRun(key, run, 0, flags) for key, (run, flags) in self.segments.items())
        horizon = Horizon(self.before, now)
        work = StepWork((self._prepared(rows) if rows else None,), (stored,), (horizon,), accept_from=(None,))
        self.last = ran(self.step.kind.run(self.step, work))
        for key, numbers in self.last.flags[0].items():
            self.segments[key][1][numbers] = True
        for key in self.last.finished:
            del self.segments[key]
        (added,) = self.last.added
        if added is not None:
            self.segments[f"s{self.offset}"] = (added, np.zeros(len(added), dtype=bool))
        self.before = now
        return Counter(tuple(row.values()) for batch in self.last.output for row in batch.to_pylist())

    @property
    def late(self) -> int:
        return self.last.dropped[0].get("late", 0)

    def compact(self) -> None:
        runs = [StateRun(key, run, 0, flags) for key, (run, flags) in self.segments.items()]
        survivors = self.step.kind.survivors(self.step, 0, runs, Horizon(self.before, self.before))
        merged = merge(
            [with_flags(rows.run, rows.flags) for rows in survivors if len(rows.run)] or [runs[0].run.within]
        )
        self.segments = {"merged": (merged, np.zeros(len(merged), dtype=bool))}

    def _prepared(self, rows: Sequence[Row]) -> pa.RecordBatch:
        keys = pa.array([row.key for row in rows], pa.string())
        offsets = np.arange(self.offset, self.offset + len(rows))
        self.offset += len(rows)
        columns = {
            "$hash": np.full(len(rows), 7, dtype=np.uint64) if self.colliding else key_hash([keys]),
            "$ts": pa.array([row.ts for row in rows], pa.int64()),
            "$partition": pa.array(np.zeros(len(rows), dtype=np.int64)),
            "$offset": pa.array(offsets),
            "k": keys,
            "v": pa.array([row.v for row in rows], pa.int64()),
        }
        return pa.record_batch(list(map(pa.array, columns.values())), names=list(columns))


class Reference:
    """Rules G1 to G4, with a list of rows for each group and window."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._rows: dict[tuple[str | None, int, int], list[tuple[int, int, Row]]] = defaultdict(list)
        self._closed = -(10**9)
        self._arrived = 0

    def epoch(self, now: int | None, rows: Sequence[Row]) -> tuple[Counter[Emitted], int]:
        """Returns what is emitted, and how many rows are late."""
        self._closed = self._closed if now is None else now
        ended = [cell for cell in self._rows if cell[2] <= self._closed]
        emitted = Counter(self._emit(cell, [row for _, _, row in sorted(self._rows.pop(cell))]) for cell in ended)
        late = 0
        for row in rows:
            open_ = [(start, end) for start, end in spans(self._windows, row.ts) if end > self._closed]
            late += not open_
            for start, end in open_:
                self._rows[row.key, start, end].append((row.ts, self._arrived, row))
            self._arrived += 1
        return emitted, late

    def _emit(self, cell: tuple[str | None, int, int], rows: Sequence[Row]) -> Emitted:
        values = [row.v for row in rows if row.v is not None]
        first_and_last = (values[0], values[-1]) if values else (None, None)
        return (*cell, len(rows), sum(values) if values else None, *first_and_last, len(set(values)))


def spans(windows: Windows, ts: int) -> list[tuple[int, int]]:
    """Every window that holds the time, by trial (G1)."""
    reach = range(ts - 2 * windows.size, ts + 2 * windows.size)
    if windows.cumulative:
        starts = [at for at in reach if (at - windows.offset) % windows.size == 0]
        ends = [
            (start, start + part) for start in starts for part in range(windows.every, windows.size + 1, windows.every)
        ]
    else:
        ends = [(at, at + windows.size) for at in reach if (at - windows.offset) % windows.every == 0]
    return [(start, end) for start, end in ends if start <= ts < end]


ALL = (TUMBLING, HOPPING, UNEVEN, CUMULATIVE, *SHIFTED)
rows_of = st.builds(Row, st.sampled_from(["a", "a", "b", None]), st.integers(-30, 60), st.sampled_from([1, 2, 7, None]))
epochs_of = st.tuples(st.integers(0, 15), st.lists(rows_of, max_size=8), st.booleans())  # ahead, rows, compacts


@settings(HISTORIES, max_examples=examples(200))
@given(
    windows=st.sampled_from(ALL),
    colliding=st.booleans(),
    epochs=st.lists(
        st.tuples(st.integers(0, 15), st.lists(rows_of, max_size=8), st.booleans()), min_size=1, max_size=6
    ),
)
def test_every_epoch_is_as_the_rules_say(
    windows: Windows, colliding: bool, epochs: list[tuple[int, list[Row], bool]]
) -> None:
    shard, reference = Shard(step_of(windows), colliding), Reference(windows)
    now: int | None = None
    for ahead, rows, compacts in [*epochs, (10**6, [], False)]:
        now = (-20 if now is None else now) + ahead
        assert (shard.epoch(now, rows), shard.late) == reference.epoch(now, rows)
        if compacts and shard.segments:
            shard.compact()
    assert not shard.segments


def test_without_a_watermark_nothing_is_late_and_nothing_closes() -> None:
    shard = Shard(step_of(TUMBLING))
    assert not shard.epoch(None, [Row("a", -(10**12), 1), Row("a", 5, 1)])
    assert (shard.late, len(shard.segments)) == (0, 1)


def test_the_end_of_the_input_closes_everything() -> None:
    shard = Shard(step_of(CUMULATIVE))
    shard.epoch(None, [Row("a", 5, 3)])
    assert shard.epoch(END_OF_TIME) == Counter({("a", 0, 8, 1, 3, 3, 3, 1): 1, ("a", 0, 12, 1, 3, 3, 3, 1): 1})
    assert not shard.segments


def test_an_epoch_without_rows_of_a_group_writes_nothing_of_it() -> None:
    shard = Shard(step_of(TUMBLING))
    shard.epoch(0, [Row("a", 1, 1), Row("b", 2, 1)])
    shard.epoch(1, [Row("b", 3, 1), Row("b", 4, 1), Row("b", 12, 1)])
    assert [len(run) for run, _ in shard.segments.values()] == [2, 2]
    assert sum(int(flags.sum()) for _, flags in shard.segments.values()) == 1


def test_a_row_with_a_value_that_does_not_fit_is_named_and_not_emitted() -> None:
    shard = Shard(step_of(HOPPING))
    shard.epoch(0, [Row("a", 1, 2**63 - 1), Row("a", 2, 1), Row("b", 1, 1)])
    shard.compact()
    shard.epoch(0, [Row("a", 7, -1), Row("a", 8, 5)])
    assert {row[:3] for row in shard.epoch(10)} == {("b", -5, 5), ("b", 0, 10)}
    assert sorted(reason for unfit in shard.last.unfit for reason in reasons_of(unfit)) == [
        f"sum(v), in the output as total: the sum {total} does not fit int64; k='a', in the window from {span}"
        for total, span in (
            (2**63, "1969-12-31T23:59:59.995Z to 1970-01-01T00:00:00.005Z"),
            (2**63 + 4, "1970-01-01T00:00:00.000Z to 1970-01-01T00:00:00.010Z"),
        )
    ]


def test_a_group_in_a_reason_is_cut() -> None:
    shard = Shard(step_of(TUMBLING))
    shard.epoch(0, [Row("a" * 10_000, 1, 2**63 - 1), Row("a" * 10_000, 2, 1)])
    shard.epoch(10)
    (unfit,) = shard.last.unfit
    assert f"; k='{'a' * 59}..., in the window" in next(reasons_of(unfit))
    assert unfit.rows.column("k").to_pylist() == ["a" * 10_000]


HOUR = 3_600_000
LOCAL = [
    (AggregateWindow.model_validate({kind: {**lengths, "timeZone": zone}}), since)
    for zone, since in (
        ("Europe/Zurich", "2026-03-29"),
        ("Europe/Zurich", "2026-10-25"),
        ("Pacific/Apia", "2011-12-30"),
    )
    for kind, lengths in (
        ("tumbling", {"size": "24h", "offset": "2h"}),
        ("hopping", {"size": "48h", "slide": "24h"}),
        ("hopping", {"size": "3h", "slide": "1h"}),
        ("cumulative", {"size": "4h", "step": "1h"}),
    )
]


@pytest.mark.parametrize(("window", "since"), LOCAL)
def test_windows_of_a_zone_are_those_of_its_clocks(window: AggregateWindow, since: str) -> None:
    """As `zoneinfo` says when clocks show the bounds (G12), for each hour of four days around a change."""
    form = window.form
    assert isinstance(form, AlignedWindow)
    windows = Windows.of(form)
    first = round(datetime.fromisoformat(f"{since}T00:00Z").timestamp() * 1000) - 36 * HOUR
    times = range(first, first + 96 * HOUR, HOUR)
    for ts in times:
        expected = sorted(spans_of(window, ts), key=lambda span: span[1])
        _, numbers = windows.expand(windows.numbers_of(np.array([ts])))
        assert list(zip(windows.starts(numbers), windows.ends(numbers), strict=True)) == expected
        pane = int(windows.pane_starts(np.array([ts]))[0]), int(windows.pane_ends(np.array([ts]))[0])
        assert all(start <= pane[0] <= ts < pane[1] <= end for start, end in expected)
        for horizon in (ts - HOUR, ts, ts + 1, ts + 5 * HOUR, ts + 24 * HOUR):
            closed = [end <= horizon for _, end in expected]
            assert (ts < windows.open_from(horizon)) == all(closed)
            assert (ts < windows.whole_from(horizon)) == any(closed)
        for start, end in expected:
            of_windows = replace(windows, of_windows=True)
            (number,), _ = of_windows.numbers_of(np.array([end - 1]))
            assert (of_windows.starts(number), of_windows.ends(number)) == (start, end)
            assert of_windows.open_from(end - 1) <= end - 1 < of_windows.open_from(end)


@pytest.mark.parametrize("windows", ALL)
def test_which_panes_a_horizon_closes_in_part(windows: Windows) -> None:
    """As the times of the windows that hold a row say, by trial (G1, G2)."""
    kind = WindowAggregation(windows, CALLS)
    for ts in range(-25, 25):
        for horizon in range(-25, 40):
            closed = [end <= horizon for _, end in spans(windows, ts)]
            assert (ts < windows.open_from(horizon)) == all(closed)
            assert (ts < windows.whole_from(horizon)) == any(closed)
            half = bool(kind.half_closed(0, np.array([ts]), horizon)[0])
            assert half == (any(closed) and not all(closed))
        first, last = (int(numbers[0]) for numbers in windows.numbers_of(np.array([ts])))
        numbers = np.arange(first, last + 1)
        assert list(zip(windows.starts(numbers), windows.ends(numbers), strict=True)) == sorted(
            spans(windows, ts), key=lambda span: span[1]
        )
