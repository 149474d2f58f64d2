"""A sample of the golden traces through real Spark: two executor processes, a real Postgres, the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from e2e.spark_trace import TASK_CONF, SparkTrace
from joinery_devkit.spark_cluster import spark_home
from joinery_runtime.engine.planner import Planner
from joinery_runtime.hosts.spark import start_context
from joinery_runtime.hosts.stores import PostgresStoreAddress
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import Job, StreamJoin, parse_job
from joinery_runtime.state.postgres import PostgresStore
from traces.corpus import Trace, load_traces

pytestmark = pytest.mark.services

SAMPLE = [trace for trace in load_traces() if trace.spark]
SHARDS = 3


@pytest.fixture(scope="class")
def context() -> Iterator[SparkContext]:
    """Executors that serve many jobs keep connections of each to Postgres: a class of tests has its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(spark_home()))
        context = start_context("traces", TASK_CONF, "local-cluster[2,1,1024]")
        yield context
        context.stop()


@pytest.fixture(scope="module")
def address(postgres_dsn: str) -> PostgresStoreAddress:
    return PostgresStoreAddress(postgres_dsn, "spark_traces")


@pytest.fixture(scope="module")
def store(address: PostgresStoreAddress) -> Iterator[PostgresStore]:
    store = PostgresStore(address.dsn, address.schema)
    yield store
    store.close()


@pytest.fixture
def environment(context: SparkContext, address: PostgresStoreAddress, tmp_path: Path) -> SparkTrace:
    return SparkTrace(context, address, tmp_path)


def job(trace: Trace, suffix: str) -> Job:
    metadata = {"name": f"{trace.job['metadata']['name']}-{suffix}"}
    return parse_job(json.dumps({**trace.job, "metadata": metadata}), f"{trace.name}.yaml", plain_numbers=True)


def kind(trace: Trace) -> str:
    """Which code its steps run, in words."""
    parsed = parse_job(json.dumps(trace.job), f"{trace.name}.yaml", plain_numbers=True)
    if not isinstance(parsed, StreamJoin):
        return "sessions"
    if not parsed.joins:
        if parsed.rankings:
            return parsed.rankings[0].field if parsed.aggregation is None else "windows of deduplicated rows"
        if parsed.aggregation is None:
            return "projection"
        if parsed.top_of_windows is not None:
            return "topN of windows"
        return "windows" if parsed.aggregation.then is None else "windows of windows"
    steps = parsed.joins
    if len(steps) > 1 or steps[0].broadcast:
        return "chain" if len(steps) > 1 else "broadcast"
    return {"tumbling": "window", "hopping": "window"}.get(steps[0].kind, steps[0].kind)


ONE_OF_EACH = {kind(trace): trace for trace in reversed(SAMPLE)}


def test_the_sample_has_every_kind() -> None:
    joins = {"interval", "broadcast", "chain", "window", "session", "asOf"}
    one_input = {"sessions", "windows", "windows of windows", "deduplicate", "topN", "topN of windows", "projection"}
    one_input |= {"windows of deduplicated rows"}
    assert ONE_OF_EACH.keys() == joins | one_input
    types = {step["type"] for trace in SAMPLE for step in trace.job["spec"].get("joins", ()) if "type" in step}
    assert types >= {"left", "full"}


class TestFirstHalf:
    @pytest.fixture(autouse=True)
    def exchange(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All epochs are small, and executors would exchange nothing before a second step."""
        monkeypatch.setattr(Planner, "is_small", lambda *_: False)

    @pytest.mark.parametrize("trace", SAMPLE[::2], ids=lambda trace: trace.name)
    def test_a_trace(self, trace: Trace, environment: SparkTrace, store: PostgresStore) -> None:
        run_straight(trace, environment, store)


class TestSecondHalf:
    @pytest.mark.parametrize("trace", SAMPLE[1::2], ids=lambda trace: trace.name)
    def test_a_trace(self, trace: Trace, environment: SparkTrace, store: PostgresStore) -> None:
        run_straight(trace, environment, store)


class TestRestarts:
    @pytest.fixture(autouse=True)
    def exchange_in_every_other_epoch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Planner, "is_small", lambda _, plan: plan.epoch % 2 == 0)

    @pytest.mark.parametrize("trace", ONE_OF_EACH.values(), ids=ONE_OF_EACH)
    def test_a_trace_with_restarts_and_rescaling(
        self, trace: Trace, environment: SparkTrace, store: PostgresStore
    ) -> None:
        """After each step but the last: nothing comes of it."""
        between: list[Mapping[str, Any]] = [{"restart": True}, {"rescale": 5}]
        steps = [part for step in trace.steps for part in (step.action, *between)][: -len(between)]
        lines = list(traced(job(trace, "restarts"), steps, environment, store))
        check(trace, lines[::3])
        assert not [line for line in lines if line["step"] % 3 != 1 and line["output"]]


def run_straight(trace: Trace, environment: SparkTrace, store: PostgresStore) -> None:
    lines = list(traced(job(trace, "spark"), [step.action for step in trace.steps], environment, store))
    assert len(lines) == len(trace.steps)
    check(trace, lines)


def traced(
    job: Job, steps: Iterable[Mapping[str, Any]], environment: SparkTrace, store: PostgresStore
) -> Iterator[Mapping[str, Any]]:
    return run_trace(job, steps, store, SHARDS, environment, verbose=True)


def check(trace: Trace, lines: Iterable[Mapping[str, Any]]) -> None:
    for step, line in zip(trace.steps, lines, strict=True):
        step_name, expected = f"{trace.name}, step {line['step']}: {step.action}", step.expected
        # As text, because the order of an output row's columns counts too (rule J10).
        shown, meant = _texts(line["output"]), _texts(expected.output)
        assert (shown if trace.ordered else sorted(shown)) == (meant if trace.ordered else sorted(meant)), step_name
        for counter, counts in (("late", expected.late), ("dead", expected.dead)):
            assert line[counter] == {**dict.fromkeys(trace.inputs, 0), **(counts or {})}, f"{counter}: {step_name}"
        handed_on = list(expected.step_watermarks) if expected.step_watermarks is not None else None
        declared = {"dropped": expected.dropped, "watermarks": expected.watermarks, "stepWatermarks": handed_on}
        for what, value in declared.items():
            assert value is None or line.get(what, {}) == value, f"{what}: {step_name}"


def _texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [json.dumps(row) for row in rows]
