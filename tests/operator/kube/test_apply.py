import asyncio

import pytest

from joinery_operator.decision import Create, Delete, Patch, SetFinalizers
from joinery_operator.kube.api import ApiError, Conflict
from joinery_operator.kube.apply import Applier, NameTaken, ResourceChanged, complete_manifest
from joinery_operator.kube.cache import ObjectCache
from joinery_operator.kube.resources import POD as POD_RESOURCE
from joinery_operator.kube.resources import ObjectKey
from joinery_operator.names import owner_reference
from joinery_runtime.job.crd import Status
from simulated_cluster.memory_server import MemoryApi, MemoryServer
from simulated_cluster.small_reconcile import job

JOB = ObjectKey("StreamJoin", "shop", "orders")
POD = ObjectKey("Pod", "shop", "a")


class World:
    def __init__(self):
        self.server, self.store = MemoryServer(), ObjectCache()
        self.job = self.server.add(job())
        self.store.put(self.job, "StreamJoin")

    def do(self, act):
        async def run():
            async with MemoryApi(self.server) as api:
                return await act(Applier(api, self.store))

        return asyncio.run(run())

    def act(self, action):
        return self.do(lambda applier: applier.act(self.job, action))

    def pod(self, *owners, **metadata):
        metadata |= {"name": "a", "namespace": "shop", "ownerReferences": list(owners)}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}


@pytest.fixture
def world():
    return World()


def test_the_store_has_the_status_that_was_written(world):
    written = world.do(lambda applier: applier.write_status(world.job, Status(phase="Running")))
    assert world.store.get(JOB) == written
    assert written["status"]["phase"] == "Running"
    assert written["metadata"]["resourceVersion"] != world.job["metadata"]["resourceVersion"]


def test_what_is_kept_says_what_it_is_and_not_who_wrote_it():
    item = {"metadata": {"name": "a", "managedFields": [{"manager": "kubelet"}]}, "spec": {"x": 1}}
    complete = complete_manifest(item, POD_RESOURCE)
    assert complete == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"x": 1}}
    assert "managedFields" in item["metadata"]


def test_the_same_status_is_not_written_again(world):
    written = world.do(lambda applier: applier.write_status(world.job, Status(phase="Running")))
    world.server.calls.clear()
    assert world.do(lambda applier: applier.write_status(written, Status(phase="Running"))) is written
    assert world.server.calls == []


def test_a_resource_that_was_edited_is_looked_at_anew(world):
    edited = world.server.change("StreamJoin", "shop", "orders", lambda manifest: manifest["spec"].update(shards=4))
    with pytest.raises(ResourceChanged):
        world.do(lambda applier: applier.write_status(world.job, Status(phase="Running")))
    assert world.store.get(JOB) == edited
    assert "status" not in world.server.get("StreamJoin", "shop", "orders")


def test_a_resource_that_is_gone_is_forgotten(world):
    world.server.remove("StreamJoin", "shop", "orders")
    with pytest.raises(ResourceChanged):
        world.do(lambda applier: applier.write_status(world.job, Status(phase="Running")))
    assert world.store.get(JOB) is None


def test_a_resource_with_the_name_of_one_that_is_gone_is_not_written(world):
    world.server.remove("StreamJoin", "shop", "orders")
    other = world.server.add(job())
    with pytest.raises(ResourceChanged):
        world.do(lambda applier: applier.write_status(world.job, Status(phase="Running")))
    assert world.store.get(JOB)["metadata"]["uid"] == other["metadata"]["uid"]


def test_a_child_is_made_and_known_at_once(world):
    world.act(Create(world.pod(owner_reference(world.job))))
    assert world.server.names("Pod") == ["a"]
    assert list(world.store.children(world.job["metadata"]["uid"]).pods) == ["a"]


def test_a_child_that_is_there_is_taken(world):
    existing = world.server.add(world.pod(owner_reference(world.job)))
    world.act(Create(world.pod(owner_reference(world.job))))
    assert world.store.get(POD)["metadata"]["uid"] == existing["metadata"]["uid"]


@pytest.mark.parametrize("owners", [[], [{"kind": "Job", "name": "other", "uid": "u9"}]])
def test_another_ones_object_is_never_taken(world, owners):
    world.server.add(world.pod(*owners))
    whose = "Job other" if owners else "nobody"
    words = f"Pod shop/a is not this job's: it is owned by {whose}"

    async def act(applier):
        with pytest.raises(NameTaken, match=words):
            await applier.act(world.job, Create(world.pod(owner_reference(world.job))))
        message = applier.create_refused(world.job)
        assert words in message
        assert message.endswith("Delete or rename it, or rename the job")
        assert world.server.get("Pod", "shop", "a") == theirs
        world.server.remove("Pod", "shop", "a")
        await applier.act(world.job, Create(world.pod(owner_reference(world.job))))
        assert applier.create_refused(world.job) == ""

    theirs = world.server.get("Pod", "shop", "a")
    world.do(act)


def test_deleting_names_the_uid(world):
    pod = world.server.add(world.pod(owner_reference(world.job)))
    world.store.put(pod, "Pod")
    world.act(Delete("Pod", "a", "another-uid"))
    assert world.server.names("Pod") == ["a"]
    world.act(Delete("Pod", "a", pod["metadata"]["uid"]))
    assert world.server.names("Pod") == []
    assert world.store.get(POD) is None
    world.act(Delete("Pod", "a", pod["metadata"]["uid"]))


def test_a_pod_that_takes_its_time_to_end_is_still_known(world):
    pod = world.server.add({**world.pod(owner_reference(world.job)), "status": {"phase": "Running"}})
    world.store.put(pod, "Pod")
    world.act(Delete("Pod", "a", pod["metadata"]["uid"]))
    assert world.store.get(POD)["metadata"]["deletionTimestamp"]


def test_a_pod_that_went_before_its_time_to_end_began_is_gone(world, monkeypatch):
    """Its last copy is then no version that the API server has stored."""
    pod = world.server.add(world.pod(owner_reference(world.job)))
    world.store.put(pod, "Pod")

    async def last_copy(*_):
        return {
            "metadata": {"name": "a", "namespace": "shop", "uid": pod["metadata"]["uid"], "deletionTimestamp": "now"}
        }

    monkeypatch.setattr(MemoryApi, "delete", last_copy)
    world.act(Delete("Pod", "a", pod["metadata"]["uid"]))
    assert world.store.get(POD) is None


def test_a_child_is_repaired(world):
    world.store.put(world.server.add(world.pod(owner_reference(world.job))), "Pod")
    world.act(Patch("Pod", "a", {"metadata": {"labels": {"x": "y"}}}))
    assert world.store.get(POD)["metadata"]["labels"] == {"x": "y"}
    world.server.remove("Pod", "shop", "a")
    with pytest.raises(ResourceChanged, match="Pod shop/a was deleted"):
        world.act(Patch("Pod", "a", {"metadata": {"labels": {}}}))
    assert world.store.get(POD) is None


def test_finalizers_are_set_on_the_resource_that_was_observed_only(world):
    patched = world.act(SetFinalizers(("joinery.dev/state",)))
    assert world.server.get("StreamJoin", "shop", "orders")["metadata"]["finalizers"] == ["joinery.dev/state"]
    with pytest.raises(ResourceChanged):
        world.act(SetFinalizers(()))
    assert world.store.get(JOB)["metadata"]["finalizers"] == patched["metadata"]["finalizers"]


def test_the_last_finalizer_lets_a_resource_go(world):
    world.job = world.server.change(
        "StreamJoin",
        "shop",
        "orders",
        lambda manifest: manifest["metadata"].update(finalizers=["x"], deletionTimestamp="now"),
    )
    world.store.put(world.job, "StreamJoin")
    world.act(SetFinalizers(()))
    assert world.server.names("StreamJoin") == []
    assert world.store.get(JOB) is None


@pytest.mark.parametrize("remaining", ["itself", "nothing", "another of its name"])
def test_what_could_not_be_deleted_is_looked_at(world, monkeypatch, remaining):
    """A 409 says that something has changed, not that the object is gone."""
    pod = world.server.add(world.pod(owner_reference(world.job)))
    world.store.put(pod, "Pod")
    if remaining != "itself":
        world.server.remove("Pod", "shop", "a")
    if remaining == "another of its name":
        world.server.add(world.pod(owner_reference(world.job)))

    async def refused(*_):
        raise Conflict("DELETE", 409, "Conflict", "try again")

    monkeypatch.setattr(MemoryApi, "delete", refused)
    action = Delete("Pod", "a", pod["metadata"]["uid"])
    if remaining == "itself":
        with pytest.raises(ResourceChanged, match="Pod shop/a was not deleted"):
            world.act(action)
        assert world.store.get(POD)["metadata"]["uid"] == pod["metadata"]["uid"]
    else:
        world.act(action)
        assert world.store.get(POD) is None


def test_a_conflict_that_is_not_about_the_name_is_told_as_it_is(world):
    """A quota that others use at the same moment."""
    words = "Operation cannot be fulfilled on resourcequotas: the object has been modified"
    conflict = (409, {"reason": "Conflict", "message": words})
    world.server.before = lambda method, path: conflict if method == "POST" else None
    with pytest.raises(Conflict, match=words):
        world.act(Create(world.pod(owner_reference(world.job))))


REFUSALS = {
    "a quota": (403, "Forbidden", "exceeded quota: compute"),
    "a webhook that is away": (500, "InternalError", 'failed calling webhook "pods.policy.example.com"'),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refused_child_is_remembered_until_one_is_made(world, monkeypatch, refusal):
    create, pod = MemoryApi.create, world.pod(owner_reference(world.job))

    async def refused(*_):
        raise ApiError("POST", *refusal)

    async def act(applier):
        monkeypatch.setattr(MemoryApi, "create", refused)
        with pytest.raises(ApiError):
            await applier.act(world.job, Create(pod))
        reason = "{} {}: {}".format(*refusal)
        assert applier.create_refused(world.job) == f"Pod shop/a cannot be created: {reason}"
        monkeypatch.setattr(MemoryApi, "create", create)
        await applier.act(world.job, Create(pod))
        assert applier.create_refused(world.job) == ""

    world.do(act)


def test_of_several_kinds_each_refusal_is_told(world):
    def refuse(method, path):
        return (403, {"reason": "Forbidden", "message": "no"}) if method == "POST" else None

    async def act(applier):
        world.server.before = refuse
        for kind, name in (("Service", "s"), ("Pod", "old"), ("Pod", "new")):
            with pytest.raises(ApiError):
                await applier.act(world.job, Create({**world.pod(), "kind": kind, "metadata": {"name": name}}))
        message = applier.create_refused(world.job)
        assert [word in message for word in ("Service shop/s", "Pod shop/new", "Pod shop/old")] == [True, True, False]
        world.server.before = lambda *_: None
        await applier.act(world.job, Create(world.pod(owner_reference(world.job))))
        assert applier.create_refused(world.job) == "Service shop/s cannot be created: 403 Forbidden: no"

    world.do(act)


def test_a_child_that_is_there_although_its_create_was_answered_by_an_error_is_not_refused(world):
    child = world.pod(owner_reference(world.job))

    def takes_effect(method, path):
        if method == "POST" and not world.server.names("Pod"):
            world.server.add(child)
            return 500, {"reason": "InternalError", "message": "etcdserver: request timed out"}
        return (500, {"reason": "InternalError", "message": "away"}) if method == "POST" else None

    async def act(applier):
        world.server.before = takes_effect
        with pytest.raises(ApiError):
            await applier.act(world.job, Create(child))
        assert "Pod shop/a" in applier.create_refused(world.job)
        world.store.apply_watch_event(world.server.get("Pod", "shop", "a"), "Pod", deleted=False)
        assert applier.create_refused(world.job) == ""

    world.do(act)
