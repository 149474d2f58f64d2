"""What is said of a job of sessions before it runs."""

from __future__ import annotations

from typing import Any

import pytest

from job.sessions import CLICKS, COUNT, aggregate_call, in_sql, load, parsed
from joinery_runtime.job import explain
from joinery_runtime.job.explain import LARGE_STATE_BYTES
from joinery_runtime.job.key_order import order_warnings

KAFKA = {"kafka": {"bootstrapServers": "k:9092", "topic": "sessions"}}
POSTGRES = {"postgres": {"table": "sessions"}}
ENGINE = 28 + 11  # of every session: hash, times and places; what has become of it


def lines(*aggregates: dict[str, Any], **spec: Any) -> dict[str, str]:
    (step,) = explain(load(*aggregates, **spec)).steps
    return dict(step.lines)


@pytest.mark.parametrize(
    ("groups", "key", "missing"),
    [
        (["user_id"], ["user_id"], None),
        (["user_id", "page"], ["user_id"], "page"),
        (["user_id", "page"], ["window_start"], "user_id and page"),
        (["user_id", "page"], ["session_id"], None),
    ],
)
def test_a_topic_whose_key_lacks_a_group_is_warned_about(
    groups: list[str], key: list[str], missing: str | None
) -> None:
    warnings = list(order_warnings(load(groupBy=groups, output={"kafka": {**KAFKA["kafka"], "key": key}})))
    assert [f"the key does not have {missing}, so several shards" in text for text in warnings] == [True] * bool(
        missing
    )


def test_the_plan_of_sessions() -> None:
    job = load(
        COUNT, aggregate_call("count_distinct", "page"),
        aggregate_call("count_distinct", "page", method="hll", **{"as": "about"}),
        allowedLateness="1m", where="qty > 1", limits={"maxRecords": 5},
    )  # fmt: skip
    assert explain(job).render().splitlines()[4:] == [
        "  groups: user_id",
        "  where: qty > 1",
        "  gap: consecutive rows that are at most 30s apart are of one session",
        "  cap: a row at 2h [maxDuration] or more after a session's first one ends it at once and opens the next",
        "  inside a capped session: later rows are dropped and counted as closed, rows on time too; how many "
        "depends on where epochs end",
        "  aggregates: count() as events, count_distinct(page, exact up to 10,000) as count_distinct_, "
        "count_distinct(page, hll) as about",
        "  emitted: each session once, when wm(clicks) > last + 30s [gap] + 1m [allowedLateness]",
        "  rows: append-only",
        "  late rows: dropped and counted when ts < wm(clicks) - 1m [allowedLateness]",
        "  limits: the state holds at most 5 rows, else the job fails; "
        "a key with more than 100,000 rows is warned about",
        "  output: JSON lines under out, exactly once; columns user_id, window_start, window_end, session_id, events, "
        "count_distinct_, about",
        "  records that cannot be used: stop the job, which names them (no deadLetter is given)",
        "  state: embedded Postgres on this machine; up to 8 shards; compacted every 1m",
        "  sessions of clicks are kept until wm(clicks) > last + 30s [gap] + 1m [allowedLateness]",
        "    in steady flow for 1m40s of event time after their last row",
        "    at 1,000 rows/s: at most, each row a session of its own, 100,000 sessions of about 279 bytes = "
        "26.61 MiB before compression",
        "  expected state at 1,000 rows/s per input: 26.61 MiB",
    ]


def test_sessions_that_are_opened_again() -> None:
    explained = lines(lateData="reopen", allowedLateness="1m")
    assert explained["emitted"].endswith(
        "wm(clicks) > last + 30s [gap], and again, whole, after each epoch that changes it"
    )
    assert explained["late rows"].endswith(
        "dropped and counted when wm(clicks) > ts + 30s [gap] + 1m [allowedLateness]"
    )
    assert "retracted: true" in lines(lateData="reopen", emitRetractions=True)["emitted"]


def test_a_table_has_no_column_of_retractions() -> None:
    """There they delete."""
    output_lines = {
        name: explain(load(emitRetractions=True, output=to)).output for name, to in (("k", KAFKA), ("p", POSTGRES))
    }
    assert output_lines["k"].endswith("events, retracted")
    assert output_lines["p"].endswith("events")


def test_sql_is_told_as_what_it_means() -> None:
    sql = "SELECT UPPER(page) AS p, SUM(qty) AS n FROM clicks GROUP BY p, SESSION(ts, INTERVAL '1' MINUTE)"
    text = explain(parsed(in_sql(sql))).render()
    for words in ("groups: p\n", "computed: p = UPPER(clicks.page)", "at most 1m apart", "aggregates: sum(qty) as n"):
        assert words in text


@pytest.mark.parametrize(
    ("aggregates", "spec", "row_bytes"),
    [
        ([COUNT], {}, 20 + 8),
        ([COUNT, aggregate_call("count")], {}, 20 + 8),
        ([aggregate_call("sum", "price"), aggregate_call("avg", "price")], {"groupBy": ["qty"]}, 4 + 16 + 24),
        ([aggregate_call("min", "cents"), aggregate_call("first", "seen")], {"groupBy": ["day"]}, 4 + 16 + 1 + 8),
        ([aggregate_call("sum", "q")], {"groupBy": ["q"], "compute": [{"expression": "qty", "as": "q"}]}, 20 + 16),
    ],
)
def test_the_size_of_a_session(aggregates: list[Any], spec: dict[str, Any], row_bytes: int) -> None:
    (side,) = explain(load(*aggregates, **spec)).sides
    assert side.row_bytes == ENGINE + row_bytes


def test_large_state_is_warned_of_loudly() -> None:
    seconds = LARGE_STATE_BYTES // (ENGINE + 28) // 1000
    small, large = (explain(load(gap=f"{seconds + more}s", maxDuration="24h")) for more in (-100, 100))
    assert small.warnings == ()
    assert large.warnings[0].startswith("LARGE STATE: about 2")
    assert "shorten the gap, or count distinct values with method: hll" in large.warnings[0]


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"output": KAFKA}, "topic"),
        ({"output": POSTGRES}, "table"),
        ({"output": {"file": {"path": "x"}}}, None),
        ({"output": KAFKA, "emitRetractions": True}, None),
        ({"output": KAFKA, "lateData": "drop"}, None),
    ],
)
def test_ids_that_nobody_takes_back_are_warned_of(spec: dict[str, Any], where: str | None) -> None:
    warnings = explain(load(**{"lateData": "reopen", **spec})).warnings
    assert [text for text in warnings if text.startswith("OLD SESSION IDS STAY")] == [*warnings]
    assert (len(warnings) == 1) == (where is not None)
    assert where is None or f"in the {where}: " in warnings[0]


def test_other_warnings_are_those_of_every_job() -> None:
    explicit = {**CLICKS, "watermark": {"explicit": True}}
    warned = {text.split(":")[0] for text in explain(load(input=explicit, stateStore={"memory": {}})).warnings}
    assert warned == {"MEMORY STORE", "EXPLICIT WATERMARK on clicks"}
