"""`joinery verify`: committed epochs computed again, and compared with what is in the output, row by row.

What is expected comes from the epoch log and the inputs alone (`hosts.replay`): no segment, no sink, no Spark and no
retry of the run that is judged has a part in it. The joins and sessions are the job's own core
(docs/decisions/0038).
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.worker import InputAccess
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.replay import Replay, ReplayedEpoch, check_records, replayable
from joinery_runtime.job import Job
from joinery_runtime.sinks.encode import rows_to_json
from joinery_runtime.sinks.files import published
from joinery_runtime.state.store import EpochRecord, JobReader

SHOWN = 20
"""Differences that are listed; all are counted."""
_COUNTS = ("rows_out", "dropped", "dead", "lost")

What = Literal["missing", "extra", "different"]
Rows = Counter[bytes]


@dataclass(frozen=True, slots=True)
class Difference:
    """`expected` and `found` are rows by column name (None: there is none); `place` says which records make the
    expected row: input, partition and offset of the one that came last, then of its partner."""

    epoch: int
    output: str
    what: What
    expected: Mapping[str, Any] | None
    found: Mapping[str, Any] | None
    place: str

    def line(self) -> str:
        of = f"epoch {self.epoch}, {self.output}{f', {self.place}' if self.place else ''}"
        rows = [("expected", self.expected), ("found", self.found)]
        return f"{of}: {self.what}; " + ", ".join(f"{name} {json.dumps(row)}" for name, row in rows if row is not None)


@dataclass(slots=True)
class Verdict:
    """`rows` and `dead` are how many were expected of epochs `first` to `last`, `counted` differences by kind, `log`
    sentences on epochs whose log counts something else than was computed."""

    job: str
    first: int
    last: int
    epochs: int = 0
    rows: int = 0
    dead: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.counted and not self.log

    def document(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "epochs": [self.first, self.last],
            "verified": self.right,
            "rows": self.rows,
            "dead_letters": self.dead,
            **{what: self.counted[what] for what in ("missing", "extra", "different")},
            "differences": [
                {
                    "epoch": each.epoch,
                    "output": each.output,
                    "what": each.what,
                    "expected": each.expected,
                    "found": each.found,
                    "place": each.place,
                }
                for each in self.differences
            ],
            "log": self.log,
        }

    def lines(self) -> Iterator[str]:
        what = f"job {self.job}, epochs {self.first} to {self.last}"
        held = f"{self.rows:,} rows and {self.dead:,} dead letters of {self.epochs:,} epochs"
        if self.right:
            yield f"{what}: VERIFIED, {held} are in the output, each exactly once"
            return
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counted.items())) or "the log is wrong"
        yield f"{what}: NOT VERIFIED, {counts}; expected were {held}"
        yield from (each.line() for each in self.differences)
        if self.counted.total() > len(self.differences):
            yield f"{self.counted.total() - len(self.differences):,} more"
        yield from self.log


def verify(job: Job, store: JobReader, inputs: InputAccess, first: int | None, last: int | None) -> Verdict:
    """Of epochs `first` (None: the first that can be computed again) to `last` (None: the newest one). Raises
    JoineryError where an epoch cannot be computed again, or the output does not tell which rows are of which epoch."""
    if job.spec.output.file is None:
        raise JoineryError(
            f"The output of job {job.name} cannot be verified",
            facts="only output files say which epoch a row is of; a topic or a table does not",
            todo="`joinery why JOB --key COLUMN=VALUE` says which rows a key has to have there",
        )
    entries = replayable(job, store, first, last)
    since = entries[0].epoch if first is None else first
    verdict = Verdict(job.name, since, entries[-1].epoch)
    with tempfile.TemporaryDirectory(prefix="joinery-verify-") as cache:
        replay = Replay(job, inputs, Path(cache))
        for entry in entries:
            replayed = replay.run(EpochPlan.from_json(entry.plan))
            check_records(entry, replayed.result["rows_in"])
            if entry.epoch >= since:
                _judge(job, entry, replayed, verdict)
    return verdict


def _judge(job: Job, entry: EpochRecord, replayed: ReplayedEpoch, verdict: Verdict) -> None:
    verdict.epochs += 1
    verdict.log += [
        f"epoch {entry.epoch}: the log has {name} {entry.result[name]}, computed were {replayed.result[name]}"
        for name in _COUNTS
        if name in entry.result and entry.result[name] != replayed.result[name]
    ]
    output, dead = job.spec.output.file, job.spec.dead_letter
    assert output is not None, "`verify` has refused other outputs"
    expected = _lines([table.drop_columns(list(ORDER_COLUMNS)) for table in replayed.rows])
    verdict.rows += expected.total()
    _compare(job, "output", expected, published(output.path, entry.epoch), replayed, verdict)
    if dead is not None and dead.file is not None:
        letters = _lines(replayed.dead)
        verdict.dead += letters.total()
        _compare(job, "dead letters", letters, published(dead.file.path, entry.epoch), replayed, verdict)


def _lines(tables: Sequence[pa.Table]) -> Rows:
    return Counter(line for table in tables for line in rows_to_json(table))


def _compare(
    job: Job, output: str, expected: Rows, lines: Iterator[bytes], replayed: ReplayedEpoch, verdict: Verdict
) -> None:
    found = Counter(lines)
    missing, extra = expected - found, found - expected
    if not missing and not extra:
        return
    # Another program may have written the same row with other blanks.
    lost, surplus = _parsed(missing), _parsed(extra)
    missing, extra = lost - surplus, surplus - lost
    places = _places(job, replayed) if output == "output" else {}
    unpaired = list(extra.elements())
    for row in missing.elements():
        other = _most_like(json.loads(row), unpaired)
        if other is not None:
            unpaired.remove(other)
        _note(verdict, replayed.epoch, output, row, other, places.get(row, ""))
    for row in unpaired:
        _note(verdict, replayed.epoch, output, None, row, "")


def _parsed(rows: Rows) -> Rows:
    """The same rows, each written in one way. What is no JSON stays as it is."""
    found: Rows = Counter()
    for line, count in rows.items():
        try:
            found[json.dumps(json.loads(line)).encode()] += count
        except ValueError:
            found[json.dumps({"not JSON": line.decode(errors="replace")}).encode()] += count
    return found


def _most_like(row: Mapping[str, Any], others: Sequence[bytes]) -> bytes | None:
    """The row that has most columns in common with it, at least half of them; of the first ones, since all that is
    decided by it is what a difference is called."""
    best, most = None, (len(row) + 1) // 2
    for other in others[:1000]:
        parsed = json.loads(other)
        same = sum(parsed.get(name, _NOTHING) == value for name, value in row.items())
        if same >= most and (best is None or same > most):
            best, most = other, same
    return best


_NOTHING = object()


def _places(job: Job, replayed: ReplayedEpoch) -> dict[bytes, str]:
    """By output row: the records that make it."""
    sides = [side.time for side in compile_job(job).last.sides]
    found = {}
    for table in replayed.rows:
        rows = rows_to_json(table.drop_columns(list(ORDER_COLUMNS)))
        for line, at in zip(rows, table.select(list(ORDER_COLUMNS)).to_pylist(), strict=True):
            side = at["$order_side"]
            place = f"{sides[side]} {at['$order_partition']}/{at['$order_offset']}"
            if len(sides) > 1 and at["$partner_offset"] >= 0:
                place += f" with {sides[1 - side]} {at['$partner_partition']}/{at['$partner_offset']}"
            found[json.dumps(json.loads(line)).encode()] = place
    return found


def _note(verdict: Verdict, epoch: int, output: str, expected: bytes | None, found: bytes | None, place: str) -> None:
    what: What = "extra" if expected is None else "missing" if found is None else "different"
    verdict.counted[what] += 1
    if len(verdict.differences) < SHOWN:
        rows = [None if each is None else json.loads(each) for each in (expected, found)]
        verdict.differences.append(Difference(epoch, output, what, rows[0], rows[1], place))
