"""Computes what the rules demand of a run that read these records in these epochs: semantics.md in SQL, run by DuckDB.

Why one join is enough: rows are processed by (epoch, left before right), and the watermarks of plans never go back. So
the watermarks of the later row's epoch alone decide whether the earlier row of a pair was still kept (J3) when the
later one arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from joinery_devkit.topics import Record, readable
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import Input, Job, Reference, StreamJoin

Log = Sequence[Mapping[str, Any]]  # entries as `joinery state epochs` prints them
Values = tuple[Any, ...]
Place = tuple[str, int, int]  # topic, partition, offset

_COLUMN_TYPES = {
    "boolean": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.int64(),
}


@dataclass(frozen=True, slots=True)
class ReadableRecord:
    """A readable record; `ts` is its event time in milliseconds."""

    epoch: int
    topic: str
    partition: int
    ts: int
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """What the epochs read. `rows` are the readable records that were read, per input; `dead` are the places of the
    unreadable ones that were read, `unusable` those of all unreadable ones. `unread` counts records in no epoch."""

    rows: Mapping[str, Sequence[ReadableRecord]]
    dead: frozenset[Place]
    unusable: frozenset[Place]
    unread: int


def read(records: Mapping[str, Iterable[Record]], log: Log, job: Job) -> Reading:
    """Decode every record and assign it to its epoch."""
    epochs = {
        (name, topic, partition, offset): entry["epoch"]
        for entry in log
        for name, topic, partition, start, end in entry["plan"]["ranges"]
        for offset in range(start, end)
    }
    rows: dict[str, list[ReadableRecord]] = {side.name: [] for side in job.inputs}
    dead: set[Place] = set()
    unusable: set[Place] = set()
    unread = 0
    for side in job.inputs:
        for record in records[side.name]:
            position = (record.topic, record.partition, record.offset)
            epoch, columns = epochs.get((side.name, *position)), readable(side, record.value)
            unread += epoch is None
            if columns is None:
                unusable.add(position)
                if epoch is not None:
                    dead.add(position)
            elif epoch is not None:
                rows[side.name].append(
                    ReadableRecord(epoch, record.topic, record.partition, columns[side.event_time], columns)
                )
    return Reading(rows, frozenset(dead), frozenset(unusable), unread)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a run must give: `rows` with values in the order of the output columns, the number of `pairs` by epoch, and
    of `dropped` rows by epoch, input and reason."""

    rows: Sequence[Values]
    pairs: Mapping[int, int]
    dropped: Mapping[int, Mapping[str, Mapping[str, int]]]


def expect(reading: Reading, log: Log, job: StreamJoin) -> Expectation:
    """Return the joined rows that must have been emitted, and count of the rows that must have been dropped. Raises
    JoineryError for a job other than one inner interval join with keys."""
    join = _Join(job)
    with duckdb.connect(config={"threads": 2}) as db:
        _load_tables(db, reading, log, join)
        for side in join.inputs:
            db.execute(_judged_sql(join, side))
        joined_rows = db.execute(_pairs_sql(join)).fetchall()
        dropped: dict[int, dict[str, dict[str, int]]] = {}
        for side in job.spec.inputs:
            table = _quote_name(side.name)
            drops = f"""SELECT "$epoch", "$drop", count(*) FROM {table} WHERE "$drop" IS NOT NULL GROUP BY ALL"""
            for epoch, reason, count in db.execute(drops).fetchall():
                dropped.setdefault(epoch, {}).setdefault(side.name, {})[reason] = count
    pairs = Counter(epoch for epoch, *_ in joined_rows)
    return Expectation([tuple(row) for _, *row in joined_rows], pairs, dropped)


class _Join:
    """A job of one inner interval join."""

    def __init__(self, job: StreamJoin) -> None:
        self.inputs, (self.step, *more) = job.spec.inputs, job.joins
        interval = self.step.interval
        if more or interval is None or self.step.type != "inner" or not self.step.keys:
            raise JoineryError(
                f"job {job.name} cannot be judged in SQL", facts="it is not one inner interval join with keys"
            )
        self.interval, self.keys = interval, job.keys_of(self.step)
        self.columns: list[Reference] = []
        for column in job.output_columns:
            if column.source is None:
                raise JoineryError(
                    f"output column {column.name} cannot be judged in SQL", facts="it is no column of an input"
                )
            self.columns.append(column.source)

    @property
    def left(self) -> Input:
        return self.inputs[0]

    @property
    def right(self) -> Input:
        return self.inputs[1]


def _load_tables(db: duckdb.DuckDBPyConnection, reading: Reading, log: Log, join: _Join) -> None:
    for side in join.inputs:
        rows = reading.rows[side.name]
        columns = {
            name: pa.array([row.columns[name] for row in rows], _COLUMN_TYPES[kind.name])
            for name, kind in side.types.items()
        }
        columns["$epoch"] = pa.array([row.epoch for row in rows], pa.int64())
        columns["$ts"] = pa.array([row.ts for row in rows], pa.int64())
        _register_table(db, f"read {side.name}", pa.table(columns))
    watermarks = [entry["plan"]["watermarks"] for entry in log]
    plans = {
        "$epoch": pa.array([entry["epoch"] for entry in log], pa.int64()),
        "left_wm": pa.array([input_watermarks[join.left.name] for input_watermarks in watermarks], pa.int64()),
        "right_wm": pa.array([input_watermarks[join.right.name] for input_watermarks in watermarks], pa.int64()),
    }
    _register_table(db, "$plans", pa.table(plans))


def _register_table(db: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    db.register("arriving", table)
    db.execute(f"CREATE TABLE {_quote_name(name)} AS SELECT * FROM arriving")
    db.unregister("arriving")


def _judged_sql(join: _Join, side: Input) -> str:
    """Return SQL for the rows of one input, each with the reason why it is dropped (J4, J6), or NULL."""
    index = join.inputs.index(side)
    keys = [(pair.left, pair.right)[index].column for pair in join.keys]
    null_key = " OR ".join(f"{_quoted_column(side.name, key)} IS NULL" for key in keys)
    reach = max(join.interval.upper, -join.interval.lower) + join.step.allowed_lateness
    late = f'left_wm IS NOT NULL AND right_wm IS NOT NULL AND "$ts" + {reach} < least(left_wm, right_wm)'
    return f"""
        CREATE TABLE {_quote_name(side.name)} AS
        SELECT {_quote_name(side.name)}.*, CASE
            WHEN {null_key} THEN 'null_key'
            WHEN ({_own_predicate(join, side)}) IS NOT TRUE THEN 'filtered'
            WHEN {join.step.late_data != "reopen"} AND {late} THEN 'late'
        END AS "$drop"
        FROM {_quote_name(f"read {side.name}")} AS {_quote_name(side.name)} JOIN "$plans" USING ("$epoch")"""


def _own_predicate(join: _Join, side: Input) -> str:
    """Return the conjuncts of `where` that this input alone decides (J4)."""
    if join.step.where is None:
        return "TRUE"
    condition = sqlglot.parse_one(join.step.where, dialect="duckdb")
    parts = condition.flatten() if isinstance(condition, exp.And) else iter([condition])
    own = [part for part in parts if {column.table for column in part.find_all(exp.Column)} == {side.name}]
    return " AND ".join(f"({part.sql(dialect='duckdb')})" for part in own) or "TRUE"


def _pairs_sql(join: _Join) -> str:
    """Return SQL for every pair (J1) of accepted rows whose earlier row was still kept (J3) when the later one arrived
    (J2), with the epoch of the later row and the output columns."""
    left, right = _quote_name(join.left.name), _quote_name(join.right.name)
    lower, upper, lateness = join.interval.lower, join.interval.upper, join.step.allowed_lateness
    columns = ", ".join(_quoted_column(ref.input, ref.column) for ref in join.columns)
    keys = " AND ".join(
        f"{left}.{_quote_name(k.left.column)} = {right}.{_quote_name(k.right.column)}" for k in join.keys
    )
    return f"""
        SELECT "$plans"."$epoch", {columns}
        FROM {left} JOIN {right} ON {keys} AND {right}."$ts" - {left}."$ts" BETWEEN {lower} AND {upper}
        JOIN "$plans" ON "$plans"."$epoch" = greatest({left}."$epoch", {right}."$epoch")
        WHERE {left}."$drop" IS NULL AND {right}."$drop" IS NULL AND ({join.step.where or "TRUE"}) IS TRUE
        AND CASE
            WHEN {right}."$epoch" >= {left}."$epoch"
            THEN right_wm IS NULL OR NOT right_wm > {left}."$ts" + {upper} + {lateness}
            ELSE left_wm IS NULL OR NOT left_wm > {right}."$ts" - ({lower}) + {lateness}
        END"""


def _quoted_column(input_name: str, column: str) -> str:
    return f"{_quote_name(input_name)}.{_quote_name(column)}"


def _quote_name(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
