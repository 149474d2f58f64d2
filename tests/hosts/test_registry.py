"""A schema registry at a job's start, where a mistake is told to a user at a terminal and waited for in a pod; and one
that goes away while a job runs, which waits and goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from e2e.jobs import fresh_name, json_rows, produce
from formats.registry import Registry, registry
from formats.test_avro_decoder import avro
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.engine.loop import CommittedEpoch, JobListener, Outage
from joinery_runtime.errors import SourceError, SourceUnavailable
from joinery_runtime.hosts.run import run_job
from joinery_runtime.hosts.status.board import Board, Liveness
from joinery_runtime.job import Job, load_job

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: {name}}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}}}
      format: avro
      schemaRegistry: {{url: "{url}", properties: {{max.retries: "0"}}}}
      schema: [{{name: id, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
    - name: payments
      file: {{path: payments.jsonl}}
      format: json
      schema: [{{name: order, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
  joins: [{{right: payments, keys: {{orders.id: payments.order}}, interval: {{of: orders, lower: 0s, upper: 1h}}}}]
  select: [{{column: orders.id}}]
  output: {{file: {{path: out}}, format: json}}
  stateStore: {{memory: {{}}}}
"""
FIELDS = [{"name": "id", "type": "string"}, {"name": "ts", "type": "long"}]
FIRST = {"type": "record", "name": "Order", "fields": FIELDS}
SECOND = {"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}, *FIELDS]}
ORDERS = ["a", "b", "c"]
NO_REGISTRY = "Input orders: no schema registry answers at this address"


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as running:
        yield running


@pytest.fixture
def no_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker is there: a job that asks for its topics has not asked the registry."""

    def planner_for(*_: Any, **__: Any) -> None:
        raise AssertionError("topics were asked for")

    monkeypatch.setattr("joinery_runtime.hosts.wiring.planner_for", planner_for)


def job_with(url: str, folder: Path) -> Job:
    path = folder / "job.yaml"
    path.write_text(JOB.format(name="registered", bootstrap="127.0.0.1:1", url=url))
    return load_job(path)


def board_of(job: Job) -> Board:
    return Board(job.name, ("orders", "payments"), Liveness(600))


def hearing(messages: list[str], stop: Event) -> JobListener:
    """Notes outages, and stops the job at the third."""

    def waiting(outage: Outage) -> None:
        messages.append(str(outage.error))
        if len(messages) == 3:
            stop.set()

    return JobListener(lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)), waiting=waiting)


@pytest.mark.usefixtures("no_topics")
def test_on_a_terminal_an_address_that_is_no_registrys_ends_the_job(served: Registry, tmp_path: Path) -> None:
    served.status = 404
    messages: list[str] = []
    stop = Event()
    with pytest.raises(SourceUnavailable, match=NO_REGISTRY):
        run_job(job_with(served.url, tmp_path), hearing(messages, stop), stop, warn=lambda _: None)
    assert not messages


@pytest.mark.usefixtures("no_topics")
def test_in_a_pod_it_is_waited_for_and_said_at_each_try(served: Registry, tmp_path: Path) -> None:
    served.status = 404
    messages: list[str] = []
    stop, job = Event(), job_with(served.url, tmp_path)
    run_job(job, hearing(messages, stop), stop, warn=lambda _: None, board=board_of(job), patient=True)
    assert len(messages) == 3
    assert all(text.startswith(NO_REGISTRY) for text in messages)


@pytest.mark.usefixtures("no_topics")
def test_in_a_pod_a_login_that_is_refused_ends_the_job(served: Registry, tmp_path: Path) -> None:
    served.login = "me:secret"
    messages: list[str] = []
    stop, job = Event(), job_with(served.url, tmp_path)
    with pytest.raises(SourceError, match="denies access") as caught:
        run_job(job, hearing(messages, stop), stop, warn=lambda _: None, board=board_of(job), patient=True)
    assert not isinstance(caught.value, SourceUnavailable)
    assert not messages


@pytest.mark.services
@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"status": 503}, "Input orders: the schema registry does not answer"),
        ({"page": "<html>no such host</html>", "page_status": 404}, "Input orders: no schema registry answers"),
    ],
    ids=["it is down", "a proxy answers"],
)
def test_a_job_waits_for_its_registry_and_loses_nothing(
    kafka_broker: KafkaAdmin, tmp_path: Path, answers: dict[str, object], says: str
) -> None:
    name, stop = fresh_name(), Event()
    kafka_broker.create_topic(name)
    path = tmp_path / "job.yaml"
    payments = [{"order": order, "ts": 1_000} for order in ORDERS]
    (tmp_path / "payments.jsonl").write_text("".join(json.dumps(payment) + "\n" for payment in payments))
    messages: list[str] = []
    rows = 0

    with registry() as served:
        first, second = served.add(FIRST), served.add(SECOND)
        healthy = {setting: getattr(served, setting) for setting in answers}

        def become(settings: dict[str, object]) -> None:
            for setting, value in settings.items():
                setattr(served, setting, value)

        def committed(epoch: CommittedEpoch) -> None:
            nonlocal rows
            if not rows and epoch.report.rows_out:
                become(answers)
                unknown = avro(SECOND, {"id": "b", "ts": 1_000, "note": "new"}, second)
                produce(kafka_broker.bootstrap, name, [unknown, avro(FIRST, {"id": "c", "ts": 1_000}, first)])
            rows += epoch.report.rows_out
            if rows == len(ORDERS):
                stop.set()

        def waiting(outage: Outage) -> None:
            messages.append(str(outage.error))
            if len(messages) == 2:
                become(healthy)

        path.write_text(JOB.format(name=name, bootstrap=kafka_broker.bootstrap, url=served.url))
        produce(kafka_broker.bootstrap, name, [avro(FIRST, {"id": "a", "ts": 1_000}, first)])
        listener = JobListener(lambda _: None, committed, lambda *_: None, waiting=waiting)
        run_job(load_job(path), listener, stop, warn=lambda _: None)
    assert all(text.startswith(says) and f"{served.url} was asked for schema {second}" in text for text in messages)
    assert len(messages) >= 2
    assert sorted(row["id"] for row in json_rows(tmp_path / "out")) == ORDERS
