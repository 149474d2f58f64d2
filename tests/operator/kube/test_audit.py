import asyncio

import pytest

from joinery_operator.kube.audit import Auditor, OpenFindings
from joinery_operator.kube.cache import ObjectCache
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.probes import DEAD_WATCH_SECONDS, Health
from joinery_operator.kube.resources import ObjectKey
from joinery_operator.names import labels, owner_reference
from simulated_cluster.memory_server import MemoryApi, MemoryServer
from simulated_cluster.small_reconcile import job

JOB = ObjectKey("StreamJoin", "shop", "orders")
POD = ObjectKey("Pod", "shop", "orders-driver-1")


class World:
    """An operator whose watches tell only what the test has them tell; `now` is its clock."""

    def __init__(self):
        self.server, self.store, self.metrics = MemoryServer(), ObjectCache(), Metrics()
        self.open_findings, self.events, self.now, self.due = OpenFindings(self.store), {}, 0.0, []
        self.health = Health(self.open_findings, dict, self.events, lambda: self.now)

    def audit(self):
        self.do(lambda auditor: auditor.round())

    def fill(self):
        self.do(lambda auditor: auditor.fill())

    def do(self, act):
        async def run():
            async with MemoryApi(self.server, self.metrics) as api:
                clock = lambda: self.now  # noqa: E731
                arguments = (self.open_findings, self.events, self.due.append, self.metrics, clock)
                await act(Auditor(api, ("shop",), self.store, *arguments))

        asyncio.run(run())

    def told(self, manifest, deleted=False):
        kind = manifest["kind"]
        self.events[kind] = self.events.get(kind, 0) + 1
        self.store.watched(manifest, kind, deleted)

    def edit(self):
        return self.server.change("StreamJoin", "shop", "orders", lambda each: each["spec"].update(shards=4))

    def dead_after(self, seconds):
        self.now += seconds
        return self.health.live()

    @property
    def missed(self):
        return self.metrics.registry.get_sample_value("joinery_operator_watch_missed_total", {"kind": "StreamJoin"})


@pytest.fixture
def world():
    world = World()
    world.job = world.server.add(job())
    world.told(world.job)
    return world


def test_a_watch_that_tells_everything_lives(world):
    world.told(world.edit())
    world.audit()
    assert world.dead_after(1000) == []
    assert world.missed is None


def test_a_change_that_no_watch_told_is_acted_on_at_once_and_the_watch_is_dead_after_its_grace(world):
    edited = world.edit()
    world.audit()
    assert world.store.get(JOB)["spec"] == {"shards": 4}
    assert world.due == [JOB]
    assert world.missed == 1
    assert world.dead_after(DEAD_WATCH_SECONDS) == []
    version = edited["metadata"]["resourceVersion"]
    words = f"the watch of StreamJoin has not reported that StreamJoin shop/orders has resourceVersion {version}"
    assert world.dead_after(1) == [words]


def test_a_watch_that_was_only_late_lives(world):
    edited = world.edit()
    world.audit()
    world.told(edited)
    assert world.dead_after(1000) == []


def test_further_changes_do_not_hide_how_long_a_watch_has_been_silent(world):
    world.edit()
    world.audit()
    world.now = 40.0
    world.edit()
    world.audit()
    assert len(world.dead_after(6)) == 1


def test_the_operators_own_writes_are_owed_by_the_watch_too(world):
    world.store.put(world.edit(), "StreamJoin")
    world.audit()
    assert world.due == []
    assert len(world.dead_after(DEAD_WATCH_SECONDS + 1)) == 1


def test_a_new_job_that_no_watch_told_is_found(world):
    world.server.add(job("second"))
    world.audit()
    assert world.due == [ObjectKey("StreamJoin", "shop", "second")]
    assert len(world.dead_after(DEAD_WATCH_SECONDS + 1)) == 1


def pod_of(resource):
    metadata = {"name": POD.name, "namespace": "shop", "labels": labels(resource, "driver")}
    metadata["ownerReferences"] = [owner_reference(resource)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}


def test_a_child_that_is_gone_leads_to_a_reconcile_of_its_job(world):
    world.told(world.server.add(pod_of(world.job)))
    world.server.remove("Pod", "shop", POD.name)
    world.audit()
    assert world.store.get(POD) is None
    assert world.due == [JOB]
    assert world.dead_after(DEAD_WATCH_SECONDS + 1) == [
        "the watch of Pod has not reported that Pod shop/orders-driver-1 is gone"
    ]
    world.audit()
    assert len(world.health.live()) == 1


def test_a_watch_that_began_anew_tells_no_deletions_but_lives(world):
    world.told(world.server.add(pod_of(world.job)))
    world.server.remove("Pod", "shop", POD.name)
    world.audit()
    world.told(world.server.add({**pod_of(world.job), "metadata": {"name": "other", "namespace": "shop"}}))
    assert world.dead_after(1000) == []


def test_a_child_that_is_not_listed_but_there_is_kept(world):
    """It has lost the label that it is listed by."""
    pod = world.server.add(pod_of(world.job))
    world.told(pod)
    world.server.serve = lambda *call, serve=world.server.serve: (
        (200, {"metadata": {"resourceVersion": "1000"}, "items": []})
        if call[0] == "GET" and "/pods?" in call[1]
        else serve(*call)
    )
    world.audit()
    assert world.store.get(POD) == pod
    assert world.dead_after(1000) == []


def test_a_list_that_is_older_than_what_is_known_finds_nothing(world):
    old = world.server.serve("GET", "/apis/joinery.dev/v1alpha1/namespaces/shop/streamjoins?resourceVersion=0", None)
    world.told(world.edit())
    world.told(world.server.add(job("second")))
    serve = world.server.serve
    world.server.serve = lambda *call: old if "/streamjoins?" in call[1] else serve(*call)
    world.audit()
    assert len(list(world.store.keys("StreamJoin"))) == 2
    assert world.dead_after(1000) == []


def test_the_first_reading_makes_every_job_due():
    world = World()
    made = world.server.add(job())
    world.server.add(pod_of(made))
    world.fill()
    assert world.due == [JOB]
    assert list(world.store.children(made["metadata"]["uid"]).pods) == [POD.name]
