"""The port between the engine and the targets of output rows, and dead letters (rule T8) as rows for any sink.

A sink has a driver half (`Sink`) and a task half (`SinkWriter`). A writer stages or sends the rows of one attempt at
one shard. Its *receipt* travels to the driver in the task's result, and the commit names the receipts that count. The
driver makes exactly these visible: inside the commit's transaction (`in_transaction`), or right after it and again at
recovery (`publish`, which must be idempotent). Rows of a receipt that no commit names stay invisible; a later `recover`
sweeps them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.core.pipeline.step import ARRIVED_OFFSET, ARRIVED_PARTITION
from joinery_runtime.core.table.keyhash import KeyHash, spread_hash
from joinery_runtime.errors import Unavailable

Receipt = Mapping[str, Any]  # JSON-able; stored in the epoch log


@dataclass(frozen=True, slots=True)
class AttemptId:
    """The name of one attempt at one shard's work. Later attempts and drivers never reuse it."""

    generation: int
    epoch: int
    shard: int
    attempt: str  # unique per task attempt; letters, digits and dashes

    def __str__(self) -> str:
        return f"{self.generation}-{self.epoch}-{self.shard}-{self.attempt}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt as its writer sees it. `incarnation` is that of the job in its state store: it tells what
    this job wrote to the target from what a job of the same name in another store wrote there.

    A writer whose rows are visible before the commit first claims its part of the epoch. `claim(name, owner,
    replacing)` returns None if this attempt is the first to claim it, else the present owner (see `StateStore.claim`).
    It raises Fenced unless the attempt's generation and plan are the store's newest. `failpoint` names points of the
    work for fault injection and otherwise does nothing. `former_names`: an earlier release planned the epoch and may
    resume it, so the parts keep the names of that release (docs/decisions/0026).
    `row_limits` has, by output, how large a row of this shard and epoch may be where the plan does not say it, because
    the brokers have rejected larger ones. None: rows that are too large have no dead letters to go to.
    """

    id: AttemptId
    incarnation: str
    claim: Callable[[str, str, str | None], str | None]
    failpoint: Callable[[str], None]
    former_names: bool = False
    row_limits: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class RecoveryContext:
    """What a driver finds when it takes over a job. Attempts of older generations may still be running; they have
    claimed whatever they may make visible."""

    generation: int
    committed_epoch: int
    store: StoreIdentity  # of the job
    incarnation: str = ""
    claims: Mapping[str, str] = field(default_factory=dict)  # owner by name; "": already fenced
    shards: int = 0  # of the newest committed epoch
    pending: int | None = None  # the epoch whose plan is about to be replayed
    pending_shards: int = 0
    pending_for_ms: int = 0  # since its plan was stored
    warn: Callable[[str], None] = lambda _: None  # about things that need a person's attention


def short_incarnation(incarnation: str) -> str:
    """Return the short form of an incarnation in names of files, markers and claims: 12 hex digits
    (docs/decisions/0026)."""
    return incarnation.replace("-", "")[:12]


class AttemptRows(Protocol):
    """All rows of an attempt, at least one. A `pa.Table` is one; the rows of a step are computed as they are read."""

    def to_batches(self) -> Iterable[pa.RecordBatch]:
        """Yield batches of one schema. Several copies of one batch fit into memory; all batches together may not. A
        second call gives the same rows."""
        ...


@dataclass(frozen=True, slots=True)
class RowRouting:
    """By which columns rows go to the shard that writes them. `spreads_nulls`: the only column makes the record's key,
    and a record of which it is NULL has none, so any shard may write it."""

    columns: tuple[str, ...]
    spreads_nulls: bool = False

    def hashes(self, rows: pa.RecordBatch, hasher: KeyHash) -> npt.NDArray[np.uint64]:
        """Return the hashes (uint64[n]) that decide on the shard of n rows with ORDER_COLUMNS."""
        columns = [rows.column(name) for name in self.columns]
        hashes = hasher(columns)
        if not self.spreads_nulls or not columns[0].null_count:
            return hashes
        spread = spread_hash(*(rows.column(name).to_numpy() for name in (ARRIVED_PARTITION, ARRIVED_OFFSET)))
        return np.where(columns[0].is_null().to_numpy(zero_copy_only=False), spread, hashes)


class RowLimit(Protocol):
    """How large a row may be for a target. Follows from the job and the plan alone, so that every attempt and every
    replay finds the same rows too large. A limit that only the brokers' answers show is stored with the rows, where a
    replay finds it."""

    @property
    def words(self) -> str:
        """The target and its limit."""
        ...

    def at_most(self, sizes: Mapping[str, int]) -> RowLimit:
        """Return this limit, or the lower one that the plan has for the output's name."""
        ...

    def rejected_above(self, sizes: Mapping[str, int]) -> RowLimit:
        """Return this limit, or the lower one that brokers have shown for the output's name."""
        ...

    def excess(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        """Return the sizes of the rows that are too large, 0 for the others; None if all rows fit."""
        ...


class SinkWriter(Protocol):
    """The task half. It can be pickled; one task uses it at a time."""

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        """Stage or send all rows of the attempt and return when they are safe. Raises SinkError, or Superseded if
        another attempt at the same shard took over: the task then has to be retried. Raises RecordTooLarge with a
        `row_limit` if the rows over it have to be left out, and WrittenWithOtherLimit if the rows of another attempt
        are safe, and are not those of this one."""
        ...


class Sink(Protocol):
    """The driver half."""

    def prepare(self, schema: pa.Schema) -> str | None:
        """Create or check the target. Returns what it created, in words, or None if the target existed. Raises
        SinkError naming what does not fit."""
        ...

    def writer(self) -> SinkWriter: ...

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Run inside the state commit. `connection` is the store's (psycopg for Postgres, None for memory)."""
        ...

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Make the rows of these receipts visible. Called after the commit, and again at recovery for the last
        committed epoch: must be idempotent."""
        ...

    def recover(self, recovery: RecoveryContext) -> bool:
        """Sweep what attempts of older generations wrote and no commit named. Once this returns, none of them can make
        anything visible. Called before anything is planned or replayed.

        Returns whether rows of the pending epoch are visible: its plan then has to be replayed unchanged."""
        ...

    def other_store(self) -> StoreIdentity | None:
        """Return the store of another job of the same name that has started to write to this target since `recover`, if
        the target shows such a job."""
        ...

    def unavailability(self) -> Unavailable | None:
        """Return what the tasks and the driver need for writing and cannot reach right now; None also if the sink
        cannot tell. Called while they wait, from another thread than the other methods."""
        ...

    def close(self) -> None: ...


class BufferedSink(ABC):
    """The part of a sink that may keep committed rows invisible, for fewer and larger files. Only a subclass is one:
    the driver asks by `isinstance`."""

    @property
    @abstractmethod
    def buffered_rows(self) -> int:
        """The number of committed rows that are not visible yet."""

    @abstractmethod
    def due(self, *, last: bool) -> bool:
        """Say whether buffered rows are due to become visible; with `last`, any buffered rows are. The next commit
        publishes them, if need be that of an epoch without rows."""

    @abstractmethod
    def seal(self, generation: int, epoch: int, receipts: Sequence[Receipt], *, last: bool) -> Sequence[Receipt]:
        """Return receipts of buffered rows that the commit names as well. Called right before an epoch's commit."""


class NamesNoStore:
    """The trivial part of `Sink`, where nothing in the target says which store the job that writes to it has, and a
    waiting call soon raises."""

    def other_store(self) -> StoreIdentity | None:
        return None

    def unavailability(self) -> Unavailable | None:
        return None


DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("input", pa.string()),
        # The path, if the input is a file. Topic, partition and offset are null for the row of an aggregate.
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),  # bytes in a file of lines, the row's number in Parquet
        pa.field("reason", pa.string()),
        pa.field("value", pa.binary()),  # the original record (base64 in JSON); null if it had no value
        pa.field("text", pa.string()),  # the same for people; null if it is not UTF-8, or longer than LONGEST_TEXT
    ]
)
LONGEST_TEXT = 65_536  # bytes: together with the value, a longer text could make the record too large for its topic


def dead_letter_rows(
    *,
    input_name: str,
    topic: str | None,
    partition: int | None,
    offsets: Sequence[int | None],
    reasons: Sequence[str],
    values: pa.BinaryArray,
) -> pa.RecordBatch:
    """Make rows of `DEAD_LETTER_SCHEMA` for records of one partition. `offsets`, `reasons` and `values` correspond.
    Without topic, partition and offsets, they are rows of an aggregate."""
    count = len(offsets)
    columns = [
        pa.repeat(pa.scalar(input_name, pa.string()), count),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(reasons, pa.string()),
        values,
        pa.array(map(_decode_text, values.to_pylist()), pa.string()),
    ]
    return pa.record_batch(columns, schema=DEAD_LETTER_SCHEMA)


def _decode_text(value: bytes | None) -> str | None:
    if value is None or len(value) > LONGEST_TEXT:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
