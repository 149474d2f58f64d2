"""The oracles of a step behind others: what two jobs would do, the second of which reads the rows of the first one and
knows the watermark of the first one.

`ComposedOracle` is that of an `aggregate` behind joins (S8, G6), `TwiceOracle` that of a step behind an aggregate (G10,
R6) or a deduplication (D5, R7). There, a row of an aggregate is at the last millisecond of its window, and one of a
deduplication at its own time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from joinery_devkit.oracle.deduplication import DeduplicationOracle
from joinery_devkit.oracle.horizons import Time, as_watermark
from joinery_devkit.oracle.joins import LATE, EpochExpectation, Oracle, SideBatches, Watermarks
from joinery_devkit.oracle.model import Span
from joinery_devkit.oracle.rows import END, Row
from joinery_devkit.oracle.sessions import SessionOracle
from joinery_devkit.oracle.top_n import TopNOracle
from joinery_devkit.oracle.windowed import WindowOracle, WindowShape, own_span


class ComposedOracle:
    """The oracle of an aggregate behind joins. `aggregate` is that of a job whose only input is called as the input
    whose event time counts, and has the columns that `joins` emits."""

    def __init__(self, joins: Oracle, aggregate: SessionOracle | WindowOracle) -> None:
        self.inputs, self._joins, self._aggregate = joins.inputs, joins, aggregate
        (self._time,) = aggregate.inputs

    @property
    def depth(self) -> int:
        """How many epochs it takes until what the first one closes has been emitted."""
        return self._joins.depth + self._aggregate.depth

    def epoch(
        self, watermarks: Watermarks, rows: SideBatches, reached: Mapping[str, int] = MappingProxyType({})
    ) -> EpochExpectation:
        """Replay one epoch, like `Oracle.epoch`. Rows of a step that are late count among `dropped` (S8)."""
        joined = self._joins.epoch(watermarks, rows, reached)
        read = []
        for number, row in enumerate(joined.joined):
            ts = row.time(self._time)
            assert ts is not None, "no step pads the input whose event time counts"
            read.append(Row(0, number, ts, joined.rows[number]))
        watermark = as_watermark(self._joins.handed_on[self._time])
        aggregated = self._aggregate.epoch({self._time: watermark}, {self._time: read})
        dropped = {name: Counter(counts) for name, counts in joined.dropped.items()}
        dropped[self._time] += Counter({**aggregated.dropped[self._time], LATE: aggregated.late[self._time]})
        return EpochExpectation(joined.joined, aggregated.rows, joined.late, dropped)

    def asked_from(self, watermarks: Watermarks, name: str) -> tuple[Time, Time]:
        """See `Oracle.asked_from`."""
        return self._joins.asked_from(watermarks, name)

    def end(self) -> Iterator[EpochExpectation]:
        """Yield the epochs that end all inputs (T7)."""
        for _ in range(self.depth + 1):
            yield self.epoch(dict.fromkeys(self.inputs, END), {})


@dataclass(frozen=True)
class SameWindowShape(WindowShape):
    """Rows that are in the windows from which they come."""

    def spans(self, ts: int) -> list[Span]:
        return own_span(super().spans(ts), ts)


class TwiceOracle:
    """The oracle of a step behind an aggregate or a deduplication. `second` is that of a job whose only input is called
    as that of the first, and has the columns of its rows."""

    def __init__(
        self, first: WindowOracle | DeduplicationOracle | TwiceOracle, second: WindowOracle | TopNOracle
    ) -> None:
        self.inputs: tuple[str, ...] = first.inputs
        self._first, self._second = first, second
        (self._time,) = second.inputs

    @property
    def handed_on(self) -> float:
        """As of the second oracle, which aggregates."""
        assert isinstance(self._second, WindowOracle), "a ranking is the last step"
        return self._second.handed_on

    @property
    def depth(self) -> int:
        """How many epochs it takes until what the first one closes has been emitted."""
        return self._first.depth + self._second.depth

    def epoch(self, watermarks: Watermarks, rows: SideBatches) -> EpochExpectation:
        """Replay one epoch, like `Oracle.epoch`."""
        first = self._first.epoch(watermarks, rows)
        watermark = as_watermark(self._first.handed_on)
        if isinstance(self._first, DeduplicationOracle):
            read = self._first.decided
        else:
            read = [Row(0, number, row["window_end"] - 1, row) for number, row in enumerate(first.rows)]
        second = self._second.epoch({self._time: watermark}, {self._time: read})
        assert not second.late[self._time], "no row of the first step is late (N2, D5)"
        dropped = {name: Counter(counts) for name, counts in first.dropped.items()}
        dropped[self._time] += Counter(second.dropped[self._time])
        return EpochExpectation((), second.rows, first.late, dropped, first.unfit + second.unfit)

    def end(self) -> Iterator[EpochExpectation]:
        """Yield the epochs that end the input (T7)."""
        for _ in range(self.depth):
            yield self.epoch({self._time: END}, {})
