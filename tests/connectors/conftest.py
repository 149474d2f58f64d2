"""What the tests of connectors share; each makes its own topics and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import psycopg
import pyarrow as pa
import pytest

from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.connectors.kafka import record_clients
from joinery_runtime.connectors.postgres.external import ExternalPostgresSink
from joinery_runtime.connectors.postgres.sink import PostgresSink, Staging
from joinery_runtime.connectors.postgres.table import TargetTable

_tables = (f"target_{number}" for number in count())


@pytest.fixture(scope="session")
def broker(kafka_broker: KafkaAdmin) -> KafkaAdmin:
    return kafka_broker


@pytest.fixture(params=["in batches", "record by record"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to get records from Kafka: whoever asks for it runs with each."""
    if request.param == "record by record":
        monkeypatch.setattr(record_clients, "kernels", lambda name: None)
    return str(request.param)


@pytest.fixture(scope="session")
def dsn(postgres_dsn: str) -> str:
    return postgres_dsn


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    """Stands for the store's connection."""
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def table() -> str:
    return next(_tables)


@pytest.fixture(params=[False, True], ids=["beside", "external"])
def external(request: pytest.FixtureRequest) -> bool:
    """Whether the table is taken to be in another database than the state's."""
    return bool(request.param)


@pytest.fixture
def make(dsn: str, table: str, external: bool) -> Iterator[Callable[..., PostgresSink]]:
    """Makes prepared sinks on this test's table: of a schema and the columns of the upsert key."""
    sinks: list[PostgresSink] = []

    def maker(
        schema: pa.Schema,
        *upsert_key: str,
        retracted: str | None = None,
        nested: frozenset[str] = frozenset(),
        ordered: bool = False,
    ) -> PostgresSink:
        target = TargetTable(table, upsert_key, retracted, nested, ordered=ordered)
        staging = Staging.of("joinery_out", "job", table, external=external)
        sink = ExternalPostgresSink(dsn, target, staging, schema) if external else PostgresSink(dsn, target, staging)
        sinks.append(sink)
        sink.prepare(schema)
        return sink

    yield maker
    for sink in sinks:
        sink.close()
