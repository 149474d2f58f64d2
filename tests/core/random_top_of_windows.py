"""Hypothesis strategies: random aggregates of the windows of one input, once or twice, whose rows are ranked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from core.cases import Case
from core.random_sessions import (
    INPUT,
    SELECTED,
    histories,
    selected_items,
    selected_of,
    selection_in_python,
)
from core.random_twice import twice_jobs
from core.random_windows import WindowedJob, windowed_jobs
from joinery_devkit.oracle.composed import TwiceOracle
from joinery_devkit.oracle.top_n import TopNOracle, TopOfWindowsShape
from joinery_runtime.job import StreamJoin

CALLS = [
    {"function": "count", "as": "rows"},
    {"function": "max", "column": f"{INPUT}.v", "as": "most"},
    {"function": "avg", "column": f"{INPUT}.v", "as": "average"},
]


ALWAYS_COMPUTED = ["CASE WHEN rows > 1 THEN window_start END", "rows * 10 + 1", "window_end - window_start"]
"""Those of `SELECTED` that never fail, and whose values have an order in Python."""
SELECTED_NUMBER = {"rows - row_number": lambda row: row["rows"] - row["row_number"]}


@dataclass(frozen=True, repr=False)
class TopOfWindowsJob(WindowedJob):
    """`aggregated` is the job without `topN`, `having` the condition of `topN` in Python."""

    aggregated: WindowedJob | None = None
    having: Callable[[Mapping[str, Any]], bool] | None = None

    def oracle(self) -> Any:
        """A fresh one."""
        assert self.aggregated is not None
        selection = selection_in_python(selected_of(self.job), SELECTED | SELECTED_NUMBER)
        shape = TopOfWindowsShape(self.job, selection=selection, having=self.having)
        return TwiceOracle(self.aggregated.oracle(), TopNOracle(shape))

    def __repr__(self) -> str:
        return f"{super().__repr__()}, ranked by {self.job.spec.top_n}"


@st.composite
def top_of_windows_jobs(draw: Any, *, local: bool = False, ranked: bool = False) -> TopOfWindowsJob:
    aggregated = draw(twice_jobs(local=local)) if draw(st.integers(0, 2)) == 0 else draw(_counted(local=local))
    document = aggregated.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    last = aggregated.job.last_aggregation
    groups = [name.rpartition(".")[2] for name in last.group_by]
    ranked_by = [*groups, *(call.as_ for call in last.aggregates), "window_start"]
    if any(call.as_ == "rows" for call in last.aggregates) and draw(st.booleans()):
        texts = draw(st.lists(st.sampled_from(ALWAYS_COMPUTED), min_size=1, max_size=2, unique=True))
        selection = {f"s{number}": text for number, text in enumerate(texts)}
        ranked_by += selection
        selection |= {f"n{number}": text for number, text in enumerate(draw(st.sampled_from([[], [*SELECTED_NUMBER]])))}
        # Equal rows are in the order of what is stored, so all columns are selected.
        document["spec"]["select"] = selected_items(selection, [*last.columns_by_name.values(), "row_number"])
    names = draw(st.lists(st.sampled_from(ranked_by), min_size=1, max_size=2, unique=True))
    document["spec"]["topN"] = {
        "by": draw(st.lists(st.sampled_from(groups), min_size=1, unique=True))
        if groups and draw(st.booleans())
        else None,
        "orderBy": [
            {
                "expression": name,
                "direction": draw(st.sampled_from(["asc", "desc"])),
                "nulls": draw(st.sampled_from([None, "first", "last"])),
            }
            for name in names
        ],
        "rows": draw(st.sampled_from([1, 1, 2, 3, 50])),
    }
    having = None
    if any(call.as_ == "rows" for call in last.aggregates) and draw(st.booleans()):
        functions = draw(st.lists(st.sampled_from(["sum", "avg", "min", "max"]), min_size=1, unique=True))
        totals = [{"function": function, "column": "rows", "as": f"{function}_rows"} for function in functions]
        document["spec"]["topN"] |= draw(st.sampled_from([{}, {"rows": None}, {"rows": None, "orderBy": None}]))
        ranks = [{**entry, "as": f"{entry['function']}_of_row"} for entry in draw(_RANKS)] if ranked else []
        own_order = [{"expression": "rows", "direction": "desc"}, {"expression": names[0]}]
        if ranks and (document["spec"]["topN"]["orderBy"] is None or draw(st.booleans())):
            ranks = [{**rank, "orderBy": own_order[: draw(st.integers(1, 2))]} for rank in ranks]
        running = [
            {**entry, "orderBy": own_order[: draw(st.integers(1, 2))], "as": f"running_{entry['function']}"}
            for entry in (draw(_RUNNING) if ranked else ())
        ]
        document["spec"]["topN"]["totals"] = [*totals, {"function": "count", "as": "many"}, *ranks, *running]
        if "max" in functions and draw(st.booleans()):
            document["spec"]["topN"]["having"] = "rows = max_rows AND many > 1"
            having = _has_most_rows
        elif any(rank["function"] == "rank" for rank in ranks):
            document["spec"]["topN"]["having"] = "rank_of_row <= 2"
            having = _is_second_at_least
    job = StreamJoin.model_validate(document)
    of_first = (aggregated.types, aggregated.where, aggregated.computed, aggregated.busy)
    return TopOfWindowsJob(job, *of_first, aggregated.unit, aggregated.start, aggregated=aggregated, having=having)


_RANKS = st.lists(
    st.sampled_from(
        [
            {"function": "rank"},
            {"function": "dense_rank"},
            {"function": "row_number"},
            {"function": "percent_rank"},
            {"function": "cume_dist"},
            {"function": "ntile", "buckets": 2},
            {"function": "ntile", "buckets": 5},
            {"function": "lag", "column": "rows"},
            {"function": "lead", "column": "rows", "offset": 2},
            {"function": "first_value", "column": "rows"},
        ]
    ),
    unique_by=lambda entry: entry["function"],
)
_RUNNING = st.lists(
    st.sampled_from(
        [
            *({"function": function, "column": "rows"} for function in ("sum", "avg", "min")),
            {"function": "max", "column": "rows", "frame": "rows"},
            {"function": "sum", "column": "rows", "frame": "rows"},
            {"function": "count"},
            {"function": "count", "frame": "rows"},
        ]
    ),
    unique_by=lambda entry: entry["function"],
)


def _is_second_at_least(row: Mapping[str, Any]) -> bool:
    return row["rank_of_row"] <= 2


def _has_most_rows(row: Mapping[str, Any]) -> bool:
    return row["rows"] == row["max_rows"] and row["many"] > 1


@st.composite
def _counted(draw: Any, *, local: bool) -> WindowedJob:
    """Aggregates whose values have an order in Python, too."""
    windowed = draw(windowed_jobs(having=True, local=local))
    return windowed._edited(aggregates=CALLS, **({} if draw(st.booleans()) else {"having": None}))


@st.composite
def top_of_windows_cases(draw: Any, longest: int = 6, *, local: bool = False, ranked: bool = False) -> Case:
    """As `random_sessions.session_cases`, of top-N behind aggregates; `local`: in windows of a zone; `ranked`: with
    ranks among totals."""
    return draw(histories(draw(top_of_windows_jobs(local=local, ranked=ranked)), longest))
