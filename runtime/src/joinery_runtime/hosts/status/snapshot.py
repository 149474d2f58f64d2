"""What is known of a running job: what its file says, and the newest reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from joinery_runtime.core.pipeline.sides import SideSpec
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, Watermark
from joinery_runtime.engine.hot_keys import KeyRows
from joinery_runtime.engine.loop import Outage, Scaling
from joinery_runtime.engine.messages import RunsOn
from joinery_runtime.engine.plan import InputState
from joinery_runtime.engine.report import StateSize, Totals
from joinery_runtime.job import Job, explain
from joinery_runtime.state.store import StoredSavepoint


@dataclass(frozen=True, slots=True)
class JobDescription:
    """What the job's file says: which kind of join it is, where each input comes from, where the rows go, and the
    output of `joinery explain`."""

    title: str = ""
    sources: Mapping[str, str] | None = None
    output: str = ""
    explanation: str = ""

    @classmethod
    def of(cls, job: Job) -> JobDescription:
        plan = explain(job)
        return cls(
            plan.title,
            {source.name: source.source for source in plan.inputs},
            plan.output,
            plan.render(),
        )


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The newest reports of the loop and of Spark. Times are seconds since 1970. None: not known yet."""

    recovered: bool = False
    outage: Outage | None = None  # the job is not ready until it is over
    starved: Outage | None = None  # no executor runs; the same
    workers_ran: bool = True  # False: tasks run on executors, and none of them has run one yet
    generation: int | None = None
    epoch: int | None = None
    committed: int = 0  # epochs of this process
    own: int = 0  # of these, epochs that ran under the job's present definition
    committed_at: float | None = None
    planned: bool | None = None  # whether the newest look at the inputs left an epoch to run
    tasks: int | None = None  # of Spark that have ended: of committed epochs, and of the running one
    inputs: Mapping[str, InputState] = field(default_factory=dict)
    backlog: Mapping[str, int] = field(default_factory=dict)
    idle: Mapping[str, bool] = field(default_factory=dict)
    idle_partitions: Mapping[str, Collection[str]] = field(default_factory=dict)
    totals: Totals | None = None
    state: StateSize | None = None
    sides: Mapping[str, SideSpec] = field(default_factory=dict)  # by part of the state
    parts: Mapping[str, StateSize] = field(default_factory=dict)  # by part of the state
    amplification: float | None = None  # of the newest epoch that read something
    unpublished_rows: int | None = None  # rows of committed epochs that the output does not show yet
    hottest: tuple[KeyRows, ...] = ()
    too_hot: tuple[KeyRows, ...] = ()
    input_warnings: Mapping[str, str] = field(default_factory=dict)
    late_warnings: Mapping[str, str] = field(default_factory=dict)
    paused: Mapping[str, str] = field(default_factory=dict)  # by input, why it is not read
    savepoint: StoredSavepoint | None = None
    error: str | None = None
    troubles: int = 0
    runs_on: RunsOn | None = None  # of the newest epoch
    executors: int | None = None
    scaling: tuple[Scaling, float] | None = None  # the newest scaling, and its time

    @property
    def waits_for(self) -> Outage | None:
        """The outside system that the job waits for."""
        return self.outage or self.starved

    @property
    def ready(self) -> bool:
        """Whether the job commits: it has committed, or has nothing that it may read now and could commit."""
        return self.not_ready is None

    @property
    def not_ready(self) -> str | None:
        """Why the job is not ready; None if it is."""
        if not self.recovered:
            return "the driver has not recovered"
        if self.waits_for is not None:
            return str(self.waits_for.error)
        if self.own:
            return None
        if not self.workers_ran:
            return "no executor has run a task yet"
        if self.planned is None:
            return "the inputs have not been read yet"
        if not self.planned:
            # Records that wait may not be read now: other members of the group have their partitions, their input is
            # paused, or a topic or a table has to come first.
            return None
        waiting = sum(records for name, records in self.backlog.items() if name not in self.paused)
        return f"no epoch has been committed yet, and {waiting} records wait"


def watermark_of(snapshot: JobSnapshot, name: str) -> Watermark:
    return snapshot.inputs[name].progress.watermark if name in snapshot.inputs else None


def behind_ms(watermark: Watermark, now: float) -> int | None:
    """Return how far a watermark is behind the clock, in ms (`now` in seconds); None if there is none, or it is
    infinite."""
    if watermark is None or watermark == END_OF_TIME:
        return None
    return max(0, round(now * 1000) - watermark)
