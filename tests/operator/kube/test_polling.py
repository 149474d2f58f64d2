import asyncio
import json

import pytest
from aiohttp import web

from joinery_devkit.processes import free_port
from joinery_operator.kube.cache import ObjectCache
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.polling import Poller
from joinery_operator.kube.resources import ObjectKey

JOB = ObjectKey("StreamJoin", "shop", "orders")


class World:
    """One job whose driver is at 127.0.0.1; `answer` is what it says (a status code and text)."""

    def __init__(self):
        self.store, self.metrics, self.due, self.port = ObjectCache(), Metrics(), [], free_port()
        self.answer = (200, {"ready": False})
        self.requests = 0
        self._version = 0
        self.job(1)
        self.pod(1)

    def job(self, attempt, **driver):
        status = {"driver": {"number": attempt, **driver}}
        resource = {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "spec": {}, "status": status}
        self._put({**resource, "metadata": {"name": "orders", "uid": "j1"}}, "StreamJoin")

    def pod(self, attempt, phase="Running", address="127.0.0.1", owner="j1"):
        owners = [{"kind": "StreamJoin", "name": "orders", "uid": owner, "controller": True}]
        metadata = {"name": f"orders-driver-{attempt}", "uid": f"p{attempt}-{owner}", "ownerReferences": owners}
        self._put({"metadata": metadata, "status": {"phase": phase, "podIP": address}}, "Pod")

    def _put(self, manifest, kind):
        self._version += 1
        manifest["metadata"] |= {"namespace": "shop", "resourceVersion": str(self._version)}
        self.store.put(manifest, kind)

    def run(self, act):
        async def handler(request):
            self.requests += 1
            assert request.path == "/status"
            code, body = self.answer
            return web.Response(status=code, text=body if isinstance(body, str) else json.dumps(body))

        async def run():
            application = web.Application()
            application.router.add_get("/{path:.*}", handler)
            runner = web.AppRunner(application)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            async with Poller(self.store, self.port, self.metrics, self.due.append, 3) as poller:
                await act(poller)
            await runner.cleanup()

        asyncio.run(run())

    def status(self, poller):
        return poller.last_status(self.store.get(JOB))

    @property
    def failures(self):
        return self.metrics.registry.get_sample_value("joinery_operator_driver_poll_failures_total")

    def migrates(self, attempt, container="migrate"):
        self.pod(attempt, phase="Pending")
        key = ObjectKey("Pod", "shop", f"orders-driver-{attempt}")
        first = [{"name": container, "state": {"running": {}}}]
        pod = self.store.get(key)
        status = {**pod["status"], "initContainerStatuses": first}
        self._put({"metadata": {**pod["metadata"]}, "status": status}, "Pod")


@pytest.fixture
def world():
    return World()


def test_a_migration_before_the_driver_is_asked(world):
    world.migrates(1)
    world.answer = (200, {"migrated": 3})

    async def act(poller):
        await poller.round()
        assert world.status(poller).migrated == 3
        assert world.due == [JOB]

    world.run(act)


def test_what_serves_no_status_is_not_asked(world):
    async def act(poller):
        world.migrates(1, container="proxy")
        await poller.round()
        world.job(1, restore="rollout-b")
        world.pod(1)
        await poller.round()
        assert world.requests == 0

    world.run(act)


def test_the_driver_of_the_attempt_is_asked_and_the_job_looked_at(world):
    world.answer = (200, {"ready": True, "epoch": 7, "fromANewerRelease": 1})

    async def act(poller):
        assert world.status(poller) is None
        await poller.round()
        assert (world.status(poller).ready, world.status(poller).epoch) == (True, 7)
        assert world.due == [JOB]

    world.run(act)


def test_what_a_newer_release_says_of_parts_is_left_out(world):
    part = {"fromANewerRelease": 1}
    savepoint = {"name": "s", "epoch": 6, "time": "2026-11-21T10:00:00Z", **part}
    inputs = [{"name": "orders", "lag": 3, "rowsPerSecond": 5, **part}]
    keys = [{"key": "k", "rows": 2, **part}]
    world.answer = (200, {"inputs": inputs, "hottestKeys": keys, "lastSavepoint": savepoint})

    async def act(poller):
        await poller.round()
        status = world.status(poller)
        assert (status.inputs[0].lag, status.inputs[0].rows_per_second) == (3, 5)
        assert (status.hottest_keys[0].rows, status.last_savepoint.epoch) == (2, 6)
        assert world.failures == 0

    world.run(act)


def test_a_driver_of_an_earlier_job_of_that_name_is_not_asked(world):
    world.job(2)
    world.pod(2, owner="j0")

    async def act(poller):
        await poller.round()
        assert (world.requests, world.status(poller)) == (0, None)

    world.run(act)


def test_what_matters_is_told_at_once_and_mere_figures_now_and_then(world):
    async def act(poller):
        await poller.round()
        for epoch in range(1, 7):
            world.answer = (200, {"ready": False, "epoch": epoch, "tasks": 7 * epoch})
            await poller.round()
        assert len(world.due) == 3  # the first answer, then every third round
        world.answer = (200, {"ready": True, "epoch": 6})
        await poller.round()
        assert len(world.due) == 4
        world.answer = (200, {"ready": True, "epoch": 6, "committed": 1})
        await poller.round()
        assert len(world.due) == 5

    world.run(act)


def test_an_answer_that_stays_the_same_is_told_once(world):
    async def act(poller):
        for _ in range(10):
            await poller.round()
        assert world.due == [JOB]

    world.run(act)


@pytest.mark.parametrize(
    "answer", [(503, "not yet"), (200, "<html>"), (200, {"epoch": -1}), (200, "[" * 300_000), (302, "")]
)
def test_wrong_answers_are_counted_and_leave_the_last_one(world, answer):
    world.answer = (200, {"ready": True})

    async def act(poller):
        await poller.round()
        world.answer = answer
        await poller.round()
        assert world.status(poller).ready
        assert world.failures == 1

    world.run(act)


def test_a_driver_that_cannot_be_reached_is_counted(world):
    world.pod(1, address="127.0.0.2")

    async def act(poller):
        await poller.round()
        assert world.failures == 1
        assert world.due == []

    world.run(act)


def test_what_an_earlier_attempt_said_is_not_taken_for_the_new_ones(world):
    world.answer = (200, {"ready": True})

    async def act(poller):
        await poller.round()
        world.job(2)
        assert world.status(poller) is None
        world.pod(2, phase="Pending")
        assert world.status(poller) is None
        world.pod(2)
        world.answer = (200, {"ready": False})
        await poller.round()
        assert not world.status(poller).ready
        assert world.due == [JOB, JOB]

    world.run(act)


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_only_drivers_that_run_are_asked(world, phase):
    world.pod(1, phase=phase)

    async def act(poller):
        await poller.round()
        assert world.requests == 0

    world.run(act)


def test_jobs_that_are_gone_are_forgotten(world):
    async def act(poller):
        await poller.round()
        assert poller._answers
        world.store.remove(JOB, "j1")
        await poller.round()
        assert poller._answers == {}

    world.run(act)
