"""A job that has run as a trace, and its output as the job's own sink writes it, to be spoilt and verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from joinery_runtime.connectors.outputs import Outputs, StoreDatabase
from joinery_runtime.connectors.sink import Attempt, AttemptId, Receipt, Sink
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.formats.json.encode import json_lines
from joinery_runtime.inspect.replay import Replay, replayable
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.trace_environment import StepInputs, sort_rows
from joinery_runtime.inspect.trace_steps import StepLog, rows_by_input
from joinery_runtime.inspect.verify import Verdict, verify
from joinery_runtime.job import Job
from joinery_runtime.state.memory import MemoryStore


def left_join(columns: str, rest: str, name: str = "orders-payments") -> str:
    """A job's text: inputs `l` and `r` of these columns, among them `k` and `ts`, and the `rest` of its spec."""
    return f"""\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: {name}}}
spec:
  inputs:
    - {{name: l, file: {{path: l.jsonl}}, format: json, eventTime: ts, schema: {columns}}}
    - {{name: r, file: {{path: r.jsonl}}, format: json, eventTime: ts, schema: {columns}}}
  joins: [{{right: r, type: left, keys: {{l.k: r.k}}, interval: {{of: l, lower: -10ms, upper: 10ms}}}}]
  prefixes: always
{rest}"""


@dataclass(frozen=True, slots=True)
class Database:
    """A state's database, in which the output table is. The state itself is in memory."""

    dsn: str
    schema: str


_PART = "epoch-{:012d}-shard-00000.jsonl"


def write_files(job: Job, store: MemoryStore, inputs: StepInputs, cache: Path) -> list[pa.Table]:
    """All epochs' rows and dead letters, in the files of the job; the rows once more, with what orders them."""
    replay, written = Replay(job, inputs, cache), list[pa.Table]()
    for entry in replayable(job, store).entries:
        plan = EpochPlan.from_json(entry.plan)
        replayed = replay.run(plan, careful=plan.is_deadly(entry.generation))
        rows = [table.drop_columns(list(ORDER_COLUMNS)) for table in replayed.rows]
        for output, tables in ((job.spec.output, rows), (job.spec.dead_letter, replayed.dead)):
            assert output is not None, "the caller's job has both"
            assert output.file is not None, "and they are files"
            folder = Path(output.file.path)
            folder.mkdir(exist_ok=True)
            if tables:
                (folder / _PART.format(entry.epoch)).write_bytes(json_lines(pa.concat_tables(tables)))
        written += replayed.rows
    return written


def inputs_of(job: Job, steps: Sequence[Mapping[str, Any]]) -> StepInputs:
    """The records of a trace."""
    logs = {side.name: StepLog(side) for side in job.inputs}
    for step in steps:
        for name, rows in rows_by_input(step).items():
            logs[name].append(rows)
    return StepInputs(job, logs)


class Written:
    """`steps` are those of a trace. Each epoch's rows go through the job's own sinks, in one attempt per shard; those
    of epochs after `published` stay unpublished."""

    def __init__(
        self,
        job: Job,
        steps: Sequence[Mapping[str, Any]],
        cache: Path,
        database: StoreDatabase | None = None,
        store: MemoryStore | None = None,
    ) -> None:
        self.job, self.database, self.store = job, database, store or MemoryStore()
        for _ in run_trace(job, steps, self.store, 2):
            """The rows go out below."""
        self.inputs = inputs_of(job, steps)
        record = self.store.record(job.name)
        assert record is not None
        self.incarnation, self.rows, self.dead = record.incarnation, dict[int, pa.Table](), dict[int, pa.Table]()
        replay = Replay(job, self.inputs, cache)
        for entry in replayable(job, self.store).entries:
            replayed = replay.run(EpochPlan.from_json(entry.plan))
            if replayed.rows:
                self.rows[entry.epoch] = sort_rows(replayed.rows)
            if replayed.dead:
                self.dead[entry.epoch] = pa.concat_tables(replayed.dead)

    def with_rows(self, count: int) -> list[int]:
        """The epochs that emitted so many rows or more."""
        return [epoch for epoch, rows in self.rows.items() if rows.num_rows >= count]

    def epoch_of(self, left_ts: int) -> int:
        """That has emitted the row whose left side has this event time."""
        (epoch,) = (
            epoch
            for epoch, rows in self.rows.items()
            if left_ts in rows["left_ts"].cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()
        )
        return epoch

    def publish(self, last: int | None = None) -> None:
        outputs, dead = Outputs.of(self.job), Outputs.of(self.job).dead_letter_sink()
        # A replay's rows have no columns by which a shard would sort them.
        targets = tuple(replace(target, orders_keys=False) for target in outputs.targets)
        output = replace(outputs, targets=targets).sink(self.database)
        self._publish(output, self.rows, last)
        if dead is not None:
            self._publish(dead, self.dead, last)

    def _publish(self, sink: Sink, epochs: Mapping[int, pa.Table], last: int | None) -> None:
        sink.prepare(next(iter(epochs.values())).schema)
        for epoch, rows in epochs.items():
            if last is None or epoch <= last:
                receipt = self.write(sink, epoch, rows)
                self.commit(sink, epoch, receipt)
        sink.close()

    def write(self, sink: Sink, epoch: int, rows: pa.Table) -> Receipt:
        attempt = Attempt(AttemptId(1, epoch, 0, "a"), self.incarnation, lambda *_: None, lambda _: None)
        return sink.writer().write(attempt, rows)

    def commit(self, sink: Sink, epoch: int, receipt: Receipt) -> None:
        if self.database is not None:
            with psycopg.connect(self.database.dsn) as connection:
                sink.in_transaction(connection, epoch, [receipt])
        sink.publish(epoch, [receipt])

    def verdict(self, first: int | None = None, last: int | None = None) -> Verdict:
        return verify(self.job, self.store, self.inputs, first, last, self.database)
