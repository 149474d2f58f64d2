"""`joinery verify`: committed epochs computed again, and compared with what is in the output, row by row.

What is expected comes from the epoch log and the inputs alone (`hosts.replay`): no segment, no sink, no Spark and no
retry of the run that is judged has a part in it. The joins and sessions are the job's own core
(docs/decisions/0038).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from joinery_runtime.cli.row_differences import RowComparison
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.worker import InputAccess
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.replay import Replay, ReplayedEpoch, check_records, replayable, wrong_counts
from joinery_runtime.job import Job
from joinery_runtime.sinks.base import Receipt
from joinery_runtime.sinks.files import published
from joinery_runtime.state.store import EpochRecord, JobReader


@dataclass(slots=True)
class Verdict:
    """What was compared of epochs `first` to `last`; `log`: sentences on epochs whose log counts something else than
    was computed."""

    job: str
    first: int
    last: int
    compared: RowComparison = field(default_factory=RowComparison)
    log: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.compared.counted and not self.log

    def document(self) -> dict[str, Any]:
        about = {"job": self.job, "epochs": [self.first, self.last], "verified": self.right}
        return {**about, **self.compared.document(), "log": self.log}

    def lines(self) -> Iterator[str]:
        compared, what = self.compared, f"job {self.job}, epochs {self.first} to {self.last}"
        held = f"{compared.rows:,} rows and {compared.dead:,} dead letters of {compared.epochs:,} epochs"
        if self.right:
            yield f"{what}: VERIFIED, {held} are in the output, each exactly once"
            return
        yield f"{what}: NOT VERIFIED, {compared.counts() or 'the log is wrong'}; expected were {held}"
        yield from compared.lines()
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

    @lru_cache(maxsize=2)
    def receipts(kind: str, epoch: int) -> list[Receipt]:
        """Also of an epoch that the job commits meanwhile: its file may have rows of earlier ones."""
        return [each for entry in store.epochs(job.name, epoch - 1, 1) for each in entry.result.get(kind, ())]

    with tempfile.TemporaryDirectory(prefix="joinery-verify-") as cache:
        replay = Replay(job, inputs, Path(cache))
        for entry in entries:
            replayed = replay.run(EpochPlan.from_json(entry.plan))
            check_records(entry, replayed.result["rows_in"])
            if entry.epoch >= since:
                _judge(job, entry, receipts, replayed, verdict)
    return verdict


def _judge(
    job: Job,
    entry: EpochRecord,
    receipts: Callable[[str, int], list[Receipt]],
    replayed: ReplayedEpoch,
    verdict: Verdict,
) -> None:
    verdict.log += wrong_counts(entry, replayed)
    output, dead = job.spec.output.file, job.spec.dead_letter
    assert output is not None, "`verify` has refused other outputs"
    found = Counter(published(output.path, entry.epoch, partial(receipts, "output")))
    verdict.compared.output(job, replayed, found, timestamps=job.spec.output.timestamps)
    if dead is not None and dead.file is not None:
        letters = Counter(published(dead.file.path, entry.epoch, partial(receipts, "dead_letters")))
        verdict.compared.dead_letters(replayed, letters)
