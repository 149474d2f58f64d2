"""The oracle of an `aggregate` behind joins (S8, G6): what two jobs would do, the second of which reads what the first
one emits and knows the first one's watermark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from joinery_devkit.oracle.horizons import Time, as_watermark
from joinery_devkit.oracle.joins import LATE, EpochExpectation, Oracle, SideBatches, Watermarks
from joinery_devkit.oracle.rows import END, Joined, Row
from joinery_devkit.oracle.sessions import SessionOracle
from joinery_devkit.oracle.windowed import WindowOracle


class ComposedOracle:
    """The oracle. `aggregate` is that of a job whose only input is called as the input whose event time counts, and has
    the columns that `joins` emits."""

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
        """Replays one epoch, like `Oracle.epoch`. Rows of a step that are late count among `dropped` (S8)."""
        joined = self._joins.epoch(watermarks, rows, reached)
        read = [Row(0, number, self._ts(row), joined.rows[number]) for number, row in enumerate(joined.joined)]
        watermark = as_watermark(self._joins.handed_on[self._time])
        aggregated = self._aggregate.epoch({self._time: watermark}, {self._time: read})
        dropped = {name: Counter(counts) for name, counts in joined.dropped.items()}
        dropped[self._time] += Counter({**aggregated.dropped[self._time], LATE: aggregated.late[self._time]})
        return EpochExpectation(joined.joined, aggregated.rows, joined.late, dropped)

    def asked_from(self, watermarks: Watermarks, name: str) -> tuple[Time, Time]:
        """See `Oracle.asked_from`."""
        return self._joins.asked_from(watermarks, name)

    def end(self) -> Iterator[EpochExpectation]:
        """Yields the epochs that end all inputs (T7)."""
        for _ in range(self.depth + 1):
            yield self.epoch(dict.fromkeys(self.inputs, END), {})

    def _ts(self, row: Joined) -> int:
        ts = row.time(self._time)
        assert ts is not None, "no step pads the input whose event time counts"
        return ts
