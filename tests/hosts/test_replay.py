"""Every golden trace: what the epoch log says is enough to make the same rows, drops and dead letters again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.replay import Replay, check_records, replayable
from joinery_runtime.hosts.trace import run_trace
from joinery_runtime.hosts.trace_environment import StepInputs, in_order
from joinery_runtime.hosts.trace_steps import StepLog, rows_by_input
from joinery_runtime.job import Job, parse_job
from joinery_runtime.state.memory import MemoryStore
from traces.corpus import Trace, load_traces

# A watermark that was reset has changed the state beside the log.
TRACES = [
    trace
    for trace in load_traces()
    if trace.steps and not any(step.expected.fails or "resetWatermark" in step.given for step in trace.steps)
]


def played(trace: Trace) -> tuple[Job, MemoryStore, dict[str, StepLog], list[str]]:
    """The job, its store after all steps, the records, and the rows that went out."""
    job, store = parse_job(json.dumps(trace.job), "job.yaml"), MemoryStore()
    steps = [step.given for step in trace.steps]
    out = [json.dumps(row) for line in run_trace(job, steps, store, 3) for row in line["output"]]
    logs = {side.name: StepLog(side) for side in job.inputs}
    for step in steps:
        for name, rows in rows_by_input(step).items():
            logs[name].append(rows)
    return job, store, logs, out


# Every sixth is enough to see a rule go wrong; `make soak` runs all.
@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(trace, id=trace.name, marks=pytest.mark.soak if number % 6 else ())
        for number, trace in enumerate(TRACES)
    ],
)
def test_the_same_rows_again(trace: Trace, tmp_path: Path) -> None:
    job, store, logs, out = played(trace)
    replay, again = Replay(job, StepInputs(job, logs), tmp_path), []
    for entry in replayable(job, store):
        replayed = replay.run(EpochPlan.from_json(entry.plan))
        check_records(entry, replayed.result["rows_in"])
        counts = ("rows_in", "rows_out", "dropped", "lost")
        assert {name: replayed.result[name] for name in counts} == {name: entry.result[name] for name in counts}
        again += [json.dumps(row) for row in in_order(replayed.rows)]
    assert Counter(again) == Counter(out)


def test_epochs_in_which_nothing_happens_may_be_left_out(tmp_path: Path) -> None:
    left_out = 0
    for number, trace in enumerate(TRACES[::20]):
        job, store, logs, out = played(trace)
        replay, again = Replay(job, StepInputs(job, logs), tmp_path / str(number)), []
        for entry in replayable(job, store):
            plan = EpochPlan.from_json(entry.plan)
            if all(each.start == each.end_exclusive for each in plan.ranges) and not replay.closes(plan):
                left_out += 1
                continue
            again += [json.dumps(row) for row in in_order(replay.run(plan).rows)]
        assert Counter(again) == Counter(out), trace.name
    assert left_out >= 5


def test_a_job_whose_watermark_was_reset_is_refused() -> None:
    (trace,) = [each for each in load_traces() if any("resetWatermark" in step.given for step in each.steps)][:1]
    job, store, _, _ = played(trace)
    with pytest.raises(JoineryError, match="cannot be computed again"):
        replayable(job, store)


def test_records_that_are_gone_are_named() -> None:
    job, store, _, _ = played(next(each for each in TRACES if each.name == "time/t10-counts"))
    (entry, *_) = [each for each in replayable(job, store) if any(each.result["rows_in"].values())]
    gone = dict.fromkeys(entry.result["rows_in"], 0)
    with pytest.raises(JoineryError, match="of which 0 are there: retention"):
        check_records(entry, gone)
