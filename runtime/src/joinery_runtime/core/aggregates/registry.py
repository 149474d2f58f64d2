"""Which accumulator serves an aggregate."""

from __future__ import annotations

from joinery_runtime.core.aggregates.base import Accumulator
from joinery_runtime.core.aggregates.counts import Count
from joinery_runtime.core.spec import Aggregate


def accumulator(of: Aggregate) -> Accumulator:
    """Raises KeyError for a function that there is not."""
    return {"count": Count, "count_col": Count}[of.function](of.column)
