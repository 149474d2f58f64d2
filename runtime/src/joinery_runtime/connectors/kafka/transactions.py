"""Kafka topics, exactly once for `read_committed` readers. The rows of a shard and epoch are written in one transaction
with a marker that says so. This needs no two-phase commit: an epoch's plan is replayed unchanged until every shard has
its marker, and only then committed to the state store.

Safety rests on these rules for each attempt:

1. It owns a transactional id that belongs to its process. Initialising an id ends the transactions of its former owner.
2. It claims its shard in the state store, which rejects older drivers and past epochs. The first attempt to claim it
   continues: nothing of this epoch and shard can be in the topic yet.
3. If another attempt was first, it looks for the shard's marker, and writes nothing if the epoch is in the topic. If
   not, it takes over the other's id, looks again, and takes over the claim: only the claim's owner can commit.
4. Rows and marker become visible together, or not at all.

A new driver takes over the ids of all claims that it finds, and nobody can claim under the older driver any more. Ids
belong to processes and not to shards, because Spark moves shards between processes and initialising an id takes 0.02 to
0.5 s (docs/decisions/0005).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from joinery_runtime.connectors.kafka.markers import EpochMarker, EpochMarkerReader
from joinery_runtime.connectors.kafka.producers import PRODUCERS, Disowned, OwningProducer, Producers, new_id
from joinery_runtime.connectors.kafka.records import Records
from joinery_runtime.connectors.kafka.target import BrokerCheck, KafkaTarget, write_in_fitting_batches
from joinery_runtime.connectors.sink import Attempt, AttemptRows, Receipt, RecoveryContext, short_incarnation
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.errors import (
    Fenced,
    OutputUnavailable,
    RecordTooLarge,
    SinkError,
    Superseded,
    Unavailable,
    WrittenWithOtherLimit,
)
from joinery_runtime.job.model.outputs import ONLY_OUTPUT

_SIBLING_SECONDS = 1.0  # how long the first attempt may take before it is considered dead
_SUCCESSOR_SECONDS = 5.0  # how long an attempt that took over may take
_POLL_SECONDS = 0.05
_TAKEOVERS = 3
_TAKEOVER_THREADS = 16


@dataclass(frozen=True, slots=True)
class PartNames:
    """The names of the parts of an epoch's output, which are the names of their claims and of the groups that hold
    their markers. Output has one part per shard, dead letters have one. The names contain the job's `incarnation` in
    its store, so a job of the same name with another store has other names. Those of earlier releases
    (`former_name`) do not. `output` is the name of one of several outputs."""

    job: str
    dead_letters: bool = False
    output: str | None = None

    @property
    def signature(self) -> str:
        """The group in which drivers of jobs with this name sign the topic."""
        return f"{self.job}-driver"

    def of(self, shard: int, incarnation: str) -> str:
        return f"{self.job}-{short_incarnation(incarnation)}-{self._part_name(shard)}"

    def former_name(self, shard: int) -> str:
        return f"{self.job}-{self._part_name(shard)}"

    def below(self, shards: int, incarnation: str) -> list[str]:
        """Each name of shards 0 to `shards` - 1 once, former names included."""
        both = ((self.of(shard, incarnation), self.former_name(shard)) for shard in range(shards))
        return list(dict.fromkeys(name for names in both for name in names))

    def owns(self, name: str) -> bool:
        """Return whether a claim of the job has one of these names."""
        part = name.rpartition("-")[2]
        output, _, _ = part.rpartition(".")
        return (part == "dead") == self.dead_letters and output == (self.output or "")

    def _part_name(self, shard: int) -> str:
        if self.dead_letters:
            return "dead"
        return str(shard) if self.output is None else f"{self.output}.{shard}"


@dataclass(frozen=True, slots=True)
class KafkaTransactionsWriter:
    """The task half. A receipt with `repeated` says that the rows were in the topic already."""

    target: KafkaTarget
    names: PartNames

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        rows = self.target.in_order(rows)
        takes = None if attempt.row_limits is None else partial(_takes, self.names.job)
        return write_in_fitting_batches(
            self.target, rows, lambda target: PartWrite(target, self.names, attempt, rows, PRODUCERS).run(), takes
        )


def _takes(job: str, target: KafkaTarget, records: Records) -> bool:
    """Say whether the topic takes these records, in a transaction that is aborted."""
    producer = OwningProducer(target, new_id(job))
    try:
        return producer.takes(target.topic, records)
    finally:
        producer.close()


@dataclass(frozen=True, slots=True)
class PartWrite:
    """One attempt at writing a part."""

    target: KafkaTarget
    names: PartNames
    attempt: Attempt
    rows: AttemptRows
    producers: Producers = field(repr=False)

    @property
    def name(self) -> str:
        shard = self.attempt.id.shard
        return (
            self.names.former_name(shard)
            if self.attempt.former_names
            else self.names.of(shard, self.attempt.incarnation)
        )

    def run(self) -> Receipt:
        for producer in self._candidate_producers():
            try:
                return self._write_with(producer)
            except Disowned as error:
                cause = error
        # Another attempt at this epoch, or a newer driver, took over this one's id.
        if self._is_written_within(_SUCCESSOR_SECONDS):
            return self._repeated_receipt()
        raise self._superseded_error(str(cause)) from cause

    def _candidate_producers(self) -> Iterator[OwningProducer]:
        """Yield the process's producer, then a new one: the former may have lost its id to whoever took over an
        earlier attempt."""
        idle = self.producers.take(self.target, self.names.job)
        if idle is not None:
            yield idle
        yield OwningProducer(self.target, new_id(self.names.job))

    def _write_with(self, producer: OwningProducer) -> Receipt:
        try:
            receipt = self._write_part(producer)
        except BaseException as error:
            producer.close()
            if isinstance(error, OutputUnavailable):
                self.producers.close_idle()  # they know the same brokers, which may have been replaced by now
            raise
        self.producers.put(self.target, self.names.job, producer)
        return receipt

    def _write_part(self, producer: OwningProducer) -> Receipt:
        if not self._claim_part(producer):
            return self._repeated_receipt()
        producer.begin()
        self.attempt.failpoint("transaction-begun")
        sent: list[int] = []

        def encode_chunks() -> Iterator[Records]:
            for batch in self.rows.to_batches():
                sent.append(batch.num_rows)
                yield self.target.records(batch)

        attempt, limit = self.attempt, self._row_limit
        marker = EpochMarker(attempt.id.epoch, attempt.incarnation, attempt.id.generation, limit)
        producer.send(self.target.topic, encode_chunks(), self.name, marker)
        self.attempt.failpoint("transaction-sent")
        producer.commit()
        self.attempt.failpoint("transaction-committed")
        return {"attempt": str(self.attempt.id), "rows": sum(sent)}

    def _claim_part(self, producer: OwningProducer) -> bool:
        """Claim the part. Returns whether this attempt has to write it; False: another one has written it."""
        holder = self.attempt.claim(self.name, producer.name, None)
        if holder is None:
            return True
        for _ in range(_TAKEOVERS):
            if holder and holder != producer.name:
                if self._is_written_within(_SIBLING_SECONDS):
                    return False
                take_over(self.target, holder)
            if self._is_written(EpochMarkerReader(self.target).newest(self.name)):
                return False
            if holder == producer.name:
                return True
            holder = self.attempt.claim(self.name, producer.name, holder)
        raise self._superseded_error("attempts keep taking it from one another")

    def _is_written(self, marker: EpochMarker | None) -> bool:
        """Return whether this epoch's rows are in the topic. Raises Fenced if a later epoch's are, and
        WrittenWithOtherLimit if this epoch's rows are there with another row limit than this attempt's. Raises
        RecordTooLarge instead if rows were left out and the job no longer has dead letters for them."""
        if marker is None or marker.incarnation != self.attempt.incarnation:
            return False
        if marker.epoch > self.attempt.id.epoch:
            raise Fenced(
                f"Epoch {self.attempt.id.epoch} is over",
                facts=f"{self.target.TITLE.lower()} {self.target.topic} has epoch {marker.epoch} of {self.name} "
                f"already, by generation {marker.generation}",
                todo="A newer driver runs the job; this one ends",
            )
        if marker.epoch != self.attempt.id.epoch:
            return False
        if marker.row_limit == self._row_limit:
            return True
        if self.attempt.row_limits is None:
            raise RecordTooLarge(
                f"{self.target.TITLE} {self.target.topic}: rows of epoch {marker.epoch} were left out of {self.name}",
                facts=f"the brokers rejected rows of more than {marker.row_limit:,} bytes",
                todo="Name spec.deadLetter again: these rows belong there",
                row_limit=marker.row_limit,
            )
        raise WrittenWithOtherLimit(
            f"{self.target.TITLE} {self.target.topic}: another attempt wrote epoch {marker.epoch} of {self.name}",
            facts=f"its limit for rows was {marker.row_limit}, the limit of this attempt is {self._row_limit} "
            "(bytes; None: the brokers rejected no row)",
            todo="The task is tried again",
            row_limit=marker.row_limit,
        )

    @property
    def _row_limit(self) -> int | None:
        return (self.attempt.row_limits or {}).get(self.names.output or ONLY_OUTPUT)

    def _is_written_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            if self._is_written(EpochMarkerReader(self.target).newest_within(self.name, remaining)):
                return True
            time.sleep(min(remaining, _POLL_SECONDS))
        return False

    def _superseded_error(self, reason: str) -> Superseded:
        return Superseded(
            f"{self.target.TITLE} {self.target.topic}: another attempt took {self.name} over",
            facts=f"nothing was written by this one: {reason}",
            todo="The task is tried again",
        )

    def _repeated_receipt(self) -> Receipt:
        rows = sum(batch.num_rows for batch in self.rows.to_batches())
        return {"attempt": str(self.attempt.id), "rows": rows, "repeated": True}


class KafkaTransactionsSink:
    """The driver half, which has nothing to do at the commit."""

    def __init__(self, target: KafkaTarget, names: PartNames) -> None:
        self._target, self._names, self._check = target, names, BrokerCheck(target)
        self._store: StoreIdentity | None = None

    def prepare(self, schema: Any) -> None:
        """Take an id and read a marker. Missing rights show now, and new brokers create the topics for transactions
        and offsets. `recover` aborts transactions that an older driver has open."""
        reader = EpochMarkerReader(self._target)
        reader.require_topic(schema)
        reader.may_read(self._names.signature)
        take_over(self._target, f"{self._names.job}-driver")

    def writer(self) -> KafkaTransactionsWriter:
        return KafkaTransactionsWriter(self._target, self._names)

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Do nothing: rows are in the topic already."""

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Do nothing: rows are in the topic already."""

    def recover(self, recovery: RecoveryContext) -> bool:
        """Take over every id that has a claim. This aborts whatever its owner has not committed, and the owner can no
        longer commit. Also raises SinkError if topic and state store no longer belong together."""
        owners = {owner for name, owner in recovery.claims.items() if owner and self._names.owns(name)}
        with ThreadPoolExecutor(_TAKEOVER_THREADS) as threads:
            list(threads.map(lambda owner: take_over(self._target, owner), sorted(owners)))
        if not self._names.dead_letters:
            EpochMarkerReader(self._target).sign(self._names.signature, recovery.generation, recovery.store)
            self._store = recovery.store
        names = self._names.below(max(recovery.shards, recovery.pending_shards), recovery.incarnation)
        read_markers = zip(names, EpochMarkerReader(self._target).read(names), strict=True)
        markers = {
            name: marker
            for name, marker in read_markers
            if marker is not None and marker.incarnation == recovery.incarnation
        }
        for name, marker in sorted(markers.items()):
            # No part is written before it is planned and claimed, so the store must have been set back since.
            claimed = marker.epoch == recovery.pending and name in recovery.claims
            if marker.epoch > recovery.committed_epoch and not claimed:
                raise SinkError(
                    f"{self._target.TITLE} {self._target.topic} is ahead of the state",
                    facts=f"it has epoch {marker.epoch} of {name}, the state store has committed epoch "
                    f"{recovery.committed_epoch} and knows nothing of that one",
                    todo="Was the database restored from a backup, or did it fail over? Restore a newer one; or run "
                    "with `delivery: atLeastOnce` until the job is past that epoch (rows will repeat)",
                )
        self._reject_expired(recovery, markers)
        return any(marker.epoch == recovery.pending for marker in markers.values())

    def other_store(self) -> StoreIdentity | None:
        """Return the store of another job that signed the topic after this driver. Raises SinkError."""
        if self._store is None:
            return None
        newest = EpochMarkerReader(self._target).signed(self._names.signature)
        return newest if newest is not None and newest.id != self._store.id else None

    def _reject_expired(self, recovery: RecoveryContext, markers: Mapping[str, EpochMarker]) -> None:
        """Raise SinkError if a marker of the pending epoch may have expired. A part that nobody claimed was not
        written, nor was one without a marker if the plan is young. The markers of an old plan may have expired."""
        planned = self._names.below(recovery.pending_shards, recovery.incarnation)
        unknown = [name for name in planned if name in recovery.claims and name not in markers]
        if unknown and recovery.pending_for_ms > (retention_ms := EpochMarkerReader(self._target).retention_ms()):
            named = ", ".join(unknown[:10]) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
            raise SinkError(
                f"{self._target.TITLE} {self._target.topic}: it is unknown whether epoch {recovery.pending} was "
                "written",
                facts=f"its plan is {recovery.pending_for_ms / 3_600_000:.0f} h old, the brokers keep markers for "
                f"{retention_ms / 3_600_000:.0f} h, and there is none for {named}",
                todo="Run the job once with `delivery: atLeastOnce`: it writes the rows of this epoch. If they were "
                "written before, they are duplicated",
            )

    def unavailability(self) -> Unavailable | None:
        return self._check.unavailability()

    def close(self) -> None:
        """Do nothing: producers end with their processes."""


def take_over(target: KafkaTarget, name: str) -> None:
    """End the open transaction of this transactional id's owner, which can then no longer commit."""
    OwningProducer(target, name).close()
