"""What looks wrong with an input's records is said by name, once, and no longer than it does."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import load
from joinery_runtime.core.pipeline.spec import InputSpec, Pipeline
from joinery_runtime.engine.input_warnings import InputWarnings, reject_seconds
from joinery_runtime.engine.messages import PartitionRead
from joinery_runtime.engine.null_keys import ColumnsRead
from joinery_runtime.errors import MisreadInput, RecordError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import Job
from joinery_runtime.state.memory import MemoryStore

PIPELINE = Pipeline((InputSpec("orders", 0, 0),), ())


def read(partition: int = 0, records: int = 10, **more: Any) -> PartitionRead:
    return PartitionRead(
        PartitionRef("orders", "orders", partition), records, decoded=records - more.get("dead", 0), **more
    )


def test_a_column_without_a_value_is_named_once_and_by_all_partitions_together() -> None:
    input_warnings = InputWarnings({"orders": "ts"}, PIPELINE)
    reads = [read(0, empty=frozenset({"a", "device.id"})), read(1, empty=frozenset({"b", "device.id"}))]
    (warning,) = input_warnings.learn(reads)
    assert "Input orders: no value for column device.id in any of the 20 records decoded so far" in warning
    assert "written as path: device.id" in warning

    assert input_warnings.learn([read(empty=frozenset({"device.id"}))]) == ()
    assert "30 records" in input_warnings.active["orders"]
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    assert input_warnings.active == {}


def test_a_value_in_an_earlier_epoch_counts() -> None:
    input_warnings = InputWarnings({"orders": "ts"}, PIPELINE)
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    assert input_warnings.learn([read(empty=frozenset({"note"}))]) == ()


def test_an_input_of_which_no_record_can_be_used_is_named_with_the_first_reason() -> None:
    input_warnings = InputWarnings({"orders": "ts"}, PIPELINE)
    (warning,) = input_warnings.learn(
        [read(records=9, dead=9, first_dead="orders/0 offset 3: not JSON"), read(1, 1, dropped={"null_key": 1})]
    )
    assert warning.startswith(
        "Input orders: none of the 10 records read so far can be used: 9 dead letters and 1 null key"
    )
    assert "(the first: orders/0 offset 3: not JSON)" in warning
    assert input_warnings.learn([read(dead=10)]) == ()
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    assert input_warnings.active == {}


def test_deletions_of_a_stream_are_no_rows() -> None:
    deletions = {"deletion": 2, "tombstone": 1}
    (warning,) = InputWarnings({"orders": "ts"}, PIPELINE).learn([read(dead=7, dropped=deletions)])
    assert "none of the 10 records read so far can be used: 7 dead letters and 3 deleted records" in warning
    assert InputWarnings({"orders": "ts"}, PIPELINE).learn([read(dead=6, dropped=deletions)]) == ()
    assert InputWarnings({"orders": "ts"}, PIPELINE).learn([read(records=3, dropped=deletions)]) == ()


def test_many_columns_are_not_all_named() -> None:
    (warning,) = InputWarnings({"orders": "ts"}, PIPELINE).learn([read(empty=frozenset("abcdefgh"))])
    assert "columns a, b, c, d, e and 3 more" in warning


def test_nothing_is_said_of_an_input_that_was_not_read() -> None:
    assert InputWarnings({"orders": "ts"}, PIPELINE).learn([read(records=0)]) == ()


def test_a_column_that_is_gone_in_the_middle_of_a_run_is_named_after_many_rows_and_once() -> None:
    input_warnings = InputWarnings({"orders": "ts"}, PIPELINE)
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    for _ in range(9):
        assert (
            input_warnings.learn([read(0, 50, empty=frozenset({"sku"})), read(1, 50, empty=frozenset({"sku"}))]) == ()
        )
    assert input_warnings.active == {}
    (warning,) = input_warnings.learn([read(records=100, empty=frozenset({"sku"}))])
    assert warning.startswith(
        "Input orders: no value for column sku in any of the newest 1,000 records decoded. Compare"
    )
    assert input_warnings.learn([read(records=100, empty=frozenset({"sku"}))]) == ()
    assert "newest 1,100 records" in input_warnings.active["orders"]
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    assert input_warnings.active == {}


def test_a_column_that_few_records_have_is_no_cause() -> None:
    """The longest run without a value so far says how long the next one may be."""
    input_warnings, sparse = InputWarnings({"orders": "ts"}, PIPELINE), frozenset({"note"})
    input_warnings.learn([read(empty=frozenset())])
    for _ in range(5):
        assert input_warnings.learn([read(records=900, empty=sparse)]) == ()
        assert input_warnings.learn([read(records=1, empty=frozenset())]) == ()
    assert input_warnings.learn([read(records=8_999, empty=sparse)]) == ()
    (warning,) = input_warnings.learn([read(records=1, empty=sparse)])
    assert "column note in any of the newest 9,000" in warning


def test_records_that_all_become_dead_letters_in_the_middle_of_a_run_are_named_once() -> None:
    input_warnings = InputWarnings({"orders": "ts"}, PIPELINE)
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    assert input_warnings.learn([read(records=99, dead=99, first_dead="orders/0 offset 10: not JSON")]) == ()
    (warning,) = input_warnings.learn([read(records=4, dead=1, dropped={"deletion": 3})])
    assert warning.startswith(
        "Input orders: none of the newest 103 records read can be used: 100 dead letters and 3 deleted records"
    )
    assert "(the first: orders/0 offset 10: not JSON)" in warning
    assert input_warnings.learn([read(records=50, dead=50)]) == ()
    assert input_warnings.learn([read(empty=frozenset())]) == ()
    assert input_warnings.active == {}
    assert input_warnings.learn([read(records=1_499, dead=1_499)]) == ()
    assert len(input_warnings.learn([read(records=1, dead=1)])) == 1, "ten times as many as before"


@pytest.mark.parametrize(
    ("first", "last", "warned"),
    [
        (1_700_000_000, 1_700_003_600, True),
        (946_684_800, 4_102_444_799, True),
        (946_684_799, 1_700_000_000, False),
        (1_700_000_000, 4_102_444_800, False),
        (1_700_000_000_000, 1_700_000_000_000, False),
        (0, 5_000, False),
    ],
)
def test_event_times_that_most_likely_count_seconds_are_named_once(first: int, last: int, warned: bool) -> None:
    input_warnings = InputWarnings({"orders": "ts"}, PIPELINE)
    warnings = input_warnings.learn([read(0, lowest=first, highest=first), read(1, lowest=last, highest=last), read(2)])
    assert bool(warnings) == warned
    if warned:
        assert "event times of column ts are from 1970-01-" in warnings[0]
        assert "declare ts as type: timestamp with format: s" in warnings[0]
    assert input_warnings.learn([read(lowest=first, highest=last)]) == ()
    assert input_warnings.learn([read(lowest=1_700_000_000_000, highest=1_700_000_000_000)]) == ()
    assert input_warnings.active == {}
    assert input_warnings.learn([read(lowest=first, highest=last)]) == (), "topics of both do not repeat it each epoch"


def test_declared_times_of_1970_are_no_cause() -> None:
    input_warnings = InputWarnings({}, PIPELINE)
    assert input_warnings.learn([read(lowest=1_700_000_000, highest=1_700_003_600)]) == ()
    assert input_warnings.active == {}


def with_times(more: dict[str, Any] | None = None, **column: str) -> Job:
    side: dict[str, Any] = {"file": {"path": "unused"}, "format": "json", "eventTime": "at"}
    schema = [{"name": "id", "type": "string"}, {"name": "at", **column}]
    inputs = [{"name": name, **side, "schema": schema} for name in "lr"]
    interval = {"of": "l", "lower": 0, "upper": "9ms"}
    return load({"right": "r", "keys": {"l.id": "r.id"}, "interval": interval}, inputs=inputs, **(more or {}))


SECONDS = {"l": [{"id": "a", "at": 1_700_000_000}]}


def test_integers_of_seconds_are_refused_before_anything_is_committed() -> None:
    store = MemoryStore()
    with pytest.raises(RecordError) as raised:
        list(run_trace(with_times(type="int64"), [{"rows": SECONDS}], store))
    assert str(raised.value) == (
        "Input l: the event times of column at most likely count seconds, and int64 is milliseconds: the lowest in l/0 "
        "is 1700000000: 1970-01-20 in milliseconds, 2023-11-14 in seconds; nothing of the epoch was committed. Declare "
        "at as type: timestamp with format: s or, if its numbers are milliseconds, with format: ms"
    )
    assert store.newest_epoch("job") is None


def test_one_partition_with_times_that_look_like_seconds_stops_no_job() -> None:
    """It may hold a single record, whose time is wrong."""
    rows = [{"id": "a", "at": 1_700_000_000, "$partition": 1}, {"id": "b", "at": 1_700_000_000_000}]
    (line,) = run_trace(with_times(type="int64"), [{"rows": {"l": rows}}], MemoryStore())
    assert "warnings" not in line


def test_seconds_are_judged_by_what_all_tasks_have_read() -> None:
    def read(partition: int, records: int, lowest: int | None, highest: int | None) -> ColumnsRead:
        partition_ref = PartitionRef("l", "t", partition)
        return ColumnsRead.of("l", [PartitionRead(partition_ref, decoded=records, lowest=lowest, highest=highest)])

    seconds = [
        read(0, 60, 1_700_000_009, 1_700_000_010),
        read(1, 40, 1_700_000_000, 1_700_000_001),
        read(2, 0, None, None),
    ]
    for reads, at_least in ((seconds[:1], 100), (seconds, 101), ([*seconds, read(3, 1, 5, 5)], 1)):
        reject_seconds(reads, {"l": "at"}, at_least=at_least)
    reject_seconds(seconds, {"r": "at"}, at_least=1)
    with pytest.raises(MisreadInput, match=r"Input l: .*: the lowest in t/1 is 1700000000: "):
        reject_seconds(seconds, {"l": "at"}, at_least=100)


def test_with_dead_letters_few_records_of_seconds_are_a_warning() -> None:
    """Anybody who may write to the input could send one."""
    dead = {"deadLetter": {"file": {"path": "dead"}}}
    (line,) = run_trace(with_times(dead, type="int64"), [{"rows": SECONDS}], MemoryStore())
    assert "event times of column at are from 1970-01-20 on, and from 2023-11-14" in line["warnings"][0]
    many = {"l": [{"id": "a", "at": 1_700_000_000 + at} for at in range(100)]}
    with pytest.raises(MisreadInput, match="most likely count seconds"):
        list(run_trace(with_times(dead, type="int64"), [{"rows": many}], MemoryStore()))


@pytest.mark.parametrize(
    ("column", "at"),
    [({"type": "timestamp", "format": "ms"}, 1_700_000_000), ({"type": "int64"}, 946_684_799), ({"type": "int64"}, 5)],
)
def test_times_of_1970_that_are_no_guess_are_read(column: dict[str, str], at: int) -> None:
    rows = {name: [{"id": "a", "at": at}] for name in "lr"}
    (line,) = run_trace(with_times(**column), [{"rows": rows}], MemoryStore())
    assert len(line["output"]) == 1
    assert "warnings" not in line


def test_integers_of_seconds_after_others_are_warned_about_in_a_trace() -> None:
    """The state has rows with other times already."""
    earlier = {name: [{"id": "b", "at": 946_684_799}] for name in "lr"}
    later = {"l": [{"id": "a", "at": 946_684_800}]}
    _, line = run_trace(with_times(type="int64"), [{"rows": earlier}, {"rows": later}], MemoryStore())
    assert line["warnings"] == [
        "Input l: event times of column at are from 1970-01-11 on, and from 2000-01-01 on if their numbers count "
        "seconds. If they do, declare at as type: timestamp with format: s"
    ]


def test_a_nested_field_that_is_named_without_path_is_warned_about() -> None:
    """It loads, and all of its rows are dropped."""
    side: dict[str, Any] = {"file": {"path": "unused"}, "format": "json", "eventTime": "ts"}
    ts = {"name": "ts", "type": "timestamp"}
    inputs = [
        {"name": "l", **side, "schema": [{"name": "device.id", "type": "string"}, ts]},
        {"name": "r", **side, "schema": [{"name": "id", "type": "string", "path": "device.id"}, ts]},
    ]
    interval = {"of": "l", "lower": 0, "upper": "9ms"}
    job = load({"right": "r", "keys": {"l.device.id": "r.id"}, "interval": interval}, inputs=inputs)
    record = {"device": {"id": "a"}, "ts": 5}
    (line,) = run_trace(job, [{"rows": {"l": [record], "r": [record]}}], MemoryStore())

    (warning,) = line["warnings"]
    assert "Input l: the one record read so far cannot be used: 1 null key; no value for column device.id" in warning
    assert line["dropped"] == {"l": {"null_key": 1}}


def with_union(us: list[dict[str, Any]], select: list[dict[str, Any]] | None = None, **more: Any) -> Job:
    """A left join whose left side `l` is the union of `eu` and `us`."""
    side: dict[str, Any] = {"file": {"path": "unused"}, "format": "json", "eventTime": "at"}
    columns = [{"name": "id", "type": "string"}, {"name": "at", "type": us[-1]["type"]}]
    branch = {"input": "us", **({"select": select} if select else {})}
    interval = {"of": "l", "lower": "0ms", "upper": "9ms"}
    return load(
        {"right": "r", "type": "left", "keys": {"l.id": "r.id"}, "interval": interval},
        inputs=[{"name": name, **side, "schema": us if name == "us" else columns} for name in ("eu", "us", "r")],
        unions=[{"name": "l", "branches": [{"input": "eu"}, branch]}],
        **more,
    )


US = [{"name": "id", "type": "string"}, {"name": "at", "type": "int64"}]


def test_seconds_of_one_branch_of_a_union_are_refused_beside_milliseconds_of_another() -> None:
    rows = {"eu": [{"id": "a", "at": 1_700_000_000_000}], "us": [{"id": "a", "at": 1_700_000_000}]}
    with pytest.raises(MisreadInput, match=r"Input us: the event times of column at most likely .* lowest in us:us/0"):
        list(run_trace(with_union(US), [{"rows": rows}], MemoryStore()))


def test_a_branch_of_a_union_of_which_no_record_can_be_used_is_named() -> None:
    dead = {"deadLetter": {"file": {"path": "dead"}}}
    rows = {"eu": [{"id": "a", "at": 5}], "us": [{"id": "a", "at": "noon"}, {"id": "b", "at": "noon"}]}
    (line,) = run_trace(with_union(US, **dead), [{"rows": rows}], MemoryStore())
    (warning,) = line["warnings"]
    assert warning.startswith(
        "Input us: none of the 2 records read so far can be used: 2 dead letters (the first: us/0"
    )


def test_a_column_that_a_branch_of_a_union_leaves_empty_on_purpose_is_no_cause() -> None:
    at = {"name": "at", "type": "timestamp"}
    noted = [{"column": "at"}, {"column": "note", "as": "id"}]
    rows = {"eu": [{"id": "a", "at": 5}], "us": [{"at": 6}]}
    typo = with_union([{"name": "note", "type": "string", "path": "nte"}, at], noted)
    (line,) = run_trace(typo, [{"rows": rows}], MemoryStore())
    assert [text.split(" in the one")[0] for text in line["warnings"]] == ["Input us: no value for column note"]
    without = [{"column": "at"}, {"expression": "NULL", "as": "id"}]
    (line,) = run_trace(with_union([at], without), [{"rows": rows}], MemoryStore())
    assert "warnings" not in line
