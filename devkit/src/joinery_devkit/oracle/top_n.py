"""The oracle of `topN` of one input: section R of docs/semantics.md, one row at a time. It keeps every row that was not
late, and sorts all rows of a key and window again when the window ends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cmp_to_key
from math import isnan
from statistics import fmean
from typing import Any

from joinery_devkit.oracle.aggregates import Judged, RowRules, names_in, sum_of
from joinery_devkit.oracle.horizons import UNKNOWN, as_time
from joinery_devkit.oracle.joins import LATE, EpochExpectation, SideBatches, Watermarks
from joinery_devkit.oracle.model import FAILED, FILTERED_ROWS, Span, spans_of
from joinery_devkit.oracle.rows import END, Row, Selection, Values, comparable, selected
from joinery_devkit.oracle.windowed import own_span
from joinery_runtime.job import StreamJoin
from joinery_runtime.job.kinds.ranking import TopN
from joinery_runtime.job.kinds.window_totals import RankOrder, WindowTotal
from joinery_runtime.job.model.references import WINDOW_COLUMNS


@dataclass(frozen=True)
class TopNShape:
    """What a job keeps and emits. Its rows are sorted by columns alone. `where` is the condition of its input in
    Python, on a row's columns."""

    job: StreamJoin
    where: Callable[[Values], bool | None] | None = None

    @property
    def rule(self) -> TopN:
        assert self.job.spec.top_n is not None, "the job ranks"
        return self.job.spec.top_n

    def spans(self, ts: int) -> list[Span]:
        """Return the windows that hold the time (R1)."""
        assert self.rule.window is not None, "a ranking has a window"
        return spans_of(self.rule.window, ts)

    def key(self, row: Row) -> tuple[Hashable, ...]:
        return tuple(comparable(row.values[name.rpartition(".")[2]]) for name in self.rule.keys)

    def ranked(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of a key and window in their order (R2), as many as the job emits."""
        return self.in_order(rows, self.rule.order)[: self.rule.rows]

    def in_order(self, rows: Sequence[Row], order: Sequence[RankOrder]) -> list[Row]:
        """Return the rows in an order; those that are equal in it in the order of their tie breakers."""

        def compare_rows(left: Row, right: Row) -> int:
            return self.compare_by(left, right, order)

        return sorted(sorted(rows, key=self.tie_breaker), key=cmp_to_key(compare_rows))

    def values_of_totals(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the values over all rows of a key and window (R9)."""
        return {}

    def ordered_totals_of(self, row: Row, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the row's values by an order of the rows of its key and window (R10, R11)."""
        return {}

    def output(self, row: Row, span: Span, number: int, totals: Values) -> dict[str, Any]:
        own = {"window_start": span[0], "window_end": span[1], "row_number": number}
        return {
            column.name: own[column.step_column or ""] if column.source is None else row.values[column.source.column]
            for column in self.job.output_columns
        }

    def judged(self, row: Row, totals: Values) -> Judged:
        """Say whether the row is emitted, by the condition of the ranking and its totals (R9)."""
        return Judged(dict(row.values))

    def compare_by(self, left: Row, right: Row, order: Sequence[RankOrder]) -> int:
        """-1: the left row comes first, 1: it comes last, 0: both are equal in all of the order."""
        for item in order:
            name = item.expression.rpartition(".")[2]
            if differs := _compare_values(self.value(left, name), self.value(right, name), item):
                return differs
        return 0

    def value(self, row: Row, name: str) -> Any:
        """Return what rows are sorted by under this name."""
        return row.values[name]

    def tie_breaker(self, row: Row) -> tuple[Any, ...]:
        """Return what orders rows that are equal in all of `orderBy`."""
        return row.ts, row.partition, row.offset


def _compare_values(left: Any, right: Any, item: RankOrder) -> int:
    """-1: the left value comes first, 1: it comes last, 0: both are equal."""
    if left is None or right is None:
        return ((left is None) - (right is None)) * (-1 if item.nulls_first else 1)
    are_nan = [isinstance(value, float) and isnan(value) for value in (left, right)]
    differs = are_nan[0] - are_nan[1] if any(are_nan) else int(left > right) - int(left < right)  # NaN is the greatest
    return -differs if item.direction == "desc" else differs


@dataclass(frozen=True)
class TopOfRowsShape(TopNShape):
    """Rows of a step (R7), which have no place in a topic. Rows of one event time that are equal in `orderBy` are in
    the order of their values."""

    def tie_breaker(self, row: Row) -> tuple[Any, ...]:
        (source,) = self.job.inputs
        return row.ts, *(_sortable(row.values[name]) for name in source.types if name != source.event_time)


@dataclass(frozen=True)
class TopOfWindowsShape(TopNShape):
    """Rows of an aggregate (R6), which are in the windows from which they come. Rows that are equal in `orderBy` are in
    the order of their values. `selection` is as in `WindowShape`; none of its functions fails, and rows may be ranked
    by them. `having` is the condition of the ranking in Python, on a row's columns and totals."""

    selection: Selection | None = None
    having: Callable[[Values], bool | None] | None = None

    def judged(self, row: Row, totals: Values) -> Judged:
        chosen = self.job.spec.select
        texts = None if chosen is None else [item.expression or item.column or "" for item in chosen]
        read_by_row = None if texts is None else names_in(" ".join(texts))
        rules = RowRules(names_in(self.rule.having or ""), read_by_row, self.having, replaces=False)
        return rules.judge_row({**row.values, **totals})

    def spans(self, ts: int) -> list[Span]:
        assert self.job.last_aggregation is not None, "an aggregate makes the rows"
        return own_span(spans_of(self.job.last_aggregation.window, ts), ts)

    def values_of_totals(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {total.as_: _total_of(total, rows) for total in self.rule.totals or () if not total.is_ordered}

    def ordered_totals_of(self, row: Row, rows: Sequence[Row]) -> dict[str, Any]:
        value_by_name: dict[str, Any] = {}
        for window_total, own_order in self.rule.ordered_totals:
            order = [*own_order.values()] or self.rule.order
            sorted_rows = self.in_order(rows, order)
            at = sorted_rows.index(row)
            value_by_name[window_total.as_] = self._ordered_total(window_total, order, sorted_rows, at)
        return value_by_name

    def _ordered_total(self, total: WindowTotal, order: Sequence[RankOrder], rows: Sequence[Row], at: int) -> Any:
        """Return the value of the row number `at` of the sorted rows of a key and window."""
        row = rows[at]
        rows_before = [other_row for other_row in rows if self.compare_by(other_row, row, order) < 0]
        rows_up_to_equal = [other_row for other_row in rows if self.compare_by(other_row, row, order) <= 0]
        match total.function:
            case "rank":
                return len(rows_before) + 1
            case "dense_rank":
                column_names = [item.expression for item in order]
                values_before = {
                    tuple(comparable(self.value(other_row, column_name)) for column_name in column_names)
                    for other_row in rows_before
                }
                return len(values_before) + 1
            case "row_number":
                return at + 1
            case "percent_rank":
                return len(rows_before) / (len(rows) - 1) if len(rows) > 1 else 0.0
            case "cume_dist":
                return len(rows_up_to_equal) / len(rows)
            case "ntile":
                assert total.buckets is not None
                small, larger = divmod(len(rows), total.buckets)
                sizes = [small + (bucket < larger) for bucket in range(total.buckets)]
                return next(n for n in range(1, total.buckets + 1) if at < sum(sizes[:n]))
            case "first_value":
                return rows[0].values[total.column or ""]
            case "lag" | "lead":
                distance = total.offset or 1
                other = at - distance if total.function == "lag" else at + distance
                return rows[other].values[total.column or ""] if 0 <= other < len(rows) else None
            case _:
                return _total_of(total, rows[: at + 1] if total.frame == "rows" else rows_up_to_equal)

    def output(self, row: Row, span: Span, number: int, totals: Values) -> dict[str, Any]:
        columns = {**row.values, "row_number": number, **totals}
        return columns if self.selection is None else selected(self.selection, columns)[0]

    def value(self, row: Row, name: str) -> Any:
        return row.values[name] if name in row.values else (self.selection or {})[name](row.values)

    def tie_breaker(self, row: Row) -> tuple[Any, ...]:
        values = (value for name, value in row.values.items() if name not in WINDOW_COLUMNS)
        return tuple(map(_sortable, values))


def _total_of(total: WindowTotal, rows: Sequence[Row]) -> Any:
    """Return the value of a total over these rows (R9)."""
    if total.function == "count":
        return len(rows)
    present = [value for row in rows if (value := row.values[total.column or ""]) is not None]
    functions: dict[str, Callable[[list[Any]], Any]] = {"sum": sum_of, "avg": fmean, "min": min, "max": max}
    return functions[total.function](present) if present else None


def _sortable(value: Any) -> tuple[bool, bool, Any]:
    """Return a value in the order of values: numbers, NaN, NULL."""
    is_nan = isinstance(value, float) and isnan(value)
    return value is None, is_nan, 0 if value is None or is_nan else value


class TopNOracle:
    """The oracle. `depth` is how many epochs it takes until what the first one closes has been emitted."""

    depth = 1

    def __init__(self, shape: TopNShape) -> None:
        (self._input,) = self.inputs = tuple(side.name for side in shape.job.inputs)
        self._shape, self._closed = shape, UNKNOWN
        self._rows: dict[tuple[tuple[Hashable, ...], Span], list[Row]] = defaultdict(list)

    def edit(self, job: StreamJoin) -> None:
        """Continue the job with another lateness."""
        self._shape = replace(self._shape, job=job)

    def epoch(self, watermarks: Watermarks, rows: SideBatches) -> EpochExpectation:
        """Replay one epoch, like `Oracle.epoch`."""
        self._closed = max(self._closed, as_time(watermarks[self._input]) - self._shape.rule.allowed_lateness)
        emitted, dropped, unfit = list[dict[str, Any]](), Counter[str](), 0
        for cell in [cell for cell in self._rows if cell[1][1] <= self._closed]:  # R3
            rows_of_cell = self._rows.pop(cell)
            totals = self._shape.values_of_totals(rows_of_cell)
            for number, row in enumerate(self._shape.ranked(rows_of_cell), start=1):
                row_totals = {**totals, **self._shape.ordered_totals_of(row, rows_of_cell)}
                judged = self._shape.judged(row, row_totals)
                dropped += Counter({FILTERED_ROWS: judged.left_out, FAILED: judged.unfit})
                unfit += judged.unfit
                if judged.row is not None:
                    emitted.append(self._shape.output(row, cell[1], number, row_totals))
        for row in rows.get(self._input, ()):
            if self._shape.where is not None and self._shape.where(row.values) is not True:
                dropped["filtered"] += 1
                continue
            spans = [span for span in self._shape.spans(row.ts) if span[1] > self._closed]
            dropped[LATE] += not spans
            for span in spans:
                self._rows[self._shape.key(row), span].append(row)
        late = dropped.pop(LATE, 0)
        return EpochExpectation((), tuple(emitted), {self._input: late}, {self._input: dropped}, unfit)

    def end(self) -> Iterator[EpochExpectation]:
        """Yield the epoch that ends the input (T7)."""
        yield self.epoch({self._input: END}, {})
