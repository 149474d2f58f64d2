"""Keys that are null in all records of an input of which nothing is committed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from joinery_runtime import trace
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.spec import InputSpec, Pipeline
from joinery_runtime.engine.messages import PartitionRead
from joinery_runtime.engine.null_keys import ENOUGH_RECORDS, ColumnsRead, key_parts, reject_null_keys
from joinery_runtime.errors import RecordError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job import job_from


def job(joins: dict[str, Any] | None = None, **sides: Any) -> dict[str, Any]:
    """A left join of `l` and `r`, with an other name or path of a column by input."""
    inputs = [
        {
            "name": name,
            "file": {"path": f"{name}.jsonl"},
            "format": "json",
            "eventTime": "ts",
            "schema": [
                {"name": "k", "type": "string", **sides.get(name, {})},
                {"name": "n", "type": "int64"},
                {"name": "ts", "type": "timestamp"},
            ],
        }
        for name in ("l", "r")
    ]
    interval = {"of": "l", "lower": "0s", "upper": "1h"}
    spec = {
        "inputs": inputs,
        "joins": [{"right": "r", "type": "left", "keys": {"l.k": "r.k"}, "interval": interval, **(joins or {})}],
        "output": {"file": {"path": "out"}},
        "stateStore": {"memory": {}},
    }
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": "keys"}, "spec": spec}


def sessions(*columns: str) -> dict[str, Any]:
    side = job(l={"path": "key"})["spec"]["inputs"][0]
    spec = {
        "input": side,
        "groupBy": list(columns),
        "gap": "30m",
        "maxDuration": "12h",
        "aggregates": [{"function": "count", "as": "rows"}],
        "output": {"file": {"path": "out"}},
        "stateStore": {"memory": {}},
    }
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": "SessionWindow", "metadata": {"name": "keys"}, "spec": spec}


def step(name: str, count: int, **row: Any) -> dict[str, Any]:
    return {"input": name, "rows": [{**row, "ts": 1_000 + at} for at in range(count)]}


ROW = {"order": {"k": "a", "items": [{"sku": 1}], "a.b": 2}}


def test_the_error_shows_the_paths_that_the_records_have() -> None:
    with pytest.raises(RecordError) as caught:
        trace(job(l={"path": "order.key"}), [step("l", 100, **ROW)])
    text = str(caught.value)
    assert text.startswith(
        "Input l: the key has no value in any of the 100 records read so far: column k is null in all"
    )
    assert 'a record has order.k, order.items[0].sku, order."a.b", ts; nothing of the input was' in text
    assert "path: customer.id" in text


def test_fewer_records_may_lack_their_key_and_one_that_has_it_is_enough() -> None:
    wrong = job(l={"path": "order.key"})
    trace(wrong, [step("l", 99, **ROW), step("l", 99, **ROW)])
    right = step("l", 100, **ROW)
    right["rows"].append({"order": {"key": "a"}, "ts": 1})
    trace(wrong, [right])


def test_rows_that_the_input_s_condition_leaves_out_do_not_count() -> None:
    document = job()
    document["spec"]["inputs"][0]["where"] = "n = 1"
    without = step("l", 150, n=0)
    trace(document, [without])
    matching = step("l", 99, n=1)
    having, other = step("l", 9, n=0, k="a"), step("l", 1, n=1, other=2)
    trace(document, [{"input": "l", "rows": [*without["rows"], *matching["rows"]]}])
    with pytest.raises(RecordError, match=r"of the 100 records read so far: .*; a record has n, other, ts"):
        trace(document, [{"input": "l", "rows": [*having["rows"], *other["rows"], *matching["rows"]]}])


def test_once_something_of_the_input_is_committed_it_is_a_warning() -> None:
    """What is there stays usable, and a time in which records have no key may pass."""
    steps = [step("r", 1, k="a"), step("l", 1, order={"key": "a"}), step("l", 500, **ROW), step("r", 500)]
    trace(job(l={"path": "order.key"}), steps)


def test_the_other_input_may_be_committed() -> None:
    with pytest.raises(RecordError, match="Input r: the key has no value in any of the 120 records"):
        trace(job(r={"path": "key"}), [step("l", 500, k="a"), step("r", 120, k="a")])


@pytest.mark.parametrize("columns", [("k",), ("k", "n")])
def test_a_session_s_key_is_null_if_all_its_columns_are(columns: tuple[str, ...]) -> None:
    with pytest.raises(RecordError, match=f"column.*{columns[0]}.*null in all of them; a record has id, ts"):
        trace(sessions(*columns), [step("l", 100, id="a")])
    if len(columns) > 1:
        trace(sessions(*columns), [step("l", 100, n=1)])


def test_any_column_of_a_composite_key_of_a_join_counts() -> None:
    composite = {"keys": {"l.k": "r.k", "l.n": "r.n"}}
    with pytest.raises(RecordError, match="column n is null in all of them; a record has k, number, ts"):
        trace(job(composite), [step("l", 100, k="a", number=1)])


def test_a_computed_key_counts_by_the_columns_that_it_reads() -> None:
    document = sessions("user")
    document["spec"]["compute"] = [{"expression": "LOWER(l.k)", "as": "user"}]
    assert key_parts(compile_job(job_from(document))) == {"l": (frozenset({"k"}),)}


def test_partitions_count_together() -> None:
    """Each may be read by a task of its own."""
    reads = [ColumnsRead("l", 60, frozenset({"k"}), ("x",)) for _ in range(2)]
    keys, pipeline = {"l": (frozenset({"k"}),)}, Pipeline((InputSpec("l", 0, 0),), ())
    reject_null_keys(reads[:1], keys, pipeline)
    with pytest.raises(RecordError, match="in any of the 120 records"):
        reject_null_keys(reads, keys, pipeline)
    reject_null_keys([*reads, ColumnsRead("l", 1, frozenset())], keys, pipeline)
    ranges = [
        PartitionRead(PartitionRef("l", "t", at), decoded=at, empty=frozenset(empty))
        for at, empty in ((4, "kn"), (5, "k"))
    ]
    none = PartitionRead(PartitionRef("l", "t", 6))
    assert ColumnsRead.of("l", [*ranges, none]) == ColumnsRead("l", 9, frozenset({"k"}))
    assert ColumnsRead.of("l", [none]) == ColumnsRead("l", 0, None)
    reject_null_keys([*reads[:1], ColumnsRead("l", 0, None)], keys, pipeline)
    topics = [PartitionRead(PartitionRef("l", topic, 0), decoded=60, empty=frozenset("k")) for topic in ("t", "u")]
    for tasks in ([topics], [[read] for read in topics]):
        with pytest.raises(RecordError, match="in any of the 120 records"):
            reject_null_keys([ColumnsRead.of("l", task) for task in tasks], keys, pipeline)
    assert ENOUGH_RECORDS == 100


def test_each_step_of_a_chain_has_keys_of_the_inputs_before_it() -> None:
    document = job({"type": "inner"})
    third = json.loads(json.dumps(document["spec"]["inputs"][1])) | {"name": "x"}
    document["spec"]["inputs"].append(third)
    interval = {"of": "r", "lower": "0s", "upper": "1h"}
    document["spec"]["joins"].append({"right": "x", "keys": {"l.n": "x.n"}, "interval": interval})
    assert key_parts(compile_job(job_from(document))) == {
        "l": (frozenset({"k"}), frozenset({"n"})),
        "r": (frozenset({"k"}),),
        "x": (frozenset({"n"}),),
    }


def test_a_computed_key_depends_on_what_it_reads_unless_it_has_a_value_without_it() -> None:
    keys = {"lower(l.k)": "COALESCE(r.k, '')"}
    parts = key_parts(compile_job(job_from(job({"keys": keys}))))
    assert parts == {"l": (frozenset({"k"}),), "r": ()}


def union(*us: dict[str, Any], select: list[dict[str, Any]] | None = None, **joins: Any) -> dict[str, Any]:
    """A left join whose left side `l` is the union of `eu` and `us`, which has the columns `us`."""
    document = job(joins)
    left, right = document["spec"]["inputs"]
    ts = {"name": "ts", "type": "timestamp"}
    document["spec"]["inputs"] = [{**left, "name": "eu"}, {**left, "name": "us", "schema": [*us, ts]}, right]
    document["spec"]["unions"] = [
        {"name": "l", "branches": [{"input": "eu"}, {"input": "us", **({"select": select} if select else {})}]}
    ]
    return document


N = {"name": "n", "type": "int64"}
CUSTOMER = [{"column": "customer", "as": "k"}, {"column": "n"}, {"column": "ts"}]


def test_each_branch_of_a_union_has_records_of_its_own() -> None:
    """The other branch has keys, and may have been read long ago."""
    wrong = union({"name": "customer", "type": "string", "path": "order.key"}, N, select=CUSTOMER)
    at_once = {"rows": {"eu": step("eu", 500, k="a")["rows"], "us": step("us", 100, **ROW)["rows"]}}
    for steps in ([at_once], [step("eu", 500, k="a"), step("us", 100, **ROW)]):
        with pytest.raises(RecordError) as caught:
            trace(wrong, steps)
        text = str(caught.value)
        assert text.startswith(
            "Input us: the key has no value in any of the 100 records read so far: column customer is"
        )
        assert "a record has order.k, order.items[0].sku" in text
        assert text.endswith("where: customer IS NOT NULL")
    trace(wrong, [step("us", 1, order={"key": "a"}), step("us", 500, **ROW)])


def test_a_key_that_a_branch_leaves_empty_on_purpose_is_no_mistake() -> None:
    anonymous = [{"expression": "NULL", "as": "k"}, {"column": "n"}, {"column": "ts"}]
    steps = trace(union(N, select=anonymous), [step("us", 100, n=1), step("eu", 1, k="a")])
    assert [row["l_k"] for row in steps[0]["output"]] == [None] * 100


def test_a_group_with_a_column_that_a_branch_sets_is_never_null() -> None:
    document = union({"name": "k", "type": "string"}, N)
    spec = document["spec"]
    del spec["joins"], spec["inputs"][2]
    columns = [{"column": name} for name in ("k", "n", "ts")]
    for branch in spec["unions"][0]["branches"]:
        branch["select"] = [{"expression": f"'{branch['input']}'", "as": "region"}, *columns]
    count = {"function": "count", "as": "rows"}
    spec["aggregate"] = {"groupBy": ["l.region", "l.k"], "window": {"tumbling": {"size": "10s"}}, "aggregates": [count]}
    later = {"rows": {name: [{"k": "a", "n": 1, "ts": 99_000}] for name in ("eu", "us")}}
    steps = trace(document, [step("us", 100, n=1), later])
    assert [(row["region"], row["k"], row["rows"]) for row in steps[1]["output"]] == [("us", None, 100)]


def test_groups_of_joined_rows_that_are_all_of_one_input_count() -> None:
    grouped = job({"type": "inner"})
    grouped["spec"]["inputs"][0]["schema"].append({"name": "region", "type": "string", "path": "area"})
    aggregate = {
        "groupBy": ["l.region"],
        "window": {"tumbling": {"size": "10s"}},
        "aggregates": [{"function": "count", "as": "rows"}],
    }
    grouped["spec"]["aggregate"] = aggregate
    with pytest.raises(
        RecordError, match=r"Input l: .* column region is null in all of them; a record has k, regio, ts"
    ):
        trace(grouped, [step("l", 100, k="a", regio="x")])
    aggregate["groupBy"].append("r.k")  # the right row may tell groups apart
    trace(grouped, [step("l", 100, k="a", regio="x")])
