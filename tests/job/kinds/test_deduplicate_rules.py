"""`spec.deduplicate` of a StreamJoin: good jobs load, each rule rejects at its place, alone; its explanation, its
signature and its definition (rule M2)."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import DEAD, ORDERS, PAYMENTS, RATES, changed, document, load, messages_of, step, stream, window
from joinery_runtime.core.compile.jobs import compile_job, stored_columns
from joinery_runtime.core.kinds.deduplicate import Deduplicate
from joinery_runtime.job import Comparison, StreamJoin, definition, explain, signature, under_definition
from joinery_runtime.job.signature import NEWEST_VERSION

RULE = {"by": ["orders.id"], "within": "1h"}


COUNTED = {
    "groupBy": ["orders.currency"],
    "window": {"tumbling": {"size": "1h"}},
    "aggregates": [{"function": "sum", "column": "orders.amount", "as": "spent"}],
}


def rule(**fields: Any) -> dict[str, Any]:
    """Each order once an hour, unless the fields say otherwise; None leaves a field out."""
    return {name: value for name, value in (RULE | fields).items() if value is not None}


def job_of(*steps: dict[str, Any], inputs: Any = None, select: Any = None, **fields: Any) -> StreamJoin:
    more = {} if select is None else {"select": select}
    return load(*steps, inputs=inputs or (None if steps else [ORDERS]), deduplicate=rule(**fields), **more)


def test_one_input_needs_no_join() -> None:
    job = load(inputs=[ORDERS], deduplicate=rule(lateData="dlq", keep="last", allowedLateness="5s"), **DEAD)
    (only,) = compile_job(job).steps
    assert [side.part for side in only.sides] == ["deduplicate"]
    assert only.kind == Deduplicate(3_600_000, keep_last=True, allowed_lateness=5_000, late_to_dead_letters=True)
    assert compile_job(job).output_schema().names == ["id", "currency", "amount", "ts"]
    assert [column.name for column in job.output_columns] == ["id", "currency", "amount", "ts"]


def test_behind_a_join_the_last_step_hands_on_what_it_needs() -> None:
    select = [{"column": "payments.method"}, {"expression": "orders.amount * 2", "as": "twice"}]
    first, last = compile_job(job_of(step(), select=select, of="payments")).steps
    assert first.output_schema().names == [*("orders.id", "orders.amount", "payments.method", "payments.ts")]
    (side,) = last.sides
    assert (side.part, side.time, side.intake.event_time) == ("deduplicate.2", "payments", "payments.ts")
    assert side.stored == ("orders.id", "orders.amount", "payments.method")
    assert last.output_schema().names == ["method", "twice"]


BAD: list[tuple[dict[str, Any], str, str]] = [
    (document(inputs=[ORDERS], deduplicate=rule(by=None)), "spec.deduplicate.by", "is missing"),
    (document(inputs=[ORDERS], deduplicate=rule(by=["orders.id", "orders.id"])), "spec.deduplicate.by[1]", "twice"),
    (
        document(inputs=[ORDERS], deduplicate=rule(by=["id"])),
        "spec.deduplicate.by[0]",
        "'id' is no column of the rows; write <input>.<column>",
    ),
    (
        document(inputs=[ORDERS], deduplicate=rule(by=["orders.di"])),
        "spec.deduplicate.by[0]",
        "did you mean 'orders.id'?",
    ),
    (
        document(inputs=[stream("orders", "id", "more:json")], deduplicate=rule(by=["orders.more"])),
        "spec.deduplicate.by[0]",
        "is json",
    ),
    (document(inputs=[ORDERS], deduplicate=rule(of="order")), "spec.deduplicate.of", "'order' is not an input"),
    (
        document(step(type="left"), deduplicate=rule(of="payments")),
        "spec.deduplicate.of",
        "a row without an event time is in no order; write of: orders",
    ),
    (
        document(step(type="semi"), deduplicate=rule(by=["payments.method"])),
        "spec.deduplicate.by[0]",
        "is no column of the rows",
    ),
    (document(step(), deduplicate=rule(lateData="dlq"), **DEAD), "spec.deduplicate.lateData", "are no records"),
    (document(inputs=[ORDERS], deduplicate=rule(lateData="dlq")), "spec.deduplicate.lateData", "name `deadLetter`"),
    (document(inputs=[ORDERS], deduplicate=rule(within="0s")), "spec.deduplicate.within", "must be more than 0"),
    (document(inputs=[ORDERS, PAYMENTS], deduplicate=rule()), "spec.joins", "there is no join step"),
    (document(inputs=[RATES], deduplicate=rule(by=["rates.currency"])), "spec.inputs[0].table", "drop `table`"),
    (
        document(inputs=[ORDERS], deduplicate=rule(), aggregate=COUNTED | {"lateData": "dlq"}, **DEAD),
        "spec.aggregate.lateData",
        "lateData: dlq in deduplicate",
    ),
]


@pytest.mark.parametrize(("resource", "path", "words"), BAD, ids=[f"{path}: {words}" for _, path, words in BAD])
def test_a_bad_rule_is_rejected_at_its_place(resource: dict[str, Any], path: str, words: str) -> None:
    messages = messages_of(resource)
    assert words in messages.get(path, ""), messages


def test_all_that_is_wrong_is_said_at_once() -> None:
    messages = messages_of(document(step(), deduplicate=rule(by=["orders.x", "payments.y"], of="z", lateData="dlq")))
    assert set(messages) >= {
        *("spec.deduplicate.by[0]", "spec.deduplicate.by[1]", "spec.deduplicate.of", "spec.deduplicate.lateData")
    }


def test_the_explanation_says_what_is_emitted_and_how_long_rows_stay() -> None:
    text = str(explain(job_of(step(), of="payments", keep="last", allowedLateness="1m")))
    for line in (
        "deduplication of orders + payments",
        "key: orders.id",
        "event time: that of payments",
        "emitted: the last row of each span, when wm(payments after step 1) >= the span's end + 1m [allowedLateness]",
        "orders + payments rows are kept until wm(payments after step 1) >= ts + 1h [within] + 1m [allowedLateness]",
    ):
        assert line in text, line


# --- edits ------------------------------------------------------------------------------------------------------------


CONTINUES = [
    (job_of(), job_of()),
    (job_of(), job_of(within="1m")),
    (job_of(allowedLateness="1m"), job_of()),
    (job_of(), job_of(limits={"maxRecords": 5})),
    (job_of(), job_of(select=[{"column": "orders.id"}])),
    (job_of(lateData="drop"), load(inputs=[ORDERS], deduplicate=rule(lateData="dlq"), **DEAD)),
]
REJECTED = [
    (load(step()), job_of(step()), "there is now a deduplicate step; it is neither added to a state nor removed from"),
    (job_of(step()), load(step()), "there was a deduplicate step; it is neither added"),
    (job_of(), job_of(by=["orders.currency"]), "by was orders.id (string), it is now orders.currency (string)"),
    (job_of(), job_of(keep="last"), "the row of a span that is emitted (keep) was first, it is now last"),
    (job_of(step()), job_of(step(), of="payments"), "for deduplicate was orders, it is now payments"),
    (
        job_of(),
        job_of(inputs=[stream("orders", "id", "currency", "amount:int64")]),
        "column amount is stored as double, the job now declares int64",
    ),
]
WARNS = [
    (job_of(), job_of(within="2h"), "within went from 1h to 2h: rows that left the state before stay gone"),
    (job_of(), job_of(allowedLateness="1s"), "allowedLateness went from 0s to 1s"),
    (job_of(select=[{"column": "orders.id"}]), job_of(), "currency and amount are null in rows that were stored"),
]


@pytest.mark.parametrize(("before", "after"), CONTINUES)
def test_the_state_continues(before: StreamJoin, after: StreamJoin) -> None:
    assert changed(before, after) == Comparison((), ())


@pytest.mark.parametrize(("before", "after", "words"), REJECTED)
def test_the_state_is_rejected(before: StreamJoin, after: StreamJoin, words: str) -> None:
    assert words in changed(before, after).refused[0]


@pytest.mark.parametrize(("before", "after", "words"), WARNS)
def test_the_state_continues_with_a_warning(before: StreamJoin, after: StreamJoin, words: str) -> None:
    compared = changed(before, after)
    assert compared.refused == ()
    assert words in compared.warnings[0]


def test_an_older_release_rejects_the_state() -> None:
    assert signature(job_of(), stored_columns(compile_job(job_of())))["version"] == NEWEST_VERSION


def test_a_plan_ends_under_the_rule_that_made_it_with_the_limits_of_now() -> None:
    before, now = job_of(keep="last", limits={"maxRecords": 5}), job_of(limits={"maxRecords": 9})
    then = under_definition(now, definition(before))
    (then_ranking,), (before_ranking,) = then.rankings, before.rankings
    assert then_ranking.limits is not None
    assert then_ranking.limits.max_records == 9
    assert then_ranking.signed() == before_ranking.signed()


def test_window_joins_and_rankings_are_not_in_one_job() -> None:
    messages = messages_of(document(window(tumbling={"size": "1m"}), deduplicate=rule()))
    assert "no deduplicate follows window steps" in messages["spec.joins[0].window"]


# --- an aggregate behind it -------------------------------------------------------------------------------------------


def counted(*steps: dict[str, Any], aggregate: Any = None, **fields: Any) -> StreamJoin:
    return load(
        *steps,
        inputs=None if steps else [ORDERS],
        deduplicate=rule(**fields),
        aggregate=COUNTED | (aggregate or {}),
    )


def test_an_aggregate_reads_what_it_needs_of_the_rows_that_stay() -> None:
    compute = [{"expression": "orders.amount * 2", "as": "double"}]
    first, last = compile_job(counted(aggregate={"compute": compute})).steps
    assert [step.sides[0].part for step in (first, last)] == ["deduplicate", "aggregate.2"]
    assert first.output_schema().names == ["orders.ts", "orders.currency", "orders.amount", "double"]
    assert last.output_schema().names == ["currency", "window_start", "window_end", "spent"]


def test_behind_a_join_the_parts_are_numbered_on() -> None:
    then = {"aggregates": [{"function": "max", "column": "spent", "as": "most"}]}
    steps = compile_job(counted(step(), aggregate={"then": then})).steps
    assert [side.part for step in steps[1:] for side in step.sides] == ["deduplicate.2", "aggregate.3", "aggregate.4"]


def test_the_explanation_names_both_steps() -> None:
    text = str(explain(counted(keep="last", within="1h")))
    for line in (
        "step 1: deduplication of orders",
        "step 2: windows of deduplicated orders",
        "late rows: none: step 1 drops late rows",
        "in steady flow for 2h of event time",  # the window, and `within`
    ):
        assert line in text, line


def test_a_shorter_span_of_last_rows_may_make_rows_late() -> None:
    (warning,) = changed(counted(keep="last", within="2h"), counted(keep="last", within="1h")).warnings
    assert "the last rows of spans that are open may be late for the aggregate" in warning
    assert changed(counted(within="2h"), counted(within="1h")) == Comparison((), ())


def test_neither_step_is_added_to_a_state() -> None:
    alone = load(inputs=[ORDERS], aggregate=COUNTED)
    assert "there is now a deduplicate step" in changed(alone, counted()).refused[0]
    assert "there was an aggregate" in changed(counted(), load(inputs=[ORDERS], deduplicate=rule())).refused[0]
