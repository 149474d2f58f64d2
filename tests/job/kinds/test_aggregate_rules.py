"""`spec.aggregate` of a StreamJoin: good jobs load and name their columns, each rule rejects at its place, alone."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import ITEMS, ORDERS, PAYMENTS, as_of, document, load, messages_of, step, stream, window
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JobError
from joinery_runtime.job import explain
from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.key_order import order_warnings
from joinery_runtime.job.model.base import PLAIN_NUMBERS
from joinery_runtime.job.model.references import WINDOW_COLUMNS

SESSION = {"gap": "30s", "maxDuration": "1h"}
COUNT = {"function": "count", "as": "n"}
HOURLY = {"groupBy": ["orders.currency"], "window": {"tumbling": {"size": "1h"}}, "aggregates": [COUNT]}
PLAIN = {"groupBy": ["orders.currency"], "window": {"session": SESSION}, "aggregates": [COUNT]}


def aggregate(**fields: Any) -> dict[str, Any]:
    """An aggregate that counts, unless the fields say otherwise; None leaves a field out."""
    return {name: value for name, value in (PLAIN | fields).items() if value is not None}


def aggregate_call(function: str, column: str, **more: Any) -> dict[str, Any]:
    return {"function": function, "column": column, "as": f"{function}_", **more}


NAMES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["currency", "window_start", "window_end", "session_id", "n"]),
    (
        {"emitRetractions": True, "lateData": "reopen"},
        ["currency", "window_start", "window_end", "session_id", "n", "retracted"],
    ),
    ({"groupBy": ["payments.method", "twice"], "compute": [{"expression": "orders.amount * 2", "as": "twice"}]},
     ["method", "twice", "window_start", "window_end", "session_id", "n"]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "names"), NAMES)
def test_columns_are_groups_then_the_windows_then_aggregates(fields: dict[str, Any], names: list[str]) -> None:
    job = load(step(), aggregate=aggregate(**fields))
    assert [column.name for column in job.output_columns] == names
    assert compile_job(job).output_schema().names == names


def test_a_select_is_exact_and_a_value_that_is_kept_has_its_columns_type() -> None:
    chosen = [{"column": "n"}, {"column": "orders.currency", "as": "money"}, {"column": "max_"}]
    fields = aggregate(aggregates=[COUNT, aggregate_call("max", "payments.ts")])
    job = load(step(), aggregate=fields, select=chosen)
    assert [(column.name, str(column.type)) for column in job.output_columns] == [
        ("n", "None"),
        ("money", "string"),
        ("max_", "timestamp"),
    ]


def test_one_input_needs_no_join() -> None:
    job = load(inputs=[ORDERS], aggregate=aggregate(lateData="dlq"), deadLetter={"file": {"path": "dead"}})
    (only,) = compile_job(job).steps
    assert [side.part for side in only.sides] == ["aggregate"]
    assert only.sides[0].intake.keys == ("currency",)
    assert explain(job).title == "sessions of orders"


def test_the_aggregate_is_the_step_behind_the_joins() -> None:
    job = load(step(), step("items"), aggregate=aggregate())
    *joins, last = compile_job(job).steps
    assert [side.part for side in last.sides] == ["aggregate.3"]
    assert joins[-1].output_schema().names == ["orders.ts", "orders.currency"]
    assert explain(job).title == "sessions of orders + payments + items after a chain of 2 joins"


def test_a_job_with_an_aggregate_is_no_single_step() -> None:
    """The sessions need what a chain promises (J6): no pair from before the watermark of its rows."""
    late = "late rows: of orders and payments, dropped and counted when ts < the input's own watermark"
    assert late in explain(load(step(), aggregate=aggregate())).render()
    assert late not in explain(load(step())).render()


BAD: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (aggregate(groupBy=[]), {}, "groupBy", "one session of the whole stream"),
    (aggregate(groupBy=["orders.curency"]), {}, "groupBy[0]", "no column 'orders.curency' (did you mean"),
    (aggregate(groupBy=["currency"]), {}, "groupBy[0]", "the job has no column 'currency'"),
    (aggregate(groupBy=["orders.id", "orders.id"]), {}, "groupBy[1]", "twice"),
    (aggregate(groupBy=["orders.ts", "payments.ts"]), {}, "groupBy[1]", "two output columns would be named 'ts'"),
    (aggregate(aggregates=[aggregate_call("sum", "orders.id")]), {}, "aggregates[0].column", "sum takes numbers"),
    (aggregate(aggregates=[aggregate_call("max", "orders.x")]), {}, "aggregates[0].column", "no column 'orders.x'"),
    (aggregate(aggregates=[COUNT, COUNT]), {}, "aggregates[1].as", "two aggregates are named 'n'"),
    (aggregate(aggregates=[{**COUNT, "as": "currency"}]), {}, "aggregates[0].as", "the name of a group column"),
    (aggregate(aggregates=[{**COUNT, "as": "session_id"}]), {}, "aggregates[0].as", "sessions have a column"),
    (aggregate(window={}), {}, "window", "needs exactly one of tumbling, hopping, cumulative and session"),
    (aggregate(window={"session": {"gap": "1h", "maxDuration": "1h"}}), {}, "window.session.maxDuration", "rule S2"),
    (aggregate(window={"of": "order", "session": SESSION}), {}, "window.of", "'order' is not an input (did you mean"),
    (aggregate(lateData="dlq"), {"deadLetter": {"file": {"path": "d"}}}, "lateData", "are no records"),
    (
        aggregate(window={"hopping": {"size": "1h", "slide": "300ms"}}),
        {},
        "window.hopping.slide",
        "12,000 windows of 1h would hold each row, and 10,000 is the most; write 360ms or longer",
    ),
    (
        aggregate(window={"cumulative": {"size": "24h", "step": "1s"}}),
        {},
        "window.cumulative.step",
        "86,400 windows of 24h would hold each row",
    ),
    (
        aggregate(window={"tumbling": {"size": "5h", "timeZone": "Europe/Zurich"}}),
        {},
        "window.tumbling.size",
        "is 5h, and with a timeZone, windows begin at the same local times each day",
    ),
    (
        aggregate(window={"hopping": {"size": "24h", "slide": "30m", "timeZone": "Europe/Zurich"}}),
        {},
        "window.hopping.slide",
        "write hours that divide a day",
    ),
    (
        aggregate(window={"cumulative": {"size": "36h", "step": "12h", "timeZone": "Europe/Zurich"}}),
        {},
        "window.cumulative.size",
        "or whole days, such as 24h or 168h",
    ),
    (
        aggregate(window={"tumbling": {"size": "24h", "timeZone": "Europe/Atlantis"}}),
        {},
        "window.tumbling.timeZone",
        "'Europe/Atlantis' is no time zone; write a name such as Europe/Berlin or UTC",
    ),
    (
        aggregate(window={"tumbling": {"size": "24h"}, "timeZone": "Europe/Zurich"}),
        {},
        "window.timeZone",
        "write it beside size, as in tumbling: {size: 24h, timeZone: Europe/Zurich}",
    ),
    (
        aggregate(window={"tumbling": {"size": "1mo", "timeZone": "Europe/Zurich"}}),
        {},
        "window.tumbling.size",
        "has the unit 'mo', which differs in length; write hours, as 24h for a day",
    ),
    (aggregate(having="n >"), {}, "having", "'n >' is not an SQL condition"),
    (aggregate(having="m > 1"), {}, "having", "'m' is no column of these sessions"),
    (aggregate(having="currency = 'EUR'"), {}, "having", "'currency' is no column of these sessions"),
    (aggregate(having="COUNT(*) > 1"), {}, "having", "'COUNT(*)' is an aggregate; add it to `aggregates`"),
    (aggregate(having="absolute(n) > 1"), {}, "having", "there is no function ABSOLUTE"),
    (aggregate(having="n > 1", lateData="reopen"), {}, "having", "(rule G7); write emitRetractions: true"),
    (
        aggregate(having="n > 1", lateData="reopen", window={"tumbling": {"size": "1h"}}),
        {},
        "having",
        "(rule G7); keep one of having and reopen",
    ),
    (aggregate(having="retracted", lateData="reopen", emitRetractions=True), {}, "having", "'retracted' is no column"),
    (aggregate(having="n > 1", emit={"every": "10s"}), {}, "having", "(rule G8); keep one of having and emit"),
    (
        aggregate(window={"tumbling": {"size": "1h"}}, emitRetractions=True),
        {},
        "emitRetractions",
        "is for sessions, whose ids change: a tumbling window keeps its key",
    ),
    (aggregate(emit={"every": "0s"}), {}, "emit.every", "more than 0"),
    (aggregate(emit={}), {}, "emit.every", "missing"),
    (aggregate(emit={"every": "10s"}), {"output": {"delta": {"path": "d"}}}, "emit", "delta tables are only appended"),
    (aggregate(where="n > 1"), {}, "where", "write `filter` into the last step"),
    (
        aggregate(compute=[{"expression": "1", "as": "orders.id"}]),
        {},
        "compute[0].as",
        "has a column 'orders.id'",
    ),
]


@pytest.mark.parametrize(("fields", "more", "path", "words"), BAD)
def test_each_rule_rejects_at_its_place(fields: Any, more: dict[str, Any], path: str, words: str) -> None:
    mistakes = messages_of(document(step(), aggregate=fields, **more))
    assert set(mistakes) == {f"spec.aggregate.{path}"}
    assert words in mistakes[f"spec.aggregate.{path}"]


@pytest.mark.parametrize(
    ("steps", "of_input", "words"),
    [
        ([step(type="left")], "payments", "a row without an event time is in no window; write of: orders"),
        ([step(type="right")], None, "is in no window; write of: payments"),
        ([step(type="full")], "orders", "write type: left, right or inner in the steps"),
        ([step(type="semi")], "payments", "emits no column of 'payments'; write of: orders"),
        ([step(), step("items", type="right")], "payments", "step 2 is a right join"),
        ([step(), as_of()], "rates", "may be older than its row by any time, so groups would never be complete"),
    ],
)  # fmt: skip
def test_the_time_is_of_an_input_that_no_step_pads(steps: Any, of_input: str | None, words: str) -> None:
    windows = {"session": SESSION, **({"of": of_input} if of_input is not None else {})}
    mistakes = messages_of(document(*steps, aggregate=aggregate(window=windows)))
    assert set(mistakes) == {"spec.aggregate.window.of"}
    assert words in mistakes["spec.aggregate.window.of"]


def job_with(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return document(*(steps or [step()]), **({"aggregate": aggregate()} | more))


OF_THE_JOB: list[tuple[dict[str, Any], str, str]] = [
    (
        job_with(window(session={"gap": "1m"})),
        "joins[0].window.session",
        "no aggregate can follow, because a session may begin any time before it ends",
    ),
    (job_with(prefixes="always"), "prefixes", "drop `prefixes`"),
    (job_with(select=[{"expression": "n + 1"}]), "select[0]", "an expression has no name of its own"),
    (job_with(select=[{"expression": "m + 1", "as": "m"}]), "select[0].expression", "is no column of these sessions"),
    (job_with(select=[{"column": "orders.id"}]), "select[0].column", "is no column of these sessions"),
    (
        document(
            inputs=[ORDERS], aggregate=aggregate(compute=[{"expression": "upper(orders.currency)", "as": "currency"}])
        ),
        "aggregate.compute[0].as",
        "has a column 'currency' already; choose another name",
    ),
    (
        job_with(aggregate={**HOURLY, "then": {"groupBy": ["window_start"], "aggregates": [{**COUNT, "as": "m"}]}}),
        "aggregate.then.groupBy[0]",
        "leave it out: a row is aggregated in the window from which it comes",
    ),
    (document(inputs=[ORDERS, ITEMS], aggregate=aggregate()), "inputs[1]", "no step joins input 'items'"),
    (
        job_with(aggregate=aggregate(lateData="reopen"), output={"delta": {"path": "d"}}),
        "aggregate.lateData",
        "are only appended to",
    ),
]


@pytest.mark.parametrize(("resource", "path", "words"), OF_THE_JOB)
def test_what_does_not_go_with_an_aggregate_is_rejected(resource: dict[str, Any], path: str, words: str) -> None:
    assert words in messages_of(resource)[f"spec.{path}"]


def test_a_computed_column_of_a_wrong_type_is_rejected_by_the_core_at_its_place() -> None:
    text = [{"expression": "lower(orders.id)", "as": "low"}]
    job = load(step(), aggregate=aggregate(compute=text, aggregates=[aggregate_call("sum", "low")]))
    with pytest.raises(JobError, match=r"spec\.aggregate\.aggregates\[0\]\.column.*sum takes numbers"):
        compile_job(job)
    job = load(step(), aggregate=aggregate(compute=[{"expression": "lower(orders.amount)", "as": "low"}]))
    with pytest.raises(JobError, match=r"spec\.aggregate\.compute\[0\]\.expression"):
        compile_job(job)


def test_a_condition_on_groups_that_is_no_condition_is_rejected_by_the_core_at_its_place() -> None:
    with pytest.raises(JobError, match=r"spec\.aggregate\.having.*'n \+ 1' is not a condition"):
        compile_job(load(step(), aggregate=aggregate(having="n + 1")))
    with pytest.raises(JobError, match=r"spec\.aggregate\.having.*int64 and string do not go together"):
        compile_job(load(step(), aggregate=aggregate(having="n > 'x'")))


def test_an_expression_of_a_wrong_type_is_rejected_by_the_core_at_its_place() -> None:
    written = [{"column": "orders.currency"}, {"expression": "UPPER(n)", "as": "x"}]
    with pytest.raises(JobError, match=r"spec\.select\[1\]\.expression.*'UPPER\(n\)': its text must be string"):
        compile_job(load(step(), aggregate=aggregate(), select=written))
    then = {"compute": [{"expression": "n || 'x'", "as": "x"}], "aggregates": [COUNT]}
    with pytest.raises(JobError, match=r"spec\.aggregate\.then\.compute\[0\]\.expression: cannot evaluate"):
        compile_job(load(step(), aggregate=aggregate(**HOURLY, then=then)))
    in_sql = "SELECT currency, UPPER(COUNT(*)) AS x FROM orders GROUP BY currency, TUMBLE(ts, INTERVAL '1' HOUR)"
    with pytest.raises(JobError, match=r"spec\.sql: line 1, column 18, `UPPER\(COUNT\(\*\)\)`"):
        compile_job(load(inputs=[ORDERS], sql=in_sql))


def test_a_condition_on_groups_is_explained_and_reads_what_is_not_selected() -> None:
    chosen = [{"column": "orders.currency"}, {"column": "session_id"}]
    job = load(step(), aggregate=aggregate(having="n > 1 AND orders.currency <> 'x'"), select=chosen)
    assert compile_job(job).output_schema().names == ["currency", "session_id"]
    having = dict(explain(job).steps[-1].lines)["having"]
    assert having == "n > 1 AND orders.currency <> 'x'; rows for which it is not true are not emitted, and counted"


TABLE = {"output": {"postgres": {"dsn": "postgresql://x", "table": "t"}}}


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, None),
        ({"lateData": "reopen"}, ("currency", "session_id")),
        ({"emit": {"every": "10s"}}, ("currency", "session_id")),
        ({"emit": {"every": "10s"}, "window": {"tumbling": {"size": "1h"}}}, ("currency", *WINDOW_COLUMNS)),
    ],
)
def test_the_rows_of_a_step_are_append_only_or_a_changelog(fields: dict[str, Any], key: tuple[str, ...] | None) -> None:
    job = load(inputs=[ORDERS], aggregate=aggregate(**fields), **TABLE)
    assert compile_job(job).last.changelog_key == key
    description = dict(explain(job).steps[-1].lines)["rows"]
    written = f"changelog by orders.{', '.join(key)}: a row replaces the one before" if key else "append-only"
    assert description == written
    assert (f"changelog by {', '.join(key)}; columns" if key else "exactly once; columns") in explain(job).output
    joined = load(step(), aggregate=aggregate(**fields))
    assert compile_job(joined).steps[0].changelog_key is None


def test_a_condition_of_an_output_may_name_the_key_of_a_changelog_alone() -> None:
    def into_some(when: str) -> dict[str, Any]:
        early = aggregate(emit={"every": "10s"}, lateData="reopen", emitRetractions=True)
        output = {"name": "some", "when": when, "file": {"path": "some"}}
        resource = document(step(), aggregate=early, outputs=[output])
        del resource["spec"]["output"]
        return resource

    assert messages_of(into_some("currency = 'EUR' AND session_id > 5 AND NOT retracted")) == {}
    (message,) = messages_of(into_some("n > 1 AND window_end > 5")).values()
    assert "reopen replaces rows that are out already (lateData), so 'n' and 'window_end' may change" in message


def test_early_results_are_explained_with_what_they_leave_behind() -> None:
    job = load(step(), aggregate=aggregate(emit={"every": "10s"}), **TABLE)
    early = dict(explain(job).steps[-1].lines)["emitted early"]
    assert "passes a multiple of 10s [emit.every]" in early
    assert "OLD SESSION IDS STAY in the table: emit is set" in str(explain(job).warnings)
    windows = load(step(), aggregate=aggregate(emit={"every": "10s"}, window={"tumbling": {"size": "1h"}}), **TABLE)
    assert "OLD SESSION" not in str(explain(windows).warnings)


def test_an_upsert_key_is_the_groups_and_the_session_unless_it_is_named() -> None:
    postgres = {"output": {"postgres": {"dsn": "postgresql://x", "table": "t"}}}
    job = load(step(), aggregate=aggregate(), **postgres)
    assert job.upsert_key(job.outputs[0]) == ("currency", "session_id")
    chosen = [{"column": "n"}, {"column": "session_id"}]
    mistakes = messages_of(document(step(), aggregate=aggregate(), select=chosen, **postgres))
    assert "orders.currency is left out" in mistakes["spec.select"]


@pytest.mark.parametrize(
    ("groups", "key", "missing"),
    [
        (["orders.currency"], ["currency"], None),
        (["orders.currency"], ["currency", "n"], None),
        (["orders.currency", "orders.id"], ["currency"], "orders.id"),
        (["orders.currency", "orders.id"], ["n"], "orders.currency and orders.id"),
    ],
)
def test_a_topic_whose_key_lacks_a_group_is_warned_about(
    groups: list[str], key: list[str], missing: str | None
) -> None:
    """Records of a group come from one shard, and those of other groups from other ones."""
    topic = {"output": {"kafka": {"bootstrapServers": "k:9092", "topic": "t", "key": key}}}
    warnings = list(order_warnings(load(step(), aggregate=aggregate(groupBy=groups), **topic)))
    assert [f"the key does not have {missing}, so several shards" in text for text in warnings] == [True] * bool(
        missing
    )


def test_an_input_that_a_step_keys_by_a_computed_group_is_read() -> None:
    """A name with a dot that is no column of an input stays a computed one."""
    computed = [{"expression": "orders.amount * 1.5", "as": "amount * 1.5"}]
    job = load(
        step(), inputs=[stream("orders", "id", "amount:double"), PAYMENTS],
        aggregate=aggregate(groupBy=["amount * 1.5"], compute=computed),
    )  # fmt: skip
    assert job.output_columns[0].name == "amount * 1.5"
    assert compile_job(job).last.sides[0].intake.keys == ("amount * 1.5",)


@pytest.mark.parametrize(
    ("target", "field"),
    [({"kafka": {"topic": "t", "bootstrapServers": "k:9092"}}, "key"), ({"postgres": {"table": "t"}}, "upsertKey")],
)
@pytest.mark.parametrize(
    ("fields", "key", "changing"),
    [
        (HOURLY | {"lateData": "reopen"}, ["currency", "window_end"], []),
        (HOURLY | {"lateData": "reopen"}, ["currency"], []),
        (HOURLY, ["currency", "n"], []),
        (HOURLY | {"emit": {"every": "5m"}}, ["currency", "n", "twice"], [1, 2]),
        (PLAIN | {"lateData": "reopen"}, ["session_id"], []),
        (PLAIN | {"lateData": "reopen"}, ["currency", "window_start"], []),
        (PLAIN | {"lateData": "reopen"}, ["currency", "window_end"], [1]),
    ],
)
def test_a_key_of_a_changelog_is_the_same_for_all_rows_of_a_window(
    target: dict[str, Any], field: str, fields: dict[str, Any], key: list[str], changing: list[int]
) -> None:
    """Otherwise each result of a window would be a further row of the table (rule G9)."""
    ((kind, settings),) = target.items()
    session = ["session_id"] if "session" in fields["window"] else []
    select = [{"column": name} for name in ("orders.currency", *WINDOW_COLUMNS, *session, "n")]
    resource = document(
        step(),
        aggregate=fields,
        select=[*select, {"expression": "n * 2", "as": "twice"}],
        output={kind: settings | {field: key}},
    )
    messages = messages_of(resource)
    assert [*messages] == [f"spec.output.{kind}.{field}[{i}]" for i in changing]
    for i, text in zip(changing, messages.values(), strict=True):
        assert text.startswith(f"{key[i]!r} may differ between an earlier and a later result of one window")
        assert f"name some of currency, {'window_start' if session else 'window_start and window_end'}" in text


def test_a_stored_job_with_a_changing_key_continues() -> None:
    output = {"postgres": {"table": "t", "upsertKey": ["n"]}}
    resource = document(step(), aggregate=HOURLY | {"lateData": "reopen"}, output=output)
    assert messages_of(resource) != {}
    assert StreamJoin.model_validate(resource, by_alias=True, by_name=False, context=PLAIN_NUMBERS).retracted is None
