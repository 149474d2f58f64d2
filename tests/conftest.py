"""Services that the whole run shares, the tests' order, and how much hypothesis searches."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from budget import LARGE, examples
from e2e.node.installation import OPERATOR, installed_operator
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.kubernetes.shared import cluster_services
from joinery_devkit.services import SharedServices, address_of
from joinery_runtime.state.embedded import embedded_postgres

# The tests' own Kubernetes, and the limit of a test's time.
pytest_plugins = ["joinery_devkit.kubernetes.fixtures", "joinery_devkit.time_limit"]

# "ci" finds the same on every run; "dev" looks elsewhere each time. On a busy machine an example may be slow.
# tests/budget.py says how many examples there are.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
)
settings.register_profile("dev", deadline=None, max_examples=examples(100))
# Hypothesis also draws what stands in the modules that are imported. So what is drawn, and how soon something broken is
# found, would depend on the tests that ran before; and each process would parse all modules. The large budget wants it.
if not LARGE:
    pytest.MonkeyPatch().setattr(providers, "_get_local_constants", lambda: providers._local_constants)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Small jobs would end in the driver, before Spark is there. Tests of what the driver does meanwhile unset it.
os.environ["JOINERY_WAIT_FOR_SPARK"] = "1"

# With the newer group protocol the broker says how often members hear of a rebalance (5 s by default).
PROMPT = {f"group.consumer.{limit}heartbeat.interval.ms": "500" for limit in ("min.", "")}


# --- shared services --------------------------------------------------------------------------------------------------


@contextmanager
def _kafka() -> Iterator[str]:
    with KafkaBroker(properties=PROMPT) as broker:
        yield broker.bootstrap


@contextmanager
def _postgres() -> Iterator[str]:
    if configured_dsn := os.environ.get("JOINERY_TEST_POSTGRES"):  # of another version, by `make matrix`
        yield configured_dsn
        return
    # Not in pytest's own folder, which others may not enter: run by root, a pooler in front has the server's user.
    with (
        tempfile.TemporaryDirectory(prefix="joinery-postgres-") as directory,
        embedded_postgres(Path(directory)) as dsn,
    ):
        yield dsn


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected, of which nothing is garbage: looking for some was a sixth of the time
    if not hasattr(config, "workerinput"):  # xdist's workers ask the process that started them
        services = SharedServices(
            {"kafka": _kafka, "postgres": _postgres, **cluster_services(), OPERATOR: installed_operator}
        )
        config.add_cleanup(services.close)


@pytest.fixture(scope="session")
def kafka_broker() -> KafkaAdmin:
    """The run's Kafka broker; each test makes topics of its own."""
    return KafkaAdmin(address_of("kafka"))


@pytest.fixture(scope="session")
def postgres_dsn(worker_id: str) -> str:
    """A database of this worker's own on the run's Postgres; each test makes a schema of its own."""
    server = address_of("postgres")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {worker_id}")
    return server.replace("/postgres?", f"/{worker_id}?")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Who takes one of these is a test on services, whether it says so or not: fast tests wait for no server."""
    fixtures: list[str] = getattr(item, "fixturenames", [])
    if {"kafka_broker", "postgres_dsn"} & set(fixtures):
        item.add_marker(pytest.mark.services)


# --- order ------------------------------------------------------------------------------------------------------------

# Those of services of a minute and more, then fast ones of five seconds and more, by how long they take.
LONGEST = (
    "test_kill.py", "test_fencing.py", "test_against_spark.py", "test_kill_table.py", "test_kill_sessions.py",
    "test_reruns.py", "test_demo.py", "test_kafka_brokers.py", "test_status_live.py", "test_examples.py",
    "test_spark_traces.py", "test_bad_input.py", "test_kill_every_epoch.py", "test_large_rows.py",
    "test_spark_submit.py",
    "test_protocol_model.py", "test_traces.py", "test_engine_against_oracle.py", "test_broken_engines.py",
    "test_sessions_against_oracle.py", "test_broken_protocols.py", "test_nexmark.py", "test_blue_green.py",
    "test_reachability.py", "test_rolled.py", "test_why.py", "test_composed_against_oracle.py",
    "test_key_order_of_joins.py", "test_simulation.py", "test_replay.py", "test_ways_out.py", "test_broken_joins.py",
)  # fmt: skip


def pytest_collection_finish() -> None:
    gc.freeze()
    # Most of what a test makes is freed without the collector: it looks for the rest between tests, and sooner only if
    # a test makes very much. Python's own thresholds cost a tenth of the time of a golden trace.
    gc.set_threshold(500_000, 20, 50)
    gc.enable()


TESTS_PER_GARBAGE_COLLECTION = 100
tests_ended = count(1)


def pytest_runtest_logfinish() -> None:
    if next(tests_ended) % TESTS_PER_GARBAGE_COLLECTION == 0:
        gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker is still at them when the others are done."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


# --- what was measured ------------------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures that tests have recorded (`record_property`), with or without xdist."""
    for report in terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")
