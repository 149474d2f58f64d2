"""The oracle of a job of one input without joins and aggregate: section P of docs/semantics.md, one row at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from joinery_devkit.oracle.joins import EpochExpectation, SideBatches, Watermarks
from joinery_devkit.oracle.rows import END, Values
from joinery_runtime.job import StreamJoin


@dataclass
class ProjectionOracle:
    """`where` is the input's condition and `computed` are the expressions of `select` by their names, in Python, on a
    row's columns."""

    job: StreamJoin
    where: Callable[[Values], bool | None] | None = None
    computed: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    depth: int = 1

    def epoch(self, watermarks: Watermarks, rows: SideBatches) -> EpochExpectation:
        """Replay one epoch, like `Oracle.epoch`. The watermarks count for nothing (P2)."""
        (name,) = (side.name for side in self.job.inputs)
        read = list(rows.get(name, ()))
        passing = [row.values for row in read if self.where is None or self.where(row.values) is True]
        emitted = tuple(self._row(values) for values in passing)
        return EpochExpectation((), emitted, {name: 0}, {name: Counter(filtered=len(read) - len(passing))})

    def end(self) -> Iterator[EpochExpectation]:
        """Yield the epoch that ends the input (T7)."""
        yield self.epoch({side.name: END for side in self.job.inputs}, {})

    def _row(self, values: Values) -> dict[str, Any]:
        if self.job.select is None:
            return {name: values[name] for name in self.job.inputs[0].types}
        return {
            item.as_ or (item.column or "").partition(".")[2]: values[item.column.partition(".")[2]]
            if item.column is not None
            else self.computed[item.as_ or ""](values)
            for item in self.job.select
        }
