"""Golden traces: a job's core, watermarks and state store in one process, one step in, one line out.

The steps and what they print are described in interfaces.md, "Traces". This runs the real driver, planner, worker and
store; only the records come from the steps, and output rows go back to the caller in a defined order.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from joinery_runtime.core.compile import compile_join
from joinery_runtime.core.join import ORDER_COLUMNS
from joinery_runtime.core.schema import arrow_schema
from joinery_runtime.engine.assembly import identity, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, Parts
from joinery_runtime.engine.plan import partition_id
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.report import EpochReport
from joinery_runtime.engine.worker import Worker, WorkerParts
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.local import LocalHost
from joinery_runtime.job import Input, StreamJoin
from joinery_runtime.sinks import rows_to_json
from joinery_runtime.sinks.base import AttemptId, Receipt
from joinery_runtime.sources import Decoder, JsonDecoder
from joinery_runtime.sources.base import Bounds, PartitionRef, Range, RawBatch
from joinery_runtime.state.store import StateStore

Step = Mapping[str, Any]
STEP_KINDS = ("rows", "input", "watermark", "idle", "restart", "rescale", "end")


def run_trace(
    job: StreamJoin, steps: Iterable[Step], store: StateStore, shards: int | None = None
) -> Iterator[dict[str, Any]]:
    """One result per step. Raises JoineryError naming the step that is not one. `store` must not know the job yet."""
    with tempfile.TemporaryDirectory(prefix="joinery-trace-") as cache:
        trace = _Trace(job, store, shards or job.spec.shards, Path(cache))
        for number, step in enumerate(steps, start=1):
            yield {"step": number, **trace.step(number, step)}


class _Trace:
    def __init__(self, job: StreamJoin, store: StateStore, shards: int, cache: Path) -> None:
        self._job, self._store, self._shards, self._cache = job, store, shards, cache
        self._spec = compile_join(job)
        self._logs = {side.name: _StepLog(side) for side in job.spec.inputs}
        self._told = _ToldIdleness(self._logs)
        self._output, self._dead = _Captured(), _Captured()
        self._restart()

    def step(self, number: int, step: Step) -> dict[str, Any]:
        late: dict[str, int] = dict.fromkeys(self._logs, 0)
        dead: dict[str, int] = dict.fromkeys(self._logs, 0)
        dropped: dict[str, dict[str, int]] = {}
        report = self._apply(number, step)
        if report is not None:
            late |= {name: counts.get("late", 0) for name, counts in report.dropped.items()}
            dead |= report.dead
            dropped = {name: _without_late(counts) for name, counts in report.dropped.items() if _without_late(counts)}
        line = {"output": self._output.take(), "late": late, "watermarks": self._watermarks(), "dead": dead}
        return line | ({"dropped": dropped} if dropped else {})

    def _apply(self, number: int, step: Step) -> EpochReport | None:
        kind = next((kind for kind in STEP_KINDS if kind in step and kind != "rows"), "rows")
        if kind not in step:
            raise JoineryError(f"step {number} is not a step", facts=f"it has {sorted(step)}",
                               todo=f"A step has one of {', '.join(STEP_KINDS)}")  # fmt: skip
        if kind == "restart":
            self._restart()
            return None
        if kind == "rescale":
            self._shards = int(step["rescale"])
            self._planner.rescale(self._shards)
            return None
        self._tell(number, kind, step)
        return self._epoch()

    def _tell(self, number: int, kind: str, step: Step) -> None:
        if kind == "end":
            for log in self._logs.values():
                log.final = True
        elif kind == "idle":
            for name in step["idle"]:
                self._told.tell(name, self._log(number, name.partition("/")[0]))
        elif kind == "watermark":
            for name, watermark in step["watermark"].items():
                self._raise(self._log(number, name).name, watermark)
        else:
            rows = {step["input"]: step["rows"]} if kind == "input" else step["rows"]
            for name, listed in rows.items():
                self._log(number, name).append(listed)
                self._told.spoke(name, listed)

    def _log(self, number: int, name: str) -> _StepLog:
        if name not in self._logs:
            raise JoineryError(f"step {number} names input {name!r}", facts=f"the job has {sorted(self._logs)}")
        return self._logs[name]

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
        worker = Worker(WorkerParts(who.name, self._spec, _StepInputs(self._job, self._logs), self._store,
                                    self._output, self._dead, self._cache, ordered=True))  # fmt: skip
        parts = Parts(self._store, self._planner, LocalHost(worker), self._output, self._dead)
        self._driver = Driver(who, self._spec, parts, now_ms=lambda: 0)
        self._driver.recover()

    def _watermarks(self) -> dict[str, int | None]:
        ended = tuple(name for name, log in self._logs.items() if log.final)
        progress = self._planner.watermarks(self._driver.inputs, self._told.idle(0), ended, 0)
        return {name: value.watermark for name, value in progress.items()}


def _without_late(counts: Mapping[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in counts.items() if reason != "late"}


class _StepLog:
    """The records of one input as the steps gave them: the trace's Kafka topic, planner and reader in one."""

    def __init__(self, side: Input) -> None:
        self.name = side.name
        self.final = False
        self._partitions: dict[int, list[bytes]] = {}

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            value = {key: v for key, v in row.items() if key != "$partition"}
            self._partitions.setdefault(row.get("$partition", 0), []).append(json.dumps(value).encode())

    def refs(self) -> list[PartitionRef]:
        return [PartitionRef(self.name, self.name, p) for p in sorted(self._partitions) or [0]]

    def bounds(self, positions: Mapping[PartitionRef, int]) -> list[Bounds]:
        return [
            Bounds(ref, positions.get(ref, 0), len(self._partitions.get(ref.partition, [])), final=self.final)
            for ref in self.refs()
        ]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return Range(bounds.partition, bounds.start, min(bounds.end_exclusive, bounds.start + max_records))

    def read(self, planned: Range) -> Iterator[RawBatch]:
        values = self._partitions.get(planned.partition.partition, [])[planned.start : planned.end_exclusive]
        offsets = np.arange(planned.start, planned.end_exclusive, dtype=np.int64)
        yield RawBatch(planned.partition, offsets, pa.array(values, pa.binary()))

    def close(self) -> None:
        """Nothing is open."""


class _StepInputs:
    def __init__(self, job: StreamJoin, logs: Mapping[str, _StepLog]) -> None:
        self._logs = logs
        self._decoders = {side.name: JsonDecoder(arrow_schema(side.columns)) for side in job.spec.inputs}

    def reader(self, name: str) -> _StepLog:
        return self._logs[name]

    def decoder(self, name: str) -> Decoder:
        return self._decoders[name]


class _ToldIdleness:
    """Inputs ("payments") or partitions ("payments/1") that a step called idle, until their next row. What a step says
    is the world outside, so a restart does not forget it."""

    def __init__(self, logs: Mapping[str, _StepLog]) -> None:
        self._logs = logs
        self._idle: dict[str, set[int] | None] = {}

    def tell(self, name: str, log: _StepLog) -> None:
        _, slash, partition = name.partition("/")
        if slash:
            self._idle[log.name] = (self._idle.get(log.name) or set()) | {int(partition)}
        else:
            self._idle[log.name] = None

    def spoke(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        idle = self._idle.get(name)
        if not rows or name not in self._idle:
            return
        every = {ref.partition for ref in self._logs[name].refs()}
        self._idle[name] = (every if idle is None else idle) - {row.get("$partition", 0) for row in rows}

    def observe(self, bounds: Iterable[Bounds], now_ms: int) -> None:
        """Steps say what is idle; positions do not."""

    def idle(self, now_ms: int) -> dict[str, Collection[str]]:
        return {name: self._partitions(name, partitions) for name, partitions in self._idle.items()}

    def _partitions(self, name: str, partitions: set[int] | None) -> tuple[str, ...]:
        refs = self._logs[name].refs()
        return tuple(partition_id(ref) for ref in refs if partitions is None or ref.partition in partitions)

    def idle_for_ms(self, all_idle: bool, now_ms: int) -> int:
        return 0


class _Captured:
    """A sink that hands its rows back, in the defined order; both halves in one, as all tasks are in this process."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []

    def write(self, attempt: AttemptId, rows: pa.Table) -> Receipt:
        self._tables.append(rows)
        return {"attempt": str(attempt), "rows": rows.num_rows}

    def take(self) -> list[dict[str, Any]]:
        tables, self._tables = self._tables, []
        if not tables:
            return []
        rows = pa.concat_tables(tables).sort_by([(name, "ascending") for name in ORDER_COLUMNS])
        return [json.loads(line) for line in rows_to_json(rows.drop_columns(list(ORDER_COLUMNS)))]

    def prepare(self, schema: pa.Schema) -> None:
        """Takes any schema."""

    def writer(self) -> _Captured:
        return self

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Rows are visible when they are taken."""

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Rows are visible when they are taken."""

    def recover(self, generation: int, committed_epoch: int) -> None:
        """Nothing is left behind."""

    def close(self) -> None:
        """Nothing is open."""
