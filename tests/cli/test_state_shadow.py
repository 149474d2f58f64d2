"""`upgrade.mode: shadow`: a trace's job runs on, step by step, while an edited one is compared with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from joinery_runtime.errors import StateError
from joinery_runtime.inspect.shadow import Clock, Shadow, shadow
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.trace_environment import StepInputs
from joinery_runtime.inspect.trace_steps import StepLog, rows_by_input, united_step
from joinery_runtime.job import Job, parse_job
from joinery_runtime.state.memory import MemoryStore
from traces.corpus import Trace, load_traces

Document = Mapping[str, Any]

COLUMNS = [{"name": "k", "type": "string"}, {"name": "v", "type": "int64"}, {"name": "ts", "type": "timestamp"}]
JOB: dict[str, Any] = {
    "apiVersion": "joinery.dev/v1alpha1",
    "kind": "StreamJoin",
    "metadata": {"name": "orders-payments"},
    "spec": {
        "inputs": [
            {"name": name, "file": {"path": name}, "format": "json", "eventTime": "ts", "schema": COLUMNS}
            for name in ("l", "r")
        ],
        "joins": [
            {
                "right": "r",
                "type": "left",
                "keys": {"l.k": "r.k"},
                "interval": {"of": "l", "lower": "-10ms", "upper": "10ms"},
            }
        ],
        "select": [{"column": "l.k", "as": "k"}, {"column": "l.v", "as": "v"}, {"column": "r.v", "as": "w"}],
        "output": {"file": {"path": "out"}},
        "stateStore": {"memory": {}},
    },
}
STEPS: list[dict[str, Any]] = [
    {
        "rows": {
            "l": [{"k": f"k{i}", "v": i, "ts": 5 * step + i % 3} for i in range(20)],
            "r": [{"k": f"k{i}", "v": 100 * step + i, "ts": 5 * step + 2} for i in range(0, 20, 2)],
        }
    }
    for step in range(8)
]


class Running:
    """A job that runs, a step at each `sleep` of the clock while there are some."""

    def __init__(self, job: Document, steps: list[dict[str, Any]]) -> None:
        self.job, self.store, self._steps = (
            parse_job(json.dumps(job), "job.yaml", plain_numbers=True),
            MemoryStore(),
            iter(steps),
        )
        self._logs = {side.name: StepLog(side) for side in self.job.inputs}
        self._lines: Any = run_trace(self.job, steps, self.store, 3)
        self._now, self.rows = 0.0, 0
        self.at_sleep: list[Callable[[], object]] = []

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def step(self) -> None:
        for name, rows in rows_by_input(united_step(next(self._steps, {}), self.job.inputs)).items():
            self._logs[name].append(rows)
        self.rows += len(next(self._lines, {"output": []})["output"])

    def _sleep(self, seconds: float) -> None:
        self._now += seconds
        (self.at_sleep.pop() if self.at_sleep else self.step)()

    def beside(self, edited: Document, **limits: Any) -> Shadow:
        upgrade = {"mode": "shadow", "shadow": limits}
        text = json.dumps({**edited, "spec": {**edited["spec"], "upgrade": upgrade}})
        job = parse_job(text, "job.yaml", plain_numbers=True)
        return shadow(job, self.store, self._inputs, Clock(lambda: self._now, self._sleep))

    def _inputs(self, job: Job) -> Any:
        inputs: Any = StepInputs(job, self._logs)
        inputs.close = lambda: None
        return inputs


@pytest.fixture
def running() -> Iterator[Running]:
    """Three steps have been done: rows are in the state."""
    with Running(JOB, STEPS) as running:
        for _ in range(3):
            running.step()
        yield running


def edited(**spec: Any) -> Document:
    return {**JOB, "spec": {**JOB["spec"], **spec}}


def step(**changes: Any) -> Document:
    return edited(joins=[{**JOB["spec"]["joins"][0], **changes}])


@pytest.mark.parametrize(
    "job", [JOB, edited(shards=2), edited(trigger={"maxRecordsPerEpoch": 7})], ids=["the same job", "shards", "trigger"]
)
def test_an_edit_that_changes_no_row(running: Running, job: Document) -> None:
    since, epochs = running.rows, running.store.record("orders-payments")
    comparison = running.beside(job, epochs=3)
    assert comparison.is_equal, comparison.text("5m")
    assert comparison.compared.epochs == 3
    assert epochs is not None
    assert comparison.first == epochs.epoch + 1
    assert 0 < comparison.compared.rows <= running.rows - since
    assert "are the same under the edited job" in comparison.text("5m")


@pytest.mark.parametrize(
    ("job", "what"),
    [
        (step(where="r.v < 400"), {"missing"}),
        (step(interval={"of": "l", "lower": "-10ms", "upper": "2ms"}), {"missing"}),
        (edited(select=[{"column": "l.k", "as": "k"}, {"column": "l.v", "as": "v"},
                        {"expression": "r.v + 1", "as": "w"}]), {"different"}),
    ],
    ids=["where", "interval", "expression"],
)  # fmt: skip
def test_a_difference_is_found_and_says_which_records_make_the_row(
    running: Running, job: Document, what: set[str]
) -> None:
    comparison = running.beside(job, epochs=4)
    assert not comparison.is_equal
    assert what <= set(comparison.compared.counted)
    text = comparison.text("5m")
    assert "differ under the edited job" in text
    assert "upgrade.mode: stateful" in text
    assert any("/" in difference.origin for difference in comparison.compared.differences)


def test_rows_of_the_state_as_it_was_play_their_part(running: Running) -> None:
    """A row from before the comparison has partners in it: under a shorter interval it has fewer."""
    comparison = running.beside(step(interval={"of": "l", "lower": "-10ms", "upper": "4ms"}), epochs=1)
    before = 5 * 3  # the first event time of the comparison's first epoch
    lost = [difference.expected for difference in comparison.compared.differences if difference.kind == "missing"]
    assert any(row is not None and row["w"] >= 300 and row["v"] < before for row in lost)


def test_columns_that_only_one_of_them_has_are_not_compared(running: Running) -> None:
    select = [*JOB["spec"]["select"][:2], {"column": "r.ts", "as": "at"}]
    comparison = running.beside(edited(select=select), epochs=2)
    assert comparison.is_equal
    assert comparison.unshared_columns == ("w", "at")
    assert "not compared, since only one of the two has them: w, at" in comparison.text("5m")


def test_what_was_committed_in_time_is_compared(running: Running) -> None:
    comparison = running.beside(JOB, epochs=1000, within="3s")
    assert comparison.is_equal
    assert 3 <= comparison.compared.epochs < 1000


def test_nothing_to_compare_is_no_yes(running: Running) -> None:
    for _ in STEPS:
        running.step()
    comparison = running.beside(JOB, within="3s")
    assert not comparison.is_equal
    assert "no epoch was committed within 3s" in comparison.text("3s")
    assert "raise upgrade.shadow.within" in comparison.text("3s")


def test_what_this_release_computes_otherwise_is_found(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release in force has counted other rows: the log says so."""
    epochs = running.store.epochs

    def miscounted(*arguments: Any) -> Any:
        return [_with(epoch, rows_out=epoch.result["rows_out"] + 1) for epoch in epochs(*arguments)]

    monkeypatch.setattr(running.store, "epochs", miscounted)
    comparison = running.beside(JOB, epochs=1)
    assert not comparison.is_equal
    assert "the log has rows_out" in comparison.text("5m")


def _with(entry: Any, **result: Any) -> Any:
    return replace(entry, result={**entry.result, **result})


def test_a_restore_in_the_middle_begins_anew() -> None:
    steps = [*STEPS[:5], {"restart": True}, *STEPS[5:]]
    with Running(JOB, steps) as running:
        for _ in range(3):
            running.step()
        name = running.job.name
        running.store.create_savepoint(name, "before")
        for _ in range(2):
            running.step()
        running.at_sleep = [lambda: running.store.restore_savepoint(name, "before")]
        with pytest.raises(StateError, match="was taken back before epoch"):
            running.beside(JOB, epochs=5)


TRACES = [
    trace
    for trace in load_traces()
    if len(trace.steps) >= 4 and not any(s.expected.fails or "resetWatermark" in s.action for s in trace.steps)
]


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(trace, id=trace.name, marks=pytest.mark.soak if number % 10 else ())
        for number, trace in enumerate(TRACES)
    ],
)
def test_every_kind_goes_on_from_the_stored_state(trace: Trace) -> None:
    with Running(trace.job, [trace_step.action for trace_step in trace.steps]) as running:
        for _ in range(len(trace.steps) // 2):
            running.step()
        if running.store.record(running.job.name) is None:
            pytest.skip("no epoch in the first half")
        comparison = running.beside(trace.job, epochs=1000, within=1_000 * len(trace.steps))
        assert not comparison.compared.counted, comparison.text("")
        assert not comparison.release
