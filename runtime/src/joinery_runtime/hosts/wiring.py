"""A job as the values that a run of it is put together from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from joinery_runtime.connectors.inputs import check_registry, planner_for
from joinery_runtime.connectors.source import SourcePlanner, StoreIdentity
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.engine.assembly import identity, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, DriverParts
from joinery_runtime.engine.job_state import JobIdentity
from joinery_runtime.engine.next_plan import PlanSettings
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.spark_progress import QueryNames
from joinery_runtime.hosts.worker_builder import TaskWiring
from joinery_runtime.job import Job, explain
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.owner import OwnerCandidate
from joinery_runtime.job.model.resource import JobSpec
from joinery_runtime.job.model.unions import UnionInput


@dataclass(frozen=True, slots=True)
class Wiring:
    """One definition of a job, built once. What a run opens gets parts of it, and never sees the job; but workers on
    Spark, which look up secrets by themselves, are sent the `referring` job: it refers to its secrets, where `tasks`
    and `spec` have them filled in."""

    referring: Job
    spec: JobSpec
    tasks: TaskWiring
    identity: JobIdentity
    plan_settings: PlanSettings
    clocks: Mapping[str, InputClock]
    idle_timeouts: Mapping[str, int]  # by input, ms
    step_titles: tuple[str, ...]
    query: QueryNames

    @classmethod
    def of(cls, referring: Job, warn: Callable[[str], None], candidate: OwnerCandidate | None = None) -> Self:
        """`candidate` is who asks for the job's state. Raises EnvironmentProblem if a secret cannot be read, and
        JobError."""
        job = with_secrets(referring)
        tasks = TaskWiring.of(job)
        job_identity = identity(job, tasks.pipeline, warn, candidate)
        return cls(
            referring=referring,
            spec=job.spec,
            tasks=tasks,
            identity=job_identity,
            plan_settings=plan_settings(job, job_identity),
            clocks=input_clocks(job),
            idle_timeouts={side.name: side.watermark.idle_timeout for side in job.inputs},
            step_titles=(*step_titles(job), *(["write by key"] if tasks.outputs.routing is not None else [])),
            query=QueryNames.of(job),
        )

    @property
    def name(self) -> str:
        return self.tasks.job

    @property
    def pipeline(self) -> Pipeline:
        return self.tasks.pipeline

    @property
    def reads_once(self) -> bool:
        """Whether no record may be read by several processes. Nobody knows how long a function takes for a record; and
        each shard needs the same rows of a broadcast side, but two reads of a topic may differ while a broker compacts
        it."""
        return bool(self.spec.functions) or any(step.broadcast for step in self.pipeline.steps)

    @property
    def repeats_rows(self) -> bool:
        """Whether an epoch that is run again to collect dead letters may write its rows again."""
        return self.spec.delivery == "atLeastOnce" and self.spec.dead_letter is not None

    def check_registries(self) -> None:
        """Ask each input's schema registry. Raises SourceError."""
        for model in self.tasks.inputs:
            check_registry(model)

    def sources(self, store: StoreIdentity, *, once: bool) -> dict[str, SourcePlanner]:
        """Make the planners of the inputs. With `once`, none stops at `latest`."""
        inputs = [_without_latest_stop(model) for model in self.tasks.inputs] if once else self.tasks.inputs
        return {model.name: planner_for(model, self.name, store, once=once) for model in inputs}

    def driver(self, parts: DriverParts) -> Driver:
        """Make a driver with the clocks of this machine."""
        return Driver(
            self.identity,
            self.pipeline,
            parts,
            now_ms=lambda: time.monotonic_ns() // 1_000_000,
            wall_ms=lambda: time.time_ns() // 1_000_000,
        )


def step_titles(job: Job) -> tuple[str, ...]:
    """Return the words for a job's steps: `inner interval join`, and in a chain `step 1, inner interval join`."""
    titles = [step.title for step in explain(job).steps]
    if len(titles) == 1:
        return (titles[0],)
    return tuple(f"step {number}, {title}" for number, title in enumerate(titles, 1))


def _without_latest_stop(model: Input) -> Input:
    """Return the input without `stopAt: latest`: the first run that sees such a stop stores its offsets, and all later
    runs would end there."""
    if isinstance(model, UnionInput):
        return model.with_parts(map(_without_latest_stop, model.parts))
    if model.kafka is None or model.kafka.stop_at != "latest":
        return model
    return model.model_copy(update={"kafka": model.kafka.model_copy(update={"stop_at": None})})
