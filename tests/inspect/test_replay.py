"""Every golden trace: what the epoch log says is enough to make the same rows, drops and dead letters again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from cli.trimmed import TrimmedStore
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.json.encode import JsonStyle
from joinery_runtime.inspect.evidence import check_records, wrong_counts
from joinery_runtime.inspect.replay import Replay, replayable
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.trace_environment import StepInputs, sorted_json_rows
from joinery_runtime.inspect.trace_steps import StepLog, rows_by_input, united_step
from joinery_runtime.job import Job, parse_job
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import EpochCommit, EpochRecord
from traces.corpus import Trace, load_traces

# A watermark that was reset has changed the state beside the log.
TRACES = [
    trace
    for trace in load_traces()
    if trace.steps and not any(step.expected.fails or "resetWatermark" in step.action for step in trace.steps)
]


def played(trace: Trace, store: MemoryStore | None = None) -> tuple[Job, MemoryStore, dict[str, StepLog], list[str]]:
    """The job, its store after all steps, the records, and the rows that went out."""
    job, store = parse_job(json.dumps(trace.job), "job.yaml", plain_numbers=True), store or MemoryStore()
    steps = [step.action for step in trace.steps]
    out = [json.dumps(row) for line in run_trace(job, steps, store, 3) for row in line["output"]]
    logs = {side.name: StepLog(side) for side in job.inputs}
    for step in steps:
        for name, rows in rows_by_input(united_step(step, job.inputs)).items():
            logs[name].append(rows)
    return job, store, logs, out


# Every sixth is enough to see a rule go wrong; `make soak` runs all, and the fast tests every 18th.
@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(
            trace, id=trace.name, marks=pytest.mark.soak if number % 6 else pytest.mark.search if number % 18 else ()
        )
        for number, trace in enumerate(TRACES)
    ],
)
def test_the_same_rows_again(trace: Trace, tmp_path: Path) -> None:
    job, store, logs, out = played(trace)
    replay, again = Replay(job, StepInputs(job, logs), tmp_path), []
    for entry in replayable(job, store).entries:
        replayed = replay.run(EpochPlan.from_json(entry.plan))
        check_records(entry, replayed.result["rows_in"])
        counts = ("rows_in", "rows_out", "dropped", "lost")
        assert {name: replayed.result[name] for name in counts} == {name: entry.result[name] for name in counts}
        again += [json.dumps(row) for row in sorted_json_rows(replayed.rows, style_of(job))]
    assert Counter(again) == Counter(out)


def style_of(job: Job) -> JsonStyle:
    """That of a trace's rows."""
    return JsonStyle(nested=job.nested_columns(job.outputs[0]))


def test_epochs_in_which_nothing_happens_may_be_left_out(tmp_path: Path) -> None:
    left_out = 0
    for number, trace in enumerate(TRACES[::20]):
        job, store, logs, out = played(trace)
        replay, again = Replay(job, StepInputs(job, logs), tmp_path / str(number)), []
        for entry in replayable(job, store).entries:
            plan = EpochPlan.from_json(entry.plan)
            if all(
                planned_range.start == planned_range.end_exclusive for planned_range in plan.ranges
            ) and not replay.closes(plan):
                left_out += 1
                continue
            again += [json.dumps(row) for row in sorted_json_rows(replay.run(plan).rows, style_of(job))]
        assert Counter(again) == Counter(out), trace.name
    assert left_out >= 5


class SavedStore(TrimmedStore):
    """Makes a savepoint on every epoch, so that the log may begin behind any of them."""

    def commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        super().commit(job, generation, commit)
        self.create_savepoint(job, f"epoch-{commit.epoch}")

    def trim_to(self, epoch: int) -> None:
        self._noon = epoch
        self.trim()


@pytest.mark.search
def test_the_same_rows_again_from_a_savepoint(tmp_path: Path) -> None:
    begun = 0
    for number, trace in enumerate(TRACES[::10]):
        store = SavedStore(noon=0)
        job, _, logs, _ = played(trace, store)
        epochs = len(store.epochs(job.name))
        if epochs < 2:
            continue
        pipeline = compile_job(job)
        everything = replayable(job, store, pipeline=pipeline)
        folder = tmp_path / f"{number}-whole"
        complete_replay = Replay(job, StepInputs(job, logs), folder, pipeline=pipeline)
        rows = {entry.epoch: _rows(complete_replay, entry) for entry in everything.entries}
        store.trim_to(epochs // 2)
        course = replayable(job, store, pipeline=pipeline)
        assert [entry.epoch for entry in course.entries] == [epoch for epoch in rows if epoch > epochs // 2], trace.name
        begun += course.record is not None
        folder = tmp_path / f"{number}-rest"
        rest = Replay(job, StepInputs(job, logs), folder, course.initial_state(store), pipeline)
        assert {entry.epoch: _rows(rest, entry) for entry in course.entries} == {
            entry.epoch: rows[entry.epoch] for entry in course.entries
        }, trace.name
    assert begun >= 10


def _rows(replay: Replay, entry: EpochRecord) -> Counter[str]:
    replayed = replay.run(EpochPlan.from_json(entry.plan))
    check_records(entry, replayed.result["rows_in"])
    assert not wrong_counts(entry, replayed)
    return Counter(json.dumps(row) for row in sorted_json_rows(replayed.rows))


def test_a_job_whose_watermark_was_reset_is_refused() -> None:
    reset = [
        candidate for candidate in load_traces() if any("resetWatermark" in step.action for step in candidate.steps)
    ]
    trace = next(candidate for candidate in reset if not candidate.steps[-1].expected.fails)
    job, store, _, _ = played(trace)
    with pytest.raises(JoineryError, match="cannot be computed again"):
        replayable(job, store)


def test_records_that_are_gone_are_named() -> None:
    job, store, _, _ = played(next(candidate for candidate in TRACES if candidate.name == "time/t10-counts"))
    (entry, *_) = [entry for entry in replayable(job, store).entries if any(entry.result["rows_in"].values())]
    no_records = dict.fromkeys(entry.result["rows_in"], 0)
    with pytest.raises(JoineryError, match="of which 0 are there: retention"):
        check_records(entry, no_records)
