"""Rows in the defined order, as they are written to a topic, against Python's own sort."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.connectors.kafka.ordered_rows import OrderedRows
from joinery_runtime.connectors.sink import RowRouting
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS, RETRACTIONS_FIRST
from joinery_runtime.core.table.keyhash import key_hash

Place = tuple[int, ...]
PLACES = st.tuples(*[st.integers(-2, 2)] * len(ORDER_COLUMNS))


@dataclass
class Batches:
    batches: list[pa.RecordBatch]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)


def batch_of(order_values: list[Place], first: int = 0) -> pa.RecordBatch:
    """Rows with these values of ORDER_COLUMNS, numbered from `first`."""
    keys, numbers = [0] * len(order_values), range(first, first + len(order_values))
    rows = {"key": pa.array(keys, pa.int64()), "row": pa.array(numbers, pa.int64())}
    columns = zip(*order_values, strict=True) if order_values else [[]] * len(ORDER_COLUMNS)
    return pa.record_batch(
        {**rows, **{n: pa.array(c, pa.int64()) for n, c in zip(ORDER_COLUMNS, columns, strict=True)}}
    )


@given(
    cuts=st.lists(st.lists(PLACES, max_size=9), min_size=1, max_size=6),
    order=st.sampled_from([ORDER_COLUMNS, RETRACTIONS_FIRST]),
    sort_bytes=st.sampled_from([0, 600, 1 << 20]),
)
def test_rows_in_memory_and_put_aside_are_in_one_order(
    cuts: list[list[Place]], order: tuple[str, ...], sort_bytes: int
) -> None:
    order_values = [values for cut in cuts for values in cut]
    firsts = [sum(map(len, cuts[:n])) for n in range(len(cuts))]
    batches = Batches([batch_of(cut, first) for cut, first in zip(cuts, firsts, strict=True)])
    ordered = OrderedRows(batches, order, ("key",), sort_bytes)
    indexes = [ORDER_COLUMNS.index(name) for name in order]
    expected = sorted(range(len(order_values)), key=lambda row: [order_values[row][index] for index in indexes])
    for _ in range(2):  # an attempt may read its rows again
        given_batches = list(ordered.to_batches())
        assert all(batch.schema.names == ["key", "row"] for batch in given_batches)
        rows = [row for batch in given_batches for row in batch.column("row").to_pylist()]
        if sort_bytes == 1 << 20:
            assert rows == expected
        assert [order_values[row] for row in rows] == [order_values[row] for row in expected]
        assert sorted(rows) == sorted(expected)


def test_many_rows_that_are_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """More heads of files than one each."""
    monkeypatch.setattr("joinery_runtime.connectors.kafka.ordered_rows._HEAD_ROWS", 7)
    count = 500
    order_values = [(1, 0, 0, 0, number * 37 % count, 0, 0, 0) for number in range(count)]
    batches = Batches([batch_of(order_values[first : first + 60], first) for first in range(0, count, 60)])
    rows = [
        n
        for batch in OrderedRows(batches, ORDER_COLUMNS, ("key",), 1).to_batches()
        for n in batch.column("row").to_pylist()
    ]
    assert rows == sorted(range(count), key=lambda number: number * 37 % count)


def test_rows_of_keys_that_do_not_repeat_stay_as_they_come() -> None:
    rows = batch_of([(1, 0, 0, 0, offset, 0, 0, 0) for offset in (3, 1, 2)])
    for key, expected in ([0, 1, 2**64 - 1], [0, 1, 2]), ([0, 1, 0], [1, 2, 0]):
        keyed = rows.set_column(0, "key", pa.array(key, pa.uint64()))  # ids of sessions
        (batch,) = OrderedRows(Batches([keyed]), ORDER_COLUMNS, ("key",)).to_batches()
        assert batch.column("row").to_pylist() == expected


def test_rows_of_a_key_have_one_shard_and_rows_without_a_key_any() -> None:
    rows = batch_of([(1, 0, 0, 0, offset, 0, 0, 0) for offset in range(6)])
    rows = rows.append_column("cust", pa.array(["a", None, "b", "a", None, "b"]))
    together = RowRouting(("cust",)).hashes(rows, key_hash)
    assert (together[:3] == together[3:]).all()
    assert len(set(together.tolist())) == 3
    spread = RowRouting(("cust",), spreads_nulls=True).hashes(rows, key_hash)
    assert len(set(spread.tolist())) == 4
    assert (spread[[0, 2]] == together[[0, 2]]).all()
