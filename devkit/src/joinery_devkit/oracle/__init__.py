"""A second, slow opinion on what a job must emit: semantics.md written down row by row in plain Python.

It shares no code with the core. `Oracle` replays epochs (the plan's watermarks and the rows of each input) and says
which rows every epoch must emit and which it must drop; `brute_force` says the same about a whole history at once. For
a SessionWindow these are `SessionOracle` and `sessions_at_once`, for windows in an `aggregate` of one input
`WindowOracle`, for an `aggregate` behind joins `ComposedOracle`, for one input alone `ProjectionOracle`, for
`deduplicate` `DeduplicationOracle`, for `topN` `TopNOracle`, and for a step behind an aggregate or `deduplicate`
`TwiceOracle`.
`WatermarkOracle` says which watermarks the plans must hold; `multiset` and `differences` compare rows in any order.

    oracle = Oracle.of_job(job)
    for plan, rows in epoch_log:
        expected = oracle.epoch(plan["watermarks"], rows)
        ...  # expected.rows, expected.late
"""

from joinery_devkit.oracle.brute_force import brute_force
from joinery_devkit.oracle.composed import ComposedOracle, SameWindowShape, TwiceOracle
from joinery_devkit.oracle.deduplication import DeduplicationOracle, DeduplicationShape
from joinery_devkit.oracle.horizons import ChainTimes, WatermarkOracle, too_far_ahead
from joinery_devkit.oracle.joins import EpochExpectation, Oracle
from joinery_devkit.oracle.model import (
    AsOfRule,
    Filter,
    IntervalRule,
    Predicates,
    Projection,
    Residual,
    SessionRule,
    Step,
    WindowRule,
    output_columns,
    output_row,
)
from joinery_devkit.oracle.projection import ProjectionOracle
from joinery_devkit.oracle.rows import END, Joined, Row, Values, differences, multiset
from joinery_devkit.oracle.sessions import SessionOracle, SessionShape, sessions_at_once
from joinery_devkit.oracle.top_n import TopNOracle, TopNShape
from joinery_devkit.oracle.windowed import WindowOracle, WindowShape

__all__ = [
    "END",
    "AsOfRule",
    "ChainTimes",
    "ComposedOracle",
    "DeduplicationOracle",
    "DeduplicationShape",
    "EpochExpectation",
    "Filter",
    "IntervalRule",
    "Joined",
    "Oracle",
    "Predicates",
    "Projection",
    "ProjectionOracle",
    "Residual",
    "Row",
    "SameWindowShape",
    "SessionOracle",
    "SessionRule",
    "SessionShape",
    "Step",
    "TopNOracle",
    "TopNShape",
    "TwiceOracle",
    "Values",
    "WatermarkOracle",
    "WindowOracle",
    "WindowRule",
    "WindowShape",
    "brute_force",
    "differences",
    "multiset",
    "output_columns",
    "output_row",
    "sessions_at_once",
    "too_far_ahead",
]
