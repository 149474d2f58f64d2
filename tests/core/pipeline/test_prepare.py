from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinery_runtime.core.pipeline.expression import parse_expression
from joinery_runtime.core.pipeline.operators import EVENT_TIME_MAX, EVENT_TIME_MIN
from joinery_runtime.core.pipeline.prepare import (
    DecodedRecords,
    Prepared,
    RecordChecks,
    cut_by_shard,
    prepare,
    prepare_joined,
)
from joinery_runtime.core.pipeline.sides import Intake
from joinery_runtime.core.table.keyhash import key_hash, shard_range

NAN = float("nan")
SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("ts", pa.int64()), ("v", pa.string())])


def intake(keys: tuple[str, ...] = ("k",), predicate: str | None = None) -> Intake:
    return Intake(SCHEMA, "ts", keys, ("k", "x", "v"), parse_expression(predicate) if predicate else None)


def prepared(rows: list[dict[str, Any]], *, keys: tuple[str, ...] = ("k",), predicate: str | None = None) -> Prepared:
    side = intake(keys, predicate)
    batch = pa.RecordBatch.from_pylist([{"k": 1, "x": 0.5, "ts": 100, "v": "a", **row} for row in rows], schema=SCHEMA)
    return prepare(side, DecodedRecords(batch, 3, np.arange(40, 40 + len(rows))))


def test_a_prepared_row_has_hash_time_place_and_the_stored_columns() -> None:
    rows = prepared([{"k": 7}, {"k": 8, "ts": 5}]).rows
    assert rows.schema == intake().prepared_schema()
    assert rows.schema.names == ["$hash", "$ts", "$partition", "$offset", "k", "x", "v"]
    assert rows.column("$hash").to_pylist() == key_hash([pa.array([7, 8])]).tolist()
    assert rows.select(["$ts", "$partition", "$offset"]).to_pylist() == [
        {"$ts": 100, "$partition": 3, "$offset": 40},
        {"$ts": 5, "$partition": 3, "$offset": 41},
    ]


def test_a_null_or_nan_key_is_dropped_and_counted_but_moves_time() -> None:
    result = prepared([{"k": None, "ts": 900}, {"x": NAN, "ts": -5}, {"x": None}, {}], keys=("k", "x"))
    assert result.dropped == {"null_key": 3}
    assert result.rows.column("$offset").to_pylist() == [43]
    assert (result.lowest, result.highest) == (-5, 900)


def test_nan_outside_the_key_is_a_value() -> None:
    assert prepared([{"x": NAN}]).rows.num_rows == 1


def test_the_sides_own_predicate_filters_where_it_is_not_true() -> None:
    result = prepared([{"v": "a"}, {"v": "b"}, {"v": None}, {"v": "b", "k": None}], predicate="o.v = 'a'")
    assert result.dropped == {"filtered": 2, "null_key": 1}
    assert result.rows.column("$offset").to_pylist() == [40]


def test_an_event_time_that_is_null_or_out_of_range_is_reported_and_moves_nothing() -> None:
    times = [None, EVENT_TIME_MIN - 1, EVENT_TIME_MIN, EVENT_TIME_MAX, EVENT_TIME_MAX + 1, 2**63 - 1, -(2**63)]
    result = prepared([{"ts": ts} for ts in times])
    outside = "event time 'ts' is outside the years 0001 to 9999"
    assert result.bad == {0: "event time 'ts' is null", **dict.fromkeys([1, 4, 5, 6], outside)}
    assert result.rows.column("$offset").to_pylist() == [42, 43]
    assert (result.lowest, result.highest) == (EVENT_TIME_MIN, EVENT_TIME_MAX)


def test_a_bad_time_in_a_row_that_would_be_dropped_is_still_reported() -> None:
    result = prepared([{"ts": None, "k": None}, {"k": None}])
    assert list(result.bad) == [0]
    assert result.dropped == {"null_key": 1}


def test_a_row_on_which_the_predicate_fails_is_reported_and_moves_time() -> None:
    rows = [{"ts": None}, {"v": "5"}, {"v": "x", "ts": 900}, {"v": "0"}, {"v": "y", "k": None}, {"v": "7"}]
    result = prepared(rows, predicate="CAST(o.v AS INT) > 3")
    assert {position: "CAST(o.v AS INT)" in reason for position, reason in result.bad.items()} == {
        0: False,
        2: True,
        4: True,
    }
    assert result.rows.column("$offset").to_pylist() == [41, 45]
    assert result.dropped == {"filtered": 1}
    assert result.highest == 900


@pytest.mark.parametrize("preserved", [False, True])
def test_a_row_on_which_an_expression_of_the_output_fails_is_reported_where_it_goes_on(*, preserved: bool) -> None:
    side = replace(
        intake(predicate="o.v <> 'skip'"), preserved=preserved, checked=(parse_expression("CAST(o.v AS INT) + 1"),)
    )
    batch = pa.RecordBatch.from_pylist(
        [{"k": 1, "x": 0.5, "ts": 100, "v": v} for v in ("1", "skip", "x", "3", "2147483648")], schema=SCHEMA
    )
    result = prepare(side, DecodedRecords(batch, 3, np.arange(40, 45)))
    assert list(result.bad) == ([1, 2, 4] if preserved else [2, 4])
    assert result.rows.column("$offset").to_pylist() == [40, 43]


def test_a_row_that_cannot_be_compared_is_reported_unless_it_cannot_match_at_all() -> None:
    side = replace(intake(predicate="o.v <> 'skip'"), preserved=True, compared=(parse_expression("CAST(o.v AS INT)"),))
    batch = pa.RecordBatch.from_pylist(
        [{"k": k, "x": 0.5, "ts": 100, "v": v} for k, v in ((1, "1"), (1, "skip"), (1, "x"), (None, "y"))],
        schema=SCHEMA,
    )
    result = prepare(side, DecodedRecords(batch, 3, np.arange(40, 44)))
    assert list(result.bad) == [2]
    assert result.rows.column("$offset").to_pylist() == [40, 41, 43]


def test_what_a_step_made_is_no_record_and_a_predicate_that_fails_is_not_true() -> None:
    side = intake(predicate="CAST(o.v AS INT) > 3")
    batch = pa.RecordBatch.from_pylist([{"k": 1, "ts": 100, "v": v} for v in ("5", "x")], schema=SCHEMA)
    rows = prepare_joined(side, batch, np.zeros(2, dtype=np.int64), np.arange(2))
    assert rows.column("$offset").to_pylist() == [0]


@pytest.mark.parametrize("rows", [[], [{"ts": None}], [{"k": None}]])
def test_nothing_left(rows: list[dict[str, Any]]) -> None:
    result = prepared(rows)
    assert result.rows.num_rows == 0
    assert result.rows.schema == intake().prepared_schema()
    assert cut_by_shard(result.rows, 4) == []


def test_the_event_time_may_be_a_key() -> None:
    result = prepared([{"ts": 5}], keys=("ts",))
    assert result.rows.column("$hash").to_pylist() == key_hash([pa.array([5])]).tolist()


@settings(deadline=None)
@given(keys=st.lists(st.integers(0, 50), max_size=30), shards=st.integers(1, 9))
def test_cut_by_shard_gives_every_row_to_its_owner_in_arrival_order(keys: list[int], shards: int) -> None:
    rows = prepared([{"k": key} for key in keys]).rows
    pieces = cut_by_shard(rows, shards)
    assert [shard for shard, _ in pieces] == sorted({shard for shard, _ in pieces})
    for shard, piece in pieces:
        owned = shard_range(shard, shards)
        offsets = piece.column("$offset").to_pylist()
        assert offsets == sorted(offsets)
        assert all(owned.contains(h, h) for h in piece.column("$hash").to_pylist())
    together = [row for _, piece in pieces for row in piece.to_pylist()]
    assert sorted(together, key=lambda row: row["$offset"]) == rows.to_pylist()


def test_rows_of_a_preserved_side_that_cannot_match_go_on_and_say_so() -> None:
    side = replace(intake(predicate="o.v = 'a'"), preserved=True)
    batch = pa.RecordBatch.from_pylist([{"k": 1, "ts": 1, "v": "a"}, {"ts": 2, "v": "a"}, {"k": 1, "ts": 3}], SCHEMA)
    result = prepare(side, DecodedRecords(batch, 0, np.arange(3)))
    assert result.dropped == {}
    assert result.rows.column("$joinable").to_pylist() == [True, False, False]


def test_a_tables_rows_say_which_of_them_delete() -> None:
    side = replace(intake(), table=True)
    batch = pa.RecordBatch.from_pylist([{"k": 1, "ts": 1}, {"ts": 2}, {"k": 1, "ts": 3}], SCHEMA)
    result = prepare(side, DecodedRecords(batch, 0, np.arange(3), np.array([False, True, True])))
    assert result.dropped == {"null_key": 1}
    assert result.rows.select(["$offset", "$deleted"]).to_pylist() == [
        {"$offset": 0, "$deleted": False},
        {"$offset": 2, "$deleted": True},
    ]


# --- co-partitioned inputs --------------------------------------------------------------------------------------------


def co_partitioned(rows: list[dict[str, Any]], partition: int, count: int, *, preserved: bool = False) -> Prepared:
    """Of an input whose producers put `k` into a partition by crc32."""
    side = replace(intake(), partitioner="crc32", preserved=preserved)
    batch = pa.RecordBatch.from_pylist([{"k": 1, "x": 0.5, "ts": 100, "v": "a", **row} for row in rows], schema=SCHEMA)
    return prepare(
        side, DecodedRecords(batch, partition, np.arange(40, 40 + len(rows))), RecordChecks(co_partitions=count)
    )


@given(st.lists(st.integers(-50, 50), max_size=20), st.integers(1, 6), st.integers(0, 11))
def test_a_row_of_a_co_partitioned_input_lives_in_its_partition_or_is_a_bad_record(
    keys: list[int], count: int, partition: int
) -> None:
    """The topic may have a multiple of the partitions that both inputs have in common."""
    result = co_partitioned([{"k": key} for key in keys], partition, count)
    key_partitions = [crc32(str(key).encode()) % count for key in keys]
    here = [n for n, key_partition in enumerate(key_partitions) if key_partition == partition % count]
    assert result.rows.column("$offset").to_pylist() == [40 + n for n in here]
    owned = shard_range(partition % count, count)
    assert all(owned.contains(at, at) for at in result.rows.column("$hash").to_pylist())
    assert sorted(result.bad) == [n for n in range(len(keys)) if n not in here]
    for n, reason in result.bad.items():
        assert (
            f"partitioner crc32 put k {keys[n]} into partition {key_partitions[n]} of {count}, not into {partition}"
            in reason
        )
        assert "check that its producer keys records by k" in reason


def test_equal_keys_of_one_partition_have_one_address_and_the_hash_decides_in_it() -> None:
    rows = co_partitioned([{"k": 5, "v": "a"}, {"k": 6}, {"k": 5, "v": "b"}], 0, 1).rows
    first, second, third = rows.column("$hash").to_pylist()
    assert first == third != second
    assert [first, second] == key_hash([pa.array([5, 6])]).tolist(), "one partition is all of the space"


def test_rows_that_match_nothing_stay_in_their_partition_whatever_their_key() -> None:
    result = co_partitioned([{"k": None}], 2, 3, preserved=True)
    assert result.bad == {}
    (address,) = result.rows.column("$hash").to_pylist()
    assert shard_range(2, 3).contains(address, address)
    assert co_partitioned([{"k": None}], 2, 3).dropped == {"null_key": 1}


def test_partitions_mean_nothing_where_the_plan_has_none_in_common() -> None:
    """Rows of a trace come from no topic."""
    result = co_partitioned([{"k": key} for key in range(20)], 1, 0)
    assert result.bad == {}
    assert result.rows.column("$hash").to_pylist() == key_hash([pa.array(range(20))]).tolist()


def test_a_long_key_is_cut_short_in_the_reason() -> None:
    schema = pa.schema([("k", pa.string()), ("ts", pa.int64())])
    side = Intake(schema, "ts", ("k",), ("k",), partitioner="murmur2")
    batch = pa.record_batch({"k": ["x" * 1_000, "y" * 1_000], "ts": [1, 2]}, schema=schema)
    reasons = [
        reason
        for partition in range(2)
        for reason in prepare(
            side, DecodedRecords(batch, partition, np.arange(2)), RecordChecks(co_partitions=2)
        ).bad.values()
    ]
    assert len(reasons) == 2
    assert all(len(reason) < 400 for reason in reasons)
