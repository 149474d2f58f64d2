"""The port between the engine and where rows go.

A sink has a driver half (`Sink`) and a task half (`SinkWriter`). A writer stages or sends the rows of one attempt of
one shard; its *receipt* travels to the driver in the task's result. The driver then makes exactly the named receipts
visible: inside the commit's transaction (`in_transaction`), or right after it and again at recovery (`publish`, which
must be idempotent). A receipt that is never named stays invisible and is swept by a later `recover`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from joinery_runtime.store_identity import StoreIdentity

Receipt = Mapping[str, Any]  # JSON-able; kept in the epoch log


@dataclass(frozen=True, slots=True)
class AttemptId:
    """Names one attempt of one shard's work, uniquely for ever: later attempts and drivers never reuse it."""

    generation: int
    epoch: int
    shard: int
    attempt: str  # unique per task attempt; letters, digits and dashes

    def __str__(self) -> str:
        return f"{self.generation}-{self.epoch}-{self.shard}-{self.attempt}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt as its writer sees it. `lineage` names the job's life in its state store: what another store's job
    of the same name left in the target is not this one's.

    A writer whose rows are visible before the commit claims its part of the epoch first: `claim(name, owner,
    instead_of)` returns None if it is the first one to, else whose it is now, see `StateStore.claim`; raises Fenced
    unless the attempt's generation and plan are the store's newest. `reach` names points of the work for fault
    injection; it does nothing otherwise. `former_names`: the epoch was planned by an earlier release, which may go on
    with it again, so its parts have the names that such a release gives them (docs/decisions/0026).
    """

    id: AttemptId
    lineage: str
    claim: Callable[[str, str, str | None], str | None]
    reach: Callable[[str], None]
    former_names: bool = False


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a driver finds when it takes a job over; attempts of older generations may still be running. What they may
    make visible, they have claimed."""

    generation: int
    committed_epoch: int
    store: StoreIdentity  # of the job
    lineage: str = ""
    claims: Mapping[str, str] = field(default_factory=dict)  # owners by name; "": fenced already
    shards: int = 0  # of the newest committed epoch
    pending: int | None = None  # the epoch whose plan is about to be replayed
    pending_shards: int = 0
    pending_for_ms: int = 0  # since its plan was stored
    warn: Callable[[str], None] = lambda _: None  # of what a person has to look at


def life_of(lineage: str) -> str:
    """A lineage as names of files, markers and claims have it: 12 hexadecimal digits (docs/decisions/0026)."""
    return lineage.replace("-", "")[:12]


class AttemptRows(Protocol):
    """All rows of an attempt: at least one. Tables are such; those of a step are made while they are read."""

    def to_batches(self) -> Iterable[pa.RecordBatch]:
        """Batches of one schema, each small enough to be held in memory in several forms: all of them together are not.
        May be called again, and gives the same rows."""
        ...


class SinkWriter(Protocol):
    """Task half. Pickles; used by one task at a time."""

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        """Stages or sends all rows of the attempt and returns when they are safe. Raises SinkError, and Superseded
        when another attempt of the same shard took over: then the task is to be tried again."""
        ...


class Sink(Protocol):
    """Driver half."""

    def prepare(self, schema: pa.Schema) -> str | None:
        """Creates or checks the target. What it has created, in words; None: it was there. Raises SinkError naming what
        does not fit."""
        ...

    def writer(self) -> SinkWriter: ...

    @property
    def held(self) -> int:
        """Rows of committed epochs that are not visible yet, so that there are fewer and larger files."""
        ...

    def due(self, *, last: bool) -> bool:
        """Whether rows are held that are to become visible now, with `last` at once. The next commit sees to it, that
        of an epoch without rows if there is no other one."""
        ...

    def seal(self, generation: int, epoch: int, receipts: Sequence[Receipt], *, last: bool) -> Sequence[Receipt]:
        """Right before the commit of an epoch: receipts that it names besides, of rows that were held."""
        ...

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Runs inside the state commit; `connection` is the store's (psycopg for Postgres, None for memory)."""
        ...

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """After the commit, and again at recovery for the last committed epoch: idempotent."""
        ...

    def recover(self, takeover: Takeover) -> bool:
        """Before anything is planned or replayed: sweeps what attempts of older generations left behind and was never
        named by a commit, and sees to it that none of them makes anything visible after this returns.

        Returns whether rows of the pending epoch are visible, so that its plan has to be replayed as it stands."""
        ...

    def other_store(self) -> StoreIdentity | None:
        """The store of a job of the same name that has begun to write to the same target since `recover`, if such a
        job can be noticed there."""
        ...

    def close(self) -> None: ...


class HoldsNoRows:
    """The part of `Sink` that is trivial where an epoch's rows are visible with it."""

    @property
    def held(self) -> int:
        return 0

    def due(self, *, last: bool) -> bool:
        return False

    def seal(self, generation: int, epoch: int, receipts: Sequence[Receipt], *, last: bool) -> Sequence[Receipt]:
        return ()


class HasNoJobMarker(HoldsNoRows):
    """The part of `Sink` that is trivial where nothing says which job writes to a target."""

    def other_store(self) -> StoreIdentity | None:
        return None
