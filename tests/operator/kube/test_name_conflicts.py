"""Jobs of one name: what becomes of one may depend on the other."""

import asyncio

import pytest

from joinery_operator.kube.cache import ObjectCache, name_conflicts
from joinery_operator.kube.resources import JOBS, ObjectKey
from joinery_runtime.job.crd import KINDS
from simulated_cluster.memory_server import MemoryServer, controller_on, settled, tell
from simulated_cluster.resources import resource_of
from simulated_cluster.small_reconcile import reconcile

FIRST, SECOND = KINDS


def put(store, kind, name="orders", namespace="shop"):
    found = resource_of(kind, name, namespace)
    found["metadata"] |= {"uid": f"{kind.name}-{namespace}-{name}", "resourceVersion": "1"}
    store.put(found, kind.name)


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
        reconciled.append((observed.resource["kind"], [each["kind"] for each in observed.name_conflicts]))
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
                        lambda each: each["spec"].update(trigger={"maxRecordsPerEpoch": 9}),
                    ),
                )
            else:
                gone = server.remove(FIRST.name, "shop", "orders")
                await (tell(controller, gone, deleted=True) if how == "gone" else controller.auditor.round())
            await settled(controller)

    asyncio.run(run())
    assert (SECOND.name, [FIRST.name] if how == "changed" else []) in reconciled
