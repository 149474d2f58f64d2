"""Compares a topic or a table with everything that the epochs have emitted. Both become counts per row in DuckDB, which
spills to disk if they do not fit in memory. Only rows whose counts differ are looked at one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from joinery_runtime.connectors.content import SEPARATOR, Content
from joinery_runtime.core.kinds.grouping import with_one_zero
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.inspect.evidence import ORIGIN_COLUMNS, RowOrigin
from joinery_runtime.inspect.row_differences import Difference, DifferenceKind, RowComparison, most_like
from joinery_runtime.job.model.wording import counted

_MEMORY = "512MB"
_PAIRED = 1000  # rows of each side that are searched for pairs that differ only in some columns
_PIECE = 10_000  # rows
_EPOCH = 1 << 32  # numbers count rows within an epoch
_ORIGIN = ("side", "part", "offset", "partner_part", "partner_offset")

_TABLES = """
CREATE TABLE expected (text BLOB, key BLOB, epoch BIGINT, number BIGINT, required BOOLEAN, retracted BOOLEAN,
    side BIGINT, part BIGINT, "offset" BIGINT, partner_part BIGINT, partner_offset BIGINT);
CREATE TABLE present (text BLOB, location VARCHAR, number BIGINT, is_own BOOLEAN);
"""
# For each key, the last row of its newest epoch. If several have no order between them, one that is present.
_NEWEST = """
CREATE TABLE newest AS SELECT expected.* FROM expected
JOIN (SELECT key, max(number) AS number FROM expected GROUP BY key) AS last
    ON expected.key = last.key AND expected.number = last.number
WHERE NOT retracted
QUALIFY row_number() OVER (PARTITION BY expected.key
    ORDER BY (hash(text) IN (SELECT hash(text) FROM present)) DESC) = 1;
DROP TABLE expected;
ALTER TABLE newest RENAME TO expected;
"""
# `required` and `optional` count how often the epochs have emitted a row, `present` how often it is there, and `own`
# how often in places that nobody else writes to; `twin` is the first epoch that has emitted it.
_COUNTS = """
CREATE OR REPLACE TABLE differing AS SELECT * FROM (
    SELECT hash, sum(required) AS required, sum(optional) AS optional, sum(present) AS present, sum(is_own) AS own,
        min(epoch) AS twin
    FROM (
        SELECT hash(text) AS hash, required::INT AS required, (NOT required)::INT AS optional, 0 AS present,
            0 AS is_own, epoch
        FROM expected
        UNION ALL SELECT hash(text), 0, 0, 1, is_own::INT, NULL FROM present
    ) GROUP BY hash
) WHERE required > present OR present > required + optional
"""
_MISSING = """
CREATE TABLE missing AS SELECT * EXCLUDE (nth, hash, present) FROM (
    SELECT expected.*, differing.hash, differing.present,
        row_number() OVER (PARTITION BY differing.hash ORDER BY expected.number) AS nth
    FROM expected JOIN differing ON hash(text) = differing.hash WHERE expected.required
) WHERE nth > present
"""
# Rows that are there more often than the epochs have emitted them, whoever wrote them again.
_EXTRA = """
CREATE TABLE extra AS SELECT text, location, number, twin FROM (
    SELECT written.*, differing.required + differing.optional AS allowed,
        differing.twin,
        row_number() OVER (
            PARTITION BY differing.hash ORDER BY written.is_own DESC, written.number, written.location
        ) AS nth
    FROM present AS written JOIN differing ON hash(written.text) = differing.hash
    WHERE written.is_own OR differing.twin IS NOT NULL
) WHERE nth > allowed
"""


@dataclass(slots=True)
class OutputDiff:
    """The comparison of one output. `name` is the output's name in differences. `folder` is an empty directory that has
    room for as many bytes as the output. `sides` are names of inputs, for the places of rows. `in_order`: the
    rows of a key are in their order in the tables of an epoch (those of sessions); otherwise ORDER_COLUMNS say it."""

    name: str
    content: Content
    folder: Path
    sides: Sequence[str]
    in_order: bool = False
    notes: list[str] = field(default_factory=list)
    cut_off: str = field(init=False, default="")
    """If none of the rows that `compare` was asked for need still be there, the reason why."""
    _db: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        settings: dict[str, Any] = {"memory_limit": _MEMORY, "temp_directory": str(self.folder / "spilt"), "threads": 2}
        self._db = duckdb.connect(str(self.folder / "rows.db"), config=settings)
        self._db.execute(_TABLES)

    def expect(self, epoch: int, tables: Sequence[pa.Table], *, any_of_key: bool = False) -> None:
        """Add rows that an epoch emits. `any_of_key`: of several rows with one key, any may have replaced the
        others, as in epochs of earlier releases."""
        if self.content.exact and epoch > self.content.complete_to:
            return
        by_rank = self.content.upsert_key and not self.in_order and not any_of_key
        ranks = _order_ranks(tables) if by_rank else None
        content, first = self.content, 0
        for table in tables:
            numbers = np.arange(table.num_rows) if self.in_order else np.zeros(table.num_rows, dtype=np.int64)
            if ranks is not None:
                numbers = ranks[first : first + table.num_rows]
                first += table.num_rows
            count, names = table.num_rows, table.schema.names
            origins = [table[name] if name in names else pa.nulls(count, pa.int64()) for name in ORIGIN_COLUMNS]
            rows = table.drop_columns([name for name in ORDER_COLUMNS if name in names])
            keys = rows_to_json(_key_columns(rows, content.upsert_key)) if content.upsert_key else [None] * count
            is_retracted = pa.repeat(pa.scalar(False), count) if content.retracted is None else rows[content.retracted]
            if content.retracted is not None:
                rows = rows.drop_columns([content.retracted])
            self._insert_rows(
                "expected",
                [
                    pa.array(content.texts(rows), pa.binary()), pa.array(keys, pa.binary()),
                    pa.repeat(pa.scalar(epoch), count), pa.array(epoch * _EPOCH + numbers, pa.int64()),
                    pa.repeat(pa.scalar(epoch <= content.complete_to), count), is_retracted, *origins,
                ],
            )  # fmt: skip

    def _insert_rows(self, name: str, columns: Sequence[Any]) -> None:
        self._db.register("piece", pa.table(list(columns), [f"c{number}" for number in range(len(columns))]))
        self._db.execute(f"INSERT INTO {name} SELECT * FROM piece")
        self._db.unregister("piece")

    def compare(
        self,
        into: RowComparison,
        first: int,
        last: int,
        *,
        only_incarnation: bool = True,
        may_repeat: bool = False,
        since: int | None = None,
    ) -> int:
        """Read the output, and add its differences in epochs `first` to `last`; return how many rows these epochs
        should have. Without `only_incarnation`, the output may also have rows of an earlier incarnation; with `since`,
        also rows of epochs before that one. `may_repeat`: rows may be there more often than they should."""
        for piece in self.content.pieces():
            is_own = pa.repeat(pa.scalar(piece.is_own and only_incarnation), len(piece.texts))
            texts = pa.array(piece.texts, pa.binary())
            self._insert_rows(
                "present", [texts, pa.array(piece.locations), pa.array(piece.numbers, pa.int64()), is_own]
            )
        self.notes += [f"{self.name}: {note}" for note in self.content.notes]
        self._stop_expecting_deleted_rows()
        if self.content.upsert_key:
            self._db.execute(_NEWEST)
        self._db.execute(_COUNTS)
        if self._query_number("SELECT count(*) FROM differing WHERE required > present"):
            # Another program may have written the same row with different white space.
            self._normalize_spelling()
            self._db.execute(_COUNTS)
        # Whether epochs, computed ones or earlier ones, emitted rows that are equal in all columns.
        equal = "SELECT count(*) FROM (SELECT 1 FROM expected GROUP BY hash(text) HAVING count(*) > 1 LIMIT 1)"
        equal_earlier = "SELECT count(*) FROM differing WHERE twin IS NULL AND present > 1"
        if since is not None and (self._query_number(equal) or self._query_number(equal_earlier)):
            self._ignore_surplus_equal_rows(since)
        self._exclude_foreign_rows(may_repeat=may_repeat)
        self._db.execute(_MISSING)
        self._db.execute(_EXTRA)
        self._report_differences(into, first, last)
        requested_rows = f"FROM expected WHERE epoch BETWEEN {first} AND {last}"
        required = self._query_number(f"SELECT count(*) {requested_rows} AND required")
        if not required and self.content.heads and (rows := self._query_number(f"SELECT count(*) {requested_rows}")):
            reason = "as the topic has lost its beginning"
            self.cut_off = f"{self.name}: none of {rows:,} rows has to be there still, {reason}"
        return required

    def _query_number(self, query: str, *values: Any) -> int:
        return int(self._db.execute(query, values).fetchone()[0] or 0)

    def _stop_expecting_deleted_rows(self) -> None:
        """Stop expecting rows that retention has deleted. Rows of a partition are in the order of their epochs, so a
        partition without its beginning has all rows of the epochs after the first one that it has a row of."""
        cut_off_epoch, unplaced_partitions = 0, []
        for partition, head in sorted(self.content.heads.items()):
            epochs = (
                self._query_number("SELECT max(epoch) FROM expected WHERE hash(text) = hash(?::BLOB)", text)
                for text in head
            )
            first = next((epoch for epoch in epochs if epoch), None)
            if first is None:
                unplaced_partitions.append(partition)
            cut_off_epoch = max(cut_off_epoch, self.content.complete_to if first is None else first)
        if cut_off_epoch:
            self._db.execute("UPDATE expected SET required = FALSE WHERE epoch <= ?", [cut_off_epoch])
            partitions = ", ".join(map(str, unplaced_partitions))
            without_epoch = f" (partition {partitions}: no record is left there, or none that tells its epoch)"
            self.notes.append(
                f"{self.name}: the topic has lost its beginning{without_epoch if unplaced_partitions else ''}, so rows "
                f"up to epoch {cut_off_epoch} may be missing there"
            )

    def _normalize_spelling(self) -> None:
        """Rewrite rows whose counts differ to one spelling of JSON, in both tables."""
        self._db.execute("CREATE TABLE plain (hash UBIGINT, text BLOB)")
        rows = "SELECT hash(text) AS hash, text FROM {} WHERE hash(text) IN (SELECT hash FROM differing)"
        query = f"{rows.format('expected')} UNION {rows.format('present')}"
        with self._db.cursor() as cursor:
            cursor.execute(query)
            while piece := cursor.fetchmany(_PIECE):
                hashes, texts = zip(*piece, strict=True)
                self._insert_rows(
                    "plain", [pa.array(hashes, pa.uint64()), pa.array(map(_normalize_json, texts), pa.binary())]
                )
        for name in ("expected", "present"):
            self._db.execute(f"UPDATE {name} SET text = plain.text FROM plain WHERE hash({name}.text) = plain.hash")

    def _ignore_surplus_equal_rows(self, since: int) -> None:
        """Take rows that are there too often out of the comparison: where equal rows are usual, such a row may belong
        to an epoch that was not computed."""
        often = "twin IS NOT NULL AND present > required + optional"
        more = self._query_number(f"SELECT sum(present - required - optional) FROM differing WHERE {often}")
        self._db.execute(f"DELETE FROM differing WHERE {often}")
        if more:
            self.notes.append(
                f"{self.name}: {more:,} rows are there more often than these epochs emitted them; epochs before "
                f"{since} may have emitted equal ones, as equal rows are usual in this output"
            )

    def _exclude_foreign_rows(self, *, may_repeat: bool) -> None:
        """Count rows that are there too often and may be somebody else's, and take the harmless ones out of the
        comparison."""
        if may_repeat:
            repeated = "present > required + optional AND required + optional > 0"
            repeated_rows = self._query_number(
                f"SELECT sum(present - required - optional) FROM differing WHERE {repeated}"
            )
            self._db.execute(f"DELETE FROM differing WHERE {repeated}")
            if repeated_rows:
                rows = counted(repeated_rows, "row", "are")
                self.notes.append(f"{self.name}: {rows} there again, as delivery: atLeastOnce allows")
        repeated_rows = self._query_number(
            "SELECT sum(present - greatest(required + optional, own)) FROM differing "
            "WHERE twin IS NOT NULL AND present > greatest(required + optional, own)"
        )
        if repeated_rows:
            self.notes.append(
                f"{self.name}: {counted(repeated_rows, 'row', 'are')} there once too often, as `extra` says; another "
                "writer may have written the same, or the job in epochs that were not computed"
            )
        foreign_rows = self._query_number(
            "SELECT sum(present - own) FROM differing WHERE twin IS NULL AND present > own"
        )
        if foreign_rows:
            self.notes.append(
                f"{self.name}: {counted(foreign_rows, 'row', 'are')} there that these epochs have not emitted; another "
                "writer may have written the same, or the job in epochs that were not computed"
            )

    def _report_differences(self, into: RowComparison, first: int, last: int) -> None:
        """Report the differences. A row that is there once too often is not a changed row, so missing rows are paired
        only with rows that no epoch has emitted."""
        requested_epochs = f"BETWEEN {first} AND {last}"
        unexpected_rows = [(_row_columns(row["text"]), row) for row in self._first_rows("extra WHERE twin IS NULL")]
        pairs = different = 0
        for row in self._first_rows("missing"):
            expected, other = _row_columns(row["text"]), None
            at = most_like(expected, [shown for shown, _ in unexpected_rows])
            if at is not None:
                other, pairs = unexpected_rows.pop(at), pairs + 1
            if first <= row["epoch"] <= last:
                different += other is not None
                kind: DifferenceKind = "missing" if other is None else "different"
                actual, found_at = (None, "") if other is None else (other[0], other[1]["location"])
                origin = "" if row["side"] is None else RowOrigin(*(row[name] for name in _ORIGIN)).text(self.sides)
                into.show(Difference(row["epoch"], self.name, kind, expected, actual, origin, found_at))
        for row in self._first_rows(f"extra WHERE twin {requested_epochs}"):
            into.show(Difference(row["twin"], self.name, "extra", None, _row_columns(row["text"]), "", row["location"]))
        for shown, row in unexpected_rows:
            into.show(Difference(None, self.name, "extra", None, shown, "", row["location"]))
        missing = self._query_number(f"SELECT count(*) FROM missing WHERE epoch {requested_epochs}") - different
        extra = self._query_number(f"SELECT count(*) FROM extra WHERE twin IS NULL OR twin {requested_epochs}") - pairs
        for kind, count in (("missing", missing), ("extra", extra), ("different", different)):
            if count:
                into.counted[kind] += count

    def _first_rows(self, name: str) -> list[dict[str, Any]]:
        query = f"SELECT * FROM {name} ORDER BY number, text LIMIT {_PAIRED}"
        cursor = self._db.execute(query)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def close(self) -> None:
        self._db.close()
        self.content.close()


def _key_columns(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the key's columns, with floats as texts. In Postgres, NaN and NULL are two keys, though both are null in
    JSON, and 0.0 and -0.0 are one."""
    columns = [
        with_one_zero(column).cast(pa.string()) if pa.types.is_floating(column.type) else column
        for column in rows.select(names).columns
    ]
    return pa.table(columns, names)


def _order_ranks(tables: Sequence[pa.Table]) -> np.ndarray:
    """Return the places of these rows in the defined order (int64[n]); equal for rows with no order between them."""
    columns = [np.concatenate([table[name].to_numpy() for table in tables]) for name in ORDER_COLUMNS] if tables else []
    if not columns:
        return np.zeros(0, dtype=np.int64)
    order = np.lexsort(columns[::-1])
    differs = np.zeros(len(order), dtype=bool)
    for column in columns:
        differs[1:] |= np.diff(column[order]) != 0
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(differs)
    return ranks


def _normalize_json(text: bytes) -> bytes:
    """Return the row in one spelling of JSON; text that is not JSON stays as it is."""
    value, *key_and_headers = text.split(SEPARATOR)
    try:
        return SEPARATOR.join([json.dumps(json.loads(value), sort_keys=True).encode(), *key_and_headers])
    except ValueError:
        return text


def _row_columns(text: bytes) -> dict[str, Any]:
    """Return a row by its columns; `record` has the record's key and headers, if the job sets those."""
    value, *key_and_headers = text.split(SEPARATOR)
    try:
        row = json.loads(value)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        row = {"not JSON": value.decode(errors="replace")}
    return {**row, "record": [part.decode(errors="replace") for part in key_and_headers]} if key_and_headers else row
