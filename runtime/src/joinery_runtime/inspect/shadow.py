"""`upgrade.mode: shadow`: computes the edited job beside the running one, over the same epochs, and compares the two.

The present state is read into this process. As the running driver commits further epochs, each is computed twice from
that state, with the ranges and watermarks of the epoch log: once under the running definition, once under the edited
one. Nothing is written, and nothing of the job is touched. In Flink and Kafka Streams, two jobs can be compared only by
running both into two outputs, whose batches differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.worker import InputAccess
from joinery_runtime.errors import StateError, StoreUnavailable
from joinery_runtime.inspect.evidence import check_records, wrong_counts
from joinery_runtime.inspect.replay import Replay, StoredState
from joinery_runtime.inspect.row_differences import RowComparison
from joinery_runtime.job import Job, under_definition, with_stored_names
from joinery_runtime.job.model.wording import counted
from joinery_runtime.state.store import EpochRecord, JobRecord, StateReader

_POLL_SECONDS = 1.0
_TRIES = 10


class ClosableInputs(InputAccess, Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock: `now` returns seconds, `sleep` waits for a number of seconds."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(slots=True)
class Shadow:
    """Compares the epochs from `first` on under the running job (expected) and under the edited one (found).
    `unshared_columns` are output columns that only one of them has, which are not compared. `release` has sentences on
    what this release computes differently from the running one, for the same job."""

    first: int
    unshared_columns: tuple[str, ...] = ()
    compared: RowComparison = field(default_factory=RowComparison)
    release: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return self.compared.epochs > 0 and not self.compared.counted and not self.release

    def text(self, within: str) -> str:
        """Return the result in one sentence, with the first differences."""
        compared = self.compared
        if not compared.epochs:
            return (
                f"shadow: no epoch was committed within {within}, so nothing could be compared: raise "
                "upgrade.shadow.within, or take the job over without (upgrade.mode: stateful)"
            )
        heading = f"shadow: epochs {self.first} to {self.first + compared.epochs - 1} ({counted(compared.rows, 'row')})"
        unshared_note = (
            f"; not compared, since only one of the two has them: {', '.join(self.unshared_columns)}"
            if self.unshared_columns
            else ""
        )
        if self.is_equal:
            return f"{heading} are the same under the edited job{unshared_note}"
        counts = compared.counts() or "counts differ"
        differences = "; ".join([*compared.lines(), *self.release])
        return (
            f"{heading} differ under the edited job: {counts}{unshared_note}. Expected is what the running job gives, "
            f"found what the edited one does. If that is meant, set upgrade.mode: stateful. {differences}"
        )


def shadow(job: Job, store: StateReader, inputs_of: Callable[[Job], ClosableInputs], clock: Clock) -> Shadow:
    """Run the comparison. `job` is the edited job, which fits the state; `inputs_of` opens the inputs of either job.
    Raises JoineryError if the job was taken back meanwhile; then another try may succeed."""
    stored = _load_state(store, job.name)
    job = with_stored_names(job, stored.record.definition)
    running = job if stored.record.definition is None else under_definition(job, stored.record.definition)
    before, after = (compile_job(version).output_schema().names for version in (running, job))
    columns = [name for name in before if name in after]
    comparison = Shadow(stored.record.epoch + 1, tuple(name for name in (*before, *after) if name not in columns))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="joinery-shadow-")))
        replays = [
            Replay(version, stack.enter_context(closing(inputs_of(version))), folder / name, stored)
            for name, version in (("running", running), ("edited", job))
        ]
        for entry in _follow_epochs(job, store, stored.record, clock):
            plan = EpochPlan.from_json(entry.plan)
            if not replays[0].continues(plan):
                raise StateError(
                    f"Job {job.name} was taken back before epoch {entry.epoch}, by a restore or a reset",
                    todo="The comparison begins again with the next try",
                )
            # Each job derives for itself, from the watermarks, how far an epoch closes the state.
            careful = plan.is_deadly(entry.generation)
            expected = replays[0].run(plan, careful=careful)
            edited = replays[1].run(replace(plan, horizons={}), careful=careful)
            check_records(entry, expected.result["rows_in"])
            comparison.release += wrong_counts(entry, expected)
            comparison.compared.epochs += 1
            comparison.compared.output(running, expected, edited.output_lines(columns), columns)
            comparison.compared.dead_letters(expected, edited.dead_letter_lines())
    return comparison


def _load_state(store: StateReader, job: str) -> StoredState:
    """Return the state at its newest epoch, with segments that this release can read."""
    for attempt in range(_TRIES):
        record = store.record(job)
        assert record is not None, "only a state that is there is checked"
        try:
            blobs = store.read_segments(job, [meta.key for meta in record.segments])
        except StoreUnavailable:
            raise
        except StateError:
            # The driver has committed meanwhile, and dropped some of the segments.
            if attempt == _TRIES - 1:
                raise
            continue
        return StoredState.readable(record, blobs)
    raise AssertionError("the last try raises")


def _follow_epochs(job: Job, store: StateReader, record: JobRecord, clock: Clock) -> Iterator[EpochRecord]:
    """Yield epochs as the driver commits them: `upgrade.shadow.epochs` of them, or fewer once `within` has passed."""
    settings = job.spec.upgrade.shadow
    over, last, remaining = clock.now() + settings.within / 1000, record.epoch, settings.epochs
    while True:
        for entry in store.epochs(job.name, last, remaining):
            yield entry
            last, remaining = entry.epoch, remaining - 1
        if not remaining or clock.now() >= over:
            return
        clock.sleep(_POLL_SECONDS)
