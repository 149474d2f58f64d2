"""Hypothesis strategies: random aggregates behind random chains of joins, and what their expressions mean in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from core.random_jobs import Job, jobs, ms
from core.random_windows import WINDOWS
from core.table.reference_keyhash import reference_hash
from joinery_devkit.oracle import ComposedOracle, SessionOracle, SessionShape, WindowOracle, WindowShape
from joinery_runtime.job import SessionWindow, StreamJoin

OF_COLUMN = ("count_col", "sum", "avg", "min", "max", "count_distinct", "var_pop", "median")
"""Functions that the order of rows does not change: S8 orders rows of one record by all of their values."""


@dataclass(frozen=True, repr=False)
class ComposedJob:
    """A job with steps and an aggregate. `steps` is the same job without the aggregate, and `aggregated` the job of its
    own that would aggregate what the steps make."""

    job: StreamJoin
    steps: Job
    aggregated: SessionWindow | StreamJoin

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.steps.inputs

    @property
    def keys(self) -> Mapping[str, str]:
        """See `Job.keys`."""
        return self.steps.keys

    def oracle(self) -> ComposedOracle:
        """A fresh one."""
        if isinstance(self.aggregated, SessionWindow):
            shape = SessionShape(self.aggregated, reference_hash, None, {"p": self._plus_one})
            return ComposedOracle(self.steps.oracle(aggregated=True), SessionOracle(shape))
        windows = WindowShape(self.aggregated, None, {"p": self._plus_one})
        return ComposedOracle(self.steps.oracle(aggregated=True), WindowOracle(windows))

    def edit(self, oracle: Any, before: Any) -> None:
        raise AssertionError("these jobs are not edited")

    def _plus_one(self, row: Mapping[str, Any]) -> Any:
        value = row[f"{self.job.aggregated_time}_v"]
        return None if value is None else value + 1

    def __repr__(self) -> str:
        """What of the job a failing example is about."""
        spec = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
        delays = {side.name: side.watermark.delay for side in self.job.inputs}
        return f"<{spec['joins']}, {spec['aggregate']}, delays {delays}, keys {dict(self.keys)}>"


@st.composite
def composed_jobs(draw: Any, kind: str) -> ComposedJob:
    """Steps of a kind of `random_jobs.KINDS` with an aggregate behind them."""
    steps = draw(jobs(kind).filter(lambda job: bool(_present_inputs(job.job))))
    time = draw(st.sampled_from(_present_inputs(steps.job)))
    document = steps.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    # `<input>.<column>` of the job by the names that a job of its own would read: those of the prefixed columns.
    columns = {f"{name}_{column}": f"{name}.{column}" for name in steps.job.joined for column in ("k", "n", "v", "ts")}
    groups = draw(st.sampled_from([["k"], ["k"], ["n"], ["k", "n"], ["p"]]))
    group_by = [name if name == "p" else f"{draw(st.sampled_from(steps.job.joined))}_{name}" for name in groups]
    window = draw(st.sampled_from(["session", "aligned"]))
    aggregates = draw(calls([name for name in columns if name.endswith("_v")]))
    late_data = draw(st.sampled_from(["drop", "reopen"])) if window == "session" else "drop"
    late = {"lateData": late_data, "allowedLateness": ms(draw(st.sampled_from([0, 0, 1, 5, 25])))}
    if window == "session":
        spec, aggregated = draw(_sessions(steps, time, group_by, aggregates, late))
    else:
        spec, aggregated = _windows(steps, time, group_by, aggregates, late, draw(st.sampled_from(WINDOWS)))
    spec["groupBy"] = [columns.get(name, name) for name in group_by]
    spec["aggregates"] = [_with_names(call, columns) for call in aggregates]
    spec["compute"] = [{"expression": f"{time}.v + 1", "as": "p"}]
    window_columns = ["window_start", "window_end", *(["session_id"] if window == "session" else [])]
    names = [*zip(spec["groupBy"], group_by, strict=True), *((name, name) for name in window_columns)]
    names += [(call["as"], call["as"]) for call in aggregates]
    every = [{"column": column, "as": name} for name, column in columns.items()]
    steps = steps.selecting(every)
    document["spec"] |= {"aggregate": spec, "select": [{"column": column, "as": name} for column, name in names]}
    return ComposedJob(StreamJoin.model_validate(document), steps, aggregated)


@st.composite
def calls(draw: Any, columns: list[str]) -> list[dict[str, Any]]:
    options: list[dict[str, Any]] = [
        {"function": "count"},
        {"function": "sum", "column": "p"},
        *({"function": function, "column": draw(st.sampled_from(columns))} for function in OF_COLUMN),
    ]
    chosen = draw(st.lists(st.sampled_from(options), min_size=1, max_size=3))
    return [{**call, "as": f"a{number}"} for number, call in enumerate(chosen)]


def _with_names(call: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    return {**call, "column": columns.get(call["column"], call["column"])} if "column" in call else dict(call)


def _present_inputs(job: StreamJoin) -> list[str]:
    """The inputs that are in every row behind the steps, with a time that has a bound."""
    if any(step.kind == "session" for step in job.joins):
        return []
    present = [job.inputs[0].name]
    for step in job.joins:
        if step.type in {"right", "full"}:
            present = []
        if step.type in {"inner", "right"} and step.as_of is None:
            present.append(step.right)
    return present


@st.composite
def _sessions(
    draw: Any, steps: Job, time: str, group_by: list[str], aggregates: list[dict[str, Any]], late: dict[str, str]
) -> tuple[dict[str, Any], SessionWindow]:
    session = {"gap": ms(draw(st.integers(1, 5))), "maxDuration": ms(draw(st.sampled_from([6, 9, 12, 10_000, 10_000])))}
    retracts = late["lateData"] == "reopen" and draw(st.booleans())
    shared = {**late, **({"emitRetractions": True} if retracts else {})}
    spec = {
        "input": _input_of_rows(steps, time),
        "groupBy": group_by,
        **session,
        "compute": [{"expression": f"{time}_v + 1", "as": "p"}],
        "aggregates": aggregates,
        **shared,
        "output": {"file": {"path": "out.jsonl"}, "format": "json"},
    }
    aggregated = SessionWindow.model_validate({"metadata": {"name": "random"}, "spec": spec})
    return {"window": {"of": time, "session": session}, **shared}, aggregated


def _windows(
    steps: Job,
    time: str,
    group_by: list[str],
    aggregates: list[dict[str, Any]],
    late: dict[str, str],
    window: Mapping[str, Mapping[str, int]],
) -> tuple[dict[str, Any], StreamJoin]:
    ((kind, durations),) = window.items()
    written = {kind: {name: ms(duration) for name, duration in durations.items()}}
    columns = {f"{name}_{column}": f"{time}.{name}_{column}" for name in steps.job.joined for column in ("k", "n", "v")}
    aggregate = {
        "groupBy": [columns.get(name, name) for name in group_by],
        "window": written,
        "compute": [{"expression": f"{time}.{time}_v + 1", "as": "p"}],
        "aggregates": [_with_names(call, columns) for call in aggregates],
        **late,
    }
    output = {"file": {"path": "out.jsonl"}, "format": "json"}
    spec = {"inputs": [_input_of_rows(steps, time)], "aggregate": aggregate, "output": output}
    aggregated = StreamJoin.model_validate({"metadata": {"name": "random"}, "spec": spec})
    return {"window": {"of": time, **written}, **late}, aggregated


def _input_of_rows(steps: Job, time: str) -> dict[str, Any]:
    """The rows of the steps as an input, which is called `time`."""
    schema = [
        {"name": f"{name}_{column}", "type": str(kind)}
        for name in steps.job.joined
        for column, kind in steps.job.input(name).types.items()
    ]
    source = {"file": {"path": "joined.jsonl"}, "format": "json", "schema": schema, "eventTime": f"{time}_ts"}
    return {"name": time, **source, "watermark": {"delay": "0ms"}}
