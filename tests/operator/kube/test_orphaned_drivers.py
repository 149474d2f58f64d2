import asyncio

import pytest

from joinery_operator.decision import Decision
from joinery_operator.kube.apply import Applier
from joinery_operator.kube.audit import EndingNamespaces
from joinery_operator.kube.cache import ObjectCache, orphaned_drivers
from joinery_operator.kube.controller import utc_now
from joinery_operator.kube.events import EventRecorder
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.polling import Poller
from joinery_operator.kube.reconciler import JobReconciler, Observer, PodTemplateCache
from joinery_operator.kube.resources import ObjectKey
from joinery_operator.names import labels, owner_reference
from joinery_operator.settings import Settings
from simulated_cluster.memory_server import MemoryApi, MemoryServer
from simulated_cluster.small_reconcile import job


@pytest.fixture
def store():
    return ObjectCache()


def resource(uid, name="orders"):
    manifest = job()
    manifest["metadata"] |= {"uid": uid, "name": name, "namespace": "shop"}
    return manifest


def put(store, name, owner, *, owned=True, role="driver", namespace="shop"):
    owners = [owner_reference(owner)] if owned else []
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"}
    store.put({"metadata": {**metadata, "labels": labels(owner, role, 1), "ownerReferences": owners}}, "Pod")


def test_drivers_of_the_earlier_resource(store):
    old, new = resource("u-old"), resource("u-new")
    put(store, "orders-driver-5", old)
    put(store, "orders-driver-1", new)
    put(store, "orders-check-abc", old, role="check")
    put(store, "orders-driver-6", old, owned=False)
    put(store, "payments-driver-1", resource("u-3", name="payments"))
    put(store, "orders-driver-7", resource("u-4"), namespace="elsewhere")
    assert list(orphaned_drivers(new, store)) == ["orders-driver-5"]
    assert orphaned_drivers({**new, "status": {"driver": {"number": 1}}}, store) == {}


def test_reconcile_is_told_of_them_and_of_what_was_refused(store):
    server, seen = MemoryServer(), []
    new = server.add(resource("u-new"))
    store.put(new, "StreamJoin")
    put(store, "orders-driver-5", resource("u-old"))

    def reconcile(observed):
        seen.append(observed)
        return Decision(None)

    class Refusing(Applier):
        def create_refused(self, job):
            return f"quota of {job['metadata']['uid']}"

    async def run():
        metrics = Metrics()
        async with MemoryApi(server) as api:
            poller, recorder = Poller(store, 1, metrics, lambda _: None, 3), EventRecorder(api, "operator", utc_now)
            templates, namespaces = PodTemplateCache(api, lambda: 0.0), EndingNamespaces(api, (), store, lambda _: None)
            observer = Observer(Settings(), api, store, templates, poller, namespaces, utc_now)
            reconciler = JobReconciler(
                reconcile, observer, Refusing(api, store), recorder, store, metrics, lambda _: None
            )
            await reconciler.run(ObjectKey("StreamJoin", "shop", "orders"))

    asyncio.run(run())
    assert list(seen[0].orphaned_drivers) == ["orders-driver-5"]
    assert seen[0].create_refused == f"quota of {new['metadata']['uid']}"
