"""`/history`: what the job's page draws. It has samples of the board over the last day, the newest epochs, and why the
job was scaled. All of it is in memory, bounded, and gone with the driver."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping

from joinery_runtime.engine.loop import CommittedEpoch, Scaling
from joinery_runtime.hosts.status.snapshot import JobSnapshot, behind_ms
from joinery_runtime.job.crd import ScalingStatus
from joinery_runtime.job.crd.driver import Message

SAMPLE_EVERY_S = 3.0
RECENT_S = 900.0
OLDER_EVERY_S = 240.0
OLDER_S = 24 * 3600.0
EPOCHS = 100
SCALINGS = 20
SLOWEST = 5  # how many partitions of an input are shown


class Sample(Message):
    """The board at one moment (`at`, ms since 1970). Counts are totals since the job's state began. `rows_in`, `lag`
    and `behind` (how far the watermark is behind the clock, in ms) are per input, `state` is stored bytes per part."""

    at: int
    rows_in: Mapping[str, int]
    rows_out: int
    late: int
    dead_letters: int
    lag: Mapping[str, int]
    behind: Mapping[str, int]
    state: Mapping[str, int]


class EpochSample(Message):
    """A committed epoch: when it was committed (ms since 1970), its records in and rows out, how long planning,
    running and committing took, in ms, and where it ran."""

    epoch: int
    at: int
    rows_in: int
    rows_out: int
    plan_ms: float
    run_ms: float
    commit_ms: float
    runs_on: str


class PartitionSample(Message):
    """One of the partitions whose event time is lowest: `behind` is how far it is behind the clock, in ms; absent
    before its first row. A partition that is not idle and has no row, or the lowest one, holds the watermark back."""

    input: str
    partition: str
    behind: int | None = None
    idle: bool = False


class InputSource(Message):
    name: str
    source: str


class HistoryDocument(Message):
    """`GET /history?since=MS`: samples and epochs later than that."""

    job: str
    title: str
    sources: tuple[InputSource, ...]
    output: str
    explanation: str
    now: int
    samples: tuple[Sample, ...]
    epochs: tuple[EpochSample, ...]
    partitions: tuple[PartitionSample, ...]
    """The SLOWEST of each input that has not ended."""
    dropped: Mapping[str, Mapping[str, int]]
    """Rows since the job's state began, by input and reason; dead letters are one."""
    scalings: tuple[ScalingStatus, ...]


class MetricSamples:
    """Samples every 3 s for 15 minutes, and every 4 minutes for a day: 660 at most, below 1 MB in all.

    The loop's thread writes, and the threads that answer requests read. `running` is a monotonic clock in seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, Sample]] = deque()
        self._older: deque[tuple[float, Sample]] = deque(maxlen=round(OLDER_S / OLDER_EVERY_S))
        self._epochs: deque[EpochSample] = deque(maxlen=EPOCHS)
        self._scalings: deque[tuple[Scaling, float]] = deque(maxlen=SCALINGS)

    def watch(self, running: float, wall: float, snapshot: JobSnapshot) -> None:
        """Take a sample when one is due. Takes none before the job's totals are known, or rates would jump."""
        totals = snapshot.totals
        if totals is None or (self._recent and running - self._recent[-1][0] < SAMPLE_EVERY_S):
            return
        with self._lock:
            delays = {name: behind_ms(state.progress.watermark, wall) for name, state in snapshot.inputs.items()}
            sample = Sample(
                at=round(wall * 1000),
                rows_in=totals.rows_in,
                rows_out=totals.rows_out,
                late=totals.late,
                dead_letters=sum(totals.dead.values()),
                lag=snapshot.backlog,
                behind={name: delay for name, delay in delays.items() if delay is not None},
                state={part: size.bytes for part, size in snapshot.parts.items()},
            )
            self._recent.append((running, sample))
            while running - self._recent[0][0] > RECENT_S:
                sampled_at, oldest = self._recent.popleft()
                if not self._older or sampled_at - self._older[-1][0] >= OLDER_EVERY_S:
                    self._older.append((sampled_at, oldest))

    def committed(self, progress: CommittedEpoch, at: float) -> None:
        report = progress.report
        epoch = EpochSample(
            epoch=report.epoch,
            at=round(at * 1000),
            rows_in=sum(report.rows_in.values()),
            rows_out=report.rows_out,
            plan_ms=round(1000 * (progress.seconds - progress.ran - progress.committing), 1),
            run_ms=round(1000 * progress.ran, 1),
            commit_ms=round(1000 * progress.committing, 1),
            runs_on=report.runs_on,
        )
        with self._lock:
            self._epochs.append(epoch)

    def scaled(self, scaling: Scaling, at: float) -> None:
        with self._lock:
            self._scalings.append((scaling, at))

    def samples(self, since: int) -> tuple[Sample, ...]:
        """Return the samples later than `since` (ms since 1970), oldest first."""
        with self._lock:
            return tuple(sample for _, sample in (*self._older, *self._recent) if sample.at > since)

    def epochs(self, since: int) -> tuple[EpochSample, ...]:
        with self._lock:
            return tuple(epoch for epoch in self._epochs if epoch.at > since)

    def scalings(self) -> tuple[tuple[Scaling, float], ...]:
        with self._lock:
            return tuple(self._scalings)


def slowest_partitions(snapshot: JobSnapshot, wall: float) -> Iterator[PartitionSample]:
    """Yield the partitions with the lowest event times of each input that has not ended; those without a row come
    first."""
    for name, state in snapshot.inputs.items():
        if state.progress.ended:
            continue
        idle = snapshot.idle_partitions.get(name, ())
        by_partition = state.progress.highest
        ordered = sorted(by_partition, key=lambda ref: (ref in idle, by_partition[ref] is not None, by_partition[ref]))
        for partition in ordered[:SLOWEST]:
            yield PartitionSample(
                input=name,
                partition=partition,
                behind=behind_ms(by_partition[partition], wall),
                idle=partition in idle,
            )
