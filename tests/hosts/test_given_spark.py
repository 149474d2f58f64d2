"""What a job leaves behind on a Spark session that is somebody else's. On a real one: tests/test_api.py."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts import given_spark
from joinery_runtime.hosts.given_spark import session_context
from joinery_runtime.hosts.spark import SparkHost
from joinery_runtime.hosts.spark_jobs import WORK
from joinery_runtime.hosts.spark_tasks import WorkerSetup

SET_BY_THE_NOTEBOOK = {
    "spark.job.description": "of the notebook",
    "spark.jobGroup.id": "the notebook's group",
    "spark.job.interruptOnCancel": "true",
    "callSite.long": "the notebook's cell",
    "spark.scheduler.pool": "the notebook's pool",
}


class Session:
    """Takes down what is asked of a context; its connection to Java is idle, busy with a call or gone."""

    _jsc = object()

    def __init__(self, connection: str) -> None:
        idle = deque([connection] if connection == "idle" else [])
        client = SimpleNamespace(get_thread_connection=lambda: connection, deque=idle)
        self._gateway = SimpleNamespace(_gateway_client=client)
        self._gone = connection == "gone"
        self.environment = {"OF": "the session"}
        self.tags: set[str] = set()
        self.cancelled: list[str] = []
        self.restored: dict[str, object] = {}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - PySpark's name
        return SET_BY_THE_NOTEBOOK.get(name)

    def setLocalProperty(self, name: str, value: object) -> None:  # noqa: N802
        if self._gone:
            raise ConnectionRefusedError(111, "Connection refused")
        self.restored[name] = value

    def addJobTag(self, tag: str) -> None:  # noqa: N802
        self.tags.add(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        if self._gone:
            raise ConnectionRefusedError(111, "Connection refused")
        self.cancelled.append(tag)


@pytest.fixture(autouse=True)
def only_what_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_spark, "_context_of", lambda session: session)
    monkeypatch.setattr(given_spark, "_missing_settings", lambda *_: iter(()))
    monkeypatch.setattr(given_spark, "_check_workers", lambda _: None)
    monkeypatch.setattr(given_spark, "keep_environment_in_java", lambda _: None)
    monkeypatch.setattr(given_spark, "keep_java_names", lambda _: None)


def test_a_job_that_ends_takes_away_what_it_has_set() -> None:
    session: Any = Session("idle")
    with session_context(session, {}) as context:
        assert len(session.tags) == 1
        assert context.environment == {"OF": "the session", "JOINERY_WORKER": "1"}
    assert session.environment == {"OF": "the session"}
    assert (session.tags, session.cancelled) == (set(), [])
    assert session.restored == {**SET_BY_THE_NOTEBOOK, "callSite.short": None, WORK: None}, "None removes a name"


def test_an_interrupt_ends_the_spark_job_of_the_epoch() -> None:
    session: Any = Session("busy")
    with pytest.raises(KeyboardInterrupt), session_context(session, {}):
        raise KeyboardInterrupt
    assert session.cancelled == list(session.tags)
    assert session.cancelled
    assert session.restored == {}, "it would have taken the answer of the interrupted call for its own"


def test_an_interrupt_after_which_java_has_no_connection_is_an_interrupt() -> None:
    """PySpark cleans up after the call that was interrupted, and may find no connection left."""
    context: Any = SimpleNamespace(master="local[2]", defaultParallelism=2, setJobGroup=interrupted)
    work = EpochWork(1, EpochPlan(7, 2, (), {}), ())
    setup = WorkerSetup("d", lambda _: nullcontext(context), 1)
    with pytest.raises(KeyboardInterrupt):
        SparkHost(context, setup, "job").run(work)


def interrupted(*_: str) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        try:
            raise ConnectionResetError
        except ConnectionResetError as error:
            raise Py4JNetworkError("Answer from Java side is empty") from error


def test_an_error_about_a_java_that_is_gone_is_the_one_that_is_seen() -> None:
    session: Any = Session("gone")
    session._gateway._gateway_client.deque.append("gone")
    with pytest.raises(JoineryError, match="Spark gave up on epoch 7"), session_context(session, {}):
        raise JoineryError("Spark gave up on epoch 7", facts="the driver's Java process is gone")
