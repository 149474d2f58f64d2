"""A sample of the golden traces through real Spark: two executor processes, a real Postgres, the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from e2e.spark_stage import TASK_CONF, SparkStage
from joinery_devkit.spark_cluster import spark_home
from joinery_runtime.hosts.spark import start_context
from joinery_runtime.hosts.stores import PostgresAddress
from joinery_runtime.hosts.trace import run_trace
from joinery_runtime.job import StreamJoin, parse_job
from joinery_runtime.state.postgres import PostgresStore
from traces.corpus import Trace, load_traces

pytestmark = pytest.mark.services

SAMPLE = [trace for trace in load_traces() if trace.spark]
SHARDS = 3


@pytest.fixture(scope="module")
def context() -> Iterator[SparkContext]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(spark_home()))
        context = start_context("traces", TASK_CONF, "local-cluster[2,1,1024]")
        yield context
        context.stop()


@pytest.fixture(scope="module")
def address(postgres_dsn: str) -> PostgresAddress:
    return PostgresAddress(postgres_dsn, "spark_traces")


@pytest.fixture(scope="module")
def store(address: PostgresAddress) -> Iterator[PostgresStore]:
    store = PostgresStore(address.dsn, address.schema)
    yield store
    store.close()


@pytest.fixture
def stage(context: SparkContext, address: PostgresAddress, tmp_path: Path) -> SparkStage:
    return SparkStage(context, address, tmp_path)


def job(trace: Trace, suffix: str) -> StreamJoin:
    metadata = {"name": f"{trace.job['metadata']['name']}-{suffix}"}
    return parse_job(json.dumps({**trace.job, "metadata": metadata}), f"{trace.name}.yaml")


def test_there_is_a_sample() -> None:
    assert len(SAMPLE) >= 5


@pytest.mark.parametrize("trace", SAMPLE, ids=lambda trace: trace.name)
def test_a_trace(trace: Trace, stage: SparkStage, store: PostgresStore) -> None:
    lines = list(run_trace(job(trace, "spark"), [step.given for step in trace.steps], store, SHARDS, stage))
    assert len(lines) == len(trace.steps)
    check(trace, lines)


def test_a_trace_with_restarts_and_rescaling(stage: SparkStage, store: PostgresStore) -> None:
    trace = next(trace for trace in SAMPLE if trace.name == "seed001/orders-shipments")
    steps = [part for step in trace.steps for part in (step.given, {"restart": True}, {"rescale": 5})]
    lines = list(run_trace(job(trace, "restarts"), steps, store, SHARDS, stage))
    check(trace, lines[::3])
    assert not [line for line in lines if line["step"] % 3 != 1 and line["output"]]


def check(trace: Trace, lines: Iterable[Mapping[str, Any]]) -> None:
    for step, line in zip(trace.steps, lines, strict=True):
        place = f"{trace.name}, step {line['step']}: {step.given}"
        # As text, because the order of an output row's columns counts too (rule J10).
        assert _texts(line["output"]) == _texts(step.expected.output), place
        for counter, counts in (("late", step.expected.late), ("dead", step.expected.dead)):
            assert line[counter] == {**dict.fromkeys(trace.inputs, 0), **(counts or {})}, f"{counter}: {place}"
        if step.expected.watermarks is not None:
            assert line["watermarks"] == step.expected.watermarks, place


def _texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [json.dumps(row) for row in rows]
