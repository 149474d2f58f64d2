"""Hypothesis strategies: random aggregates of the windows of one input, whose rows are aggregated once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from core.cases import Case
from core.random_sessions import INPUT, histories
from core.random_windows import CHANGES, WindowedJob, windowed_jobs, windows_of
from joinery_devkit.oracle.composed import SameWindowShape, TwiceOracle
from joinery_devkit.oracle.windowed import WindowOracle, WindowShape
from joinery_runtime.job import StreamJoin

CALLS = (
    {"function": "count"},
    {"function": "sum", "column": "rows"},
    {"function": "max", "column": "rows"},
    {"function": "min", "column": "window_start"},
    {"function": "max", "column": "window_end"},
    {"function": "count_distinct", "column": "rows"},
    {"function": "sum", "column": "c"},
    {"function": "max", "column": "c"},
)
COMPUTED = {
    "rows * 2 + window_end - window_start": lambda row: row["rows"] * 2 + row["window_end"] - row["window_start"],
    "CASE WHEN rows > 1 THEN window_start END": lambda row: row["window_start"] if row["rows"] > 1 else None,
}
"""What `then.compute` may make of a row, in SQL and in Python."""
SECOND_HAVING = {"a0 > 1": lambda row: None if row["a0"] is None else row["a0"] > 1}


@dataclass(frozen=True, repr=False)
class TwiceJob(WindowedJob):
    """`second` is the job of its own that would aggregate the rows of the first aggregate; `same`: in their windows."""

    second: StreamJoin | None = None
    same: bool = False

    def oracle(self) -> Any:
        """A fresh one."""
        first = super().oracle()
        assert self.second is not None
        assert self.second.aggregation is not None
        having = SECOND_HAVING.get(self.second.aggregation.having or "")
        shape = SameWindowShape if self.same else WindowShape
        (column,) = self.job.spec.aggregate.then.compute
        computed = {column.as_: COMPUTED[column.expression]}
        return TwiceOracle(first, WindowOracle(shape(self.second, computed=computed, having=having)))


@st.composite
def twice_jobs(draw: Any, *, local: bool = False) -> TwiceJob:
    once = draw(windowed_jobs(having=True, local=local))
    document = once.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    first = document["spec"]["aggregate"]
    if draw(st.booleans()):
        del first["having"]
    groups = [name.rpartition(".")[2] for name in first["groupBy"]]
    chosen = draw(st.lists(st.sampled_from(groups), unique=True)) if groups else []
    chosen += draw(st.sampled_from([[], [], ["rows"], ["c"]]))
    calls = draw(st.lists(st.sampled_from(CALLS), min_size=1, max_size=3))
    then: dict[str, Any] = {
        "groupBy": chosen,
        "compute": [{"expression": draw(st.sampled_from([*COMPUTED])), "as": "c"}],
        "aggregates": [{**call, "as": f"a{number}"} for number, call in enumerate(calls)],
        **({"having": draw(st.sampled_from([*SECOND_HAVING]))} if draw(st.booleans()) else {}),
    }
    window = {name: value for name, value in first["window"].items() if name != "of"}
    same = draw(st.booleans())
    if not same:
        zone = draw(st.sampled_from(CHANGES))[0] if local else None
        window = then["window"] = windows_of(draw, zone)
    second = {
        "inputs": [_rows_as_input(once, groups)],
        "aggregate": {**_of_input(then), "window": window},
        "output": {"file": {"path": "out.jsonl"}, "format": "json"},
    }
    first["then"] = then
    job = StreamJoin.model_validate(document)
    alone = StreamJoin.model_validate({"metadata": {"name": "random"}, "spec": second})
    of_first = (once.types, once.where, once.computed, once.busy, once.unit, once.start)
    return TwiceJob(job, *of_first, second=alone, same=same)


def _of_input(then: dict[str, Any]) -> dict[str, Any]:
    """The second aggregate as that of an only input."""

    def written(name: str) -> str:
        return name if name == "c" else f"{INPUT}.{name}"

    calls = [
        {**call, **({"column": written(call["column"])} if "column" in call else {})} for call in then["aggregates"]
    ]
    return {
        **then,
        "groupBy": [written(name) for name in then["groupBy"]],
        "compute": [{"expression": "1", "as": "c"}],  # of which the oracle knows the meaning by its name
        "aggregates": calls,
    }


def _rows_as_input(once: WindowedJob, groups: list[str]) -> dict[str, Any]:
    types = {**dict.fromkeys(groups, "int64"), **{name: kind for name, kind in once.types.items() if name in groups}}
    types |= dict.fromkeys(("rows", "window_start", "window_end"), "int64") | {"ts": "timestamp"}
    schema = [{"name": name, "type": kind} for name, kind in types.items()]
    source = {"file": {"path": "rows.jsonl"}, "format": "json", "schema": schema, "eventTime": "ts"}
    return {"name": INPUT, **source, "watermark": {"delay": "0ms"}}


@st.composite
def twice_cases(draw: Any, longest: int = 6, *, local: bool = False) -> Case:
    """As `random_sessions.session_cases`, of aggregates of aggregates; `local`: in windows of a zone."""
    return draw(histories(draw(twice_jobs(local=local)), longest))
