"""What a changed job may do with the state of an aggregate behind joins (rule M2), and its definition."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import ORDERS, changed, load, step
from job.kinds.test_aggregate_rules import COUNT, SESSION, aggregate, aggregate_call
from joinery_runtime.core.compile.jobs import compile_job, stored_columns
from joinery_runtime.job import Comparison, StreamJoin, definition, signature, under_definition
from joinery_runtime.job.signature import NEWEST_VERSION

SUM = aggregate_call("sum", "orders.amount")
TWICE = [{"expression": "orders.amount * 2", "as": "twice"}]


def job_of(*steps: dict[str, Any], **fields: Any) -> StreamJoin:
    return load(*(steps or [step()]), aggregate=aggregate(**fields))


GOES_ON: list[tuple[StreamJoin, StreamJoin]] = [
    (job_of(), job_of()),
    (job_of(aggregates=[COUNT, SUM]), job_of(aggregates=[COUNT])),
    (job_of(), job_of(aggregates=[{**COUNT, "as": "renamed"}])),
    (job_of(allowedLateness="1m"), job_of(allowedLateness="1s")),
    (job_of(lateData="drop"), job_of(lateData="reopen", emitRetractions=True)),
    (job_of(), job_of(limits={"maxRecords": 5})),
    (job_of(), job_of(having="n > 1")),
    (job_of(), job_of(emit={"every": "10s"})),
    (job_of(emit={"every": "10s"}), job_of(emit={"every": "1m"})),
    (
        job_of(compute=TWICE, groupBy=["twice"]),
        job_of(compute=[{"expression": "orders.amount*2", "as": "twice"}], groupBy=["twice"]),
    ),
]
HOURS: dict[str, Any] = {"window": {"tumbling": {"size": "1h"}}, "aggregates": [COUNT, SUM]}
MOST = aggregate_call("max", "n")


def twice(then: dict[str, Any], **fields: Any) -> StreamJoin:
    """A job that aggregates the windows of an hour once more."""
    return job_of(**{**HOURS, **fields, "then": then})


GOES_ON += [
    (twice({"aggregates": [MOST, COUNT]}), twice({"aggregates": [{**MOST, "as": "most"}], "having": "most > 1"})),
    (twice({"aggregates": [MOST]}), twice({"aggregates": [MOST], "limits": {"maxRecords": 5}})),
    (twice({"aggregates": [MOST]}), twice({"aggregates": [MOST]}, having="n > 1")),
]


def selecting(expression: str, top: str | None = None) -> StreamJoin:
    """A job that emits an expression over the windows of an hour, ranked by the expression `top` if there is one."""
    chosen = [{"column": "orders.currency"}, {"expression": expression, "as": "m"}]
    ranked = {} if top is None else {"topN": {"orderBy": [{"expression": top}], "rows": 3}}
    return load(step(), aggregate=aggregate(**HOURS), select=chosen, **ranked)


SUM_AS = SUM["as"]
GOES_ON += [
    (job_of(**HOURS), selecting("n + 1")),
    (selecting("n + 1"), selecting(f"n / {SUM_AS}")),
    (selecting("n + 1", "n"), selecting("n + 2", "n")),
    (twice({"aggregates": [MOST]}), twice({"aggregates": [MOST], "compute": [{"expression": "n", "as": "m"}]})),
]
REJECTED: list[tuple[StreamJoin, StreamJoin, str]] = [
    (selecting("n + 1", "m"), selecting("n + 2", "m"), "the order of rows (orderBy) was n + 1 ASC NULLS FIRST, it is"),
    (
        twice({"aggregates": [aggregate_call("max", "m")], "compute": [{"expression": "n + 1", "as": "m"}]}),
        twice({"aggregates": [aggregate_call("max", "m")], "compute": [{"expression": "n + 2", "as": "m"}]}),
        "max(m) is stored over n + 1 of n count(), the job now makes it of n + 2 of n count() (then)",
    ),
    (load(step()), job_of(), "there is now an aggregate; it is neither added to a state nor removed from one"),
    (job_of(), load(step()), "there was an aggregate; it is neither added"),
    (job_of(), job_of(groupBy=["orders.id"]), "groupBy was orders.currency (string), it is now orders.id (string)"),
    (
        job_of(window={"tumbling": {"size": "1h"}}),
        job_of(window={"tumbling": {"size": "1h"}}, groupBy=[]),
        "groupBy was orders.currency (string), it is now (none)",
    ),
    (job_of(), job_of(aggregates=[COUNT, SUM]), "sum(orders.amount) is not in the stored sessions"),
    (
        job_of(),
        job_of(window={"of": "payments", "session": SESSION}),
        "the input whose event time windows count was orders, it is now payments",
    ),
    (
        job_of(compute=TWICE, groupBy=["twice"]),
        job_of(compute=[{"expression": "orders.amount * 3", "as": "twice"}], groupBy=["twice"]),
        "groupBy was twice (orders.amount * 2 of orders.amount double)",
    ),
]
REJECTED += [
    (job_of(**HOURS), twice({}), "there is now a second aggregate (then); it is neither added to a state nor removed"),
    (twice({}), job_of(**HOURS), "there was a second aggregate (then)"),
    (twice({}), twice({"groupBy": ["currency"]}), "groupBy was (none), it is now currency (string) (then)"),
    (twice({}), twice({"aggregates": [MOST]}), "max(n) is not in the stored windows, and the job now needs it (then)"),
    (
        twice({}),
        twice({"window": {"tumbling": {"size": "24h"}}}),
        "the kind of window of then was that of the first aggregate, it is now tumbling",
    ),
    (
        twice({"window": {"tumbling": {"size": "24h"}}}),
        twice({"window": {"tumbling": {"size": "12h"}}}),
        "the windows' size was 24h, it is now 12h (then)",
    ),
    (
        twice({"aggregates": [aggregate_call("max", "x")]}, aggregates=[COUNT, {**SUM, "as": "x"}]),
        twice({"aggregates": [aggregate_call("max", "x")]}, aggregates=[{**COUNT, "as": "x"}, SUM]),
        "max(x) is stored over sum(orders.amount) of double, the job now makes it of count() (then)",
    ),
]
WARNS: list[tuple[StreamJoin, StreamJoin, str]] = [
    (job_of(), job_of(window={"session": {**SESSION, "gap": "1m"}}), "gap went from 30s to 1m"),
    (job_of(), job_of(allowedLateness="1m"), "sessions that were evicted before stay gone"),
    (job_of(lateData="reopen"), job_of(), "lateData went from reopen to drop"),
]


@pytest.mark.parametrize(("before", "after"), GOES_ON)
def test_the_state_continues(before: StreamJoin, after: StreamJoin) -> None:
    assert changed(before, after) == Comparison((), ())


@pytest.mark.parametrize(("before", "after", "words"), REJECTED)
def test_the_state_is_rejected(before: StreamJoin, after: StreamJoin, words: str) -> None:
    assert words in changed(before, after).refused[0]


@pytest.mark.parametrize(("before", "after", "words"), WARNS)
def test_the_state_continues_with_a_warning(before: StreamJoin, after: StreamJoin, words: str) -> None:
    (warning,) = changed(before, after).warnings
    assert words in warning


def test_computed_columns_that_swap_their_inputs_are_different() -> None:
    jobs = [
        job_of(
            compute=[{"expression": f"{one}.ts > {other}.ts", "as": "later"}],
            aggregates=[aggregate_call("first", "later")],
        )
        for one, other in (("orders", "payments"), ("payments", "orders"))
    ]
    reason = changed(*jobs).refused[0]
    assert "first(later) is stored over orders.ts > payments.ts" in reason


def test_a_job_without_an_aggregate_has_the_signature_and_definition_of_before() -> None:
    job = load(step())
    signed = signature(job, stored_columns(compile_job(job)))
    assert signed["version"] == 2
    assert "aggregate" not in signed
    assert "aggregate" not in definition(job)


def test_older_releases_reject_the_state_of_an_aggregate() -> None:
    assert signature(job_of(), stored_columns(compile_job(job_of())))["version"] == NEWEST_VERSION


def test_a_plan_is_replayed_under_the_aggregate_that_made_it() -> None:
    before = job_of(
        aggregates=[COUNT, aggregate_call("count_distinct", "orders.id", limit=5)], limits={"maxRecords": 1}
    )
    counted = aggregate_call("count_distinct", "orders.id", limit=9)
    now = load(step(), aggregate=aggregate(aggregates=[counted], limits={"maxRecords": 7}))
    replayed = under_definition(now, definition(before))
    assert definition(replayed)["aggregate"]["aggregates"][0] == COUNT
    assert replayed.aggregation is not None
    assert replayed.aggregation.aggregates[1].limit == 9
    assert replayed.aggregation.limits is not None
    assert replayed.aggregation.limits.max_records == 7


def test_limits_of_the_second_aggregate_apply_to_a_plan_that_was_made_before() -> None:
    replayed = under_definition(twice({"limits": {"maxRecords": 7}}), definition(twice({"aggregates": [MOST]})))
    assert replayed.aggregation is not None
    assert replayed.aggregation.then is not None
    assert replayed.aggregation.then.aggregates[0].function == "max"
    assert replayed.aggregation.then.limits is not None
    assert replayed.aggregation.then.limits.max_records == 7


def test_a_plan_of_one_input_is_replayed_after_a_join_was_added() -> None:
    before = load(inputs=[ORDERS], aggregate=aggregate())
    assert under_definition(job_of(), definition(before)).joins == ()
    assert under_definition(before, definition(job_of())).aggregated_time == "orders"


def test_early_results_that_stop_stay_where_they_are() -> None:
    (warning,) = changed(job_of(emit={"every": "10s"}), job_of()).warnings
    assert "early results are emitted no more" in warning
    assert "emitEvery" not in signature(job_of(), stored_columns(compile_job(job_of())))["aggregate"]
