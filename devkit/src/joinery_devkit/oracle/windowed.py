"""The oracle of windows in an `aggregate` of one input: section G of docs/semantics.md, one row at a time. A window of
a group is the list of its rows, and everything else is computed from these."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joinery_devkit.oracle.aggregates import Judged, RowRules, Sketch, aggregate_rows, exact
from joinery_devkit.oracle.horizons import UNKNOWN, EarlyHorizon, as_time
from joinery_devkit.oracle.joins import LATE, EpochExpectation, SideBatches, Watermarks
from joinery_devkit.oracle.model import FAILED, FILTERED_ROWS, Span, spans_of
from joinery_devkit.oracle.rows import END, Row, Selection, Values, comparable, selected
from joinery_runtime.job import StreamJoin
from joinery_runtime.job.kinds.aggregate.model import Aggregation


def own_span(spans: Sequence[Span], ts: int) -> list[Span]:
    """Choose the window whose last millisecond is the time, out of those that hold it: an aggregate's row at this time
    comes from it."""
    return [span for span in spans if span[1] == ts + 1]


@dataclass(frozen=True)
class WindowShape:
    """What a job's rows and windows look like. `where` and `computed` are its expressions in Python, on a row's
    columns; `conditions` are those of its aggregates, by their text, on what `values` gives, `having` and `selection`
    (None: all columns) on what `output` gives."""

    job: StreamJoin
    where: Callable[[Values], bool | None] | None = None
    computed: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    sketch: Sketch = exact
    conditions: Mapping[str, Callable[[Values], bool | None]] = field(default_factory=dict)
    having: Callable[[Values], bool | None] | None = None
    selection: Selection | None = None

    @property
    def rules(self) -> RowRules:
        return RowRules.of(self._aggregation, self.job.spec.select, self.having)

    def spans(self, ts: int) -> list[Span]:
        """Return the windows that hold the time (G1)."""
        return spans_of(self._aggregation.window, ts)

    def values(self, row: Row) -> Values:
        """Return the columns that groups and aggregates may name."""
        name = self.job.inputs[0].name
        own = {f"{name}.{column}": value for column, value in row.values.items()}
        return {**own, **{column: compute(row.values) for column, compute in self.computed.items()}}

    def group(self, values: Values) -> Values:
        return {name: values[name] for name in self._aggregation.group_by}

    def output(self, span: Span, rows: Sequence[Values]) -> dict[str, Any]:
        """Return a window's row (G4), from the rows in order of event time, then arrival."""
        types = {f"{side.name}.{column}": kind for side in self.job.inputs for column, kind in side.types.items()}
        group = {name.rpartition(".")[2]: value for name, value in self.group(rows[0]).items()}
        aggregates = {
            spec.as_: aggregate_rows(spec, rows, types.get(spec.column or ""), self.sketch, self.conditions)
            for spec in self._aggregation.aggregates
        }
        return {**group, "window_start": span[0], "window_end": span[1], **aggregates}

    @property
    def reopens(self) -> bool:
        return self._aggregation.late_data == "reopen"

    @property
    def every(self) -> int | None:
        return self._aggregation.emit_every

    @property
    def lateness(self) -> int:
        return self._aggregation.allowed_lateness

    @property
    def _aggregation(self) -> Aggregation:
        assert self.job.aggregation is not None, "the job aggregates"
        return self.job.aggregation


class WindowOracle:
    """The oracle. `depth` is how many epochs it takes until what the first one closes has been emitted. `handed_on` is
    the lowest event time that the rows of the last epoch may have had (N3, G10)."""

    depth = 1

    def __init__(self, shape: WindowShape) -> None:
        (self._input,) = self.inputs = tuple(side.name for side in shape.job.inputs)
        self._shape, self._closed, self._arrived = shape, UNKNOWN, 0
        self.handed_on = UNKNOWN
        self._early, self._changed = EarlyHorizon(), set[tuple[Hashable, Span]]()
        self._ended, self._final, self._received = UNKNOWN, set[tuple[Hashable, Span]](), set[tuple[Hashable, Span]]()
        self._rows: dict[tuple[Hashable, Span], list[tuple[int, int, int, int, Values]]] = defaultdict(list)

    def edit(self, job: StreamJoin) -> None:
        """Continue the job with another lateness."""
        self._shape = replace(self._shape, job=job)

    def epoch(self, watermarks: Watermarks, rows: SideBatches) -> EpochExpectation:
        """Replay one epoch, like `Oracle.epoch`."""
        self._arrived += 1
        self.handed_on = self._closed
        watermark = as_time(watermarks[self._input])
        self._closed = max(self._closed, watermark - self._shape.lateness)
        self._ended = max(self._ended, watermark) if self._shape.reopens else self._closed
        self._received.clear()
        judged = list[Judged]()  # the rows of windows whose end has been reached (G2)
        for cell in [cell for cell in self._rows if cell[1][1] <= self._ended]:
            if cell not in self._final:
                judged.append(self._judge_row(cell))
                self._final.add(cell)
            if cell[1][1] <= self._closed:  # it takes no row any more (G3)
                del self._rows[cell]
        if self._early.passes(as_time(watermarks[self._input]), self._shape.every):
            open_cells = (cell for cell in self._rows if cell[1][1] > self._ended)
            judged += [self._judge_row(cell) for cell in open_cells if cell in self._changed]
            self._changed.clear()
        dropped: Counter[str] = Counter()
        for row in rows.get(self._input, ()):
            if self._shape.where is None or self._shape.where(row.values) is True:
                dropped[LATE] += not self._take(row)
            else:
                dropped["filtered"] += 1
        if self._shape.reopens:
            judged += [self._judge_row(cell) for cell in self._received if cell[1][1] <= self._ended]
        unfit = sum(result.unfit for result in judged)
        dropped += Counter({FILTERED_ROWS: sum(result.left_out for result in judged), FAILED: unfit})
        emitted = tuple(result.row for result in judged if result.row is not None)
        if self._shape.selection is not None:
            pairs = [
                (*selected(self._shape.selection, result.row), result.unfit)
                for result in judged
                if result.row is not None
            ]
            emitted = tuple(row for row, _, _ in pairs)
            dropped += Counter({FAILED: sum(failed and not counted for _, failed, counted in pairs)})
        late = dropped.pop(LATE, 0)
        return EpochExpectation((), emitted, {self._input: late}, {self._input: dropped}, unfit)

    def end(self) -> Iterator[EpochExpectation]:
        """Yield the epoch that ends the input (T7)."""
        yield self.epoch({self._input: END}, {})

    def _judge_row(self, cell: tuple[Hashable, Span]) -> Judged:
        ordered = sorted(self._rows[cell], key=lambda row: row[:4])
        return self._shape.rules.judge_row(self._shape.output(cell[1], [values for *_, values in ordered]))

    def _take(self, row: Row) -> bool:
        """Put a row into its windows that are open; False: there is none (G3)."""
        values = self._shape.values(row)
        key = tuple(comparable(value) for value in self._shape.group(values).values())
        open_spans = [span for span in self._shape.spans(row.ts) if span[1] > self._closed]
        for span in open_spans:
            self._rows[key, span].append((row.ts, self._arrived, row.partition, row.offset, values))
            self._changed.add((key, span))
            self._received.add((key, span))
            if span[1] <= self._ended:
                self._final.add((key, span))
        return bool(open_spans)
