"""Kafka topics, exactly once for `read_committed` readers: the rows of a shard and epoch go in one transaction with a
mark that says so. Two-phase commit is not needed: an epoch's plan is replayed as it stands until all of its shards are
marked, and only then committed to the state store.

What safety rests on, in this order, for each attempt:

1. It owns its shard's transactional id. Whoever initialised the id last does; the transactions of all others fail.
2. Only then it makes sure that its driver is the newest and its plan pending. A newer driver takes all ids over after
   it took the job over: an older attempt either finds that here or has lost its id before it commits.
3. It reads the shard's mark, unless its producer is kept and knows it, and writes nothing if the epoch is in the
   topic already.
4. Rows and mark become visible together, or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from joinery_runtime.errors import Fenced, SinkError, Superseded
from joinery_runtime.sinks.base import Attempt, Receipt, Takeover
from joinery_runtime.sinks.kafka_marks import Mark, mark_reader
from joinery_runtime.sinks.kafka_producers import PRODUCERS, Disowned, Kept, OwningProducer, Producers
from joinery_runtime.sinks.kafka_target import KafkaTarget, as_messages

_SIBLING_SECONDS = 5.0  # how long the attempt that took over may take to write
_SIBLING_POLL_SECONDS = 0.1
_TAKEOVER_THREADS = 16


@dataclass(frozen=True, slots=True)
class TransactionalIds:
    """A job's transactional ids, which are also the names of the groups that hold its marks. Output: one per shard;
    dead letters: one."""

    job: str
    dead_letters: bool = False

    def of(self, shard: int) -> str:
        return f"{self.job}-dead" if self.dead_letters else f"{self.job}-{shard}"

    def below(self, shards: int) -> list[str]:
        """Each id of shards 0 to `shards` - 1, once."""
        return list(dict.fromkeys(self.of(shard) for shard in range(shards)))


@dataclass(frozen=True, slots=True)
class KafkaTransactionsWriter:
    """Task half. A receipt with `repeated` says that the rows were in the topic already."""

    target: KafkaTarget
    ids: TransactionalIds

    def write(self, attempt: Attempt, rows: pa.Table) -> Receipt:
        return _Write(self.target, self.ids.of(attempt.id.shard), attempt, rows, PRODUCERS).run()


@dataclass(frozen=True, slots=True)
class _Write:
    """One attempt's work."""

    target: KafkaTarget
    name: str
    attempt: Attempt
    rows: pa.Table
    producers: Producers = field(repr=False)

    def run(self) -> Receipt:
        if not self.rows.num_rows:
            return self._receipt()
        kept = self.producers.take(self.target, self.name)
        if kept is not None:
            try:
                return self._with(kept.producer, kept.mark)
            except Disowned:
                pass  # Spark moves shards between workers: the id was another one's meanwhile
        try:
            return self._with(OwningProducer(self.target, self.name))
        except Disowned as error:
            return self._superseded(error)

    def _with(self, producer: OwningProducer, known: Mark | None = None) -> Receipt:
        try:
            self.attempt.check()
            found = known or self._mark()
            repeated = self._written(found)
            mark = found if found is not None and repeated else self._transaction(producer)
        except BaseException:
            producer.close()
            raise
        self.producers.put(self.target, Kept(producer, mark))
        return self._receipt(repeated=repeated)

    def _transaction(self, producer: OwningProducer) -> Mark:
        mark = Mark(self.attempt.id.epoch, self.attempt.lineage, self.attempt.id.generation)
        producer.begin()
        self.attempt.reach("transaction-begun")
        producer.send(as_messages(self.rows, self.target.key), mark)
        self.attempt.reach("transaction-sent")
        producer.commit()
        self.attempt.reach("transaction-committed")
        return mark

    def _mark(self) -> Mark | None:
        return mark_reader(self.target).read([self.name])[0]

    def _written(self, mark: Mark | None) -> bool:
        """Whether this epoch's rows are in the topic. Raises Fenced if a later epoch's are."""
        if mark is None or mark.lineage != self.attempt.lineage:
            return False
        if mark.epoch > self.attempt.id.epoch:
            raise Fenced(
                f"Epoch {self.attempt.id.epoch} is over",
                facts=f"output topic {self.target.topic} has epoch {mark.epoch} of {self.name} already, "
                f"by generation {mark.generation}",
                todo="A newer driver runs the job; this one ends",
            )
        return mark.epoch == self.attempt.id.epoch

    def _superseded(self, cause: Disowned) -> Receipt:
        """Another attempt of this epoch, or a newer driver, took the id after this one did."""
        deadline = time.monotonic() + _SIBLING_SECONDS
        self.attempt.check()
        while not self._written(self._mark()):
            if time.monotonic() > deadline:
                raise Superseded(
                    f"Output topic {self.target.topic}: another attempt took transactional id {self.name} over",
                    facts=f"nothing was written by this one, nor by the other within {_SIBLING_SECONDS:.0f} s: {cause}",
                    todo="The task is tried again. If this repeats, another job of this name writes there too",
                ) from cause
            time.sleep(_SIBLING_POLL_SECONDS)
        return self._receipt(repeated=True)

    def _receipt(self, *, repeated: bool = False) -> Receipt:
        receipt = {"attempt": str(self.attempt.id), "rows": self.rows.num_rows}
        return {**receipt, "repeated": True} if repeated else receipt


class KafkaTransactionsSink:
    """Driver half: has nothing to do at the commit."""

    def __init__(self, target: KafkaTarget, ids: TransactionalIds) -> None:
        self._target, self._ids = target, ids

    def prepare(self, schema: pa.Schema) -> None:
        """Takes the first id over, so that missing rights show now; whose it was takes it back."""
        mark_reader(self._target).require_topic(schema)
        self._take_over(self._ids.of(0))

    def writer(self) -> KafkaTransactionsWriter:
        return KafkaTransactionsWriter(self._target, self._ids)

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Rows are in the topic already."""

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Rows are in the topic already."""

    def recover(self, takeover: Takeover) -> None:
        """Takes over every id that an older attempt may hold: whatever it has not committed is aborted now, and it
        cannot commit any more. Raises SinkError too where it cannot be told what of the pending plan was written."""
        names = self._ids.below(max(takeover.shards, takeover.pending_shards))
        with ThreadPoolExecutor(_TAKEOVER_THREADS) as threads:
            list(threads.map(self._take_over, names))
        if takeover.pending is not None:
            self._refuse_expired(takeover, takeover.pending)

    def _take_over(self, name: str) -> None:
        OwningProducer(self._target, name).close()

    def _refuse_expired(self, takeover: Takeover, epoch: int) -> None:
        """A young plan without a mark was not written. An old one's may have expired; any mark of ours shows that the
        shard's has not."""
        reader = mark_reader(self._target)
        names = self._ids.below(takeover.pending_shards)
        if not names or takeover.pending_for_ms <= (kept := reader.kept_for_ms()):
            return
        marks = zip(names, reader.read(names), strict=True)
        unknown = [name for name, mark in marks if mark is None or mark.lineage != takeover.lineage]
        if unknown:
            raise SinkError(
                f"Output topic {self._target.topic}: it cannot be told whether epoch {epoch} was written",
                facts=f"its plan is {takeover.pending_for_ms / 3_600_000:.0f} h old, the brokers keep marks for "
                f"{kept / 3_600_000:.0f} h, and there is none for transactional ids {_listed(unknown)}",
                todo="Run the job once with `delivery: atLeastOnce`: it writes the rows of this epoch, again if they "
                "were written",
            )

    def close(self) -> None:
        """Producers end with their processes."""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
