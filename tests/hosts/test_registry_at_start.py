"""The first contact with a schema registry: a mistake is told to a user at a terminal, and waited for in a pod."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from joinery_runtime.engine.loop import JobListener, Outage
from joinery_runtime.errors import SourceError, SourceUnavailable
from joinery_runtime.hosts.run import run_job
from joinery_runtime.hosts.status.board import Board, Liveness
from joinery_runtime.job import Job, load_job
from sources.registry import Registry, registry

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: registered}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "127.0.0.1:1", topic: orders}}
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
  output: {{file: {{path: out}}, format: json}}
  stateStore: {{memory: {{}}}}
"""
NO_REGISTRY = "Input orders: no schema registry answers at this address"


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as running:
        yield running


@pytest.fixture(autouse=True)
def no_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker is there: a job that asks for its topics has not asked the registry."""

    def planner_for(*_: Any, **__: Any) -> None:
        raise AssertionError("topics were asked for")

    monkeypatch.setattr("joinery_runtime.hosts.run.planner_for", planner_for)


def job_with(url: str, folder: Path) -> Job:
    path = folder / "job.yaml"
    path.write_text(JOB.format(url=url))
    return load_job(path)


def board_of(job: Job) -> Board:
    return Board(job.name, ("orders", "payments"), Liveness(600))


def hearing(said: list[str], stop: Event) -> JobListener:
    """Notes outages, and stops the job at the third."""

    def waiting(outage: Outage) -> None:
        said.append(str(outage.error))
        if len(said) == 3:
            stop.set()

    return JobListener(lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)), waiting=waiting)


def test_on_a_terminal_an_address_that_is_no_registrys_ends_the_job(served: Registry, tmp_path: Path) -> None:
    served.status = 404
    said: list[str] = []
    stop = Event()
    with pytest.raises(SourceUnavailable, match=NO_REGISTRY):
        run_job(job_with(served.url, tmp_path), hearing(said, stop), stop, warn=lambda _: None)
    assert not said


def test_in_a_pod_it_is_waited_for_and_said_at_each_try(served: Registry, tmp_path: Path) -> None:
    served.status = 404
    said: list[str] = []
    stop, job = Event(), job_with(served.url, tmp_path)
    run_job(job, hearing(said, stop), stop, warn=lambda _: None, board=board_of(job))
    assert len(said) == 3
    assert all(text.startswith(NO_REGISTRY) for text in said)


def test_in_a_pod_a_login_that_is_refused_ends_the_job(served: Registry, tmp_path: Path) -> None:
    served.login = "me:secret"
    said: list[str] = []
    stop, job = Event(), job_with(served.url, tmp_path)
    with pytest.raises(SourceError, match="refuses access") as caught:
        run_job(job, hearing(said, stop), stop, warn=lambda _: None, board=board_of(job))
    assert not isinstance(caught.value, SourceUnavailable)
    assert not said
