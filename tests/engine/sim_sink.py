"""The outputs of the simulated world: a table, files and a Kafka topic in one sink, fed with the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from engine.sim_kafka import SimTopic
from engine.sim_process import FAILURES, IN_TASK, call
from joinery_runtime.connectors.kafka.producers import Producers
from joinery_runtime.connectors.kafka.transactions import KafkaTransactionsSink, PartNames, PartWrite
from joinery_runtime.connectors.sink import Attempt, AttemptId, AttemptRows, NamesNoStore, Receipt, RecoveryContext
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.errors import OutputUnavailable

StagedRows = tuple[tuple[Any, ...], ...]


@dataclass(slots=True)
class Transaction:
    """What a commit's effects do; it happens when the commit does."""

    actions: list[Callable[[], None]] = field(default_factory=list)


class SimSink(NamesNoStore):
    """`table` is filled in the commit's transaction, as in Postgres, `files` after it, by renaming, `topic` before it,
    by the Kafka sink's own code. `staged` and `partial` hold what no commit has named yet, by attempt."""

    topic_type: type[SimTopic] = SimTopic
    with_topic = True

    def __init__(self, name: str, spawn: Callable[[str, Callable[[], None]], None]) -> None:
        self.name = name
        self.other: StoreIdentity | None = None
        self.attempts: set[str] = set()
        self.staged: dict[AttemptId, StagedRows] = {}
        self.partial: dict[AttemptId, StagedRows] = {}
        self.table: list[tuple[Any, ...]] = []
        self.files: dict[str, StagedRows] = {}
        self.topic = self.topic_type(name, spawn)
        self.names = PartNames("simulated", dead_letters=name == "dead")

    def prepare(self, schema: pa.Schema) -> None:
        """Takes any schema."""

    def writer(self) -> SimWriter:
        return SimWriter(self)

    def in_transaction(self, connection: Transaction, epoch: int, receipts: Sequence[Receipt]) -> None:
        named = self.named(epoch, receipts)
        connection.actions.append(lambda: self._fill_table(named))

    def named(self, epoch: int, receipts: Sequence[Receipt]) -> list[AttemptId]:
        """The staged attempts that these receipts name; all of them must be there."""
        by_name = {str(attempt): attempt for attempt in self.staged}
        return [by_name[receipt["attempt"]] for receipt in receipts]

    def _fill_table(self, named: Iterable[AttemptId]) -> None:
        for attempt in named:
            self.table.extend(self.staged.pop(attempt))

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            call(f"{self.name}.publish", FAILURES, partial(self._rename, receipt["attempt"]), sink_error)

    def _rename(self, name: str) -> None:
        if name not in self.files:
            by_name = {str(attempt): attempt for attempt in self.partial}
            self.files[name] = self.partial.pop(by_name[name])

    def recover(self, recovery: RecoveryContext) -> bool:
        call(f"{self.name}.recover", FAILURES, lambda: self._sweep(recovery.generation), sink_error)
        if self.with_topic:
            topic: Any = self.topic
            return KafkaTransactionsSink(topic, self.names).recover(recovery)
        return False

    def _sweep(self, generation: int) -> None:
        self.staged = {a: rows for a, rows in self.staged.items() if a.generation >= generation}
        self.partial = {a: rows for a, rows in self.partial.items() if a.generation >= generation}

    def other_store(self) -> StoreIdentity | None:
        return self.other

    def close(self) -> None:
        """Nothing is open."""


class NoTopic(SimSink):
    """Table and files only."""

    with_topic = False


class SimWriter:
    """The task half, in one worker: it keeps producers from epoch to epoch."""

    def __init__(self, sink: SimSink) -> None:
        self._sink, self._producers = sink, Producers()

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        receipt = call(f"{self._sink.name}.write", IN_TASK, lambda: self._stage(attempt.id, rows), sink_error)
        if self._sink.with_topic:
            topic: Any = self._sink.topic
            PartWrite(topic, self._sink.names, attempt, rows, self._producers).run()
        return receipt

    def _stage(self, attempt: AttemptId, rows: AttemptRows) -> Receipt:
        sink = self._sink
        assert str(attempt) not in sink.attempts, f"attempt {attempt} is not unique"
        sink.attempts.add(str(attempt))
        listed = [row for batch in rows.to_batches() for row in batch.to_pylist()]
        sink.staged[attempt] = sink.partial[attempt] = tuple(tuple(row.values()) for row in listed)
        return {"attempt": str(attempt), "rows": len(listed)}


def sink_error() -> OutputUnavailable:
    return OutputUnavailable("the simulated output does not answer")
