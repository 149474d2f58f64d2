"""`joinery why` and `joinery verify` where the log does not go back to an empty state, and a savepoint is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cli.trimmed import NOON, TrimmedStore
from cli.verified import inputs_of, left_join, write_files
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.replay import replayable
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.trace_environment import StepInputs
from joinery_runtime.inspect.verify import Verdict, verify
from joinery_runtime.inspect.why import Answer, explain_records
from joinery_runtime.job import Job, parse_job

COLUMNS = "[{name: k, type: string}, {name: v, type: string}, {name: ts, type: timestamp}]"
JOB = left_join(
    COLUMNS,
    """\
  output: {file: {path: FOLDER/out}}
  deadLetter: {file: {path: FOLDER/dead}}
  stateStore: {memory: {}}
""",
)
STEPS: list[dict[str, Any]] = [
    {"rows": {"l": [{"k": "a", "v": "A", "ts": 100}, {"k": "b", "v": "B", "ts": 100}]}},
    {"rows": {"r": [{"k": "a", "v": "x", "ts": 105}], "l": [{"k": "c", "v": "C", "ts": 103}]}},
    {"rows": {"r": [{"k": "a", "v": "y", "ts": 106}, {"k": "c", "v": "z", "ts": 107}]}},
    {"watermark": {"l": 200, "r": 200}},
    {"input": "l", "rows": [{"k": "a", "v": "late", "ts": 101}, {"k": "d", "v": "D", "ts": 300}]},
]


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that has run, its output in files. `noon` is the epoch of its savepoint; what is `trimmed` has no epoch of
    before that in its log."""

    job: Job
    store: TrimmedStore
    inputs: StepInputs
    folder: Path

    @classmethod
    def of(cls, folder: Path, noon: int = 2, steps: Sequence[Mapping[str, Any]] = STEPS) -> Ran:
        job, store = parse_job(JOB.replace("FOLDER", str(folder)), "job.yaml"), TrimmedStore(noon)
        for _ in run_trace(job, steps, store, 3):
            """The files are written below."""
        ran = cls(job, store, inputs_of(job, steps), folder)
        write_files(job, store, ran.inputs, folder / "cache")
        return ran

    @property
    def trimmed(self) -> Ran:
        self.store.trim()
        return self

    def verdict(self, first: int | None = None, last: int | None = None) -> Verdict:
        return verify(self.job, self.store, self.inputs, first, last)

    def why(self, *key: str, at: tuple[str, int, int] | None = None) -> Answer:
        return explain_records(self.job, self.store, self.inputs, key, at)


@pytest.fixture
def ran(tmp_path: Path) -> Ran:
    return Ran.of(tmp_path)


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_changed_row_is_found_behind_the_savepoint(ran: Ran) -> None:
    verdict = ran.trimmed.verdict()
    assert (verdict.right, verdict.first) == (True, 3)
    assert verdict.notes == [f"computed from savepoint {NOON} of job orders-payments, the state after epoch 2"]
    assert verdict.compared.rows == 3  # a and c with what came behind noon, b padded
    part = next(path for path in sorted((ran.folder / "out").iterdir()) if "0003" in path.name)
    part.write_text(part.read_text().replace('"z"', '"Z"'))
    (difference,) = ran.verdict().compared.differences
    assert (difference.epoch, difference.kind) == (3, "different")
    assert difference.actual == {**(difference.expected or {}), "right_v": "Z"}


def test_without_the_savepoints_state_the_rows_would_be_others(ran: Ran) -> None:
    """What the job keeps from before the savepoint has a part in them: that it has matched, too."""
    course = replayable(ran.trimmed.job, ran.store)
    stored = course.initial_state(ran.store)
    assert stored is not None
    assert {meta.part for meta in stored.record.segments} == {"left", "right", "left.marks"}
    assert course.initial_state(ran.store, lambda _: False) == replace(
        stored, record=replace(stored.record, segments=()), blobs={}
    )


# --- why --------------------------------------------------------------------------------------------------------------


def test_a_record_meets_what_the_savepoint_keeps(ran: Ran) -> None:
    before = {str(explanation.record.position): explanation for explanation in ran.why("k=a").records}
    answer = ran.trimmed.why("k=a")
    assert (answer.epochs[0], answer.savepoint, answer.document()["savepoint"]) == (3, NOON, NOON)
    assert next(iter(answer.lines())).startswith(
        "job orders-payments, epochs 3 to 5, from savepoint noon on: 2 records"
    )
    explained = {str(explanation.record.position): explanation for explanation in answer.records}
    assert explained.keys() == {"r:0=1", "l:0=3"}
    for position, explanation in explained.items():
        assert (explanation.produced, explanation.prevented, explanation.reason) == (
            before[position].produced,
            before[position].prevented,
            before[position].reason,
        )
    assert [list(counted) for counted in explained["r:0=1"].produced.values()] == [
        ['{"left_k": "a", "left_v": "A", "left_ts": 100, "right_k": "a", "right_v": "y", "right_ts": 106}']
    ]


def test_what_the_savepoint_keeps_is_named_as_the_nearest(tmp_path: Path) -> None:
    steps = [*STEPS[:2], {"input": "r", "rows": [{"k": "b", "v": "far", "ts": 115}]}]
    nearest = Ran.of(tmp_path, steps=steps).trimmed.why("k=b").document()["records"][0]["nearest"]
    assert (nearest["topic"], nearest["partition"], nearest["offset"], nearest["misses"]) == ("l", 0, 1, 5)


def test_a_record_of_before_the_savepoint_is_not_there(ran: Ran) -> None:
    with pytest.raises(JoineryError, match=r"No epoch of job orders-payments has read l:0=0: of epochs 3 to 5"):
        ran.trimmed.why(at=("l", 0, 0))


# --- where neither is there -------------------------------------------------------------------------------------------


def refused(ask: Callable[[], object]) -> str:
    with pytest.raises(JoineryError, match="cannot be computed again") as caught:
        ask()
    return str(caught.value)


def test_without_a_savepoint_it_is_said_which_one_to_make(ran: Ran) -> None:
    ran.store.delete_savepoint(ran.job.name, NOON)
    for ask in (ran.trimmed.verdict, lambda: ran.why("k=a")):
        text = refused(ask)
        assert "the log begins with epoch 3, when the job already kept rows of earlier ones" in text
        assert (
            "Create a savepoint now (`joinery state savepoint JOB NAME`): epochs from 6 on can then be computed" in text
        )


def test_epochs_before_the_savepoint_are_refused_by_name(ran: Ran) -> None:
    course = replayable(ran.job, ran.store, first=2)  # the log is whole
    assert course.entries[0].epoch == 1
    ran.store.trim()
    assert replayable(ran.job, ran.store, first=4).entries[0].epoch == 3


def test_a_savepoint_with_epochs_missing_behind_it_does_not_do(tmp_path: Path) -> None:
    """It is at epoch 2, the log begins with epoch 4."""
    ran = Ran.of(tmp_path).trimmed
    entries = ran.store.epochs(ran.job.name)

    class Gap(TrimmedStore):
        def epochs(self, job: str, after: int = 0, limit: int = 1000) -> Any:
            return ran.store.epochs(job, max(after, 3), limit)

    gap = Gap(0)
    for name in ("record", "savepoints", "pinned", "read_segments"):
        setattr(gap, name, getattr(ran.store, name))
    assert entries[0].epoch == 3
    assert "the log begins with epoch 4" in refused(lambda: replayable(ran.job, gap))


def test_a_restored_savepoint_is_where_the_epochs_after_it_begin(tmp_path: Path) -> None:
    job, store = parse_job(JOB.replace("FOLDER", str(tmp_path)), "job.yaml"), TrimmedStore(2)
    steps = [*STEPS[:4], {"restart": True}, *STEPS[4:]]
    for number, _ in enumerate(run_trace(job, steps, store, 3)):
        if number == 3:
            store.restore_savepoint(job.name, NOON)
    inputs = inputs_of(job, STEPS)
    course = replayable(job, store)
    assert (course.savepoint, course.entries[0].epoch) == (NOON, 5)
    assert course.entries[0].plan["ranges"][-1][3] < 3  # read once more
    answer = explain_records(job, store, inputs, ["k=c"], None)
    assert [(str(explanation.record.position), explanation.record.epoch) for explanation in answer.records] == [
        ("r:0=2", 5)
    ]
    before = replayable(job, store, last=4)
    assert (before.savepoint, before.entries[0].epoch) == ("", 1)
    store.delete_savepoint(job.name, NOON)
    text = refused(lambda: replayable(job, store))
    assert "a restore or a reset took the job back" in text
    assert "or ask for epochs up to 4" in text


def continued(ran: Ran, *, with_given: bool = True) -> Any:
    """The store of a job `copy` that has gone on as the other one did: that is its log, behind the entry that it was
    given, unless that was trimmed."""

    class Continued(TrimmedStore):
        def epochs(self, job: str, after: int = 0, limit: int = 1000) -> Any:
            copied = ran.store.epochs("copy", after, limit) if with_given else []
            return [*copied, *ran.store.epochs(ran.job.name, max(after, 2), limit)]

    store = Continued(0)
    for name in ("record", "savepoints", "pinned", "read_segments"):
        setattr(store, name, getattr(ran.store, name))
    return store


def test_a_job_that_started_from_another_one_begins_with_its_savepoint(tmp_path: Path) -> None:
    ran = Ran.of(tmp_path)
    text = JOB.replace("FOLDER", str(tmp_path)).replace("name: orders-payments", "name: copy")
    begin = "stateStore: {postgres: {dsn: unused}, startFrom: {job: orders-payments, savepoint: noon}}"
    copy = parse_job(text.replace("stateStore: {memory: {}}", begin), "copy.yaml")
    ran.store.start_from("copy", ran.job.name, NOON)

    for with_given in (True, False):
        course = replayable(copy, continued(ran, with_given=with_given))
        assert (course.savepoint, course.entries[0].epoch) == (NOON, 3)
        assert course.record is not None
        assert course.record.job == ran.job.name
    ran.store.delete_savepoint(ran.job.name, NOON)
    assert "no savepoint keeps the state from there on" in refused(lambda: replayable(copy, continued(ran)))
