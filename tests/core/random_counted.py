"""Hypothesis strategies: random deduplications of one input, whose rows are aggregated in windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from core.cases import Case
from core.random_deduplication import DeduplicatedJob, deduplicated_jobs
from core.random_jobs import ms
from core.random_sessions import INPUT, histories
from core.random_windows import WINDOWS
from joinery_devkit.oracle.composed import TwiceOracle
from joinery_devkit.oracle.windowed import WindowOracle, WindowShape
from joinery_runtime.job import StreamJoin

CALLS = [
    {"function": "count", "as": "rows"},
    {"function": "sum", "column": f"{INPUT}.v", "as": "total"},
    {"function": "max", "column": f"{INPUT}.n", "as": "most"},
]


@dataclass(frozen=True, repr=False)
class CountedJob(DeduplicatedJob):
    """A deduplication with an aggregate behind it."""

    def oracle(self) -> Any:
        """A fresh one."""
        return TwiceOracle(super().oracle(), WindowOracle(WindowShape(self.job)))

    def __repr__(self) -> str:
        return f"{super().__repr__()}, aggregated by {self.job.spec.aggregate}"


@st.composite
def counted_jobs(draw: Any) -> CountedJob:
    once = draw(deduplicated_jobs())
    document = once.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    ((kind, durations),) = draw(st.sampled_from(WINDOWS)).items()
    document["spec"]["aggregate"] = {
        "groupBy": [f"{INPUT}.{name}" for name in draw(st.sampled_from([["k"], ["n"], ["k", "n"], []]))],
        "window": {kind: {name: ms(duration) for name, duration in durations.items()}},
        "aggregates": CALLS,
        "allowedLateness": ms(draw(st.sampled_from([0, 0, 3]))),
    }
    return CountedJob(StreamJoin.model_validate(document), once.types, once.where, once.busy)


@st.composite
def counted_cases(draw: Any, longest: int = 6) -> Case:
    """As `random_sessions.session_cases`, of aggregates behind deduplications."""
    return draw(histories(draw(counted_jobs()), longest))
