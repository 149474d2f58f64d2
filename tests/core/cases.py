"""Hypothesis strategies: random histories of random jobs, small enough that hundreds run in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from core.random_jobs import A_DAY, KEY_TYPES, Job, edited_jobs, jobs
from joinery_devkit.oracle import ComposedOracle, Oracle, Row, SessionOracle
from joinery_runtime.job import Input, StreamJoin
from joinery_runtime.job import Job as Resource

HISTORIES = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
"""Of every search over histories: a shared machine makes any deadline a lottery, and no fixture differs by example."""
START = 1_700_000_000_000
# Event times are one of these and a few milliseconds: some are before 1970, some the first and the last of all (T8).
STARTS = (START, START, 6, -62_135_596_800_000 + 100, 253_402_300_799_999 - 200)
STAMP = "$stamp"  # beside a row's values: the Kafka timestamp of its record


@dataclass(frozen=True)
class Epoch:
    """What one epoch gets. `rows` by input, in any order; `idle` partitions at its plan, partitions that are `added`
    before it, and `elsewhere`: another member of the group has them now; `final`: these inputs get no row after this
    epoch. `crash`: it is run, not committed, and run again. `followed`: what its rows imply counts in
    epochs without rows before the next one. `job`: from here on the job has been edited to this. `clock` is the wall
    clock at its plan (ms; None: unknown)."""

    rows: Mapping[str, Sequence[Row]]
    shards: int = 1
    idle: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    added: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    elsewhere: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    final: tuple[str, ...] = ()
    checkpoint: bool = False
    restart: bool = False
    crash: bool = False
    followed: bool = True
    job: Subject | None = None
    clock: int | None = None


class Subject(Protocol):
    """A random job, and what its expressions mean."""

    @property
    def job(self) -> Resource: ...

    def oracle(self) -> Oracle | ComposedOracle | SessionOracle:
        """A fresh one."""
        ...

    def edit(self, oracle: Any, before: Any) -> None:
        """The oracle, of the subject `before`, goes on as this one's."""
        ...


@dataclass(frozen=True)
class Case:
    """A job and its epochs; `partitions` are known from the start, per input."""

    job: Subject
    partitions: Mapping[str, tuple[int, ...]]
    epochs: tuple[Epoch, ...] = ()

    def edited(self, at: int, job: Subject) -> Case:
        """The case whose epoch `at` begins with an edit to this job."""
        edited = replace(self.epochs[at], job=job)
        return replace(self, epochs=(*self.epochs[:at], edited, *self.epochs[at + 1 :]))


@st.composite
def rows(draw: Any, job: Job, name: str, position: tuple[int, int], ts: int) -> Row:
    # The first values are the likeliest: matches must not be rare.
    values: dict[str, Any] = {}
    for column, kind in job.keys.items():
        known_values = KEY_TYPES[kind][1]
        values[column] = draw(st.sampled_from(known_values[:2] * 4 + known_values + [None]))
    values["v"] = draw(st.sampled_from([0, 1, 2, 3, None]))
    values["ts"] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts)
    values[STAMP] = draw(stamps(job.job.input(name), ts))
    if _is_table(job, name) and draw(st.integers(0, 3)) == 0:
        keys = {column: values[column] for column in values if column in (*_table_key(job, name), "ts")}
        return Row(*position, ts, {**dict.fromkeys(values), **keys, STAMP: values[STAMP]}, deleted=True)
    return Row(*position, ts, values)


def clock(number: int, now: int) -> int | None:
    """The wall clock of epoch `number`, whose rows are around `now`: rows far ahead are ahead of it too."""
    return None if number % 3 == 2 else now + 20


def stamps(side: Input, ts: int) -> st.SearchStrategy[int]:
    """When Kafka got a record whose event time is `ts`; -1: nobody knows. Where no row is too far ahead, it is asked of
    none."""
    return st.just(-1) if side.watermark.max_future == A_DAY else st.sampled_from([-1, ts, ts, ts - 6, ts - 20, ts + 9])


def _is_table(job: Job, name: str) -> bool:
    return job.job.input(name).table is not None


def _table_key(job: Job, name: str) -> tuple[str, ...]:
    table = job.job.input(name).table
    return table.key if table is not None else ()


@st.composite
def some_partitions(draw: Any, job: Job) -> dict[str, tuple[int, ...]]:
    """A table's versions are ordered by offset, so those of one key are in one partition."""
    return {n: (0,) if _is_table(job, n) else tuple(range(draw(st.sampled_from([1, 1, 2])))) for n in job.inputs}


@st.composite
def cases(draw: Any, kind: str, longest: int = 6, eligible: Callable[[Job], bool] = lambda _: True) -> Case:
    """Anything goes: disorder, late rows, rows far ahead, idle, added and unassigned partitions, inputs that end early,
    restarts, other shard counts, an edit; up to `longest` epochs with rows. Of a job that is `eligible`."""
    case = draw(unedited_cases(jobs(kind).filter(eligible), longest))
    if draw(st.integers(0, 2)):
        return case
    at = draw(st.integers(1, len(case.epochs) - 1))
    return case.edited(at, draw(edited_jobs(case.job)))


@st.composite
def unedited_cases(draw: Any, jobs_of_kind: st.SearchStrategy[Any], longest: int = 6) -> Case:
    """As `cases`, of any job with steps, and without an edit."""
    job = draw(jobs_of_kind)
    partitions = draw(some_partitions(job))
    offsets = dict.fromkeys([(name, p) for name, numbers in partitions.items() for p in numbers], 0)
    epochs: list[Epoch] = []
    final: tuple[str, ...] = ()
    start = draw(st.sampled_from(STARTS))
    current_partitions = dict(partitions)
    for number in range(draw(st.integers(2, longest))):
        arrivals: dict[str, list[Row]] = {}
        added = (
            {}
            if number == 0
            else {name: draw(new_partitions(current_partitions[name])) for name in job.inputs if name not in final}
        )
        added = {name: new for name, new in added.items() if not _is_table(job, name)}
        current_partitions = {name: (*numbers, *added.get(name, ())) for name, numbers in current_partitions.items()}
        for name in job.inputs:
            arrivals[name] = []
            for _ in range(0 if name in final else draw(st.integers(0, 12 // len(job.inputs)))):
                partition = draw(st.sampled_from(current_partitions[name]))
                # Time goes on by 4 an epoch on average, with rows far ahead and far behind.
                ts = start + 4 * number + draw(st.sampled_from([-12, -7, *range(-4, 5), *range(-4, 5), 8, 30]))
                position = (partition, offsets.setdefault((name, partition), 0))
                arrivals[name].append(draw(rows(job, name, position, ts)))
                offsets[name, partition] += 1
        final = draw(st.sampled_from([()] * 8 + [(name,) for name in job.inputs]))
        epochs.append(
            Epoch(
                rows=arrivals,
                shards=draw(st.sampled_from([1, 1, 1, 2, 3, 8])),
                idle={name: draw(idle_partitions(numbers)) for name, numbers in current_partitions.items()},
                added=added,
                elsewhere={name: draw(elsewhere(numbers)) for name, numbers in current_partitions.items()},
                final=final,
                checkpoint=draw(st.booleans()),
                restart=draw(st.booleans()),
                crash=draw(st.integers(0, 4)) == 0,
                followed=draw(st.booleans()),
                clock=clock(number, start + 4 * number),
            )
        )
        final = tuple({name for epoch in epochs for name in epoch.final})
    epochs.append(Epoch({}, final=job.inputs))
    return Case(job, partitions, tuple(epochs))


def idle_partitions(partitions: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sampled_from([(), (), (), (), partitions[:1], partitions])


def new_partitions(partitions: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sampled_from([*[()] * 7, (len(partitions),)] if len(partitions) < 3 else [()])


def elsewhere(partitions: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """More often the last one, which may be new."""
    return st.sampled_from([*[()] * 9, partitions[-1:], partitions[-1:], partitions[:1], partitions])


@st.composite
def punctual(draw: Any, kind: str) -> tuple[Case, list[tuple[str, Row]]]:
    """A history in which no row is late however it is cut (T2): (a case without epochs, its rows in arrival order). A
    table's rows all come first (A4), and are kept."""
    job = draw(jobs(kind).map(_remembering))
    partitions = draw(some_partitions(job))
    history: list[tuple[str, Row]] = []
    highest: dict[tuple[str, int], int] = {}
    offsets: dict[tuple[str, int], int] = {}
    start = draw(st.sampled_from(STARTS))
    for _ in range(draw(st.integers(2, 6 * len(job.inputs)))):
        name = draw(st.sampled_from(job.inputs))
        partition = (name, draw(st.sampled_from(partitions[name])))
        before = highest.get(partition, start)
        ts = before + draw(st.integers(-job.job.input(name).watermark.delay, 4))
        highest[partition] = max(before, ts)
        row = draw(rows(job, name, (partition[1], offsets.get(partition, 0)), ts))
        offsets[partition] = row.offset + 1
        history.append((name, row))
    return Case(job, partitions), history


def _remembering(job: Job) -> Job:
    """With a retention that outlives every history, and in which no row is too far ahead."""
    document = job.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for side in document["spec"]["inputs"]:
        side["watermark"]["maxFuture"] = A_DAY
    for step in document["spec"]["joins"]:
        if "asOf" in step:
            step["asOf"]["historyRetention"] = "1h"
    return replace(job, job=StreamJoin.model_validate(document))


@st.composite
def cuts(draw: Any, job: Job, history: list[tuple[str, Row]]) -> tuple[Epoch, ...]:
    """One way to cut a history into epochs, each input at its own pace, with shards and restarts of its own."""
    streams = {name: [row for side, row in history if side == name] for name in job.inputs}
    epochs = []
    tables = {name: streams[name] for name in job.inputs if _is_table(job, name)}
    if tables:
        epochs.append(Epoch(tables))
        streams = {name: listed for name, listed in streams.items() if name not in tables}
    for _ in range(4):
        arrivals = {}
        for name, waiting in streams.items():
            count = draw(st.integers(0, len(waiting)))
            arrivals[name], streams[name] = waiting[:count], waiting[count:]
        epochs.append(
            Epoch(
                arrivals,
                draw(st.sampled_from([1, 2, 3])),
                checkpoint=draw(st.booleans()),
                restart=draw(st.booleans()),
                followed=draw(st.booleans()),
            )
        )
    return (*epochs, Epoch(streams), Epoch({}, final=job.inputs))
