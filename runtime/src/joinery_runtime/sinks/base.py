"""The port between the engine and where rows go.

A sink has a driver half (`Sink`) and a task half (`SinkWriter`). A writer stages or sends the rows of one attempt of
one shard; its *receipt* travels to the driver in the task's result. The driver then makes exactly the named receipts
visible: inside the commit's transaction (`in_transaction`), or right after it and again at recovery (`publish`, which
must be idempotent). A receipt that is never named stays invisible and is swept by a later `recover`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

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


class SinkWriter(Protocol):
    """Task half. Must be picklable before `open`; used by one task at a time."""

    def write(self, attempt: AttemptId, rows: pa.Table) -> Receipt:
        """Stages or sends all rows of the attempt and returns when they are safe. Raises SinkError."""
        ...


class Sink(Protocol):
    """Driver half."""

    def prepare(self, schema: pa.Schema) -> None:
        """Creates or checks the target. Raises SinkError naming what does not fit."""
        ...

    def writer(self) -> SinkWriter: ...

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Runs inside the state commit; `connection` is the store's (psycopg for Postgres, None for memory)."""
        ...

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """After the commit, and again at recovery for the last committed epoch: idempotent."""
        ...

    def recover(self, generation: int, committed_epoch: int) -> None:
        """Sweeps what attempts of older generations left behind and was never named by a commit."""
        ...

    def close(self) -> None: ...
