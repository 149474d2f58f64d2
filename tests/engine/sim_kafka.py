"""A Kafka topic in the simulated world: transactional ids, open transactions, marks. The sink's own code runs on it.

It takes the place of the producer and of the reader of marks, the two parts of the sink that speak to a broker; what
they promise is tested on a real one (tests/connectors/kafka/test_transactions.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from engine.sim_process import FAILURES, IN_TASK, Fault, call
from joinery_runtime.connectors.kafka import transactions as kafka_transactions
from joinery_runtime.connectors.kafka.markers import EpochMarker
from joinery_runtime.connectors.kafka.producers import Disowned
from joinery_runtime.connectors.kafka.records import Records
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.errors import OutputUnavailable

T = TypeVar("T")
Row = tuple[Any, ...]
GroupMark = tuple[str, EpochMarker]


class SimTopic:
    """One output topic. `visible` is what a `read_committed` reader gets, `aborted` counts transactions that ended
    otherwise. It stands for the sink's target too: that is how its parts find it."""

    TITLE = "Output topic"

    def __init__(self, name: str, spawn: Callable[[str, Callable[[], None]], None]) -> None:
        self.topic = name
        self.spawn = spawn
        self.visible: list[Row] = []
        self.marks: dict[str, EpochMarker] = {}
        self.aborted = 0
        self.signature: StoreIdentity | None = None
        self.headers: dict[str, str] = {}
        self._owners: dict[str, int] = {}
        self._open: dict[str, tuple[list[Row], GroupMark]] = {}

    def client_settings(self) -> dict[str, Any]:
        return {}

    def records(self, rows: pa.RecordBatch) -> Records:
        return Records.of(rows, key=())

    def newest(self, name: str) -> EpochMarker | None:
        """The part of the reader of marks."""
        return call(f"{self.topic}.mark", IN_TASK - {Fault.FAIL_AFTER}, lambda: self.marks.get(name), _no_answer)

    def read(self, names: Sequence[str]) -> list[EpochMarker | None]:
        return [self.newest(name) for name in names]

    def sign(self, group: str, generation: int, store: StoreIdentity) -> None:
        self.signature = store

    def signed(self, group: str) -> StoreIdentity | None:
        return self.signature

    def retention_ms(self) -> int:
        return 10**12

    def take_over(self, name: str) -> int:
        self.aborted += self._open.pop(name, None) is not None
        self._owners[name] = self._owners.get(name, 0) + 1
        return self._owners[name]

    def send(self, name: str, owner: int, rows: list[Row], mark: GroupMark) -> None:
        self.require_owner(name, owner)
        self._open[name] = rows, mark

    def commit(self, name: str, owner: int) -> None:
        self.require_owner(name, owner)
        if name in self._open:
            rows, (group, mark) = self._open.pop(name)
            self.visible += rows
            self.marks[group] = mark

    def require_owner(self, name: str, owner: int) -> None:
        if self._owners[name] != owner:
            raise Disowned(f"{name} was taken over")


class SimProducer:
    """In the place of `OwningProducer`."""

    def __init__(self, target: SimTopic, name: str) -> None:
        self.name, self._topic = name, target
        self._owner = call(f"{target.topic}.own", FAILURES, lambda: target.take_over(name), _no_answer)

    def begin(self) -> None:
        """With `send`."""

    def send(self, topic: str, chunks: Iterable[Records], group: str, mark: EpochMarker) -> None:
        messages = (message for records in chunks for message in records.messages())
        rows = [tuple(json.loads(message["value"]).values()) for message in messages]
        call_name = f"{self._topic.topic}.send"
        call(call_name, IN_TASK, lambda: self._topic.send(self.name, self._owner, rows, (group, mark)), _no_answer)

    def commit(self) -> None:
        def late() -> None:
            try:
                self._topic.commit(self.name, self._owner)
            except Disowned:
                """The request came too late."""

        def aside(fault: Fault) -> None:
            if fault is Fault.DELAYED:
                self._topic.spawn(f"delayed {self._topic.topic}.commit", late)

        call_name, faults = f"{self._topic.topic}.commit", IN_TASK | {Fault.DELAYED}
        call(call_name, faults, lambda: self._topic.commit(self.name, self._owner), _no_answer, aside)

    def close(self) -> None:
        """Its transaction stays open until the id is taken over."""


def _no_answer() -> OutputUnavailable:
    return OutputUnavailable("the simulated output does not answer")


class InTurn:
    """In the place of a thread pool: the simulation knows one thread per process."""

    def __init__(self, size: int) -> None:
        """One is enough."""

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def map(self, action: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
        return map(action, names)


def install(patch: pytest.MonkeyPatch) -> None:
    """Lets the sink's code run on simulated topics."""
    patch.setattr(kafka_transactions, "OwningProducer", SimProducer)
    patch.setattr(kafka_transactions, "EpochMarkerReader", lambda topic: topic)
    patch.setattr(kafka_transactions, "ThreadPoolExecutor", InTurn)
    numbers = count(1)
    patch.setattr(kafka_transactions, "new_id", lambda job: f"{job}-{next(numbers):06}")
    patch.setattr(kafka_transactions, "_SIBLING_SECONDS", 0.0)
    patch.setattr(kafka_transactions, "_SUCCESSOR_SECONDS", 0.0)
