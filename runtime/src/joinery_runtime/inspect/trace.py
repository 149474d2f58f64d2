"""Runs traces: a job's core, watermarks and state store, with one step in and one line out.

docs/trace.md describes the steps and their output. This runs the real driver, planner, worker and store; only the
records come from the steps, and output rows go back to the caller in a defined order. Tasks run in this process, or in
another `TraceEnvironment`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa

from joinery_runtime.core.compile.jobs import compile_job, row_selections
from joinery_runtime.core.pipeline.times import watermarks_out
from joinery_runtime.core.pipeline.watermark import InputTime
from joinery_runtime.engine.assembly import identity, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, DriverParts
from joinery_runtime.engine.epoch_budget import Budget
from joinery_runtime.engine.lowering import lower_watermarks
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.report import EpochReport
from joinery_runtime.formats.json.encode import JsonStyle
from joinery_runtime.inspect.trace_environment import TraceEnvironment, local_environment, sort_rows, sorted_json_rows
from joinery_runtime.inspect.trace_steps import (
    ScriptedIdleness,
    Step,
    StepLog,
    check_step,
    rows_by_input,
    topics_of,
    union_of,
    united_step,
)
from joinery_runtime.job import Job
from joinery_runtime.state.store import StateStore

_OF_DEAD_LETTERS = ("input", "topic", "partition", "offset", "reason", "text")


def run_trace(
    job: Job,
    steps: Iterable[Step],
    store: StateStore,
    shards: int | None = None,
    environment: TraceEnvironment | None = None,
    *,
    verbose: bool = False,
    rows: Callable[[int, pa.Table], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one result per step. Raises JoineryError naming a malformed step. `store` must not know the job yet.
    `verbose` adds the watermarks that each join step hands on (rule N3). `rows` is called with the output of each step
    that has any, as a table."""
    with local_environment(store) if environment is None else nullcontext(environment) as opened:
        trace = _Trace(job, store, shards or job.spec.shards, opened)
        for number, step in enumerate(steps, start=1):
            check_step(number, step, job.inputs)
            line = trace.step(united_step(step, job.inputs))
            if rows is not None and trace.rows:
                rows(number, sort_rows(trace.rows))
            yield {"step": number, **line} | ({"stepWatermarks": trace.output_watermarks()} if verbose else {})


class _Trace:
    def __init__(self, job: Job, store: StateStore, shards: int, environment: TraceEnvironment) -> None:
        self._job, self._store, self._shards, self._environment = job, store, shards, environment
        self._pipeline = compile_job(job)
        self._identity = identity(job, self._pipeline, lambda _: None)
        self._selections = row_selections(job, self._pipeline.output_schema())
        self._logs = {side.name: StepLog(side) for side in job.inputs}
        self._idleness = ScriptedIdleness(self._logs)
        self._clock: int | None = None  # the wall clock that a step has set
        self.rows: list[pa.Table] = []
        """The output of the last step."""
        self._restart()

    def step(self, step: Step) -> dict[str, Any]:
        late: Counter[str] = Counter(dict.fromkeys(self._logs, 0))
        dead: Counter[str] = Counter(dict.fromkeys(self._logs, 0))
        dropped: dict[str, Counter[str]] = {}
        after_eviction: Counter[str] = Counter()
        warnings: list[str] = []
        for report in self._apply_step(step):
            dead.update(report.dead)
            after_eviction.update(report.after_eviction)
            warnings += report.warnings
            for name, counts in report.dropped.items():
                late[name] += counts.get("late", 0)
                dropped.setdefault(name, Counter()).update({r: n for r, n in counts.items() if r != "late"})
        self.rows = self._environment.output.take()
        line = {**self._output_document(), "watermarks": self._read_watermarks()}
        nonempty_drops = {name: dict(counts) for name, counts in dropped.items() if counts}
        line |= {"late": dict(late), "dead": dict(dead)} | ({"dropped": nonempty_drops} if nonempty_drops else {})
        line |= {"after_eviction": dict(after_eviction)} if after_eviction else {}
        letters = [row for table in self._environment.dead_letters.take() for row in table.to_pylist()]
        letters.sort(key=lambda row: tuple((row[name] is not None, row[name]) for name in _OF_DEAD_LETTERS))
        sources = {source.name: source for source in (*self._job.inputs, *self._job.read_inputs)}
        shown = []
        for letter in letters:
            has_topics = len(topics_of(sources[letter["input"]])) > 1
            shown.append({name: letter[name] for name in _OF_DEAD_LETTERS if name != "topic" or has_topics})
        line |= {"dead_letters": shown} if shown else {}
        return line | ({"warnings": warnings} if warnings else {})

    def _output_document(self) -> dict[str, Any]:
        """Return the rows of the last step as JSON, by output if the job has several."""
        if self._job.spec.outputs is None:
            (output,) = self._job.outputs
            return {"output": sorted_json_rows(self.rows, JsonStyle(nested=self._job.nested_columns(output)))}
        outputs = {}
        for output, selection in zip(self._job.outputs, self._selections, strict=True):
            selected = (selection.select(table, ordered=True) for table in self.rows)
            tables = [table for table in selected if table.num_rows]
            outputs[output.name] = sorted_json_rows(tables, JsonStyle(nested=self._job.nested_columns(output)))
        return {"outputs": outputs}

    def output_watermarks(self) -> list[dict[str, int | None]]:
        times = {name: InputTime(watermark, None) for name, watermark in self._read_watermarks().items()}
        return [dict(lows) for lows in watermarks_out(self._pipeline, times, self._driver.state.floors)]

    def _apply_step(self, step: Step) -> list[EpochReport]:
        if "resetWatermark" in step:
            # As `joinery state reset --watermark` does to a stopped job.
            record = self._store.record(self._job.name)
            assert record is not None, "the trace's driver has acquired the job"
            lowered = lower_watermarks(self._job, self._pipeline, record, self._store, step["resetWatermark"])
            self._store.reset_offsets(
                self._job.name, lowered.offsets(record), replaced=lowered.replaced, by=lowered.written
            )
        if "restart" in step or "resetWatermark" in step:
            self._restart()
            return []
        if "clock" in step:
            self._clock = step["clock"]
            return []
        if "rescale" in step:
            self._shards = step["rescale"]
            self._planner.rescale(self._shards)
            return []
        self._apply_input(step)
        first = self._driver.plan(always=True)
        assert first is not None, "a plan is made always"
        reports = [self._driver.commit(first, self._driver.run(first), last=True)]
        # T3: the watermarks that this epoch's rows imply apply from the next epoch on, which a trace runs in this step.
        while True:
            committed = {name: state.progress.watermark for name, state in self._driver.state.inputs.items()}
            plan = self._driver.plan(always=self._read_watermarks() != committed)
            if plan is None:
                return reports
            reports.append(self._driver.commit(plan, self._driver.run(plan), last=True))

    def _apply_input(self, step: Step) -> None:
        if "end" in step:
            for name in self._logs if step["end"] is True else step["end"]:
                self._log_of(name).end(name)
        for name in step.get("idle", ()):
            self._idleness.set_idle(name, self._log_of(name.partition("/")[0]))
        for name, watermark in step.get("watermark", {}).items():
            self._driver.state = self._driver.state.raised(name, watermark)
        for name, rows in rows_by_input(step).items():
            self._logs[name].append(rows)
            self._idleness.set_active(name, rows)

    def _log_of(self, name: str) -> StepLog:
        """Return the log of an input, or of the union of which it is a branch."""
        return self._logs[union_of(name, self._job.inputs)]

    def _restart(self) -> None:
        settings = replace(
            plan_settings(self._job, self._identity),
            shards=self._shards,
            budget=Budget(2**62, 2**62),
            co_partitioned=False,  # the rows of a trace do not come from a topic
        )
        self._planner = Planner(settings, self._logs, input_clocks(self._job), self._idleness)
        host = self._environment.host(self._job, self._pipeline, self._logs)
        dead = self._environment.dead_letters if self._job.spec.dead_letter else None
        parts = DriverParts(self._store, self._planner, host, self._environment.output, dead)
        self._driver = Driver(self._identity, self._pipeline, parts, now_ms=lambda: 0, wall_ms=lambda: self._clock)
        self._driver.recover()

    def _read_watermarks(self) -> dict[str, int | None]:
        ended = tuple(name for name, log in self._logs.items() if log.final)
        progress = self._planner.watermarks(self._driver.state.inputs, self._idleness.idle(), ended, 0)
        return {name: value.watermark for name, value in progress.items()}
