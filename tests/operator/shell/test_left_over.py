import pytest

from joinery_operator.names import labels, owner_reference
from joinery_operator.shell.left_over import left_over
from joinery_operator.shell.store import Store
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
