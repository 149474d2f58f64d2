"""What looks wrong with an input's records is said by name, once, and no longer than it does."""

from __future__ import annotations

from typing import Any

from job.chains import load
from joinery_runtime.engine.input_warnings import InputWarnings
from joinery_runtime.engine.messages import PartitionRead
from joinery_runtime.hosts.trace import run_trace
from joinery_runtime.sources.base import PartitionRef
from joinery_runtime.state.memory import MemoryStore


def read(partition: int = 0, records: int = 10, **more: Any) -> PartitionRead:
    return PartitionRead(
        PartitionRef("orders", "orders", partition), records, decoded=records - more.get("dead", 0), **more
    )


def test_a_column_without_a_value_is_named_once_and_by_all_partitions_together() -> None:
    input_warnings = InputWarnings()
    reads = [read(0, empty=frozenset({"a", "device.id"})), read(1, empty=frozenset({"b", "device.id"}))]
    (said,) = input_warnings.learn(reads)
    assert "Input orders: no value for column device.id in any of the 20 records decoded so far" in said
    assert "written as path: device.id" in said

    assert input_warnings.learn([read(empty=frozenset({"device.id"}))]) == ()
    assert "30 records" in input_warnings.standing["orders"]
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    assert input_warnings.standing == {}


def test_a_value_in_an_earlier_epoch_counts() -> None:
    input_warnings = InputWarnings()
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    assert input_warnings.learn([read(empty=frozenset({"note"}))]) == ()


def test_an_input_of_which_no_record_can_be_used_is_named_with_the_first_reason() -> None:
    input_warnings = InputWarnings()
    (said,) = input_warnings.learn(
        [read(records=9, dead=9, first_dead="orders/0 offset 3: not JSON"), read(1, 1, dropped={"null_key": 1})]
    )
    assert said.startswith(
        "Input orders: none of the 10 records read so far can be used: 9 dead letters and 1 null key"
    )
    assert "(the first: orders/0 offset 3: not JSON)" in said
    assert input_warnings.learn([read(dead=10)]) == ()
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    assert input_warnings.standing == {}


def test_deletions_of_a_stream_are_no_rows() -> None:
    gone = {"deletion": 2, "tombstone": 1}
    (said,) = InputWarnings().learn([read(dead=7, dropped=gone)])
    assert "none of the 10 records read so far can be used: 7 dead letters and 3 deleted records" in said
    assert InputWarnings().learn([read(dead=6, dropped=gone)]) == ()
    assert InputWarnings().learn([read(records=3, dropped=gone)]) == ()


def test_many_columns_are_not_all_named() -> None:
    (said,) = InputWarnings().learn([read(empty=frozenset("abcdefgh"))])
    assert "columns a, b, c, d, e and 3 more" in said


def test_nothing_is_said_of_an_input_that_was_not_read() -> None:
    assert InputWarnings().learn([read(records=0)]) == ()


def test_a_nested_field_that_is_named_without_path_is_warned_about() -> None:
    """It loads, and all of its rows are dropped."""
    side: dict[str, Any] = {"file": {"path": "unused"}, "format": "json", "eventTime": "ts"}
    ts = {"name": "ts", "type": "timestamp"}
    inputs = [
        {"name": "l", **side, "schema": [{"name": "device.id", "type": "string"}, ts]},
        {"name": "r", **side, "schema": [{"name": "id", "type": "string", "path": "device.id"}, ts]},
    ]
    interval = {"of": "l", "lower": 0, "upper": 9}
    job = load({"right": "r", "keys": {"l.device.id": "r.id"}, "interval": interval}, inputs=inputs)
    record = {"device": {"id": "a"}, "ts": 5}
    (line,) = run_trace(job, [{"rows": {"l": [record], "r": [record]}}], MemoryStore())

    (said,) = line["warnings"]
    assert "Input l: the one record read so far cannot be used: 1 null key; no value for column device.id" in said
    assert line["dropped"] == {"l": {"null_key": 1}}
