import pytest

from joinery_operator.kube.cache import ObjectCache
from joinery_operator.kube.resources import ObjectKey

JOB = ObjectKey("StreamJoin", "shop", "orders")
POD = ObjectKey("Pod", "shop", "orders-driver-1")


def manifest(name, uid, version, owner=None, **rest):
    metadata = {"namespace": "shop", "name": name, "uid": uid, "resourceVersion": str(version)}
    if owner:
        metadata["ownerReferences"] = [{"kind": "StreamJoin", "name": "orders", "uid": owner, "controller": True}]
    return {"metadata": metadata, **rest}


@pytest.fixture
def store():
    store = ObjectCache()
    store.put(manifest("orders", "j1", 5), "StreamJoin")
    store.put(manifest("orders-driver-1", "p1", 6, owner="j1"), "Pod")
    return store


def test_an_older_copy_never_takes_the_place_of_a_newer_one(store):
    assert not store.put(manifest("orders", "j1", 5, status={"phase": "Old"}), "StreamJoin")
    assert not store.put(manifest("orders", "j1", 4), "StreamJoin")
    assert store.put(manifest("orders", "j1", 10), "StreamJoin")  # as numbers: as text 10 is before 5
    assert store.get(JOB)["metadata"]["resourceVersion"] == "10"


def test_what_is_gone_is_not_brought_back_by_a_late_answer(store):
    assert store.apply_watch_event(manifest("orders-driver-1", "p1", 9, owner="j1"), "Pod", deleted=True)
    assert not store.put(manifest("orders-driver-1", "p1", 8, owner="j1"), "Pod")
    assert store.get(POD) is None
    assert store.children("j1").pods == {}


def test_a_resource_of_the_same_name_with_another_uid_takes_its_place_and_the_old_ones_end_does_not_take_it_away(store):
    store.put(manifest("orders", "j2", 20), "StreamJoin")
    assert not store.apply_watch_event(manifest("orders", "j1", 19), "StreamJoin", deleted=True)
    assert store.get(JOB)["metadata"]["uid"] == "j2"
    assert store.by_uid("j1") is None


def test_children_are_the_jobs_by_uid_and_lead_to_it(store):
    assert list(store.children("j1").pods) == ["orders-driver-1"]
    assert store.owner_of(manifest("orders-driver-1", "p1", 7, owner="j1"), "Pod") == JOB
    assert store.owner_of(manifest("other", "p9", 7, owner="elsewhere"), "Pod") is None


def test_a_child_whose_owner_reference_was_taken_away_is_still_the_jobs(store):
    robbed = manifest("orders-driver-1", "p1", 8)
    store.put(robbed, "Pod")
    assert store.children("j1").pods == {"orders-driver-1": robbed}
    assert store.owner_of(robbed, "Pod") == JOB


def test_a_job_that_left_the_selection_leaves_also_by_a_copy_of_the_cached_version():
    """A watch shows it with its former labels and the new version."""
    store = ObjectCache(lambda job: not job["metadata"].get("labels"))
    store.put(manifest("orders", "j1", 5), "StreamJoin")
    labelled = manifest("orders", "j1", 5)
    labelled["metadata"]["labels"] = {"joinery.dev/class": "blue"}
    assert store.put(labelled, "StreamJoin")
    assert store.get(JOB) is None
    store.put(manifest("orders", "j1", 7), "StreamJoin")
    assert not store.put(labelled, "StreamJoin"), "an older copy takes nothing away"
    assert store.get(JOB) is not None


def test_objects_are_counted(store):
    store.put(manifest("second", "j2", 7), "StreamJoin")
    assert len(list(store.jobs())) == 2
    assert store.count(["StreamJoin", "Pod", "Service"]) == {"StreamJoin": 2, "Pod": 1, "Service": 0}
