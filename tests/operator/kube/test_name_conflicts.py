"""Jobs of one name: what becomes of one may depend on the other."""

import asyncio

import pytest

from joinery_operator.decision import Decision, ObservedEnd
from joinery_operator.kube.cache import ObjectCache, name_conflicts
from joinery_operator.kube.resources import JOBS, ObjectKey
from joinery_runtime.job.crd import KINDS
from joinery_runtime.job.model.resource import API_VERSION
from simulated_cluster.memory_server import MemoryServer, controller_on, settled, tell
from simulated_cluster.resources import resource_of
from simulated_cluster.small_reconcile import reconcile

FIRST, SECOND = KINDS


def put(store, kind, name="orders", namespace="shop"):
    manifest = resource_of(kind, name, namespace)
    manifest["metadata"] |= {"uid": f"{kind.name}-{namespace}-{name}", "resourceVersion": "1"}
    store.put(manifest, kind.name)


def test_they_are_of_other_kinds_with_this_name_in_this_namespace():
    store = ObjectCache()
    put(store, FIRST)
    assert list(name_conflicts(ObjectKey(FIRST.name, "shop", "orders"), store)) == []
    put(store, SECOND, "payments")
    put(store, SECOND, namespace="farm")
    assert list(name_conflicts(ObjectKey(FIRST.name, "shop", "orders"), store)) == []
    put(store, SECOND)
    assert list(name_conflicts(ObjectKey(FIRST.name, "shop", "orders"), store)) == [
        ObjectKey(SECOND.name, "shop", "orders")
    ]
    assert {resource.kind for resource in JOBS} == {FIRST.name, SECOND.name}


@pytest.mark.parametrize("how", ["changed", "gone", "gone unseen"])
def test_what_happens_to_one_is_looked_at_for_the_other(how):
    server, reconciled = MemoryServer(), []

    def decide(observed):
        if isinstance(observed, ObservedEnd):
            return Decision(None)
        reconciled.append((observed.resource["kind"], [conflict["kind"] for conflict in observed.name_conflicts]))
        return reconcile(observed)

    async def run():
        for kind in KINDS:
            server.add(resource_of(kind))
        async with controller_on(server, decide) as controller:
            await settled(controller)
            assert (SECOND.name, [FIRST.name]) in reconciled
            reconciled.clear()
            if how == "changed":
                await tell(
                    controller,
                    server.change(
                        FIRST.name,
                        "shop",
                        "orders",
                        lambda manifest: manifest["spec"].update(trigger={"maxRecordsPerEpoch": 9}),
                    ),
                )
            else:
                removed = server.remove(FIRST.name, "shop", "orders")
                await (tell(controller, removed, deleted=True) if how == "gone" else controller.auditor.round())
            await settled(controller)

    asyncio.run(run())
    assert (SECOND.name, [FIRST.name] if how == "changed" else []) in reconciled


@pytest.mark.parametrize("how", ["is being deleted", "gone"])
def test_the_end_of_a_job_is_looked_at_for_its_savepoints(how):
    server, reconciled = MemoryServer(), []

    def decide(observed):
        if isinstance(observed, ObservedEnd):
            return Decision(None)
        reconciled.append(observed.resource["metadata"]["name"])
        return Decision(None)

    def savepoint(name, job_name):
        spec = {"job": {"kind": FIRST.name, "name": job_name}, "cleanup": "retain"}
        metadata = {"name": name, "namespace": "shop"}
        return {"apiVersion": API_VERSION, "kind": "Savepoint", "metadata": metadata, "spec": spec}

    async def run():
        server.add(resource_of(FIRST))
        server.add(savepoint("noon", "orders"))
        server.add(savepoint("other", "payments"))
        async with controller_on(server, decide) as controller:
            await settled(controller)
            reconciled.clear()

            def change(job):
                job["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"

            if how == "gone":
                await tell(controller, server.remove(FIRST.name, "shop", "orders"), deleted=True)
            else:
                await tell(controller, server.change(FIRST.name, "shop", "orders", change))
            await settled(controller)

    asyncio.run(run())
    assert "noon" in reconciled
    assert "other" not in reconciled


def test_a_job_whose_page_had_the_address_of_another_is_looked_at_when_that_is_gone():
    server, reconciled = MemoryServer(), []

    def decide(observed):
        if isinstance(observed, ObservedEnd):
            return Decision(None)
        conflicts = [conflict["metadata"]["name"] for conflict in observed.page_conflicts]
        reconciled.append((observed.resource["metadata"]["name"], conflicts))
        return Decision(None)

    async def run():
        for name in ("a.b", "a-b", "c"):
            server.add(resource_of(FIRST, name))
        async with controller_on(server, decide, page_url="https://example.com/{namespace}/{name}/") as controller:
            await settled(controller)
            assert sorted(reconciled) == [("a-b", ["a.b"]), ("a.b", ["a-b"]), ("c", [])]
            reconciled.clear()
            await tell(controller, server.remove(FIRST.name, "shop", "a.b"), deleted=True)
            await settled(controller)

    asyncio.run(run())
    assert ("a-b", []) in reconciled
    assert "c" not in dict(reconciled)
