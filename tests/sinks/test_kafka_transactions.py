"""Exactly-once Kafka output against a real broker: attempts, zombies and takeovers of one shard."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from joinery_runtime.errors import Fenced, SinkError, Superseded
from joinery_runtime.sinks import DEAD_LETTER_SCHEMA, kafka_transactions
from joinery_runtime.sinks.base import Attempt, Receipt
from joinery_runtime.sinks.kafka_marks import Mark, mark_reader
from joinery_runtime.sinks.kafka_producers import OwningProducer, Producers
from joinery_runtime.sinks.kafka_target import KafkaTarget
from joinery_runtime.sinks.kafka_transactions import KafkaTransactionsSink, TransactionalIds
from sinks.rows import LINEAGE, attempt, takeover

pytestmark = pytest.mark.services
_names = (f"exact-{number}" for number in count())
POINTS = ["transaction-begun", "transaction-sent", "transaction-committed"]
PATIENCE = 30.0


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


@dataclass
class Output:
    """A topic of one partition and the job that writes it."""

    servers: str
    topic: str
    job: str
    target: KafkaTarget = field(init=False)
    ids: TransactionalIds = field(init=False)

    def __post_init__(self) -> None:
        self.target, self.ids = KafkaTarget(self.topic, self.servers), TransactionalIds(self.job)

    @property
    def sink(self) -> KafkaTransactionsSink:
        return KafkaTransactionsSink(self.target, self.ids)

    def write(self, trial: Attempt, table: pa.Table, process: Producers | None = None) -> Receipt:
        """`process`: the producers of the worker process that the attempt runs in; None: a new one's."""
        name = self.ids.of(trial.id.shard)
        return kafka_transactions._Write(self.target, name, trial, table, process or Producers()).run()

    def mark(self, shard: int = 0) -> Mark | None:
        return mark_reader(self.target).read([self.ids.of(shard)])[0]

    def visible(self) -> list[Any]:
        """What a `read_committed` consumer has seen when it is at the end: no transaction is left open there."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        whole = Consumer({"bootstrap.servers": self.servers, "group.id": "x", "isolation.level": "read_uncommitted"})
        end = whole.get_watermark_offsets(TopicPartition(self.topic, 0), 10)[1]
        whole.close()
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while consumer.position([TopicPartition(self.topic, 0)])[0].offset < end:
            assert time.monotonic() < deadline, "a transaction holds readers back"
            found += [json.loads(m.value())["n"] for m in consumer.consume(1000, 0.1) if not m.error()]
            if not end:
                break
        consumer.close()
        return sorted(found)


@pytest.fixture
def output(kafka_broker) -> Output:
    name = next(_names)
    kafka_broker.create_topic(name)
    return Output(kafka_broker.bootstrap, name, f"job-{name}")


class Pause:
    """Holds an attempt at one point until it is let go."""

    def __init__(self, point: str) -> None:
        self._point, self._reached, self._go = point, threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._reached.set()
            assert self._go.wait(PATIENCE)

    def wait(self) -> None:
        assert self._reached.wait(PATIENCE)

    def release(self) -> None:
        self._go.set()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def newer_driver(since: int = 1) -> Callable[[], None]:
    def check() -> None:
        raise Fenced("Generation 2 owns the job", facts=f"this is {since}")

    return check


def forget_nothing(future: Future[Receipt]) -> Receipt | BaseException:
    error = future.exception(PATIENCE)
    return error if error is not None else future.result()


# --- one attempt after the other ------------------------------------------------------------------------------------


def test_rows_and_mark_go_together_and_only_once(output) -> None:
    output.sink.prepare(rows(1).schema)
    writer = pickle.loads(pickle.dumps(output.sink.writer()))
    assert writer.write(attempt(epoch=7), rows(1, 2)) == {"attempt": "1-7-0-a", "rows": 2}
    assert output.visible() == [1, 2]
    found = output.mark()
    assert found is not None
    assert (found.epoch, found.lineage, found.generation) == (7, LINEAGE, 1)
    again = writer.write(attempt(epoch=7, name="b", generation=2), rows(1, 2))
    assert again == {"attempt": "2-7-0-b", "rows": 2, "repeated": True}
    assert output.write(attempt(epoch=7, name="c"), rows(1, 2))["repeated"]
    writer.write(attempt(epoch=8), rows(3))
    assert output.visible() == [1, 2, 3]


def test_no_rows_need_no_transaction(output) -> None:
    assert output.sink.writer().write(attempt(), rows()) == {"attempt": "1-1-0-a", "rows": 0}
    assert output.mark() is None


def test_shards_have_marks_of_their_own(output) -> None:
    writer = output.sink.writer()
    for shard in range(3):
        writer.write(attempt(shard=shard), rows(shard))
    assert output.visible() == [0, 1, 2]
    assert all(output.write(attempt(shard=shard, name="b"), rows(shard))["repeated"] for shard in range(3))


def test_many_rows_arrive_once_and_in_order(output) -> None:
    small = KafkaTarget(output.topic, output.servers, properties={"queue.buffering.max.messages": "1000"})
    KafkaTransactionsSink(small, output.ids).writer().write(attempt(), rows(*range(25_000)))
    assert output.visible() == list(range(25_000))


def test_another_lineage_s_mark_does_not_count(output) -> None:
    output.write(attempt(epoch=5, lineage="of a store that was lost"), rows(1))
    output.write(attempt(epoch=2), rows(2))
    assert output.visible() == [1, 2]
    assert output.mark().epoch == 2


def test_an_attempt_of_an_epoch_that_is_over(output) -> None:
    output.write(attempt(epoch=5), rows(5))
    with pytest.raises(Fenced, match=rf"Epoch 4 is over: output topic {output.topic} has epoch 5 of {output.job}-0"):
        output.write(attempt(epoch=4), rows(4))
    assert output.visible() == [5]


def test_an_attempt_of_an_older_driver_writes_nothing(output) -> None:
    with pytest.raises(Fenced):
        output.write(attempt(check=newer_driver()), rows(1))
    assert (output.visible(), output.mark()) == ([], None)


def test_rows_that_the_broker_refuses_and_writing_after_that(kafka_broker) -> None:
    name = next(_names)
    kafka_broker.create_topic(name, config={"max.message.bytes": "2000"})
    output, process = Output(kafka_broker.bootstrap, name, f"job-{name}"), Producers()
    output.write(attempt(), rows(1), process)
    with pytest.raises(SinkError, match=rf"Output topic {name}: rows were not written: .*too large"):
        output.write(attempt(epoch=2), pa.table({"n": ["x" * 10_000]}), process)
    assert output.visible() == [1]
    output.write(attempt(epoch=2, name="b"), rows(2), process)
    assert output.visible() == [1, 2]


def test_a_shard_that_moves_between_workers_to_and_fro(output) -> None:
    workers = [Producers(), Producers()]
    for epoch in range(1, 9):
        assert "repeated" not in output.write(attempt(epoch=epoch), rows(epoch), workers[epoch // 2 % 2])
    assert output.visible() == list(range(1, 9))


def test_a_task_that_runs_again_in_its_worker(output) -> None:
    here = Producers()
    output.write(attempt(), rows(1), here)
    assert output.write(attempt(name="again"), rows(1), here)["repeated"]
    output.write(attempt(epoch=2), rows(2))
    assert output.write(attempt(epoch=2, name="again"), rows(2), here)["repeated"]
    output.write(attempt(epoch=3), rows(3), here)
    assert output.visible() == [1, 2, 3]


def test_a_kept_producer_whose_id_a_takeover_took(output) -> None:
    here = Producers()
    output.write(attempt(), rows(1), here)
    output.sink.recover(takeover(shards=1))
    assert output.write(attempt(epoch=2, generation=2), rows(2), here) == {"attempt": "2-2-0-a", "rows": 1}
    assert output.visible() == [1, 2]


# --- crashes --------------------------------------------------------------------------------------------------------

CRASH = """
    import os, signal, sys
    import pyarrow as pa
    from joinery_runtime.sinks import Attempt, AttemptId
    from joinery_runtime.sinks.kafka_target import KafkaTarget
    from joinery_runtime.sinks.kafka_transactions import KafkaTransactionsWriter, TransactionalIds

    servers, topic, job, lineage, point = sys.argv[1:]
    die = lambda reached: os.kill(os.getpid(), signal.SIGKILL) if reached == point else None
    writer = KafkaTransactionsWriter(KafkaTarget(topic, servers), TransactionalIds(job))
    writer.write(Attempt(AttemptId(1, 1, 0, "dies"), lineage, lambda: None, die), pa.table({"n": [1, 2]}))
"""


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_in_the_transaction(output, point) -> None:
    told = [output.servers, output.topic, output.job, LINEAGE, point]
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(CRASH), *told], check=False, timeout=PATIENCE)
    assert died.returncode == -signal.SIGKILL
    receipt = output.write(attempt(name="next"), rows(1, 2))
    assert receipt.get("repeated", False) == (point == "transaction-committed")
    assert output.visible() == [1, 2]


def test_a_commit_whose_outcome_is_unknown(output, kafka_broker, monkeypatch) -> None:
    """The broker gets the commit and stops before it answers."""

    def freeze(point: str) -> None:
        if point == "transaction-sent":
            monkeypatch.setattr("joinery_runtime.sinks.kafka_target.DELIVERY_SECONDS", 0.5)
            monkeypatch.setattr("joinery_runtime.sinks.kafka_producers._CALL_SECONDS", 0.5)
            os.kill(kafka_broker.pid, signal.SIGSTOP)

    here = Producers()
    try:
        with pytest.raises(SinkError, match="it is not known whether the rows were written"):
            output.write(attempt(reach=freeze), rows(1), here)
    finally:
        os.kill(kafka_broker.pid, signal.SIGCONT)
        monkeypatch.undo()
    output.write(attempt(name="b"), rows(1), here)
    assert output.visible() == [1]


# --- zombies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kept", [False, True], ids=["new producer", "kept producer"])
def test_a_paused_attempt_and_its_sibling(output, threads, point, kept) -> None:
    here, pause, first = Producers(), Pause(point), 0
    if kept:
        output.write(attempt(epoch=1), rows(0), here)
        first = 1
    paused = threads.submit(output.write, attempt(epoch=2, name="slow", reach=pause), rows(1, 2), here)
    pause.wait()
    sibling = output.write(attempt(epoch=2, name="fast"), rows(1, 2))
    assert sibling.get("repeated", False) == (point == "transaction-committed")
    pause.release()
    assert paused.result(PATIENCE).get("repeated", False) == (point != "transaction-committed")
    assert output.visible() == [0] * first + [1, 2]


@pytest.mark.parametrize("point", POINTS)
def test_a_paused_attempt_and_a_newer_driver(output, threads, point) -> None:
    """The newer driver replays the plan, with other rows so that one can tell whose they are."""
    pause, newest = Pause(point), [1]

    def check() -> None:
        if newest[0] != 1:
            raise Fenced("generation 2 owns the job")

    zombie = threads.submit(output.write, attempt(check=check, reach=pause), rows(1))
    pause.wait()
    newest[0] = 2
    output.sink.recover(takeover(shards=1, pending=1, pending_shards=1))
    replayed = output.write(attempt(generation=2), rows(2))
    pause.release()
    outcome = forget_nothing(zombie)
    if point == "transaction-committed":
        assert (replayed["repeated"], output.visible()) == (True, [1])
    else:
        assert isinstance(outcome, Fenced)
        assert output.visible() == [2]


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3)])
def test_a_takeover_fences_the_ids_of_every_older_shard_count(output, threads, before, after) -> None:
    pauses = [Pause("transaction-sent") for _ in range(before)]
    zombies = [
        threads.submit(output.write, attempt(shard=shard, reach=pause), rows(shard))
        for shard, pause in enumerate(pauses)
    ]
    for pause in pauses:
        pause.wait()
    output.sink.recover(takeover(shards=before))
    for shard in range(after):
        output.write(attempt(epoch=2, generation=2, shard=shard), rows(100 + shard))
    for pause in pauses:
        pause.release()
    assert output.visible() == [100 + shard for shard in range(after)]
    assert all(isinstance(forget_nothing(zombie), Fenced | Superseded) for zombie in zombies)


def test_a_sibling_that_takes_over_and_never_writes(output, monkeypatch) -> None:
    monkeypatch.setattr(kafka_transactions, "_SIBLING_SECONDS", 0.2)

    def taken(point: str) -> None:
        if point == "transaction-sent":
            OwningProducer(output.target, output.ids.of(0)).close()

    with pytest.raises(Superseded, match=rf"another attempt took transactional id {output.job}-0 over"):
        output.write(attempt(reach=taken), rows(1))
    output.write(attempt(name="again"), rows(1))
    assert output.visible() == [1]


# --- takeovers ------------------------------------------------------------------------------------------------------

WEEKS = 15 * 24 * 3_600_000  # milliseconds; the test's broker keeps marks for 7 days


def test_marks_that_may_have_expired(output) -> None:
    output.write(attempt(epoch=2, shard=0), rows(1))
    output.write(attempt(epoch=3, shard=1, lineage="of a store that was lost"), rows(1))
    old = takeover(pending=3, pending_shards=3, pending_for_ms=WEEKS)
    with pytest.raises(SinkError) as refused:
        output.sink.recover(old)
    text = str(refused.value)
    assert f"Output topic {output.topic}: it cannot be told whether epoch 3 was written" in text
    assert (
        f"360 h old, the brokers keep marks for 168 h, and there is none for transactional ids {output.job}-1" in text
    )
    assert f"{output.job}-0" not in text
    assert "delivery: atLeastOnce" in text
    output.write(attempt(epoch=2, shard=1), rows(2))
    output.write(attempt(epoch=2, shard=2), rows(3))
    output.sink.recover(old)
    output.sink.recover(takeover(pending=3, pending_shards=9, pending_for_ms=6 * 24 * 3_600_000))


def test_dead_letters_have_one_id_for_all_shard_counts(output, threads) -> None:
    ids = TransactionalIds(output.job, dead_letters=True)
    assert (ids.below(0), ids.below(3)) == ([], [f"{output.job}-dead"])
    sink, pause = KafkaTransactionsSink(output.target, ids), Pause("transaction-sent")
    sink.prepare(DEAD_LETTER_SCHEMA)
    zombie = threads.submit(sink.writer().write, attempt(shard=8, reach=pause, check=lambda: None), rows(1))
    pause.wait()
    sink.recover(takeover(shards=8, pending=1, pending_shards=8))
    sink.writer().write(attempt(shard=3, generation=2), rows(2))
    pause.release()
    assert forget_nothing(zombie)["repeated"]
    assert output.visible() == [2]


def test_no_broker(monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.sinks.kafka_target.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("joinery_runtime.sinks.kafka_target.DELIVERY_SECONDS", 1.0)
    sink = KafkaTransactionsSink(KafkaTarget("any", "127.0.0.1:1"), TransactionalIds("j"))
    with pytest.raises(SinkError, match=r"does not answer: waited 1 s; .*Connection refused"):
        sink.prepare(rows(1).schema)
    with pytest.raises(SinkError, match=r"no transaction can be begun: transactional id j-0: .*Connection refused"):
        sink.writer().write(attempt(), rows(1))


def test_a_missing_topic(kafka_broker) -> None:
    with pytest.raises(SinkError, match="Output topic nowhere: it does not exist"):
        Output(kafka_broker.bootstrap, "nowhere", "j").sink.prepare(rows(1).schema)
