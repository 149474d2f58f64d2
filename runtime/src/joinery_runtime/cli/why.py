"""`joinery why`: what became of the records of a key, and by which rule.

The epochs of the log are run once more with the records of the key alone, and again without each of them: what goes out
with a record and not without it is what the record did. So every kind of step answers by its own rules, padded rows,
sessions and chains included (docs/decisions/0038).
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joinery_runtime.cli.state import NextEpoch, record_of
from joinery_runtime.cli.state_key import keys_of
from joinery_runtime.cli.state_show import ShownKey, show
from joinery_runtime.cli.why_fates import Fate, Fates, horizons_of, rule_of
from joinery_runtime.cli.why_records import ChosenRecords, FoundRecord, Gathering, Place, keys_by_input
from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.kinds.base import Join
from joinery_runtime.core.pipeline.describe import Outlook
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import CLOSING, ORDER_COLUMNS, PARTNER, PHASE
from joinery_runtime.core.pipeline.watermark import Watermark
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.worker import InputAccess
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.replay import Replay, ReplayedEpoch, check_records, replayable
from joinery_runtime.hosts.trace_environment import in_order
from joinery_runtime.job import Job, StreamJoin, format_time, time_value
from joinery_runtime.job.model.wording import counted
from joinery_runtime.sinks.encode import rows_to_json
from joinery_runtime.state.store import StateReader

MAX_EXPLAINED = 100
"""Records of one question: for each, the epochs that it may touch are run again."""

_RULES = {
    "null_key": "j4",
    "filtered": "j4",
    "expired": "a2",
    "closed": "s2",
    "failed": "j1",
    "future": "t11",
    "history": "t12",
    "late": "t10",
    "dead letter": "t8",
}
"""Where docs/semantics.md says what a reason means; T10 says for each kind of step which rows are late."""

Rows = Mapping[int, Counter[str]]
"""JSON of output rows by epoch."""

Padded = Mapping[int, Mapping[str, str]]
"""Of those that went out with NULLs for want of a partner, by which rule."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What became of a record."""

    record: FoundRecord
    watermarks: Mapping[str, Watermark]  # in force in its epoch
    reason: str | None  # why it was dropped; None: it was taken
    detail: str  # the reason in its dead letter
    made: Rows  # rows that went out because of it
    prevented: Rows  # rows that would have gone out without it
    padded: Padded = field(default_factory=dict)
    fate: Fate | None = None  # None: it was dropped, or never to stay

    @property
    def unmatched(self) -> bool:
        """Nothing went out because of it but padded rows."""
        made = {(epoch, row) for epoch, rows in self.made.items() for row in rows}
        return all(row in self.padded.get(epoch, {}) for epoch, row in made) and not self.prevented

    def _padding(self, epoch: int, row: Any) -> str | None:
        return self.padded.get(epoch, {}).get(json.dumps(row))

    @property
    def rule(self) -> str | None:
        return None if self.reason is None else rule_of(_RULES[self.reason])

    def document(self) -> dict[str, Any]:
        place, record = self.record.place, self.record
        nearest = self.fate.nearest if self.fate is not None and self.unmatched else None
        return {
            "input": place.partition.input,
            "topic": place.partition.topic,
            "partition": place.partition.partition,
            "offset": place.offset,
            "ts": record.ts,
            "columns": record.columns,
            "epoch": record.epoch,
            "watermarks": {name: time_value(at) for name, at in self.watermarks.items()},
            "dropped": self.reason,
            "rule": self.rule,
            "detail": self.detail,
            "made": [self._made(epoch, row) for epoch, row in _listed(self.made)],
            "prevented": [{"epoch": epoch, "row": row} for epoch, row in _listed(self.prevented)],
            "state": None if self.fate is None else self.fate.stay.document(),
            "nearest": None if nearest is None else nearest.document(),
        }

    def _made(self, epoch: int, row: Any) -> dict[str, Any]:
        rule = self._padding(epoch, row)
        return {"epoch": epoch, "row": row, **({} if rule is None else {"padded": rule_of(rule)})}

    def lines(self) -> Iterator[str]:
        record = self.record
        time = "" if record.ts is None else f", event time {format_time(record.ts)}"
        known = ", ".join(
            f"{name} {'unknown' if at is None else format_time(at)}" for name, at in self.watermarks.items()
        )
        yield f"{record.place.partition.input} {record.place}{time}: {json.dumps(record.columns)}"
        yield f"  read in epoch {record.epoch} (watermarks: {known})"
        if self.reason is not None:
            yield f"  dropped: {self.reason}{f', {self.detail}' if self.detail else ''} ({self.rule})"
        for epoch, row in _listed(self.made):
            padded = f", padded ({rule_of(rule)})" if (rule := self._padding(epoch, row)) else ""
            yield f"  epoch {epoch} put out because of it{padded}: {json.dumps(row)}"
        for epoch, row in _listed(self.prevented):
            yield f"  without it, epoch {epoch} would have put out: {json.dumps(row)}"
        if self.reason is None and not self.made and not self.prevented:
            kept = self.fate is not None and self.fate.stay.left is None
            yield f"  taken; nothing went out because of it{' so far' if kept else ''}"
        if self.fate is not None:
            yield from (f"  {line}" for line in self.fate.lines(record.epoch, unmatched=self.unmatched))


@dataclass(frozen=True, slots=True)
class Answer:
    job: str
    epochs: tuple[int, int]  # the first and the last one that were run again
    records: Sequence[Explained]
    kept: ShownKey | None  # what the state still has of the key; None: the record has no key
    left_out: int = 0  # records of the key that are not explained

    def document(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "epochs": list(self.epochs),
            "records": [each.document() for each in self.records],
            "left_out": self.left_out,
            "kept": None if self.kept is None else self.kept.document(),
        }

    def lines(self) -> Iterator[str]:
        first, last = self.epochs
        yield f"job {self.job}, epochs {first} to {last}: {counted(len(self.records), 'record')}"
        for each in self.records:
            yield from each.lines()
        if self.left_out:
            yield f"{self.left_out} newer records of the key are not explained: ask for one with --record"
        if self.kept is not None:
            yield from self.kept.lines()


def why(
    job: Job,
    store: StateReader,
    inputs: InputAccess,
    key: Sequence[str],
    at: tuple[str, int, int] | None,
    last: int | None = None,
) -> Answer:
    """`key` are COLUMN=VALUE texts, or else `at` is the place of one record (topic, partition, offset); epochs after
    `last` do not count. Raises JoineryError where the epochs cannot be run again, or no record is found."""
    pipeline, entries = compile_job(job), replayable(job, store, last=last)
    plans = [EpochPlan.from_json(entry.plan) for entry in entries]
    texts, alone = list(key), False
    if at is not None:
        at = (whole_topic(at[0], plans), *at[1:])
        record = _record_at(Gathering(job, pipeline, inputs, {}, at, alone=True), plans, at)
        texts = _texts(job, record)
        # Where the record's input joins on time only, all others may meet it.
        alone = not texts and (record.columns is None or bool(record.key))
    steps = keys_of(job, pipeline, texts, None) if texts else []
    names = [side.name for side in job.inputs]
    gathered = Gathering(job, pipeline, inputs, keys_by_input(pipeline, steps, names), at, alone=alone)
    for entry, plan in zip(entries, plans, strict=True):
        check_records(entry, gathered.take(plan))
    wanted = [each for each in gathered.found if at is None or _place(each) == at]
    if not wanted:
        raise JoineryError(
            f"Epochs {plans[0].epoch} to {plans[-1].epoch} of job {job.name} read no record with {' '.join(texts)}",
            todo="Write the values as they are in the records; `joinery state epochs` shows what was read",
        )
    records, chosen = wanted[:MAX_EXPLAINED], ChosenRecords(inputs, gathered.batches)
    comparison = _Comparison(job, plans, chosen)
    explained = [comparison.of(each) for each in records]
    outlook = _after(job, pipeline, store, plans[-1] if last is not None else None)
    dropped = {each.record.place: each.reason for each in explained if each.reason is not None}
    fates = Fates(pipeline, inputs, gathered.batches, plans, outlook, dropped)
    explained = [each if each.reason else replace(each, fate=fates.of(each.record)) for each in explained]
    kept = show(job, store, texts) if steps and last is None else None
    return Answer(job.name, (plans[0].epoch, plans[-1].epoch), explained, kept, len(wanted) - len(records))


def _after(job: Job, pipeline: Pipeline, store: StateReader, last: EpochPlan | None) -> Outlook:
    """What the next epoch will close, or what the `last` one did that counts."""
    if last is None:
        return NextEpoch.of(pipeline, record_of(job, store)).outlook
    return Outlook(last.watermarks, horizons_of(pipeline, last))


def whole_topic(topic: str, plans: Sequence[EpochPlan]) -> str:
    """A topic as plans name it: of a file, that is its whole path."""
    known = {planned.partition.topic for plan in plans for planned in plan.ranges}
    ends = [name for name in known if name.endswith(f"/{topic}")]
    return ends[0] if topic not in known and len(ends) == 1 else topic


def _place(record: FoundRecord) -> tuple[str, int, int]:
    place = record.place
    return place.partition.topic, place.partition.partition, place.offset


def _record_at(gathering: Gathering, plans: Sequence[EpochPlan], at: tuple[str, int, int]) -> FoundRecord:
    """The record at a place. Raises JoineryError if no epoch has read it."""
    topic, partition, offset = at
    for plan in plans:
        ranges = [
            each
            for each in plan.ranges
            if (each.partition.topic, each.partition.partition) == (topic, partition)
            and each.start <= offset < each.end_exclusive
        ]
        gathering.take(replace(plan, ranges=tuple(ranges)))
    if not gathering.found:
        raise JoineryError(
            f"No epoch of job {gathering.job.name} has read {topic}:{partition}={offset}",
            facts=f"of epochs {plans[0].epoch} to {plans[-1].epoch}",
            todo="Give TOPIC:PARTITION=OFFSET; of a file, its path, 0, and the byte at which the record begins",
        )
    return gathering.found[0]


def _texts(job: Job, record: FoundRecord) -> list[str]:
    """The COLUMN=VALUE texts of a record's key; none where the record has no key, or cannot be decoded."""
    name, key = record.place.partition.input, record.key
    if not isinstance(job, StreamJoin):
        return [each if value is None else f"{each}={value}" for each, value in key.items()]
    return [] if None in key.values() else [f"{name}.{each}={value}" for each, value in key.items()]


# --- what each record did ---------------------------------------------------------------------------------------------


class _Comparison:
    """Compares what the epochs give with all of the records, and without one of them."""

    def __init__(self, job: Job, plans: Sequence[EpochPlan], chosen: ChosenRecords) -> None:
        self._job, self._plans, self._chosen = job, plans, chosen
        self._last = compile_job(job).last
        self._with = self._run(chosen)

    def of(self, record: FoundRecord) -> Explained:
        plan = next(plan for plan in self._plans if plan.epoch == record.epoch)
        without = self._run(replace(self._chosen, without=record.place))
        reason, detail = self._dropped(record, without)
        ours, theirs = _rows(self._with), _rows(without)
        made, prevented = _more(ours, theirs), _more(theirs, ours)
        return Explained(record, plan.watermarks, reason, detail, made, prevented, self._padded(made))

    def _padded(self, made: Rows) -> Padded:
        kind = self._last.kind
        if not isinstance(kind, Join):
            return {}
        return {epoch: _without_partner(self._with[epoch], kind.padded_by) for epoch in made}

    def _run(self, chosen: ChosenRecords) -> dict[int, ReplayedEpoch]:
        with tempfile.TemporaryDirectory(prefix="joinery-why-") as cache:
            replay = Replay(self._job, chosen, Path(cache))
            return {plan.epoch: replay.run(plan) for plan in self._plans if chosen.holds(plan) or replay.closes(plan)}

    def _dropped(self, record: FoundRecord, without: Mapping[int, ReplayedEpoch]) -> tuple[str | None, str]:
        """Which counter of rule T10 the record has moved, and what its dead letter says."""
        epoch, place = record.epoch, record.place
        letters = [row for table in self._with[epoch].dead for row in table.to_pylist()]
        detail = [row["reason"] for row in letters if _is_at(row, place)]
        moved = _counts(self._with[epoch]) - (_counts(without[epoch]) if epoch in without else Counter())
        reasons = sorted(reason for name, reason in moved if name == place.partition.input)
        name = place.partition.input
        if not reasons and _failed(self._with, name) > _failed(without, name):
            reasons = ["failed"]  # with a partner that came later
        if reasons:
            return reasons[0], "".join(detail[:1])
        return ("dead letter", detail[0]) if detail else (None, "")


def _failed(epochs: Mapping[int, ReplayedEpoch], name: str) -> int:
    return sum(_counts(epoch)[name, "failed"] for epoch in epochs.values())


def _is_at(letter: Mapping[str, Any], place: Place) -> bool:
    of = place.partition
    return bool((letter["topic"], letter["partition"], letter["offset"]) == (of.topic, of.partition, place.offset))


def _counts(epoch: ReplayedEpoch) -> Counter[tuple[str, str]]:
    return Counter(
        {(name, reason): n for name, counts in epoch.result["dropped"].items() for reason, n in counts.items()}
    )


def _rows(epochs: Mapping[int, ReplayedEpoch]) -> Rows:
    return {number: Counter(map(json.dumps, in_order(epoch.rows))) for number, epoch in epochs.items()}


def _without_partner(epoch: ReplayedEpoch, rules: tuple[str, str]) -> dict[str, str]:
    """Rows of the epoch that were padded, with the rule of their phase."""
    closing, arriving = rules
    found = dict[str, str]()
    for table in epoch.rows:
        texts = rows_to_json(table.drop_columns(list(ORDER_COLUMNS)))
        for text, phase, partner in zip(texts, *(table[name].to_pylist() for name in (PHASE, PARTNER)), strict=True):
            if partner == -1:
                found[json.dumps(json.loads(text))] = closing if phase == CLOSING else arriving
    return found


def _more(rows: Rows, than: Rows) -> Rows:
    found = {epoch: count - than.get(epoch, Counter()) for epoch, count in rows.items()}
    return {epoch: count for epoch, count in found.items() if count}


def _listed(rows: Rows) -> Iterator[tuple[int, Any]]:
    for epoch, each in sorted(rows.items()):
        yield from ((epoch, json.loads(row)) for row in each.elements())
