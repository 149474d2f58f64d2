"""The aggregates of sessions (S7): mergeable, durable, vectorised over groups of rows.

Each module lists its functions in `FUNCTIONS`.
"""

from __future__ import annotations

from joinery_runtime.core.aggregates import averages, extremes, lists, percentiles, sums, variance
from joinery_runtime.core.aggregates.base import (
    Accumulator,
    AggregateCall,
    Groups,
    Make,
    States,
    condition_column,
)
from joinery_runtime.core.aggregates.lists import Distinct
from joinery_runtime.errors import EnvironmentProblem

__all__ = ["Accumulator", "AggregateCall", "Groups", "States", "accumulator", "condition_column"]


def _distinct(name: str, call: AggregateCall) -> Accumulator:
    if call.limit is not None:
        return Distinct(f"{name}.values", call.type, call.limit)
    try:
        # Imported here only: its library does not exist for every version of Python.
        from joinery_runtime.core.aggregates.sketch import Sketch  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"count_distinct of {call.column} with method: hll needs the Python package {error.name}",
            facts="it is not installed; there is none for Python 3.14",
            todo="Run the job on Python 3.11 to 3.13 with joinery-runtime[engine], or write method: exact",
        ) from error
    return Sketch(f"{name}.sketch")


_MAKERS: dict[str, Make] = {
    **sums.FUNCTIONS,
    **averages.FUNCTIONS,
    **extremes.FUNCTIONS,
    **lists.FUNCTIONS,
    **percentiles.FUNCTIONS,
    **variance.FUNCTIONS,
    "count_distinct": _distinct,
}


def accumulator(call: AggregateCall) -> Accumulator:
    """Return the accumulator of an aggregate. Raises KeyError for an unknown function, and EnvironmentProblem if its
    library is not installed."""
    return _MAKERS[call.function](f"${call.function}({call.arguments})", call)
