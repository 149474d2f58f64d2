"""Which accumulator serves an aggregate: each module names its functions in `FUNCTIONS`."""

from __future__ import annotations

from joinery_runtime.core.aggregates import averages, counts, ends, extremes, sketch, sums
from joinery_runtime.core.aggregates.base import Accumulator, AggregateCall, Make

_MADE: dict[str, Make] = {
    **counts.FUNCTIONS,
    **sums.FUNCTIONS,
    **averages.FUNCTIONS,
    **extremes.FUNCTIONS,
    **ends.FUNCTIONS,
    **sketch.FUNCTIONS,
}


def accumulator(of: AggregateCall) -> Accumulator:
    """Raises KeyError for a function that there is not."""
    return _MADE[of.function](f"${of.function}({of.column})", of)
