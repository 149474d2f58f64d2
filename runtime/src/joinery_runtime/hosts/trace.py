"""Golden traces: a job's core, watermarks and state store, one step in, one line out.

The steps and what they print are described in interfaces.md, "Traces". This runs the real driver, planner, worker and
store; only the records come from the steps, and output rows go back to the caller in a defined order. Tasks run in this
process, or on another `Stage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from joinery_runtime.core.compile import compile_join
from joinery_runtime.engine.assembly import identity, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, Parts
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.report import EpochReport
from joinery_runtime.hosts.trace_stage import Stage, in_order, local_stage
from joinery_runtime.hosts.trace_steps import Step, StepLog, ToldIdleness, check_step, rows_by_input
from joinery_runtime.job import StreamJoin
from joinery_runtime.state.store import StateStore


def run_trace(
    job: StreamJoin, steps: Iterable[Step], store: StateStore, shards: int | None = None, stage: Stage | None = None
) -> Iterator[dict[str, Any]]:
    """One result per step. Raises JoineryError naming the step that is not one. `store` must not know the job yet."""
    with local_stage(store) if stage is None else nullcontext(stage) as opened:
        trace = _Trace(job, store, shards or job.spec.shards, opened)
        for number, step in enumerate(steps, start=1):
            check_step(number, step, job.spec.inputs)
            yield {"step": number, **trace.step(step)}


class _Trace:
    def __init__(self, job: StreamJoin, store: StateStore, shards: int, stage: Stage) -> None:
        self._job, self._store, self._shards, self._stage = job, store, shards, stage
        self._spec = compile_join(job)
        self._logs = {side.name: StepLog(side) for side in job.spec.inputs}
        self._told = ToldIdleness(self._logs)
        self._restart()

    def step(self, step: Step) -> dict[str, Any]:
        late: dict[str, int] = dict.fromkeys(self._logs, 0)
        dead: dict[str, int] = dict.fromkeys(self._logs, 0)
        dropped: dict[str, dict[str, int]] = {}
        report = self._apply(step)
        if report is not None:
            late |= {name: counts.get("late", 0) for name, counts in report.dropped.items()}
            dead |= report.dead
            dropped = {name: _without_late(counts) for name, counts in report.dropped.items() if _without_late(counts)}
        line = {"output": in_order(self._stage.output.take()), "late": late, "watermarks": self._watermarks()}
        return {**line, "dead": dead} | ({"dropped": dropped} if dropped else {})

    def _apply(self, step: Step) -> EpochReport | None:
        if "restart" in step:
            self._restart()
            return None
        if "rescale" in step:
            self._shards = step["rescale"]
            self._planner.rescale(self._shards)
            return None
        self._tell(step)
        report = self._epoch()
        # T3: what this epoch's rows imply counts from the next one on, and a trace runs that one within the step.
        while self._watermarks() != self._fixed():
            self._epoch()
        return report

    def _tell(self, step: Step) -> None:
        if "end" in step:
            for log in self._logs.values():
                log.final = True
        for name in step.get("idle", ()):
            self._told.tell(name, self._logs[name.partition("/")[0]])
        for name, watermark in step.get("watermark", {}).items():
            self._raise(name, watermark)
        for name, rows in rows_by_input(step).items():
            self._logs[name].append(rows)
            self._told.spoke(name, rows)

    def _raise(self, name: str, watermark: int) -> None:
        state = self._driver.inputs[name]
        self._driver.inputs[name] = replace(state, progress=state.progress.raised(watermark))

    def _epoch(self) -> EpochReport:
        plan = self._driver.plan(always=True)
        assert plan is not None, "a plan is made always"
        return self._driver.commit(plan, self._driver.run(plan))

    def _restart(self) -> None:
        who = identity(self._job, self._spec, lambda _: None)
        settings = replace(plan_settings(self._job, who), shards=self._shards, max_records=2**62)
        self._planner = Planner(settings, self._logs, input_clocks(self._job), self._told)
        host = self._stage.host(self._job, self._logs)
        dead = self._stage.dead_letters if self._job.spec.dead_letter else None
        parts = Parts(self._store, self._planner, host, self._stage.output, dead)
        self._driver = Driver(who, self._spec, parts, now_ms=lambda: 0)
        self._driver.recover()

    def _fixed(self) -> dict[str, int | None]:
        return {name: state.progress.watermark for name, state in self._driver.inputs.items()}

    def _watermarks(self) -> dict[str, int | None]:
        ended = tuple(name for name, log in self._logs.items() if log.final)
        progress = self._planner.watermarks(self._driver.inputs, self._told.idle(), ended, 0)
        return {name: value.watermark for name, value in progress.items()}


def _without_late(counts: Mapping[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in counts.items() if reason != "late"}
