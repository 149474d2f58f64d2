"""Sessions: the good ones load, and each rule refuses at its place, alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from job.chains import messages_of, stream
from job.join.test_step_rules import spoilt
from job.sessions import CLICKS, COUNT, aggregate_call, document, in_sql, load, mistakes
from joinery_runtime.job import SessionWindow
from joinery_runtime.job.kinds.session.sessions import takes

LOWER = {"expression": "LOWER(page)", "as": "low"}
POSTGRES = {"postgres": {"table": "sessions"}}
KAFKA = {"kafka": {"bootstrapServers": "k:9092", "topic": "sessions"}}
SQL = "SELECT user_id, COUNT(*) AS n FROM clicks GROUP BY user_id, SESSION(ts, INTERVAL '30' SECOND)"

GOOD: list[tuple[list[Any], dict[str, Any]]] = [
    ([], {}),
    ([], {"aggregates": None}),
    (
        [
            aggregate_call("sum", "price"),
            aggregate_call("avg", "qty"),
            aggregate_call("min", "day"),
            aggregate_call("max", "page"),
            aggregate_call("count_col", "raw"),
        ],
        {},
    ),
    (
        [
            aggregate_call("first", "raw"),
            aggregate_call("last", "seen"),
            aggregate_call("sum", "cents"),
            aggregate_call("min", "ts"),
        ],
        {},
    ),
    (
        [
            aggregate_call("count_distinct", "page"),
            aggregate_call("count_distinct", "page", method="hll", **{"as": "about"}),
        ],
        {},
    ),
    ([aggregate_call("count_distinct", "raw", method="exact", limit=5)], {}),
    ([aggregate_call("count_distinct", "raw", limit=5)], {}),
    ([aggregate_call("sum", "twice")], {"compute": [{"expression": "qty * 2", "as": "twice"}]}),
    ([], {"groupBy": ["low", "user_id"], "compute": [LOWER]}),
    ([], {"groupBy": ["price", "seen", "raw", "ts"]}),
    ([aggregate_call("first", "page", **{"as": "page"})], {}),
    ([], {"where": "clicks.page <> 'x'"}),
    ([], {"lateData": "reopen", "allowedLateness": "1m", "emitRetractions": True}),
    ([], {"gap": "1ms", "maxDuration": "2ms"}),
    ([], {"output": {"kafka": {**KAFKA["kafka"], "key": ["user_id", "session_id", "window_start", "events"]}}}),
    ([], {"output": {"postgres": {"table": "t", "upsertKey": ["session_id"]}}}),
    ([], {"output": {"postgres": {"table": "t", "upsertKey": ["user_id"]}}}),
    ([], {"output": {"postgres": {"table": "t", "upsertKey": ["user_id", "session_id"]}}, "emitRetractions": True}),
    ([], {"output": {"postgres": {"table": "t", "upsertKey": ["user_id", "window_start"]}}, "emitRetractions": True}),
    ([], {"output": KAFKA, "deadLetter": {"kafka": {"topic": "dead"}}}),
    ([], {"limits": {"maxRecords": 5, "onLimit": "pause"}, "stateStore": {"memory": {}}}),
]
GOOD_SQL = [
    SQL,
    f"{SQL} EMIT CHANGES",
    "SELECT user_id, COUNT(*) AS n FROM clicks WINDOW SESSION (30 SECONDS) GROUP BY user_id EMIT CHANGES",
]

TWICE = {"expression": "qty * 2", "as": "twice"}
BAD: list[tuple[list[Any], dict[str, Any], str, str]] = [
    ([], {"groupBy": None}, "groupBy", "would not be bounded by key (rule S1); name at least one column"),
    ([], {"groupBy": []}, "groupBy", "one session of the whole stream would hardly ever end"),
    ([], {"groupBy": ["user_id", "user_id"]}, "groupBy[1]", "names column 'user_id' twice; drop one"),
    ([], {"groupBy": ["usr_id"]}, "groupBy[0]", "no column 'usr_id' (did you mean 'user_id'?); columns are user_id"),
    (
        [],
        {"gap": None},
        "gap",
        "how far apart consecutive rows of a session may be (rule S1); write for example gap: 30s",
    ),
    ([], {"gap": 0}, "gap", "must be more than 0"),
    ([], {"gap": "0s"}, "gap", "must be more than 0"),
    ([], {"maxDuration": None}, "maxDuration", "a hard cap, so that none is kept for ever (rule S2)"),
    ([], {"maxDuration": "0s"}, "maxDuration", "must be more than 0"),
    (
        [],
        {"lateData": "dlq"},
        "lateData",
        "dlq writes late records to the dead letters, and the job has none; name `deadLetter`, or write drop",
    ),
    ([], {"lateData": "keep"}, "lateData", "'keep' is not allowed; write drop, reopen or dlq"),
    ([], {"allowedLateness": "-1s"}, "allowedLateness", "must be at least 0, not '-1s'"),
    ([], {"emitRetractions": "yes"}, "emitRetractions", "must be true or false"),
    (
        [aggregate_call("total", "price")],
        {},
        "aggregates[0].function",
        "'total' is not allowed; write count, count_col",
    ),
    (
        [aggregate_call("count", "page")],
        {},
        "aggregates[0].column",
        "count counts rows and takes no column; drop `column`, or",
    ),
    ([aggregate_call("sum")], {}, "aggregates[0].column", "is missing: sum is of a column; name one"),
    ([aggregate_call("count_col")], {}, "aggregates[0].column", "is missing: count_col is of a column"),
    ([aggregate_call("sum", "prize")], {}, "aggregates[0].column", "no column 'prize' (did you mean 'price'?)"),
    ([aggregate_call("sum", "page")], {}, "aggregates[0].column", "sum takes numbers, and column 'page' is string"),
    ([aggregate_call("avg", "ts")], {}, "aggregates[0].column", "avg takes numbers, and column 'ts' is timestamp"),
    ([aggregate_call("min", "raw")], {}, "aggregates[0].column", "min takes all types but boolean and binary"),
    (
        [aggregate_call("max", "seen")],
        {},
        "aggregates[0].column",
        "and column 'seen' is boolean; choose another function or type",
    ),
    (
        [aggregate_call("sum", "qty", method="hll")],
        {},
        "aggregates[0].method",
        "is for count_distinct, and this is sum; drop it",
    ),
    ([aggregate_call("first", "qty", limit=5)], {}, "aggregates[0].limit", "and median, and this is first; drop it"),
    (
        [aggregate_call("count_distinct", "page", method="hll", limit=5)],
        {},
        "aggregates[0].limit",
        "a sketch takes any number",
    ),
    (
        [
            aggregate_call("count_distinct", "page", limit=5),
            aggregate_call("count_distinct", "page", limit=6, **{"as": "again"}),
        ],
        {},
        "aggregates[1].limit",
        "another aggregate above keeps the values of 'page' with limit 5, and they are kept once; write the same limit",
    ),
    (
        [
            aggregate_call("array_agg", "page", limit=5, where="qty > 1"),
            aggregate_call("string_agg", "page", where="clicks.qty>1"),
        ],
        {},
        "aggregates[1].limit",
        "another aggregate above keeps the values of 'page' with limit 5",
    ),
    (
        [aggregate_call("max_by", "page")],
        {},
        "aggregates[0].by",
        "is missing: max_by needs it; name the column whose least or",
    ),
    ([aggregate_call("max_by", "page", by="gone")], {}, "aggregates[0].by", "'clicks' has no column 'gone'"),
    (
        [aggregate_call("min_by", "page", by="raw")],
        {},
        "aggregates[0].by",
        "and column 'raw' is binary; choose another column",
    ),
    (
        [aggregate_call("max", "page", by="qty")],
        {},
        "aggregates[0].by",
        "is for min_by and max_by, and this is max; drop it",
    ),
    (
        [aggregate_call("percentile_disc", "qty")],
        {},
        "aggregates[0].percentile",
        "is missing: percentile_disc needs it; write",
    ),
    ([aggregate_call("approx_percentile", "qty", percentile=95)], {}, "aggregates[0].percentile", "must be at most 1"),
    ([aggregate_call("median", "qty", percentile=0.5)], {}, "aggregates[0].percentile", "and this is median; drop it"),
    (
        [aggregate_call("sum", "qty", separator=";")],
        {},
        "aggregates[0].separator",
        "is for string_agg, and this is sum; drop it",
    ),
    (
        [aggregate_call("string_agg", "qty")],
        {},
        "aggregates[0].column",
        "string_agg takes json and string, and column 'qty'",
    ),
    (
        [aggregate_call("count_if", "qty")],
        {},
        "aggregates[0].column",
        "count_if takes boolean, and column 'qty' is int32",
    ),
    (
        [aggregate_call("stddev_pop", "page")],
        {},
        "aggregates[0].column",
        "stddev_pop takes numbers, and column 'page' is string",
    ),
    (
        [aggregate_call("median", "page")],
        {},
        "aggregates[0].column",
        "median takes numbers, and column 'page' is string",
    ),
    ([aggregate_call("count_distinct", "page", limit=0)], {}, "aggregates[0].limit", "must be at least 1"),
    ([aggregate_call("count_distinct", "page", method="fm")], {}, "aggregates[0].method", "write exact or hll"),
    ([{"function": "count"}], {}, "aggregates[0].as", "is missing"),
    ([COUNT, COUNT], {}, "aggregates[1].as", "two aggregates are named 'events' (rule S6); rename one"),
    (
        [aggregate_call("count", **{"as": "user_id"})],
        {},
        "aggregates[0].as",
        "is the name of a group column, which is emitted too",
    ),
    (
        [aggregate_call("count", **{"as": "session_id"})],
        {},
        "aggregates[0].as",
        "sessions have a column 'session_id' of their own",
    ),
    (
        [aggregate_call("count", **{"as": "retracted"})],
        {},
        "aggregates[0].as",
        "sessions have a column 'retracted' of their own",
    ),
    ([aggregate_call("count", **{"as": "$n"})], {}, "aggregates[0].as", "starts with `$`, which engine columns do"),
    ([], {"compute": [LOWER, LOWER]}, "compute[1].as", "two computed columns are named 'low'; rename one"),
    ([], {"compute": [{**LOWER, "as": "page"}]}, "compute[0].as", "has a column 'page' already; choose another name"),
    ([], {"compute": [{**LOWER, "as": "$low"}]}, "compute[0].as", "starts with `$`"),
    ([], {"compute": [{"as": "low"}]}, "compute[0].expression", "is missing"),
    (
        [],
        {"groupBy": ["window_end"], "compute": [{**LOWER, "as": "window_end"}]},
        "groupBy[0]",
        "sessions have a column 'window_end' of their own (rule S6); give it another one with compute",
    ),
    ([], {"input": {**CLICKS, "table": {"key": ["user_id"]}}}, "input.table", "a session holds events; drop `table`"),
    ([], {"input": {**CLICKS, "eventTime": "page"}}, "input.eventTime", "event time must be timestamp, or int64"),
    (
        [],
        {"input": {**CLICKS, "kafka": {"bootstrapServers": "k", "topic": "t"}}},
        "input",
        "exactly one of kafka and file",
    ),
    ([], {"input": None}, "input", "is missing"),
    ([], {"input": {**CLICKS, "name": "my clicks"}}, "input.name", "an input name has letters, digits and '_'"),
    ([], {"input": {**CLICKS, "schema": []}}, "input.schema", "is empty; write at least one entry"),
    ([], {"input": "clicks"}, "input", "must be a mapping, not text"),
    ([], {"groupBy": "user_id"}, "groupBy", "must be a list, not text"),
    ([], {"inputs": [CLICKS]}, "inputs", "did you mean 'input'?"),
    ([], {"output": {"kafka": {**KAFKA["kafka"], "key": ["user"]}}}, "output.kafka.key[0]", "is not an output column"),
    (
        [],
        {"output": {"postgres": {"table": "t", "upsertKey": ["session_id", "retracted"]}}, "emitRetractions": True},
        "output.postgres.upsertKey[1]",
        "'retracted' is not an output column that rows can be told by",
    ),
    (
        [],
        {"output": {"postgres": {"table": "t", "upsertKey": ["user_id"]}}, "emitRetractions": True},
        "output.postgres.upsertKey",
        "a retraction would delete the row that another session has",
    ),
    (
        [],
        {"output": {"postgres": {"table": "t", "upsertKey": ["window_start"]}}, "emitRetractions": True},
        "output.postgres.upsertKey",
        "a retraction would delete the row that another session has",
    ),
    (
        [],
        {"output": {"postgres": {"table": "t", "upsertKey": ["session_id", "window_end"]}}, "emitRetractions": True},
        "output.postgres.upsertKey[1]",
        "'window_end' may change while a session lasts",
    ),
    (
        [],
        {"output": POSTGRES, "stateStore": {"memory": {}}},
        "output.postgres",
        "cannot be exactly once with the memory",
    ),
    (
        [],
        {"output": {"postgres": {"table": "t", "dsn": "d", "dsnSecretRef": {"name": "n", "key": "k"}}}},
        "output.postgres.dsn",
        "dsn and dsnSecretRef are both named",
    ),
    ([], {"deadLetter": {"kafka": {"topic": "dead"}}}, "deadLetter.kafka", "it is not clear which Kafka is meant"),
    ([], {"sql": SQL, "aggregates": None, "groupBy": None}, "sql", "gap and sql are both named; keep one"),
    ([], {"sql": SQL, "aggregates": None, "gap": None}, "sql", "groupBy and sql are both named; keep one"),
    ([], {"sql": SQL, "gap": None, "groupBy": None}, "sql", "aggregates and sql are both named; keep one"),
    (
        [],
        {"sql": SQL, "gap": None, "groupBy": None, "aggregates": None, "where": "true"},
        "sql",
        "where and sql are both",
    ),
    (
        [],
        {"sql": SQL, "gap": None, "groupBy": None, "aggregates": None, "compute": [TWICE]},
        "sql",
        "compute and sql are both named; keep one",
    ),
    *[([], {name: "1m"}, name, "a session has no width") for name in ("width", "widthMs", "hop", "size", "slide")],
    ([], {"window": {"tumbling": "1h"}}, "window", "a session has no width, it grows with its rows; write gap"),
    ([], {"gap_ms": 30_000}, "gap_ms", "write gap"),
    ([], {"max_session_duration_ms": 30_000}, "max_session_duration_ms", "write maxDuration"),
    ([], {"joins": []}, "joins", "it is of a StreamJoin"),
    ([], {"select": []}, "select", "write at least one entry"),
    ([], {"select": [{"column": "user"}]}, "select[0].column", "(did you mean 'user_id'?)"),
    ([], {"select": [{"column": "user_id"}, {"column": "page"}]}, "select[1].column", "'page' is no column of these"),
    ([], {"select": [{"column": "user_id"}, {"column": "user_id"}]}, "select[1]", "are named 'user_id'"),
    (
        [],
        {"select": [{"column": "user_id", "as": "retracted"}]},
        "select[0]",
        "is the column that emitRetractions adds",
    ),
    ([], {"select": [{"column": "user_id", "as": "$u"}]}, "select[0]", "starts with `$`"),
    ([], {"select": [{"as": "u"}]}, "select[0]", "needs exactly one of column and expression: none of them is named"),
    ([], {"select": [{"expression": "window_end - window_start"}]}, "select[0]", "add one: as: <name>"),
    (
        [],
        {"select": [{"expression": "page || 'x'", "as": "p"}]},
        "select[0].expression",
        "'page' is no column of these",
    ),
    (
        [COUNT],
        {
            "select": [{"column": "user_id"}, {"expression": "events + 1", "as": "more"}],
            "lateData": "reopen",
            "outputs": [{"name": "all", **KAFKA, "when": "more > 2"}],
            "output": None,
        },
        "outputs[0].when",
        "'more' may change, and the output would keep a row",
    ),
    (
        [],
        {"select": [{"column": "user_id"}], "output": {"kafka": {**KAFKA["kafka"], "key": ["session_id"]}}},
        "output.kafka.key[0]",
        "'session_id' is not an output column; output columns are user_id",
    ),
    (
        [],
        {"select": [{"column": "user_id"}], "output": {"postgres": {"table": "t"}}},
        "select",
        "session_id is left out; select it, or write output.postgres.upsertKey",
    ),
    (
        [],
        {
            "select": [{"column": "session_id", "as": "id"}, {"column": "window_end", "as": "session_id"}],
            "output": {"postgres": {"table": "t", "upsertKey": ["id", "session_id"]}},
            "emitRetractions": True,
        },
        "output.postgres.upsertKey[1]",
        "may change while a session lasts",
    ),
    ([], {"aggregations": []}, "aggregations", "did you mean 'aggregates'?"),
]


@pytest.mark.parametrize(("aggregates", "more"), GOOD)
def test_good_sessions_load(aggregates: list[Any], more: dict[str, Any]) -> None:
    assert mistakes(*aggregates, **more) == {}


@pytest.mark.parametrize("sql", GOOD_SQL)
def test_good_sql_loads(sql: str) -> None:
    assert messages_of(in_sql(sql)) == {}


@pytest.mark.parametrize(("aggregates", "more", "path", "words"), BAD, ids=lambda value: str(value)[:50])
def test_each_rule_refuses_at_its_place_alone(
    aggregates: list[Any], more: dict[str, Any], path: str, words: str
) -> None:
    messages = mistakes(*aggregates, **more)
    assert list(messages) == [f"spec.{path}"], messages
    assert words in messages[f"spec.{path}"]


def test_every_mistake_is_reported_at_once() -> None:
    messages = mistakes(
        aggregate_call("sum", "page"), aggregate_call("count", "page"), groupBy=[], gap=None, maxDuration=None, width=5
    )
    assert set(messages) == {
        *(f"spec.{name}" for name in ("groupBy", "gap", "maxDuration", "width")),
        *("spec.aggregates[0].column", "spec.aggregates[1].column"),
    }


def test_what_a_mistake_hides_is_not_guessed() -> None:
    """A type that is none says nothing of aggregates, an unknown group nothing of keys."""
    schema = [{"name": "user_id", "type": "strng"}, {"name": "ts", "type": "timestamp"}]
    assert list(mistakes(aggregate_call("sum", "user_id"), input={**CLICKS, "schema": schema})) == [
        "spec.input.schema[0].type"
    ]
    key = {"kafka": {**KAFKA["kafka"], "key": ["user_id"]}}
    assert list(mistakes(groupBy=[5], output=key)) == ["spec.groupBy[0]"]


def test_constructing_a_job_applies_the_rules() -> None:
    data = document(aggregate_call("sum", "page"), width=None)
    with pytest.raises(ValueError, match="sum takes numbers"):
        SessionWindow.model_validate(data, by_alias=True)


@pytest.mark.parametrize(
    ("output", "key"),
    [
        (POSTGRES, ("user_id", "page", "session_id")),
        ({"postgres": {"table": "t", "upsertKey": ["session_id"]}}, ("session_id",)),
        (KAFKA, ()),
    ],
)
def test_rows_of_postgres_replace_each_other_by_group_and_id(output: Any, key: tuple[str, ...]) -> None:
    assert (loaded := load(output=output, groupBy=["user_id", "page"])).upsert_key(loaded.outputs[0]) == key


def test_a_header_may_say_that_a_row_is_taken_back() -> None:
    output = {"kafka": {**KAFKA["kafka"], "headers": {"gone": "retracted"}}}
    assert load(output=output, emitRetractions=True).spec.output.kafka.headers == {"gone": "retracted"}
    assert "output.kafka.headers.gone" in str(mistakes(output=output))


def test_what_goes_out() -> None:
    job = load(COUNT, aggregate_call("first", "page", **{"as": "page"}), groupBy=["low", "user_id"], compute=[LOWER])
    names = ["low", "user_id", "window_start", "window_end", "session_id", "events", "page"]
    assert [column.name for column in job.output_columns] == names
    assert [column.name for column in load(emitRetractions=True).output_columns][-2:] == ["events", "retracted"]
    assert (job.has_expressions, load().has_expressions, load(where="TRUE").has_expressions) == (True, False, True)


def test_values_of_json_columns_go_out_as_json() -> None:
    clicks = stream("clicks", "user_id", "detail:json", "more:json", watermark={"delay": "10s"})
    first, last, least = (
        aggregate_call("first", "detail"),
        aggregate_call("last", "detail", **{"as": "more"}),
        aggregate_call("min", "more"),
    )
    counted = [aggregate_call("count_col", "detail", **{"as": "detail"}), aggregate_call("count_distinct", "more")]
    chosen = [{"column": name} for name in ("user_id", "last_", "more", "min_", "detail", "count_distinct_")]
    job = load(
        first,
        aggregate_call("last", "more"),
        last,
        least,
        *counted,
        input=clicks,
        select=[*chosen, {"column": "first_", "as": "f"}],
    )
    assert job.nested_columns(job.outputs[0]) == {"f", "last_", "more", "min_"}
    output = {"kafka": {**KAFKA["kafka"], "key": ["first_"]}}
    assert "Take a part of it, by its path" in str(mistakes(first, input=clicks, output=output))


@pytest.mark.parametrize(
    ("aggregate", "limit"),
    [
        (aggregate_call("count_distinct", "page"), 10_000),
        (aggregate_call("count_distinct", "page", method="exact", limit=7), 7),
        (aggregate_call("count_distinct", "page", method="hll"), None),
        (COUNT, None),
    ],
)
def test_distinct_values_are_counted_exactly_unless_told_otherwise(aggregate: Any, limit: int | None) -> None:
    assert load(aggregate).sessions.aggregates[0].values_limit == limit


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_no_value_anywhere_gives_anything_but_mistakes(data: st.DataObject) -> None:
    good = [*(document(*aggregates, **more) for aggregates, more in GOOD), *map(in_sql, GOOD_SQL)]
    written = spoilt(data.draw(st.sampled_from(good)), data)
    assert all(path and message for path, message in messages_of(written).items())


@settings(deadline=None)
@given(st.sampled_from(["sum", "avg", "min", "max", "first", "last", "count_col", "count_distinct"]), st.data())
def test_an_aggregate_loads_for_the_types_that_it_takes(function: str, data: st.DataObject) -> None:
    column = data.draw(st.sampled_from(CLICKS["schema"]))
    accepted = takes(function, column["type"].partition("(")[0])
    assert (mistakes(aggregate_call(function, column["name"])) == {}) == accepted


def test_sessions_that_replace_rows_do_not_go_to_tables_that_are_only_appended_to() -> None:
    for output in ({"delta": {"path": "out"}}, {"iceberg": {"table": "db.out"}}):
        messages = mistakes(output=output, lateData="reopen", allowedLateness="1m")
        assert any("only appended to" in message for message in messages.values()), messages
        assert not mistakes(output=output, lateData="drop")
