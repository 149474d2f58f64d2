"""The oracle of a step behind an aggregate (G10, R6) or a deduplication (D5, R7): what two jobs would do, the second of
which reads the rows of the first one. A row of an aggregate is at the last millisecond of its window, one of a
deduplication at its own time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from joinery_devkit.oracle.deduplication import DeduplicationOracle
from joinery_devkit.oracle.horizons import as_watermark
from joinery_devkit.oracle.joins import EpochExpectation, SideBatches, Watermarks
from joinery_devkit.oracle.rows import END, Row
from joinery_devkit.oracle.top_n import TopNOracle
from joinery_devkit.oracle.windowed import Span, WindowOracle, WindowShape, own_span


@dataclass(frozen=True)
class SameWindowShape(WindowShape):
    """Rows that are in the windows from which they come."""

    def spans(self, ts: int) -> list[Span]:
        return own_span(super().spans(ts), ts)


class TwiceOracle:
    """The oracle. `second` is that of a job whose only input is called as that of the first, and has the columns of its
    rows."""

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
        """Replays one epoch, like `Oracle.epoch`."""
        first = self._first.epoch(watermarks, rows)
        watermark = as_watermark(self._first.handed_on)
        second = self._second.epoch({self._time: watermark}, {self._time: self._read(first)})
        assert not second.late[self._time], "no row of the first step is late (N2, D5)"
        dropped = {name: Counter(counts) for name, counts in first.dropped.items()}
        dropped[self._time] += Counter(second.dropped[self._time])
        return EpochExpectation((), second.rows, first.late, dropped)

    def end(self) -> Iterator[EpochExpectation]:
        """Yields the epochs that end the input (T7)."""
        for _ in range(self.depth):
            yield self.epoch({self._time: END}, {})

    def _read(self, first: EpochExpectation) -> list[Row]:
        """Give the rows of the first oracle as the second one reads them."""
        if isinstance(self._first, DeduplicationOracle):
            return self._first.decided
        return [Row(0, number, row["window_end"] - 1, row) for number, row in enumerate(first.rows)]
