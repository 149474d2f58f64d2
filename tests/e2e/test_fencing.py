"""Two drivers of one job at once, each a `joinery run`, while records arrive: only the newest generation adds state,
offsets and visible output, and the other one ends with an error that says so.

Output and dead letters go to Kafka, where rows are visible before the epoch's commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.conftest import SceneAt
from e2e.driver_process import PATIENCE_S, Run
from e2e.jobs import traceback_of_ours
from e2e.kill_harness import Feeder, repeated
from e2e.scene import Scene
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.tcp_proxy import before_postgres

FENCED = ("no longer owns job", "another driver has taken over job", "has joined consumer group", "is over")
SESSION_MS = 6_000  # the least that brokers allow

pytestmark = [pytest.mark.services, pytest.mark.slow]


def ends_with_an_error(run: Run) -> str:
    assert run.wait() == 1, run.last_words
    (error,) = [line for line in run.errors if line.startswith("joinery: ")]
    assert not traceback_of_ours("".join(run.errors))
    return error


def ends_as_fenced(run: Run) -> None:
    error = ends_with_an_error(run)
    assert any(words in error for words in FENCED), error


def taken_over(entries: list[dict[str, Any]]) -> int:
    """The first epoch of the second generation; no epoch of the first one follows."""
    generations = [entry["generation"] for entry in entries]
    assert generations == sorted(generations)
    assert set(generations) == {1, 2}
    return int(entries[generations.index(2)]["epoch"])


# --- paused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "shards"),
    [
        pytest.param("transaction-begun", 4, marks=pytest.mark.soak),
        ("transaction-sent", 2),
        ("transaction-committed", 7),
    ],
)
def test_a_paused_driver_ends_when_it_goes_on(scene: Scene, point: str, shards: int) -> None:
    """It is stopped with a transaction in a shard's hands; the other driver has a number of shards of its own."""
    with Feeder(scene.job.bootstrap, scene.job.name, seed=1) as feeder:
        first = scene.start(f"{point}@4=SIGSTOP")
        epoch = scene.hurt_at(point)
        paused = first.pause()
        second = scene.start(shards=shards)
        second.wait_for_more_epochs(4)
        first.resume(paused)
        ends_as_fenced(first)
        second.wait_for_more_epochs(3)
        entries = scene.finish(feeder, second)
    assert taken_over(entries) == epoch
    assert entries[-1]["plan"]["shards"] == shards
    if point == "transaction-committed":
        assert epoch in repeated(entries)


def test_a_driver_whose_session_has_ended_does_not_drive_the_newer_one_out(scene: Scene) -> None:
    """Its client joins the group anew, under the name that the newer driver's member has, while a task of it hangs."""
    properties = f"{{session.timeout.ms: {SESSION_MS}}}"
    with Feeder(scene.job.bootstrap, scene.job.name, seed=3) as feeder:
        first = scene.start("transaction-sent@4=SIGSTOP", properties=properties)
        scene.hurt_at("transaction-sent")
        paused = first.pause()
        second = scene.start(properties=properties)
        goes_on_for(second, SESSION_MS / 1000 + 2)
        first.resume([process for process in paused if process.pid != scene.hurt_worker("transaction-sent")])
        goes_on_for(second, SESSION_MS / 1000 + 2)
        first.resume(paused)
        ends_as_fenced(first)
        second.wait_for_more_epochs(3)
        scene.finish(feeder, second)


def goes_on_for(run: Run, seconds: float) -> None:
    run.wait_for_more_epochs(3)
    over = time.monotonic() + seconds
    run.wait_for("epochs for some time", lambda _: time.monotonic() > over)


# --- two jobs of one name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactlyOnce", pytest.param("atLeastOnce", marks=pytest.mark.soak)])
def test_jobs_of_one_name_with_different_stores_do_not_fence_each_other_for_ever(scene: Scene, delivery: str) -> None:
    """They take the consumer groups from each other, until one says whose name it has; the other one goes on."""
    scene.job = replace(scene.job, extra=f"delivery: {delivery}")
    with Feeder(scene.job.bootstrap, scene.job.name, seed=5):
        first = scene.start()
        first.wait_for_more_epochs(4)
        second = scene.start(schema="scenes_of_another_store")
        ended, other = first_to_end(first, second)
        error = ends_with_an_error(ended)
        assert f"Two jobs have the name {scene.job.name} on one Kafka, with different state stores" in error
        assert "schema scenes_of_another_store" in error
        assert "Rename one of the two" in error
        other.wait_for_more_epochs(4)
        assert other.stop() == 0, other.last_words


def first_to_end(*runs: Run) -> Sequence[Run]:
    """The run that ends first, and the other one."""
    over = time.monotonic() + PATIENCE_S
    while not (ended := [run for run in runs if run.process.poll() is not None]):
        assert time.monotonic() < over, "both go on"
        time.sleep(0.1)
    return sorted(runs, key=lambda run: run is not ended[0])


# --- cut off ----------------------------------------------------------------------------------------------------------


def test_a_driver_that_lost_postgres_does_not_take_the_job_back(scene: Scene) -> None:
    with before_postgres(scene.job.dsn) as (proxy, dsn), Feeder(scene.job.bootstrap, scene.job.name, seed=2) as feeder:
        first = scene.start(dsn=dsn)
        first.wait_for_more_epochs(4)
        proxy.cut()
        second = scene.start()
        second.wait_for_more_epochs(4)
        assert first.process.poll() is None, first.last_words
        first.wait_for("its outage", lambda _: any(says_store_is_away(line) for line in first.lines))
        proxy.restore()
        ends_as_fenced(first)
        second.wait_for_more_epochs(3)
        taken_over(scene.finish(feeder, second))


def says_store_is_away(line: dict[str, Any]) -> bool:
    return "The state store is not available" in line.get("error", "")


@pytest.fixture(scope="module")
def broker_behind_a_proxy() -> Iterator[KafkaBroker]:
    with KafkaBroker(proxied=True) as broker:
        yield broker


def test_a_driver_that_lost_kafka_adds_nothing_when_it_is_back(
    scene_at: SceneAt, broker_behind_a_proxy: KafkaBroker
) -> None:
    """Both drivers are told the same address; the proxy there tells their connections apart."""
    broker = broker_behind_a_proxy
    scene = scene_at(broker, broker.proxied_bootstrap)
    with Feeder(broker.bootstrap, scene.job.name, seed=4) as feeder:
        first = scene.start()
        first.wait_for_more_epochs(4)
        broker.proxies[0].block(Connections(first).has)
        second = scene.start()
        second.wait_for_more_epochs(4)
        broker.restore()
        error = ends_with_an_error(first)
        # It may have given Kafka up before it was back.
        assert any(words in error for words in (*FENCED, f"bootstrapServers {broker.proxied_bootstrap}")), error
        second.wait_for_more_epochs(3)
        taken_over(scene.finish(feeder, second))


class Connections:
    """Those of a driver's processes, found as Linux tells them: psutil takes too long to be asked all the time."""

    def __init__(self, run: Run) -> None:
        self._run, self._processes = run, run.processes()

    def has(self, port: int) -> bool:
        """Whether one of them comes from this port."""
        socket = _socket_of(port)
        return socket is not None and (self._any(socket) or self._any(socket, look_again=True))

    def _any(self, socket: str, *, look_again: bool = False) -> bool:
        with suppress(psutil.NoSuchProcess):
            if look_again:
                self._processes = self._run.processes()
        return any(socket in _files(process.pid) for process in self._processes)


def _socket_of(port: int) -> str | None:
    """The client's end of the connection from this port."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].split(":")[1], 16) == port and fields[9] != "0":
            return f"socket:[{fields[9]}]"
    return None


def _files(pid: int) -> set[str]:
    files = set()
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                files.add(str(file.readlink()))
    return files
