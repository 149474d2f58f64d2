"""The console output, for trying out a job: prints the first rows of each epoch on the driver's standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from joinery_runtime.connectors.sink import Attempt, AttemptRows, NamesNoStore, Receipt, RecoveryContext
from joinery_runtime.formats.json.encode import PLAIN, JsonStyle, rows_to_json
from joinery_runtime.job.model.wording import counted


@dataclass(frozen=True, slots=True)
class ConsoleSink(NamesNoStore):
    """Both halves of the sink. A receipt, which the epoch log keeps, holds up to `shown` rows of its attempt as JSON.
    They are printed after the epoch's commit, and may be printed again after a crash."""

    shown: int
    style: JsonStyle = PLAIN

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        lines: list[str] = []
        count = 0
        for batch in rows.to_batches():
            count += batch.num_rows
            if len(lines) < self.shown:
                first = batch.slice(0, self.shown - len(lines))
                lines += [line.decode() for line in rows_to_json(first, self.style)]
        return {"attempt": str(attempt.id), "rows": count, "lines": lines}

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        lines = [line for receipt in receipts for line in receipt["lines"]]
        shown = lines[: self.shown]
        more = sum(receipt["rows"] for receipt in receipts) - len(shown)
        if more:
            shown.append(f"... and {counted(more, 'more row')} of epoch {epoch}")
        sys.stdout.write("".join(f"{line}\n" for line in shown))
        sys.stdout.flush()

    def prepare(self, schema: pa.Schema) -> None:
        """Do nothing: there is nothing to create."""

    def writer(self) -> ConsoleSink:
        return self

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Do nothing: rows are printed after the commit."""

    def recover(self, recovery: RecoveryContext) -> bool:
        """Return False: no row of the pending epoch has been printed."""
        return False

    def close(self) -> None:
        """Do nothing: nothing is open."""
