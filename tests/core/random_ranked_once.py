"""Hypothesis strategies: random deduplications of one input, whose rows are ranked in windows (R7)."""

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
from joinery_devkit.oracle.top_n import TopNOracle, TopOfRowsShape
from joinery_runtime.job import StreamJoin


@dataclass(frozen=True, repr=False)
class RankedOnceJob(DeduplicatedJob):
    """A deduplication with a ranking behind it."""

    def oracle(self) -> Any:
        """A fresh one."""
        return TwiceOracle(super().oracle(), TopNOracle(TopOfRowsShape(self.job)))

    def __repr__(self) -> str:
        return f"{super().__repr__()}, ranked by {self.job.spec.top_n}"


@st.composite
def ranked_once_jobs(draw: Any) -> RankedOnceJob:
    once = draw(deduplicated_jobs())
    document = once.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    ((kind, durations),) = draw(st.sampled_from(WINDOWS)).items()
    names = draw(st.lists(st.sampled_from(["v", "n", "w", "ts"]), min_size=1, max_size=2, unique=True))
    by = draw(st.sampled_from([["k"], ["n"], ["k", "n"], None]))
    document["spec"]["topN"] = {
        **({} if by is None else {"by": [f"{INPUT}.{name}" for name in by]}),
        "orderBy": [
            {"expression": f"{INPUT}.{name}", "direction": draw(st.sampled_from(["asc", "desc"]))} for name in names
        ],
        "rows": draw(st.sampled_from([1, 2, 50])),
        "window": {kind: {name: ms(duration) for name, duration in durations.items()}},
    }
    return RankedOnceJob(StreamJoin.model_validate(document), once.types, once.where, once.busy)


@st.composite
def ranked_once_cases(draw: Any, longest: int = 6) -> Case:
    """As `random_sessions.session_cases`, of rankings behind deduplications."""
    return draw(histories(draw(ranked_once_jobs()), longest))
