import asyncio

import pytest

from joinery_operator.decision import Decision
from joinery_operator.names import labels, owner_reference
from joinery_operator.settings import Settings
from joinery_operator.shell.apply import Applier
from joinery_operator.shell.kinds import Key
from joinery_operator.shell.left_over import left_over
from joinery_operator.shell.metrics import Metrics
from joinery_operator.shell.polling import Poller
from joinery_operator.shell.recorder import Recorder
from joinery_operator.shell.shell import utc_now
from joinery_operator.shell.store import Store
from joinery_operator.shell.templates import Templates
from joinery_operator.shell.worker import Worker
from operator_world.memory_server import MemoryApi, MemoryServer
from operator_world.stand_in import job


@pytest.fixture
def store():
    return Store()


def resource(uid, name="orders"):
    found = job()
    found["metadata"] |= {"uid": uid, "name": name, "namespace": "shop"}
    return found


def put(store, name, owner, *, owned=True, role="driver", namespace="shop"):
    owners = [owner_reference(owner)] if owned else []
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"}
    store.put({"metadata": {**metadata, "labels": labels(owner, role, 1), "ownerReferences": owners}}, "Pod")


def test_drivers_of_the_namesake_before(store):
    old, new = resource("u-old"), resource("u-new")
    put(store, "orders-driver-5", old)
    put(store, "orders-driver-1", new)
    put(store, "orders-check-abc", old, role="check")
    put(store, "orders-driver-6", old, owned=False)
    put(store, "payments-driver-1", resource("u-3", name="payments"))
    put(store, "orders-driver-7", resource("u-4"), namespace="elsewhere")
    assert list(left_over(new, store)) == ["orders-driver-5"]
    assert left_over({**new, "status": {"driver": {"number": 1}}}, store) == {}


def test_reconcile_is_told_of_them_and_of_what_was_refused(store):
    server, seen = MemoryServer(), []
    new = server.add(resource("u-new"))
    store.put(new, "StreamJoin")
    put(store, "orders-driver-5", resource("u-old"))

    def reconcile(observed):
        seen.append(observed)
        return Decision(None)

    class Refusing(Applier):
        def refused(self, job):
            return f"quota of {job['metadata']['uid']}"

    async def run():
        metrics = Metrics()
        async with MemoryApi(server) as api:
            poller, recorder = Poller(store, 1, metrics, lambda _: None, 3), Recorder(api, "operator", utc_now)
            parts = (Refusing(api, store), Templates(api, lambda: 0.0), poller, recorder, metrics, utc_now)
            await Worker(Settings(), reconcile, store, *parts).look(Key("StreamJoin", "shop", "orders"))

    asyncio.run(run())
    assert list(seen[0].left_over) == ["orders-driver-5"]
    assert seen[0].refused == f"quota of {new['metadata']['uid']}"
