import asyncio

import pytest

from joinery_operator.kube.audit import Auditor
from joinery_operator.kube.cache import ObjectCache
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import ObjectKey
from joinery_operator.names import labels, owner_reference
from joinery_operator.settings import Settings
from simulated_cluster.memory_server import MemoryApi, MemoryServer
from simulated_cluster.small_reconcile import job

JOB = ObjectKey("StreamJoin", "shop", "orders")
POD = ObjectKey("Pod", "shop", "orders-driver-1")


class World:
    """An operator whose watches tell only what the test has them tell."""

    def __init__(self):
        self.server, self.store, self.metrics = MemoryServer(), ObjectCache(Settings().selects), Metrics()
        self.due, self.ended = [], []

    def audit(self, *namespaces):
        self.do(lambda auditor: auditor.round(), *namespaces)

    def fill(self):
        self.do(lambda auditor: auditor.fill())

    def do(self, act, *namespaces):
        async def ended(job):
            self.ended.append(job)

        async def run():
            async with MemoryApi(self.server, self.metrics) as api:
                settings = Settings(namespaces=namespaces or ("shop",))
                await act(Auditor(api, settings, self.store, self.due.append, ended, self.metrics))

        asyncio.run(run())

    def watch_tells(self, manifest, deleted=False):
        self.store.apply_watch_event(manifest, manifest["kind"], deleted)

    def edit(self):
        return self.server.change("StreamJoin", "shop", "orders", lambda manifest: manifest["spec"].update(shards=4))

    def missed(self, kind="StreamJoin"):
        return self.metrics.registry.get_sample_value("joinery_operator_watch_missed_total", {"kind": kind})


@pytest.fixture
def world():
    world = World()
    world.job = world.server.add(job())
    world.watch_tells(world.job)
    return world


def test_what_a_watch_has_told_is_not_missed(world):
    world.watch_tells(world.edit())
    world.audit()
    assert world.due == []
    assert world.missed() is None


def test_a_change_that_no_watch_told_is_acted_on_at_once(world):
    world.edit()
    world.audit()
    assert world.store.get(JOB)["spec"] == {"shards": 4}
    assert world.due == [JOB]
    assert world.missed() == 1


def test_the_operators_own_writes_are_known(world):
    world.store.put(world.edit(), "StreamJoin")
    world.audit()
    assert world.due == []


def test_a_new_job_that_no_watch_told_is_found(world):
    world.server.add(job("second"))
    world.audit()
    assert world.due == [ObjectKey("StreamJoin", "shop", "second")]


def pod_of(resource):
    metadata = {"name": POD.name, "namespace": "shop", "labels": labels(resource, "driver")}
    metadata["ownerReferences"] = [owner_reference(resource)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}


def test_a_child_that_went_while_its_watch_began_anew_leads_to_a_reconcile_of_its_job(world):
    """Such a watch never reports it."""
    world.watch_tells(world.server.add(pod_of(world.job)))
    world.server.remove("Pod", "shop", POD.name)
    world.audit()
    assert world.store.get(POD) is None
    assert world.due == [JOB]
    world.audit()
    assert world.missed("Pod") == 1


@pytest.mark.parametrize("back", [False, True], ids=["gone", "another one has its name"])
def test_the_end_of_a_job_that_no_watch_told_is_reported(world, back):
    world.server.remove("StreamJoin", "shop", "orders")
    if back:
        world.server.add(job())
    world.audit()
    assert world.ended == [world.job]
    assert world.due == [JOB]
    world.audit()
    assert world.ended == [world.job]


def test_the_end_of_a_savepoint_that_no_watch_told_is_reported(world):
    savepoint = world.server.add({**job(), "kind": "Savepoint"})
    world.audit()
    world.server.remove("Savepoint", "shop", "orders")
    world.audit()
    assert [resource["metadata"]["uid"] for resource in world.ended] == [savepoint["metadata"]["uid"]]


def test_a_namespace_that_is_forbidden_keeps_no_other_from_its_audit(world):
    world.server.before = lambda method, path: (403, {"reason": "Forbidden"}) if "/namespaces/gone/" in path else None
    world.watch_tells({**world.job, "metadata": {**world.job["metadata"], "namespace": "gone", "uid": "elsewhere"}})
    world.edit()
    world.audit("gone", "shop")
    assert world.due == [JOB]
    assert world.store.get(ObjectKey("StreamJoin", "gone", "orders")) is not None
    assert world.metrics.registry.get_sample_value("joinery_operator_audit_failures_total") == 1


def test_a_child_that_is_not_listed_but_there_is_kept(world):
    """It has lost the label that it is listed by."""
    pod = world.server.add(pod_of(world.job))
    world.watch_tells(pod)
    world.server.serve = lambda *call, serve=world.server.serve: (
        (200, {"metadata": {"resourceVersion": "1000"}, "items": []})
        if call[0] == "GET" and "/pods?" in call[1]
        else serve(*call)
    )
    world.audit()
    assert world.store.get(POD) == pod
    assert world.due == []


def test_a_list_that_is_older_than_what_is_known_finds_nothing(world):
    old = world.server.serve("GET", "/apis/joinery.dev/v1alpha1/namespaces/shop/streamjoins?resourceVersion=0", None)
    world.watch_tells(world.edit())
    world.watch_tells(world.server.add(job("second")))
    serve = world.server.serve
    world.server.serve = lambda *call: old if "/streamjoins?" in call[1] else serve(*call)
    world.audit()
    assert len(list(world.store.keys("StreamJoin"))) == 2
    assert world.due == []


def test_the_first_reading_makes_every_job_due():
    world = World()
    resource = world.server.add(job())
    world.server.add(pod_of(resource))
    world.fill()
    assert world.due == [JOB]
    assert list(world.store.children(resource["metadata"]["uid"]).pods) == [POD.name]


def test_a_job_that_another_operator_has_now_is_dropped_and_has_not_ended(world):
    world.server.change("StreamJoin", "shop", "orders", lambda manifest: manifest["metadata"].update(labels=BLUE))
    world.audit()
    assert world.store.get(JOB) is None
    assert world.ended == []


def test_jobs_of_other_operators_are_not_read(world):
    second = job("second")
    second["metadata"]["labels"] = BLUE
    world.server.add(second)
    world.fill()
    assert world.due == [JOB]


BLUE = {"joinery.dev/class": "blue"}
