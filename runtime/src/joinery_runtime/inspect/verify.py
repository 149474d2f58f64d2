"""`joinery verify`: computes committed epochs again, and compares them with the output, row by row.

The expected rows come from the epoch log and the inputs alone (`inspect.replay`). No segment, sink, Spark or retry of
the run that is judged takes part; only if the log does not go back to an empty state do the segments of a savepoint.
The joins and sessions are the job's own core (docs/decisions/0038). Files say which epoch a row belongs to, and are
compared epoch by epoch; topics and tables are compared as a whole (docs/decisions/0052).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from joinery_runtime.connectors.content import Content
from joinery_runtime.connectors.files.sink import published_lines
from joinery_runtime.connectors.outputs import Outputs, StoreDatabase
from joinery_runtime.connectors.sink import Receipt, short_incarnation
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.engine.assembly import input_clocks, late_shares
from joinery_runtime.engine.late_rows import LateCounts, LateInput
from joinery_runtime.engine.plan import JUDGED_BY_CLOCK, EpochPlan
from joinery_runtime.engine.worker import InputAccess
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.evidence import ReplayedEpoch, check_records, wrong_counts
from joinery_runtime.inspect.kinds.base import description_of
from joinery_runtime.inspect.output_diff import OutputDiff
from joinery_runtime.inspect.replay import (
    Replay,
    Replayable,
    fingerprint_of,
    replayable,
)
from joinery_runtime.inspect.row_differences import RowComparison
from joinery_runtime.job import Job, definition, is_same_definition
from joinery_runtime.job.model.wording import counted
from joinery_runtime.state.store import EpochRecord, JobReader, JobRecord, StateReader

_DEAD_LETTERS = "dead letters"  # no output has such a name


@dataclass(slots=True)
class Verdict:
    """The result of comparing epochs `first` to `last`."""

    job: str
    first: int
    last: int
    compared: RowComparison = field(default_factory=RowComparison)
    log: list[str] = field(default_factory=list)  # counts in the log that differ from the computed ones
    notes: list[str] = field(default_factory=list)  # what could not be judged
    by_key: bool = False  # a table holds the newest row of each key only
    cut_off: list[str] = field(default_factory=list)  # why an output could not be judged at all
    late: dict[str, tuple[int, LateInput]] = field(default_factory=dict)
    """By input of which many rows were dropped as late: the epoch at which their share was highest, and the figures."""

    @property
    def right(self) -> bool:
        return not self.compared.counted and not self.log and not self.cut_off

    def document(self) -> dict[str, Any]:
        header = {"job": self.job, "epochs": [self.first, self.last], "verified": self.right}
        late = [{"epoch": epoch, **late_input.document()} for epoch, late_input in self.late.values()]
        return {
            **header,
            **self.compared.document(),
            "cut_off": self.cut_off,
            "log": self.log,
            "notes": self.notes,
            "late": late,
        }

    def learn_late(self, epoch: int, late_inputs: Iterable[LateInput]) -> None:
        for late_input in late_inputs:
            if late_input.input not in self.late or late_input.share > self.late[late_input.input][1].share:
                self.late[late_input.input] = epoch, late_input

    def lines(self) -> Iterator[str]:
        compared, heading = self.compared, f"job {self.job}, epochs {self.first} to {self.last}"
        rows = f"{counted(compared.rows, 'row')}{', the newest of each key,' if self.by_key else ''}"
        those = f"{rows} and {counted(compared.dead, 'dead letter')} of {counted(compared.epochs, 'epoch')}"
        if self.right:
            but = "VERIFIED, BUT MANY ROWS WERE DROPPED AS LATE" if self.late else "VERIFIED"
            yield f"{heading}: {but}, {those} are in the output, each exactly once"
        else:
            wrong = compared.counts() or ("the log is wrong" if self.log else "nothing could be judged")
            yield f"{heading}: NOT VERIFIED, {wrong}; expected were {those}"
            yield from self.cut_off
            yield from compared.lines()
            yield from self.log
        yield from (f"after epoch {epoch}, {late.words}" for epoch, late in self.late.values())
        yield from self.notes


def verify(
    job: Job,
    store: StateReader,
    inputs: InputAccess,
    first: int | None,
    last: int | None,
    database: StoreDatabase | None = None,
) -> Verdict:
    """Verify epochs `first` (None: the first that can be computed again) to `last` (None: the newest one). `database`
    is the state's; None if the state is not in Postgres. Raises JoineryError if an epoch cannot be computed again, and
    whatever reading the output raises."""
    outputs = Outputs.of(job)
    if all(target.output.console is not None for target in outputs.targets):
        raise JoineryError(f"The output of job {job.name} cannot be verified", facts="the console keeps no rows")
    record = store.record(job.name)
    assert record is not None, "the caller has looked"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="joinery-verify-")))
        contents = _open_contents(outputs, store, record, database)
        diffs = [
            stack.enter_context(closing(_output_diff(job, name, content, folder / name.replace(" ", "-"))))
            for name, content in contents
        ]
        # Read after the outputs, so that every row in them belongs to an epoch of the log or to the pending plan.
        record = store.record(job.name)
        assert record is not None, "it was there before"
        course = replayable(job, store, *((None, None) if diffs else (first, last)), edits=True)
        verdict = _empty_verdict(job, course, first, last, diffs)
        replay = Replay(job, inputs, folder / "cache", course.initial_state(store))
        late, since = LateCounts(input_clocks(job), late_shares(job)), _first_since_edit(job, course)
        receipts = _receipt_reader(job, store, outputs)
        for entry, replayed in _replay_log(course, replay):
            if entry.epoch >= since:
                _expect_epoch(diffs, outputs, replayed)
            late.learn(entry.committed_at, replayed.read, replayed.late, replayed.behind)
            if verdict.first <= entry.epoch <= verdict.last:
                verdict.learn_late(entry.epoch, late.active.values())
                _judge_epoch(job, outputs, entry, receipts, replayed, verdict, short_incarnation(record.incarnation))
        pending = _pending_plan(job, record, course.entries)
        if pending is not None and any(not diff.content.exact for diff in diffs):
            next_start = record.generation + 1
            _expect_epoch(diffs, outputs, replay.run(pending, careful=pending.is_deadly(next_start)))
        _compare_outputs(job, diffs, verdict, course)
    return verdict


def _receipt_reader(job: Job, store: StateReader, outputs: Outputs) -> Callable[[str, int], list[Receipt]]:
    """Return a function that reads the receipts of an epoch, even of one committed meanwhile: its file may hold rows of
    earlier epochs. Its first argument is their kind in the log, or the name of one of several outputs."""
    names = set() if job.spec.outputs is None else {target.name for target in outputs.targets}

    @lru_cache(maxsize=2)
    def receipts(kind: str, epoch: int) -> list[Receipt]:
        several = kind in names
        entries = store.epochs(job.name, epoch - 1, 1)
        logged = [receipt for entry in entries for receipt in entry.result.get("output" if several else kind, ())]
        return [receipt[kind] for receipt in logged if kind in receipt] if several else logged

    return receipts


def _replay_log(course: Replayable, replay: Replay) -> Iterator[tuple[EpochRecord, ReplayedEpoch]]:
    """Run the epochs of the log again, each under the definition of the job that made it. Raises JoineryError if the
    inputs no longer have the records that an epoch has read."""
    name = ""
    for entry in course.entries:
        plan = EpochPlan.from_json(entry.plan)
        if course.jobs[plan.definition] != course.jobs[name]:
            replay.continue_with(course.jobs[plan.definition])
        name = plan.definition
        replayed = replay.run(plan, careful=plan.is_deadly(entry.generation))
        check_records(entry, replayed.result["rows_in"])
        yield entry, replayed


def _open_contents(
    outputs: Outputs, store: JobReader, record: JobRecord, database: StoreDatabase | None
) -> list[tuple[str, Content]]:
    """Return the contents of outputs that do not say which epoch a row belongs to, each with the output's name in
    differences."""
    newest = store.newest_epoch(outputs.job)
    committed = 0 if newest is None else newest.epoch
    # Rows for a table with commits of its own are published right after the state's commit, before the next epoch's.
    certain = committed - 1 if newest is not None and newest.result.get("rows_out", 0) else committed

    def now() -> int:
        latest = store.newest_epoch(outputs.job)
        return 0 if latest is None else latest.epoch

    contents = [(target.name, target.content(database, record.incarnation, now, certain)) for target in outputs.targets]
    contents.append((_DEAD_LETTERS, outputs.dead_letter_content(now)))
    return [(name, content) for name, content in contents if content is not None]


def _output_diff(job: Job, name: str, content: Content, folder: Path) -> OutputDiff:
    folder.mkdir()
    last = compile_job(job).last
    aggregates = description_of(last).merges_rows
    sides = [" + ".join(side.inputs) if aggregates else side.time for side in last.sides]
    return OutputDiff(name, content, folder, sides, in_order=aggregates)


def _empty_verdict(
    job: Job, course: Replayable, first: int | None, last: int | None, diffs: Sequence[OutputDiff]
) -> Verdict:
    """Decide which epochs are judged, as an empty verdict."""
    entries, begin = course.entries, _first_since_edit(job, course)
    newest = min([entries[-1].epoch, *(diff.content.complete_to for diff in diffs)])
    since, until = begin if first is None else first, newest if last is None else min(last, newest)
    if entries[0].epoch <= since < begin:
        raise JoineryError(
            f"Epochs before {begin} of job {job.name} cannot be verified",
            facts="the job was edited since, and the output is compared with what the job makes as it is now",
            todo=f"Ask for --epochs {begin}..",
        )
    if since < entries[0].epoch:
        raise JoineryError(
            f"Epochs before {entries[0].epoch} of job {job.name} cannot be verified",
            facts=f"{_beginning(course)}, and the output does not say which rows are older",
            todo=f"Ask for --epochs {entries[0].epoch}..",
        )
    if since > until:
        raise JoineryError(
            f"The output of job {job.name} has no such epoch yet", facts=f"it has rows up to epoch {newest}"
        )
    by_key = any(diff.content.upsert_key for diff in diffs)
    notes = [f"computed from {_beginning(course)}"] if course.savepoint else []
    if begin > entries[0].epoch:
        notes.append(f"epochs before {begin} were made by the job before an edit, and are not judged")
    return Verdict(job.name, since, until, by_key=by_key, notes=notes)


def _first_since_edit(job: Job, course: Replayable) -> int:
    """Return the first epoch after the last edit. Raises JoineryError if none was made under the job as it is."""
    edited = [entry.epoch for entry in course.entries if course.jobs[EpochPlan.from_json(entry.plan).definition] != job]
    if edited and edited[-1] == course.entries[-1].epoch:
        raise JoineryError(
            f"The output of job {job.name} has no epoch of the job as it is now",
            facts=f"the job was edited after epoch {edited[-1]}",
            todo="Run it, or verify with the file as it was before the edit",
        )
    return edited[-1] + 1 if edited else course.entries[0].epoch


def _beginning(course: Replayable) -> str:
    if course.record is None:
        return "the job began from the beginning with that one"
    return f"savepoint {course.savepoint} of job {course.record.job}, the state after epoch {course.record.committed}"


def _pending_plan(job: Job, record: JobRecord, entries: Sequence[EpochRecord]) -> EpochPlan | None:
    """Return the pending plan, some of whose rows may already be visible; None also if the job was edited since the
    plan was made."""
    if record.plan is None:
        return None
    plan, today = EpochPlan.from_json(record.plan), fingerprint_of(job, compile_job(job))
    is_current = plan.fingerprint in ("", today) and is_same_definition(plan.definition, definition(job))
    return plan if plan.epoch > entries[-1].epoch and is_current else None


def _expect_epoch(diffs: Sequence[OutputDiff], outputs: Outputs, replayed: ReplayedEpoch) -> None:
    selections = {target.name: target.selection for target in outputs.targets}
    for diff in diffs:
        if diff.name == _DEAD_LETTERS:
            diff.expect(replayed.epoch, replayed.dead)
        else:
            rows = replayed.select(selections[diff.name]).rows
            diff.expect(replayed.epoch, rows, any_of_key=replayed.plan.format < JUDGED_BY_CLOCK)


def _judge_epoch(
    job: Job,
    outputs: Outputs,
    entry: EpochRecord,
    receipts: Callable[[str, int], list[Receipt]],
    replayed: ReplayedEpoch,
    verdict: Verdict,
    incarnation: str,
) -> None:
    """Judge an epoch by what the epoch log and the epoch's files say."""
    verdict.log += wrong_counts(entry, replayed)
    verdict.compared.epochs += 1
    for target in outputs.targets:
        if (file := target.output.file) is not None:
            actual = Counter(published_lines(file.path, entry.epoch, partial(receipts, target.name), incarnation))
            rows = replayed.select(target.selection)
            verdict.compared.output(job, rows, actual, style=target.style, name=target.name)
    dead = job.spec.dead_letter
    if dead is not None and dead.file is not None:
        letters = Counter(published_lines(dead.file.path, entry.epoch, partial(receipts, "dead_letters"), incarnation))
        verdict.compared.dead_letters(replayed, letters)


def _compare_outputs(job: Job, diffs: Sequence[OutputDiff], verdict: Verdict, course: Replayable) -> None:
    since = _first_since_edit(job, course)
    only_incarnation = course.record is None and since == 1
    topics = {output.name: output.kafka.topic for output in job.outputs if output.kafka is not None}
    dead = job.spec.dead_letter
    if dead is not None and dead.kafka is not None:
        topics[_DEAD_LETTERS] = dead.kafka.topic
    for diff in diffs:
        before = _not_ours(verdict.compared)
        may_repeat = not diff.content.exact and job.spec.delivery != "exactlyOnce"
        rows = diff.compare(
            verdict.compared,
            verdict.first,
            verdict.last,
            only_incarnation=only_incarnation,
            may_repeat=may_repeat,
            since=None if course.record is None and since == course.entries[0].epoch else since,
        )
        if diff.name == _DEAD_LETTERS:
            verdict.compared.dead += rows
        else:
            verdict.compared.rows += rows
        # All dead letters may be past their topic's retention: if the output is judged, a note is enough.
        if diff.cut_off and (diff.name != _DEAD_LETTERS or not verdict.compared.rows):
            verdict.cut_off.append(diff.cut_off)
        verdict.notes += diff.notes
        if diff.name in topics and _not_ours(verdict.compared) > before:
            verdict.notes.append(
                f"{diff.name}: topic {topics[diff.name]} does not say which job has written a record. If another job "
                "writes there too, its records are among these differences: give each job a topic of its own"
            )


def _not_ours(compared: RowComparison) -> int:
    """How many rows were found that are not as the epochs have emitted them."""
    return compared.counted["extra"] + compared.counted["different"]
