"""Reads what the state store has of a job, and works out what the job's next epoch will do to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import InputTime, Watermark
from joinery_runtime.engine.job_state import input_offsets, live_segments, stored_floors
from joinery_runtime.engine.plan import EpochPlan, InputState, input_states
from joinery_runtime.errors import JoineryError, StateError
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.stores import (
    EMBEDDED_SCHEMA,
    PostgresStoreAddress,
    open_store,
    store_address,
)
from joinery_runtime.inspect.kinds.base import EpochTimes
from joinery_runtime.job import Job, format_time, time_value
from joinery_runtime.job.model.wording import counted, size_text
from joinery_runtime.state.embedded import embedded_directory, embedded_postgres
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.savepoints import is_automatic, is_periodic
from joinery_runtime.state.store import EpochRecord, JobReader, JobRecord, StateStore, StoredSavepoint

_PAGE = 1000  # epochs of the log read at a time


def epoch_log(job: Job, after: int, limit: int) -> tuple[Sequence[EpochRecord], JoineryError | None]:
    """Return the epoch log after epoch `after`, oldest first, and what there is to say if no epoch was ever
    committed."""
    with open_durable(job) as store:
        record = record_of(job, store)
        none_yet = None if has_committed(store, record) else without_epochs(record)
        return store.epochs(job.name, after, limit), none_yet


def has_committed(store: JobReader, record: JobRecord) -> bool:
    """Whether the job has committed an epoch. The last number used does not tell: its plan may have been dropped."""
    return bool(record.committed or store.epochs(record.job, 0, 1))


def epochs_after(store: JobReader, job: str, epoch: int = 0) -> Iterator[EpochRecord]:
    """Yield all epochs of the log after `epoch`, oldest first."""
    while page := store.epochs(job, epoch, _PAGE):
        yield from page
        epoch = page[-1].epoch


def epoch_line(entry: EpochRecord) -> dict[str, Any]:
    """Return an epoch of the log as JSON."""
    plan = dict(entry.plan)
    plan["watermarks"] = {name: time_value(at) for name, at in plan.get("watermarks", {}).items()}
    plan["horizons"] = {part: [time_value(at) for at in times] for part, times in plan.get("horizons", {}).items()}
    return {
        "epoch": entry.epoch,
        "generation": entry.generation,
        "committed_at": entry.committed_at,
        "plan": plan,
        "result": entry.result,
    }


def epoch_text(entry: EpochRecord) -> str:
    """Return an epoch of the log as one line for people."""
    result, watermarks = entry.result, entry.plan.get("watermarks", {})
    rows_in: Counter[str] = Counter()
    for partition, rows in result.get("rows_in", {}).items():
        rows_in[partition.partition(":")[0]] += rows
    dropped = [
        f"{rows:,} {reason}" for counts in result.get("dropped", {}).values() for reason, rows in counts.items() if rows
    ]
    dead = result.get("dead", 0)
    parts = [
        f"epoch {entry.epoch}, committed {format_time(entry.committed_at)}",
        f"in: {', '.join(f'{name} {rows:,}' for name, rows in rows_in.items()) or 'nothing'}",
        f"out: {result.get('rows_out', 0):,}",
        *([f"dropped: {', '.join(dropped)}"] if dropped else []),
        *([counted(dead, "dead letter")] if dead else []),
        f"watermarks: {', '.join(f'{name} {format_time(at)}' for name, at in watermarks.items())}",
    ]
    return "; ".join(parts)


def without_epochs(record: JobRecord) -> JoineryError:
    """Return what there is to say of a job that has not committed anything yet, whatever was asked."""
    planned = f"epoch {record.plan['epoch']} is planned" if record.plan else "no epoch is planned"
    return JoineryError(
        f"job {record.job} has committed no epoch yet", facts=planned, todo="`joinery run JOB.yaml` runs its epochs"
    )


def listing(job: Job) -> str:
    with open_durable(job) as store:
        return "\n".join(record_lines(record_of(job, store)))


def embedded_listing() -> str:
    """Return the jobs whose state is in the embedded Postgres, and where each stands."""
    folder = embedded_directory()
    if not folder.is_dir():
        return f"no job has kept its state in the embedded Postgres: there is no {folder}"
    with (
        embedded_postgres(folder) as dsn,
        closing(PostgresStoreAddress(dsn, EMBEDDED_SCHEMA).connect()) as store,
    ):
        lines = []
        for name in store.jobs():
            try:
                record = store.record(name)
            except StateError as error:  # the state was moved
                lines.append(str(error))
            else:
                lines += [] if record is None else [headline(record)]
    return "\n".join([f"jobs with their state in the embedded Postgres, {folder}:", *(lines or ["none"])])


@contextmanager
def open_durable(job: Job) -> Iterator[StateStore]:
    """Open the job's store. Raises JoineryError if the store does not outlive the job."""
    with open_store(durable(job), lambda _: None) as opened:
        yield opened.store


@contextmanager
def open_also_moved(job: Job) -> Iterator[PostgresStore]:
    """Open the store of a `durable` job, even if the state was moved away and the job may no longer use the store."""
    with ExitStack() as stack:
        if job.spec.state_store.postgres is not None:
            address = store_address(job)
        else:
            dsn = stack.enter_context(embedded_postgres(embedded_directory()))
            address = PostgresStoreAddress(dsn, EMBEDDED_SCHEMA)
        yield stack.enter_context(closing(address.connect()))


def record_of(job: Job, store: JobReader) -> JobRecord:
    """Return what the store has of the job. Raises JoineryError if the job never ran."""
    record = store.record(job.name)
    if record is None:
        raise JoineryError(f"the state store knows no job {job.name}", todo="It appears there at its first start")
    return record


def headline(record: JobRecord) -> str:
    pending = f", epoch {record.plan['epoch']} planned" if record.plan else ""
    return f"job {record.job}: {committed_text(record)}{pending}, generation {record.generation}"


def committed_text(record: JobRecord) -> str:
    """Say on which epoch the state stands."""
    return f"epoch {record.committed} committed" if record.committed else "no epoch committed yet"


def record_lines(record: JobRecord) -> Iterator[str]:
    """Yield how far each input has been read, how far each part of the state is closed, and the live segments."""
    yield headline(record)
    for name, data in sorted(input_offsets(record).items()):
        state = InputState.from_bytes(name, data)
        positions = ", ".join(f"{ref.topic}/{ref.partition}@{o}" for ref, o in sorted(state.positions.items()))
        yield f"input {name}: watermark {format_time(state.progress.watermark)}, next offsets {positions}"
    for part, closed in sorted(stored_floors(record).items()):
        yield f"part {part}: closed up to {format_time(closed)}"
    for segment in sorted(live_segments(record), key=lambda s: (s.part, s.ts_min, s.key)):
        times = f"{format_time(segment.ts_min)}..{format_time(segment.ts_max)}"
        yield f"{segment.part:5}  {segment.rows:>9} rows  {segment.bytes:>10} bytes  event time {times}  {segment.key}"


def durable(job: Job) -> Job:
    """Return the job with its secrets filled in. Raises JoineryError if its state does not outlive the job."""
    if job.spec.state_store.memory is not None:
        raise JoineryError(f"job {job.name} keeps its state in memory", facts="nothing of it outlives the job")
    return with_secrets(job)


@dataclass(frozen=True, slots=True)
class NextEpoch:
    """Times and horizons of the next epoch (T3), in milliseconds of event time: those of its plan or, without a plan,
    those that the rows of all committed epochs imply."""

    pipeline: Pipeline
    times: Mapping[str, InputTime]
    horizons: Mapping[str, Horizon]

    @classmethod
    def of(cls, pipeline: Pipeline, record: JobRecord) -> NextEpoch:
        horizons: Mapping[str, Horizon] = {}
        if record.plan is not None:
            plan = EpochPlan.from_json(record.plan)
            input_times = {side.name: plan.times.get(side.name, InputTime()) for side in pipeline.inputs}
            horizons = plan.horizons
        else:
            states = input_states((side.name for side in pipeline.inputs), record)
            input_times = {name: state.progress.time for name, state in states.items()}
        return cls(pipeline, input_times, horizons or times.horizons(pipeline, input_times, stored_floors(record)))

    @property
    def watermarks(self) -> dict[str, Watermark]:
        return {name: time.watermark for name, time in self.times.items()}

    @property
    def epoch_times(self) -> EpochTimes:
        return EpochTimes.of(self.pipeline, self.times, self.horizons)

    def horizon(self, part: str) -> Watermark:
        return self.horizons[part].current


def is_by_hand(name: str) -> bool:
    return not is_automatic(name) and not is_periodic(name)


def savepoint_document(savepoint: StoredSavepoint) -> dict[str, Any]:
    return {**asdict(savepoint), "automatic": not is_by_hand(savepoint.name)}


def savepoint_line(savepoint: StoredSavepoint) -> str:
    created = datetime.fromtimestamp(savepoint.created_at / 1000, UTC).isoformat(timespec="seconds")
    by = "" if is_by_hand(savepoint.name) else ", automatic"
    size = f"{counted(savepoint.rows, 'row')}, {size_text(savepoint.bytes)}"
    return f"{savepoint.name}: epoch {savepoint.committed}, {created}, {size}{by}"
