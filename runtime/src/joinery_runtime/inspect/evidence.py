"""What `why`, `verify` and `shadow` judge by: what a replayed epoch yielded, read from its tables in one place.

A row of an epoch is a line of JSON, because outputs are; equal rows are counted. ORDER_COLUMNS beside the rows say in
which order they are defined, and which records each is made of.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from joinery_runtime.core.compile.jobs import RowSelection
from joinery_runtime.core.pipeline.step import CLOSING, FIRST_TIME, LAST_TIME, ORDER_COLUMNS, PARTNER, PHASE
from joinery_runtime.core.table.columns import split_partition
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.json.encode import PLAIN, JsonStyle, rows_to_json
from joinery_runtime.inspect.trace_environment import sorted_json_rows
from joinery_runtime.job.model.wording import counted
from joinery_runtime.state.store import EpochRecord

Lines = Counter[bytes]
"""Lines of JSON, with how often each occurs."""

ORIGIN_COLUMNS = ["$order_side", "$order_partition", "$order_offset", "$partner_partition", "$partner_offset"]
"""Those of ORDER_COLUMNS that make a `RowOrigin`."""


class RowOrigin(NamedTuple):
    """The records that an output row is made of: the one that arrived last, by its side, PARTITION and offset, and its
    partner, which sessions do not have."""

    side: int
    partition: int
    offset: int
    partner_partition: int
    partner_offset: int

    def text(self, sides: Sequence[str]) -> str:
        """Name the records. `sides` are names of inputs."""
        last = f"{sides[self.side]} {split_partition(self.partition)[1]}/{self.offset}"
        if len(sides) == 1 or self.partner_offset < 0:
            return last
        return f"{last} with {sides[1 - self.side]} {split_partition(self.partner_partition)[1]}/{self.partner_offset}"


@dataclass(frozen=True, slots=True)
class ReplayedEpoch:
    """What a replayed epoch yielded: its output `rows` with ORDER_COLUMNS, its dead letters (`dead`), and the `result`
    document, computed again, that the epoch log has of it."""

    plan: EpochPlan
    rows: Sequence[pa.Table]
    dead: Sequence[pa.Table]
    result: Mapping[str, Any]
    behind: Mapping[str, int]
    """Per input with late rows, how far the latest of them was behind its watermark (ms)."""

    @property
    def late(self) -> dict[str, int]:
        return {name: counts["late"] for name, counts in self.result["dropped"].items() if counts.get("late")}

    @property
    def read(self) -> Counter[str]:
        """How many records were read of each input."""
        records: Counter[str] = Counter()
        for partition_name, count in self.result["rows_in"].items():
            records[partition_name.partition(":")[0]] += count
        return records

    def select(self, selection: RowSelection) -> ReplayedEpoch:
        """Return the epoch with the rows and columns that one of several outputs has."""
        return replace(self, rows=[selection.select(table, ordered=True) for table in self.rows])

    @property
    def epoch(self) -> int:
        return self.plan.epoch

    @property
    def drop_counts(self) -> Counter[tuple[str, str]]:
        """How many records were dropped, by input and reason (rule T10)."""
        return Counter(
            {(name, reason): n for name, counts in self.result["dropped"].items() for reason, n in counts.items()}
        )

    def output_lines(self, columns: Sequence[str] | None = None, style: JsonStyle = PLAIN) -> Lines:
        """Write the output rows, with these columns (None: all)."""
        return json_lines([_user_columns(table, columns) for table in self.rows], style)

    def dead_letter_lines(self) -> Lines:
        return json_lines(self.dead)

    def origins(
        self, sides: Sequence[str], columns: Sequence[str] | None = None, style: JsonStyle = PLAIN
    ) -> dict[bytes, str]:
        """Name the records that make each output row, by row. `sides` are names of inputs."""
        origins = {}
        for table in self.rows:
            lines = rows_to_json(_user_columns(table, columns), style)
            for line, row in zip(lines, table.select(ORIGIN_COLUMNS).to_pylist(), strict=True):
                origins[_one_spelling(line)] = RowOrigin(*row.values()).text(sides)
        return origins

    def unmatched_rows(self, rules: tuple[str, str]) -> dict[str, str]:
        """Find the rows that are emitted because they have no partner, each with the rule of its phase."""
        closing, arriving = rules
        rules_by_row = dict[str, str]()
        for table in self.rows:
            phases, partners = (table[name].to_pylist() for name in (PHASE, PARTNER))
            for line, phase, partner in zip(rows_to_json(_user_columns(table)), phases, partners, strict=True):
                if partner == -1:
                    rules_by_row[_one_spelling(line).decode()] = closing if phase == CLOSING else arriving
        return rules_by_row

    def rows_with(self, side: int, partition: int, offset: int) -> Counter[str]:
        """Find the joined rows that a record of a side is part of. `partition` is the record's PARTITION."""

        def made_of(order: Mapping[str, np.ndarray]) -> np.ndarray:
            last = (order["$order_partition"] == partition) & (order["$order_offset"] == offset)
            partner = (order["$partner_partition"] == partition) & (order[PARTNER] == offset)
            return np.asarray(np.where(order["$order_side"] == side, last, partner))

        return self._rows_where(made_of)

    def sessions_around(self, ts: int) -> Counter[str]:
        """Find the sessions that an event time is in, without those that are taken back."""

        def covers_time(order: Mapping[str, np.ndarray]) -> np.ndarray:
            is_new = order["$partner_partition"] == 1  # a retraction takes back what was there before
            return np.asarray(is_new & (order[FIRST_TIME] <= ts) & (ts <= order[LAST_TIME]))

        return self._rows_where(covers_time)

    def _rows_where(self, chosen: Callable[[Mapping[str, np.ndarray]], np.ndarray]) -> Counter[str]:
        tables = [
            table.filter(pa.array(chosen({name: table[name].to_numpy() for name in ORDER_COLUMNS})))
            for table in self.rows
        ]
        return in_order([table for table in tables if table.num_rows])


def json_lines(tables: Iterable[pa.Table], style: JsonStyle = PLAIN) -> Lines:
    """Write all columns of the rows."""
    return Counter(line for table in tables for line in rows_to_json(table, style))


def in_order(tables: Sequence[pa.Table]) -> Counter[str]:
    """Write output rows in one spelling of JSON, in their defined order."""
    return Counter(map(json.dumps, sorted_json_rows(tables)))


def _user_columns(table: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
    return table.drop_columns(list(ORDER_COLUMNS)) if columns is None else table.select(list(columns))


def _one_spelling(line: bytes) -> bytes:
    """Write a row so that equal rows are equal bytes."""
    return json.dumps(json.loads(line)).encode()


# --- an epoch against its entry in the log ----------------------------------------------------------------------------


def wrong_counts(entry: EpochRecord, replayed: ReplayedEpoch) -> list[str]:
    """Return the counts in which the log and the replayed epoch differ, in words."""
    return [
        f"epoch {entry.epoch}: the log has {name} {entry.result[name]}, computed were {replayed.result[name]}"
        for name in ("rows_out", "dropped", "dead", "lost")
        if name in entry.result and entry.result[name] != replayed.result[name]
    ]


def check_records(entry: EpochRecord, available: Mapping[str, int]) -> None:
    """Raise JoineryError, naming the partition, unless the inputs still have all records that the epoch read.
    `available` counts records by partition, named as in `rows_in` of the log."""
    for partition_name, count in entry.result["rows_in"].items():
        if available.get(partition_name, 0) != count:
            raise JoineryError(
                f"Epoch {entry.epoch} cannot be computed again",
                facts=f"it read {counted(count, 'record')} of {partition_name}, of which "
                f"{available.get(partition_name, 0)} are there: retention or compaction has deleted them, or the file "
                "was changed",
                todo="Keep topics for as long as their epochs are to be explained (retention.ms)",
            )
