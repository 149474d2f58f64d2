"""One driver after another: starts, ends, back-off, suspension, and what is found after the operator was away."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from joinery_operator.decision import Create, Delete, Patch
from joinery_operator.reconcile import desired
from joinery_operator.reconcile.context import read_status
from joinery_runtime.job.crd import KINDS, DriverStatus, HotKey, InputStatus, Waiting
from simulated_cluster.resources import hash_of
from simulated_cluster.simulation import START, Killed, SimulatedCluster, resource, stamp

FATAL = {"outcome": "failed", "kind": "SourceError", "error": "no topic orders", "retry": False}
TRANSIENT = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}
FIRST = "orders-driver-1"


@pytest.fixture
def cluster() -> SimulatedCluster:
    return SimulatedCluster(resource())


@pytest.fixture
def running(cluster: SimulatedCluster) -> SimulatedCluster:
    cluster.started(1)
    return cluster


def quiescent(cluster: SimulatedCluster) -> bool:
    decision = cluster.step()
    return decision.status is None and not decision.actions and not decision.events


def test_a_new_job_gets_its_children_and_runs(cluster: SimulatedCluster) -> None:
    decision = cluster.step()
    created = [(a.manifest["kind"], a.manifest["metadata"]["name"]) for a in decision.actions if isinstance(a, Create)]
    revision = cluster.status.revision
    assert created == [("ConfigMap", f"orders-job-{revision}"), ("Pod", FIRST), ("Service", "orders-driver")]
    # The Service last: one of that name that is not ours is to keep no driver from running.
    assert cluster.status.phase == "Pending"
    cluster.step()
    assert cluster.status.phase == "Starting"
    cluster.run(FIRST)
    cluster.get_ready(FIRST)
    cluster.step()
    assert cluster.status.phase == "Running"
    assert cluster.status.observed_generation == 1
    assert cluster.condition("Ready") == ("True", "Running")
    assert cluster.condition("Progressing")[0] == "False"
    assert cluster.condition("Degraded") == ("False", "AsExpected")
    assert cluster.condition("StateCompatible") == ("True", "InUse")
    assert quiescent(cluster)


@pytest.mark.parametrize("writes", range(5))
def test_an_operator_that_dies_between_two_writes_makes_nothing_twice(cluster: SimulatedCluster, writes: int) -> None:
    try:
        cluster.step(killed_after=writes)
    except Killed:
        cluster.step()
    assert [pod["metadata"]["name"] for pod in cluster.created] == [FIRST]
    assert cluster.status.driver is not None
    assert cluster.status.driver.number == 1
    assert len(cluster.config_maps) == 1


TROUBLE: list[tuple[str, Any, str, str, str]] = [
    ("image", lambda c: c.wait(FIRST, "ImagePullBackOff", "not found"), "ImagePullFailed", "not found", "True"),
    ("secret", lambda c: c.wait(FIRST, "CreateContainerConfigError", "no x"), "ContainerNotCreated", "no x", "True"),
    ("node", lambda c: c.unschedulable(FIRST), "Unschedulable", "0/1 nodes", "False"),
]


@pytest.mark.parametrize(
    ("trouble", "reason", "words", "degraded"), [t[1:] for t in TROUBLE], ids=[t[0] for t in TROUBLE]
)
def test_what_keeps_a_pod_from_running_is_told(
    cluster: SimulatedCluster, trouble: Any, reason: str, words: str, degraded: str
) -> None:
    cluster.step()
    trouble(cluster)
    cluster.step()
    assert cluster.condition("Ready") == ("False", reason)
    assert words in cluster.status.conditions[0].message
    assert cluster.condition("Degraded")[0] == degraded
    assert cluster.status.phase == "Starting"


def test_a_pod_without_a_node_is_degraded_only_after_a_while(cluster: SimulatedCluster) -> None:
    cluster.step()
    cluster.unschedulable(FIRST)
    decision = cluster.step()
    assert decision.again_after is not None
    cluster.pass_time(decision.again_after)
    cluster.step()
    assert cluster.condition("Degraded") == ("True", "Unschedulable")


ENDINGS: list[tuple[str, Any, str, float]] = [
    ("an error that may pass", lambda c: c.end(FIRST, TRANSIENT), "StoreUnavailable", 10.0),
    ("out of memory", lambda c: c.end(FIRST, None, 137, "OOMKilled"), "OOMKilled", 10.0),
    ("a lost process", lambda c: c.end(FIRST, None, 1), "Error", 10.0),
]


@pytest.mark.parametrize(("ends", "reason", "wait"), [e[1:] for e in ENDINGS], ids=[e[0] for e in ENDINGS])
def test_a_failed_driver_is_started_again_after_a_back_off(
    running: SimulatedCluster, ends: Any, reason: str, wait: float
) -> None:
    ends(running)
    decision = running.step()
    assert decision.again_after == wait
    assert running.status.phase == "Pending"
    assert running.condition("Degraded") == ("True", "BackOff")
    driver = running.status.driver
    assert driver is not None
    assert (driver.outcome, driver.reason, driver.failures) == ("Failed", reason, 1)
    running.pass_time(wait)
    running.step()
    assert sorted(running.pods) == [FIRST, "orders-driver-2"]  # the logs of the failed one are kept
    running.run("orders-driver-2")
    running.get_ready("orders-driver-2")
    running.step()
    assert sorted(running.pods) == ["orders-driver-2"]
    assert running.status.phase == "Running"


CLOCKS = pytest.mark.parametrize("node_ahead", [-10, 0, 10], ids=["behind", "right", "ahead"])


@CLOCKS
@pytest.mark.parametrize("gets_ready", [False, True])
def test_the_back_off_doubles_to_its_limit_and_begins_anew_after_a_healthy_time(
    cluster: SimulatedCluster, node_ahead: int, gets_ready: bool
) -> None:
    cluster.node_ahead = timedelta(minutes=node_ahead)
    waits = []
    for number in range(1, 9):
        cluster.step()
        cluster.run(f"orders-driver-{number}")
        if gets_ready:
            cluster.get_ready(f"orders-driver-{number}")
            cluster.step()
        cluster.pass_time(30)
        cluster.end(f"orders-driver-{number}", TRANSIENT)
        again_after = cluster.step().again_after
        assert again_after is not None
        waits.append(again_after)
        cluster.pass_time(again_after)
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    name = cluster.started(9)
    cluster.pass_time(601)
    cluster.step()
    assert cluster.status.driver is not None
    assert cluster.status.driver.failures == 0
    cluster.end(name, TRANSIENT)
    assert cluster.step().again_after == 10
    assert len(cluster.pods) == 1


def test_the_time_in_which_nobody_saw_that_a_driver_had_ended_is_not_healthy(running: SimulatedCluster) -> None:
    running.end(FIRST, TRANSIENT)
    running.step()
    running.pass_time(10)
    running.step()
    running.started(2)
    running.pass_time(30)
    running.end("orders-driver-2", TRANSIENT)
    running.pass_time(3600)  # the operator is away
    running.step()
    assert running.status.driver is not None
    assert running.status.driver.failures == 2


INTERRUPTED: list[tuple[str, Any]] = [
    ("deleted by others", lambda c: c.gone(FIRST)),
    ("evicted", lambda c: c.evict(FIRST)),
    ("stopped on its node", lambda c: c.end(FIRST, {"outcome": "stopped"}, 0)),
]


@pytest.mark.parametrize("happens", [i[1] for i in INTERRUPTED], ids=[i[0] for i in INTERRUPTED])
def test_the_next_attempt_starts_at_once_when_others_took_the_pod(running: SimulatedCluster, happens: Any) -> None:
    running.pass_time(60)
    happens(running)
    running.step()
    assert "orders-driver-2" in running.pods
    driver = running.status.driver
    assert driver is not None
    assert (driver.number, driver.failures) == (2, 0)


def test_the_status_says_why_a_pod_was_evicted(running: SimulatedCluster) -> None:
    running.evict(FIRST)
    running.step()
    words = "Evicted: The node was low on resource: memory."
    assert running.status.last_error == words
    assert running.condition("Ready") == ("False", "Interrupted")
    assert words in running.status.conditions[0].message


def test_the_status_says_why_a_pod_that_ended_well_was_taken_away(running: SimulatedCluster) -> None:
    running.end(FIRST, {"outcome": "stopped"}, 0)
    message = "default-scheduler: preempting to accommodate a higher priority pod"
    running.pods[FIRST]["status"]["conditions"].append(
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": message}
    )
    running.step()
    driver = running.status.driver
    assert driver is not None
    assert (driver.outcome, driver.reason) == ("Interrupted", "PreemptionByScheduler")
    assert running.status.last_error == f"PreemptionByScheduler: {message}"


def test_a_pod_that_is_taken_away_at_once_is_not_made_in_a_loop(running: SimulatedCluster) -> None:
    running.evict(FIRST)
    assert running.step().again_after == 10
    assert list(running.pods) == [FIRST]


def test_evictions_in_a_row_back_off_and_degrade_until_a_driver_is_healthy(running: SimulatedCluster) -> None:
    waits = []
    for number in range(1, 5):
        running.pass_time(60)
        running.evict(f"orders-driver-{number}")
        again_after = running.step().again_after
        assert running.condition("Degraded")[0] == ("True" if number >= 3 else "False")
        if f"orders-driver-{number + 1}" not in running.pods:
            assert again_after is not None
            waits.append(again_after)
            running.pass_time(again_after)
            running.step()
        running.run(f"orders-driver-{number + 1}")
        running.get_ready(f"orders-driver-{number + 1}")
    assert waits == [10, 20, 40]
    assert running.condition("Degraded") == ("True", "Interrupted")
    running.step()
    assert running.status.driver.failures == 0  # type: ignore[union-attr]
    running.pass_time(600)
    running.step()
    running.evict("orders-driver-5")
    running.step()
    assert "orders-driver-6" in running.pods
    assert running.condition("Degraded")[0] == "False"


def test_evictions_of_a_job_that_commits_do_not_add_up(running: SimulatedCluster) -> None:
    for number in range(1, 6):
        running.commit(f"orders-driver-{number}")
        running.tell(f"orders-driver-{number}")
        running.pass_time(60)
        running.step()
        running.evict(f"orders-driver-{number}")
        running.step()
        assert f"orders-driver-{number + 1}" in running.pods
        assert running.condition("Degraded")[0] == "False"
        running.started(number + 1)


@CLOCKS
def test_a_driver_counts_as_not_ready_from_when_it_was_last_seen_ready(
    running: SimulatedCluster, node_ahead: int
) -> None:
    running.node_ahead = timedelta(minutes=node_ahead)
    running.pass_time(3600)
    (ready,) = [condition for condition in running.pods[FIRST]["status"]["conditions"] if condition["type"] == "Ready"]
    ready |= {"status": "False", "lastTransitionTime": stamp(running.now + running.node_ahead)}
    running.step()
    assert running.condition("Degraded")[0] == "False"
    running.pass_time(599)
    running.step()
    assert running.condition("Degraded")[0] == "False"
    running.pass_time(601)
    running.step()
    assert running.condition("Degraded") == ("True", "NotReady")


def test_an_error_that_would_come_again_waits_for_a_change(running: SimulatedCluster) -> None:
    running.end(FIRST, FATAL)
    decision = running.step()
    assert decision.again_after is None
    assert running.status.phase == "Failed"
    assert running.condition("Degraded") == ("True", "SourceError")
    assert running.status.last_error == "no topic orders"
    running.pass_time(10_000)
    assert quiescent(running)
    running.edit(cleanup="deleteState")
    running.step()
    assert "orders-driver-2" in running.pods


def test_a_finished_job_stays_finished_until_its_revision_changes(running: SimulatedCluster) -> None:
    running.end(FIRST, {"outcome": "finished"}, 0)
    running.step()
    assert running.status.phase == "Finished"
    running.gone(FIRST)  # its pod was cleaned up
    running.edit(suspend=True)
    running.step()
    assert running.status.phase == "Finished"
    running.edit(suspend=False, trigger={"maxRecordsPerEpoch": 8})
    running.step()
    assert running.status.rollout is not None


def scale(cluster: SimulatedCluster, name: str) -> Any:
    return json.loads(cluster.pods[name]["metadata"]["annotations"]["joinery.dev/scale"])


def test_shards_and_executors_change_under_the_running_driver(running: SimulatedCluster) -> None:
    uid, revision = running.pods[FIRST]["metadata"]["uid"], running.status.revision
    assert scale(running, FIRST) == {"shards": 4, "instances": 2}
    running.edit(shards=16, spark={"executor": {"instances": 5}})
    (patch,) = running.step().actions
    assert isinstance(patch, Patch)
    assert scale(running, FIRST) == {"shards": 16, "instances": 5}
    assert quiescent(running)
    status = running.status
    assert (status.revision, status.target_revision, status.rollout, status.phase) == (
        revision,
        revision,
        None,
        "Running",
    )
    assert running.pods[FIRST]["metadata"]["uid"] == uid


def test_an_autoscaled_job_follows_other_bounds_and_says_why_it_scaled(running: SimulatedCluster) -> None:
    running.edit(autoscale={"maxInstances": 4})
    running.step()
    running.edit(autoscale={"maxInstances": 6}, spark={"executor": {"instances": 3}})
    running.step()
    assert scale(running, FIRST)["autoscale"]["maxInstances"] == 6
    assert (running.status.rollout, running.status.phase) == (None, "Running")
    why = {"shards": 8, "executors": 4, "reason": "4 executors instead of 2: much waits", "time": START}
    running.driver_statuses[running.pods[FIRST]["metadata"]["uid"]] = DriverStatus.model_validate(
        {"ready": True, "scaling": why}
    )
    assert [(event.reason, event.message) for event in running.step().events] == [("Rescaled", why["reason"])]
    assert running.status.scaling is not None
    assert running.status.scaling.executors == 4


@pytest.mark.parametrize(("executors", "starts"), [(4, 4), (9, 6), (1, 2)], ids=["as it was", "at most", "at least"])
def test_an_autoscaled_job_goes_on_as_wide_as_it_was(running: SimulatedCluster, executors: int, starts: int) -> None:
    running.edit(autoscale={"minInstances": 2, "maxInstances": 6})
    running.step()
    scaled = {"shards": 8, "executors": executors, "reason": "much waits", "time": START}
    running.driver_statuses[running.pods[FIRST]["metadata"]["uid"]] = DriverStatus.model_validate({"scaling": scaled})
    running.step()
    for number in (1, 2):
        running.evict(running.driver(number))
        for _ in range(3):
            running.step()
            running.pass_time(10)
        again = running.pods[running.driver(number + 1)]
        arguments = {variable["name"]: variable.get("value", "") for variable in again["spec"]["containers"][0]["env"]}
        assert f"spark.executor.instances={starts}" in arguments["PYSPARK_SUBMIT_ARGS"]
        running.run(running.driver(number + 1))
        running.tell(running.driver(number + 1))  # and has not scaled yet
        running.pass_time(20)
        running.step()
        assert running.status.scaling is not None


def test_the_next_driver_starts_as_wide_as_is_asked_for_by_then(running: SimulatedCluster) -> None:
    running.edit(shards=16, spark={"executor": {"instances": 5}})
    running.step()
    running.evict(FIRST)
    running.step()
    running.pass_time(10)
    running.step()
    second = running.pods["orders-driver-2"]
    assert scale(running, "orders-driver-2") == {"shards": 16, "instances": 5}
    arguments = {variable["name"]: variable.get("value", "") for variable in second["spec"]["containers"][0]["env"]}
    assert "spark.executor.instances=5" in arguments["PYSPARK_SUBMIT_ARGS"]


def test_a_rollout_leaves_the_old_driver_as_wide_as_it_is_asked_for(running: SimulatedCluster) -> None:
    running.edit(shards=16)
    running.step()
    running.edit(trigger={"maxRecordsPerEpoch": 9}, shards=12)
    running.step()
    assert running.status.rollout is not None
    assert scale(running, FIRST) == {"shards": 12, "instances": 2}
    running.edit(shards="many")
    running.step()
    assert scale(running, FIRST) == {"shards": 12, "instances": 2}


def test_a_driver_of_an_earlier_operator_goes_on_until_it_is_to_be_scaled(cluster: SimulatedCluster) -> None:
    """Its revision has the name that shards and executors are a part of, and its pod reads no scale."""
    cluster.started(1)
    stored = cluster.resource
    assert stored is not None
    earlier = hash_of(KINDS[0], stored, str(cluster.status.image), with_scale=True)
    renamed = json.loads(json.dumps(stored).replace(str(cluster.status.revision), earlier))
    stored["status"] = renamed["status"]
    pod = cluster.pods[FIRST]
    pod["metadata"]["labels"]["joinery.dev/revision"] = earlier
    del pod["metadata"]["annotations"]
    for _ in range(3):
        cluster.step()
    assert (cluster.status.revision, cluster.status.rollout, list(cluster.pods)) == (earlier, None, [FIRST])
    cluster.edit(shards=16)
    cluster.step()
    assert cluster.status.rollout is not None


@pytest.mark.parametrize("written", ["always", None])
def test_how_columns_are_named_restarts_no_driver_of_an_earlier_operator(
    cluster: SimulatedCluster, written: str | None
) -> None:
    """Its revision has one name for `prefixes: always`, which the API server wrote, and for no `prefixes`."""
    cluster.edit(prefixes=written)
    cluster.started(1)
    stored = cluster.resource
    assert stored is not None
    earlier = hash_of(KINDS[0], stored, str(cluster.status.image))
    renamed = json.loads(json.dumps(stored).replace(str(cluster.status.revision), earlier))
    stored["status"] = renamed["status"]
    cluster.pods[FIRST]["metadata"]["labels"]["joinery.dev/revision"] = earlier
    for prefixes in (written, None, "always"):  # the state has the same names with and without the field
        cluster.edit(prefixes=prefixes)
        cluster.step()
        assert (cluster.status.revision, cluster.status.rollout, list(cluster.pods)) == (earlier, None, [FIRST])
    cluster.edit(prefixes="whenNeeded")
    cluster.step()
    assert cluster.status.rollout is not None


def test_other_names_of_columns_are_a_rollout(running: SimulatedCluster) -> None:
    running.edit(prefixes="always")
    running.step()
    assert running.status.rollout is not None


@pytest.mark.parametrize(
    ("happens", "kstatus"),
    [
        (lambda c: None, ("True", "False", "False")),
        (lambda c: c.end(FIRST, {"outcome": "finished"}, 0), ("True", "False", "False")),
        (lambda c: c.end(FIRST, TRANSIENT), ("False", "True", "False")),
        (lambda c: c.end(FIRST, FATAL), ("False", "False", "True")),
        (lambda c: c.edit(trigger={"maxRecordsPerEpoch": "many"}), ("True", "False", "True")),
    ],
    ids=["runs", "finished", "starts again", "failed for good", "an edit that is no job"],
)
def test_tools_that_know_no_joinery_can_tell_how_it_is(running: SimulatedCluster, happens: Any, kstatus: Any) -> None:
    happens(running)
    running.step()
    assert tuple(running.condition(type_)[0] for type_ in ("Ready", "Reconciling", "Stalled")) == kstatus


@pytest.mark.parametrize(
    ("system", "reason"),
    [("input", "WaitingForInput"), ("output", "WaitingForOutput"), ("store", "WaitingForStateStore")],
)
def test_a_driver_that_waits_for_a_system_says_which(running: SimulatedCluster, system: str, reason: str) -> None:
    uid = running.pods[FIRST]["metadata"]["uid"]
    waiting = Waiting(system=system, since=START, reason="10.0.0.5:5432: Connection refused")
    running.driver_statuses[uid] = DriverStatus(ready=False, waiting=waiting)
    running.pass_time(20)
    running.step()
    assert running.condition("Ready") == ("False", reason)
    assert running.condition("Degraded") == ("True", reason)
    assert running.condition("Stalled")[0] == "False"
    assert "continues by itself: 10.0.0.5:5432: Connection refused" in running.status.conditions[0].message
    assert running.status.phase == "Running"
    running.tell(FIRST)
    running.pass_time(20)
    running.step()
    assert running.condition("Ready")[0] == "True"
    assert running.condition("Degraded")[0] == "False"


def test_suspend_and_resume(running: SimulatedCluster) -> None:
    running.edit(suspend=True)
    running.step()
    assert running.status.phase == "Stopping"
    assert running.condition("Progressing")[0] == "True"
    running.stopped(FIRST)
    running.step()
    assert running.status.phase == "Suspended"
    assert running.condition("Ready") == ("True", "Suspended")
    assert running.condition("Progressing") == ("False", "Suspended")
    assert running.condition("Degraded")[0] == "False"
    running.pass_time(10_000)
    assert quiescent(running)
    running.edit(suspend=False)
    running.step()
    assert list(running.pods) == ["orders-driver-2"]


def test_a_pod_on_a_dead_node_is_waited_for_and_then_left_behind(running: SimulatedCluster) -> None:
    running.dead.add(FIRST)
    running.delete_child("Pod", FIRST)
    for expected in (120, 300):  # until it should have gone, and until it is stuck
        decision = running.step()
        assert decision.again_after == expected
        assert list(running.pods) == [FIRST]
        running.pass_time(decision.again_after)
    running.step()
    assert "orders-driver-2" in running.pods
    assert "deletionTimestamp" in running.pods[FIRST]["metadata"]


def test_a_driver_on_a_lost_node_is_replaced_within_90_seconds(running: SimulatedCluster) -> None:
    lost_at = running.now
    running.lose_node(FIRST)
    running.step()
    assert "orders-driver-2" in running.pods
    assert running.now - lost_at <= timedelta(seconds=90)
    assert running.status.last_error == "NodeUnreachable: the node has not answered since 10:00:50 UTC"
    # The first pod is there until its node answers, or is deleted.
    assert "deletionTimestamp" in running.pods[FIRST]["metadata"]
    assert running.started(2) == "orders-driver-2"
    assert running.condition("Ready") == ("True", "Running")
    assert quiescent(running)


@pytest.mark.parametrize("happens", ["lose_node", "taint_node"])
def test_a_driver_that_was_never_ready_does_not_tell_whether_its_node_is_lost(
    cluster: SimulatedCluster, happens: str
) -> None:
    """Its kubelet has said since it started that it is not ready: it may live, so it ends before the next begins."""
    cluster.step()
    cluster.run(FIRST)
    cluster.pods[FIRST]["status"]["conditions"] = [
        {
            "type": "Ready",
            "status": "False",
            "reason": "ContainersNotReady",
            "message": "containers with unready status: [joinery]",
            "lastTransitionTime": stamp(cluster.now),
        }
    ]
    cluster.pass_time(30)
    cluster.dead.add(FIRST)
    getattr(cluster, happens)(FIRST)
    for expected in (120, 30):  # until a kubelet that answers has ended it, and until that is overdue
        decision = cluster.step()
        assert decision.again_after == expected
        assert list(cluster.pods) == [FIRST]
        cluster.pass_time(decision.again_after)
    cluster.step()
    assert "orders-driver-2" in cluster.pods


def test_a_driver_that_was_never_ready_is_replaced_within_four_minutes_of_the_loss(cluster: SimulatedCluster) -> None:
    cluster.step()
    cluster.run(FIRST)
    lost_at = cluster.now
    cluster.lose_node(FIRST)
    while "orders-driver-2" not in cluster.pods:
        after = cluster.step().again_after
        cluster.pass_time(0 if "orders-driver-2" in cluster.pods else after or 1)
    assert cluster.now - lost_at <= timedelta(seconds=50 + 20 + 120 + 30)


def test_a_driver_on_a_tainted_node_that_answers_finishes_its_epoch(running: SimulatedCluster) -> None:
    running.taint_node(FIRST)
    assert running.step().again_after == 120
    # The kubelet asks the driver, which ends, whether it is ready.
    running.pass_time(5)
    (ready,) = [condition for condition in running.pods[FIRST]["status"]["conditions"] if condition["type"] == "Ready"]
    ready |= {"status": "False", "lastTransitionTime": stamp(running.now)}
    running.step()
    assert list(running.pods) == [FIRST]
    running.stopped(FIRST)
    running.pass_time(5)
    running.step()
    assert list(running.pods) == ["orders-driver-2"]


def test_a_rollout_does_not_wait_for_a_driver_on_a_lost_node(running: SimulatedCluster) -> None:
    running.tell(FIRST)
    running.edit(trigger={"maxRecordsPerEpoch": 8})
    running.step()
    running.run(running.check())
    running.check_result(running.check(), fits=True)
    running.step()
    assert running.status.rollout is not None
    assert running.status.rollout.stage == "Stopping"
    running.lose_node(FIRST)
    for _ in range(3):
        running.step()
    assert "orders-driver-2" in running.pods


def test_a_check_on_a_lost_node_is_made_again(running: SimulatedCluster) -> None:
    running.edit(trigger={"maxRecordsPerEpoch": 8})
    running.step()
    name = running.check()
    uid = running.pods[name]["metadata"]["uid"]
    running.run(name)
    running.get_ready(name)
    running.lose_node(name)
    for _ in range(3):
        running.step()
    assert running.pods[name]["metadata"]["uid"] != uid


def test_a_container_beside_the_driver_does_not_keep_it_alive(running: SimulatedCluster) -> None:
    running.end(FIRST, TRANSIENT)
    running.pods[FIRST]["status"]["phase"] = "Running"
    running.pods[FIRST]["status"]["containerStatuses"].append({"name": "proxy", "state": {"running": {}}})
    running.step()
    assert running.status.driver is not None
    assert running.status.driver.outcome == "Failed"


def test_a_container_beside_the_driver_may_end_as_it_likes(running: SimulatedCluster) -> None:
    running.end(FIRST, {"outcome": "finished"}, 0)
    proxy = {"name": "proxy", "state": {"terminated": {"exitCode": 143, "message": "told to stop"}}}
    running.pods[FIRST]["status"] |= {"phase": "Failed", "initContainerStatuses": [proxy]}
    running.step()
    assert running.status.phase == "Finished"


def test_lost_and_changed_children_are_repaired(running: SimulatedCluster) -> None:
    running.services.clear()
    running.config_maps.clear()
    running.pods[FIRST]["metadata"]["labels"].clear()
    decision = running.step()
    assert [type(action) for action in decision.actions] == [Patch, Create, Create]
    assert quiescent(running)


def test_a_network_policy_comes_is_repaired_and_goes_as_the_installation_says(running: SimulatedCluster) -> None:
    assert not running.network_policies
    running.settings = replace(running.settings, status_from="[]")
    for _ in ("there is none", "others have deleted it"):
        running.network_policies.clear()
        running.step()
        assert running.network_policies["orders-pods"]["spec"]["policyTypes"] == ["Ingress"]
        assert quiescent(running)
    running.settings = replace(running.settings, status_from="")
    running.step()
    assert not running.network_policies
    assert quiescent(running)


def test_the_page_has_a_link_and_an_ingress_as_the_installation_says(running: SimulatedCluster) -> None:
    assert running.status.page is None
    running.settings = replace(running.settings, page_url="https://joinery.example.com/{namespace}/{name}/")
    running.step()
    assert running.status.page == f"https://joinery.example.com/{running.resource['metadata']['namespace']}/orders/"
    assert not running.ingresses
    running.settings = replace(running.settings, page_ingress="{}")
    for _ in ("there is none", "others have deleted it"):
        running.ingresses.clear()
        running.step()
        assert running.ingresses["orders-page"]["spec"]["rules"][0]["host"] == "joinery.example.com"
        assert quiescent(running)
    # Another way to it in the place of this one.
    running.settings = replace(running.settings, page_ingress="", page_route='{"parentRefs": [{"name": "public"}]}')
    running.step()
    assert not running.ingresses
    assert running.http_routes["orders-page"]["spec"]["hostnames"] == ["joinery.example.com"]
    assert quiescent(running)
    running.settings = replace(running.settings, page_route="", page_url="")
    running.step()
    assert not running.http_routes
    assert running.status.page is None
    assert quiescent(running)


def test_what_is_left_of_earlier_times_goes(running: SimulatedCluster) -> None:
    pod = running.pods[FIRST]
    running._create({**pod, "metadata": {**pod["metadata"], "name": "orders-check-old"}})
    config = next(iter(running.config_maps.values()))
    running._create({**config, "metadata": {**config["metadata"], "name": "orders-job-old"}})
    deleted = {action.name for action in running.step().actions if isinstance(action, Delete)}
    assert deleted == {"orders-check-old", "orders-job-old"}


def test_pods_of_a_lost_status_end_before_the_next_one_starts(running: SimulatedCluster) -> None:
    assert running.resource is not None
    del running.resource["status"]
    running.step()
    assert list(running.pods) == [FIRST]
    running.stopped(FIRST)
    running.step()
    assert [pod["metadata"]["name"] for pod in running.created] == [FIRST, FIRST]
    assert list(running.pods) == [FIRST]


def test_a_status_of_another_release_is_read_as_far_as_it_goes(running: SimulatedCluster) -> None:
    assert running.resource is not None
    status = running.resource["status"]
    status |= {"phase": "Dreaming", "novel": {"a": 1}, "epoch": "many"}
    status["driver"]["novel"] = 3
    running.step()
    assert running.status.phase == "Running"
    assert running.status.driver is not None
    assert running.status.driver.number == 1


JOIN = {"right": "r", "keys": {"l.id": "r.id"}, "interval": {"of": "l", "lower": "0s", "upper": "1h"}}
INVALID: list[tuple[str, dict[str, Any], str, list[str]]] = [
    (
        "models refuse",
        {"trigger": {"maxRecordsPerEpoch": "many"}, "output": {}},
        "Invalid",
        ["spec.trigger.maxRecordsPerEpoch", "spec.output"],
    ),
    (
        "no such columns",
        {"joins": [{**JOIN, "where": "l.nope > 1"}]},
        "Invalid",
        ["spec.joins[0].where: ", "'l' has no column 'nope'"],
    ),
    (
        "no SQL",
        {"joins": [{**JOIN, "where": "l.id >"}]},
        "Invalid",
        ["spec.joins[0].where: ", "is not an SQL expression"],
    ),
    (
        "settings of the operator",
        {"spark": {"conf": {"spark.master": "local[2]", "spark.executor.instances": "3"}}},
        "Invalid",
        ['spec.spark.conf["spark.master"]: ', "write spec.spark.executor.instances"],
    ),
    *(
        (name, {"spark": {"conf": {name: "1"}}}, "Invalid", [f'spec.spark.conf["{name}"]: '])
        for name in (
            "spark.kubernetes.namespace",
            "spark.kubernetes.driver.pod.name",
            "spark.kubernetes.executor.podNamePrefix",
            "spark.kubernetes.executor.label.joinery.dev/role",
            "spark.dynamicAllocation.enabled",
            "spark.dynamicAllocation.maxExecutors",
        )
    ),
    (
        "fewer than there are",
        {"spark": {"executor": {"instances": 3, "maxInstances": 2}}},
        "Invalid",
        ["spec.spark.executor.maxInstances: is 2, less than the 3"],
    ),
    ("no template", {"spark": {"driver": {"podTemplate": {"name": "mine"}}}}, "Incomplete", ["ConfigMap mine"]),
    (
        "nested too deep",
        {"spark": {"driver": {"podTemplate": {"inline": f"spec: {{affinity: {'{a: ' * 400}x{'}' * 400}}}"}}}},
        "Incomplete",
        ["nested too deep"],
    ),
    ("no size", {"spark": {"conf": {"spark.driver.memory": "much"}}}, "Incomplete", ["spark.driver.memory"]),
]


@pytest.mark.parametrize(("spec", "reason", "words"), [i[1:] for i in INVALID], ids=[i[0] for i in INVALID])
def test_a_job_that_cannot_be_is_told_with_all_its_problems(
    spec: dict[str, Any], reason: str, words: list[str]
) -> None:
    cluster = SimulatedCluster(resource(**spec))
    cluster.step()
    assert cluster.condition("Valid") == ("False", reason)
    assert cluster.condition("Degraded") == ("True", reason)
    assert cluster.status.phase == "Failed"
    assert not cluster.created
    assert all(word in cluster.status.conditions[0].message for word in words)
    assert quiescent(cluster)


@pytest.mark.parametrize(("spec", "reason", "words"), [i[1:] for i in INVALID], ids=[i[0] for i in INVALID])
def test_a_job_that_runs_goes_on_when_its_resource_becomes_invalid(
    running: SimulatedCluster, spec: dict[str, Any], reason: str, words: list[str]
) -> None:
    before = running.status.revision
    running.edit(**spec)
    running.step()
    assert running.status.phase == "Running"
    assert running.condition("Valid") == ("False", reason)
    assert running.condition("Ready") == ("True", reason), "what `kubectl get` shows is not that all is well"
    running.pass_time(60)
    running.gone(FIRST)  # and is started again as it was
    running.step()
    assert running.revision_of("orders-driver-2") == running.status.revision == before


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC l.id FROM l", ("spec.sql: line 1, column 1, `SELEC`", "SELECT <columns>")),
        ("SELECT l.id FROM l JOIN r ON l.id = r.id AND", ("spec.sql: line 1, column 42, `AND`", "docs/sql.md")),
        ("SELECT l.nope FROM l JOIN r ON l.id = r.id AND r.ts BETWEEN l.ts AND l.ts + INTERVAL '1' HOUR",
         ("spec.sql: line 1, column 8, `l.nope`", "its columns are id and ts")),
    ],
)  # fmt: skip
def test_broken_sql_is_refused_before_any_pod_starts(sql: str, words: tuple[str, ...]) -> None:
    cluster = SimulatedCluster(resource(sql=sql))
    assert cluster.resource is not None
    del cluster.resource["spec"]["joins"]
    cluster.step()
    assert cluster.condition("Valid") == ("False", "Invalid")
    assert (cluster.status.phase, cluster.created, cluster.config_maps) == ("Failed", [], {})
    for type_ in ("Valid", "Ready"):
        message = next(condition.message for condition in cluster.status.conditions if condition.type == type_)
        assert all(word in message for word in words)
    assert quiescent(cluster)


def test_a_stored_resource_with_a_duration_without_unit_goes_on_and_says_so(running: SimulatedCluster) -> None:
    before = running.status.revision
    running.edit(joins=[{**JOIN, "interval": {"of": "l", "lower": 0, "upper": 3_600_000}}])
    running.step()
    assert running.condition("Valid") == ("True", "Valid")
    assert running.status.revision == before, "the same job in other words"
    message = next(condition.message for condition in running.status.conditions if condition.type == "Valid")
    assert message == (
        "spec.joins[0].interval.upper: 3600000 has no unit; write 3600000s or 3600000ms. It counts as milliseconds"
    )


@pytest.mark.parametrize(
    "error", [RecursionError("too deep"), KeyError("x"), AssertionError()], ids=lambda error: type(error).__name__
)
def test_a_job_whose_check_breaks_is_invalid(
    running: SimulatedCluster, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise error

    monkeypatch.setattr(desired, "expression_problems", broken)
    running.edit(joins=[{**JOIN, "where": "l.id > 'a'"}])
    running.step()
    assert running.condition("Valid") == ("False", "Invalid")
    assert running.status.phase == "Running"
    message = next(condition.message for condition in running.status.conditions if condition.type == "Valid")
    assert f"cannot be checked ({type(error).__name__}" in message


POD_TEMPLATE = {"data": {"pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: {}\n"}}


def test_a_pod_template_that_comes_late_is_found() -> None:
    """No watch reports it, and its author was told to make it."""
    cluster = SimulatedCluster(resource(spark={"driver": {"podTemplate": {"name": "mine"}}}))
    cluster.templates = {"mine": None}
    again_after = cluster.step().again_after
    assert (cluster.condition("Ready"), cluster.alive()) == (("False", "Incomplete"), [])
    cluster.templates = {"mine": POD_TEMPLATE}
    assert again_after == cluster.settings.poll_seconds
    cluster.pass_time(again_after)
    cluster.step()
    assert len(cluster.alive()) == 1


def test_a_job_without_an_image_says_so() -> None:
    cluster = SimulatedCluster(resource())
    cluster.settings = cluster.settings.__class__()
    cluster.step()
    assert cluster.condition("Valid") == ("False", "Incomplete")
    assert "spec.spark.image" in cluster.status.conditions[0].message


def test_late_rows_are_a_condition_that_names_the_inputs(running: SimulatedCluster) -> None:
    assert running.condition("LateRows") == ("False", "AsExpected")
    uid = running.pods[FIRST]["metadata"]["uid"]
    for words in ("493 of 600", "494 of 601"):
        late = InputStatus(name="payments", late_warning=f"{words} records were dropped as late")
        running.driver_statuses[uid] = DriverStatus(ready=True, inputs=(InputStatus(name="orders"), late))
        running.pass_time(20)
        decision = running.step()
        assert running.condition("LateRows") == ("True", "DroppedAsLate")
        message = next(condition.message for condition in running.status.conditions if condition.type == "LateRows")
        assert "records of payments are dropped as late" in message
        assert [event.reason for event in decision.events] == (["DroppedAsLate"] if words == "493 of 600" else [])
    running.driver_statuses[uid] = DriverStatus(ready=True, inputs=(InputStatus(name="payments"),))
    running.pass_time(20)
    running.step()
    assert running.condition("LateRows") == ("False", "AsExpected")


def test_figures_are_bounded_rounded_and_not_written_all_the_time(running: SimulatedCluster) -> None:
    uid = running.pods[FIRST]["metadata"]["uid"]
    inputs = tuple(InputStatus(name=f"in{i}", lag=i, watermark=START - timedelta(seconds=3723 + i)) for i in range(20))
    keys = tuple(HotKey(key="k" * 4000, rows=i) for i in range(20))
    running.driver_statuses[uid] = DriverStatus(
        ready=True, epoch=7, inputs=inputs, hottest_keys=keys, last_error="e" * 4000
    )
    running.pass_time(20)
    running.step()
    status = running.status
    assert (status.epoch, status.lag, status.watermark_delay) == (7, sum(range(16)), "1h2m")
    assert (len(status.inputs), len(status.hottest_keys), len(status.hottest_keys[0].key)) == (16, 10, 256)
    assert len(status.last_error or "") == 1024
    since = status.conditions[0].last_transition_time
    running.driver_statuses[uid] = DriverStatus(ready=True, epoch=8)
    running.pass_time(5)
    decision = running.step()
    assert decision.status is None
    assert decision.again_after == 10
    running.pass_time(10)
    running.step()
    assert running.status.epoch == 8
    assert running.status.conditions[0].last_transition_time == since


def test_a_job_without_a_driver_has_no_speed(running: SimulatedCluster) -> None:
    uid = running.pods[FIRST]["metadata"]["uid"]
    running.driver_statuses[uid] = DriverStatus(ready=True, epoch=7, rows_per_second=5, executors=2, rows_in=9)
    running.pass_time(20)
    running.step()
    assert (running.status.rows_per_second, running.status.executors) == (5, 2)
    running.edit(suspend=True)
    running.step()
    running.stopped(FIRST)
    running.step()
    status = running.status
    assert (status.rows_per_second, status.executors, status.rows_in, status.epoch) == (None, 0, 9, 7)


def test_a_new_release_of_the_operator_restarts_nothing(running: SimulatedCluster) -> None:
    running.settings = running.settings.__class__(runtime_image="joinery:2")
    assert quiescent(running)


def test_a_job_without_executors_is_degraded_after_a_while(running: SimulatedCluster) -> None:
    uid = running.pods[FIRST]["metadata"]["uid"]
    waiting = Waiting(system="executors", since=running.now, reason="No executor runs")
    running.driver_statuses[uid] = DriverStatus(epoch=7, waiting=waiting)
    running.pass_time(1)
    again_after = running.step().again_after
    assert running.condition("Ready") == ("False", "WaitingForExecutors")
    assert running.condition("Degraded") == ("False", "AsExpected")
    assert again_after == running.settings.poll_seconds, "what keeps their pods is in no watch"
    running.pass_time(600)
    running.step()
    assert running.condition("Degraded") == ("True", "WaitingForExecutors")
    running.driver_statuses[uid] = DriverStatus(ready=True, epoch=8)
    running.pass_time(1)
    running.step()
    assert running.condition("Ready") == ("True", "Running")


def test_an_embedded_store_is_no_store_in_a_pod() -> None:
    cluster = SimulatedCluster(resource(stateStore={}))
    cluster.step()
    assert cluster.condition("Valid") == ("False", "Incomplete")
    assert "spec.stateStore: name a Postgres (stateStore.postgres)" in cluster.status.conditions[0].message
    assert not cluster.created


def test_a_store_in_memory_is_warned_of_once_and_stays_in_a_condition() -> None:
    output = {"file": {"path": "joined"}, "format": "json"}
    cluster = SimulatedCluster(resource(stateStore={"memory": {}}, output=output))
    cluster.started(1)
    assert cluster.status.phase == "Running"
    assert cluster.condition("StateCompatible") == ("True", "StateInMemory")
    cluster.pass_time(60)
    cluster.gone(FIRST)
    cluster.step()
    assert len([event for event in cluster.events if event.startswith("Warning StateInMemory")]) == 1


def test_what_another_release_left_out_of_a_part_costs_that_part_only(running: SimulatedCluster) -> None:
    assert running.resource is not None
    status = running.resource["status"]
    del status["driver"]["number"]
    del status["driver"]["created"]
    read = read_status(running.resource)
    assert read.driver is None
    assert (read.revision, read.phase) == (status["revision"], "Running")
    assert read.proved is not None


def test_drivers_of_an_earlier_resource_of_the_name_end_first(cluster: SimulatedCluster) -> None:
    before = SimulatedCluster(resource())
    before.started(1)
    before.dead.add(FIRST)
    before.delete_child("Pod", FIRST)
    cluster.orphaned_drivers = before.pods
    again_after = cluster.step().again_after
    assert again_after == cluster.settings.poll_seconds
    assert (cluster.status.driver, cluster.status.phase) == (None, "Stopping")
    cluster.pass_time(120 + 300)
    cluster.step()
    assert list(cluster.pods) == ["orders-driver-2"]  # the name of the one that is stuck is taken


def test_a_job_starts_when_the_other_of_its_name_has_ended(cluster: SimulatedCluster) -> None:
    before = SimulatedCluster(resource())
    before.started(1)
    before.end(FIRST, None)
    cluster.orphaned_drivers = before.pods
    cluster.step()
    assert list(cluster.pods) == ["orders-driver-2"]


def test_a_pod_that_does_not_get_ready_is_degraded_after_a_while(cluster: SimulatedCluster) -> None:
    cluster.step()
    cluster.wait(FIRST, "ContainerCreating")
    decision = cluster.step()
    assert cluster.condition("Degraded")[0] == "False"
    assert decision.again_after == 600
    cluster.pass_time(decision.again_after)
    cluster.step()
    assert cluster.condition("Degraded") == ("True", "NotReady")
    message = cluster.status.conditions[0].message
    assert "container joinery waits: ContainerCreating" in message
    assert f"kubectl describe pod {FIRST}" in message
    cluster.run(FIRST)
    cluster.get_ready(FIRST)
    cluster.step()
    assert cluster.condition("Degraded")[0] == "False"
    assert quiescent(cluster)


def test_a_driver_that_is_unready_for_a_moment_is_not_degraded(running: SimulatedCluster) -> None:
    running.pass_time(3000)
    since = running.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    running.pods[FIRST]["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": since}]
    running.step()
    assert running.condition("Ready") == ("False", "Starting")
    assert running.condition("Degraded")[0] == "False"


def test_a_service_whose_name_is_taken_is_told_while_the_driver_runs(running: SimulatedCluster) -> None:
    service = running.services.pop("orders-driver")
    running.create_refused = "Service shop/orders-driver is not this job's: it is owned by nobody"
    running.step()
    assert running.status.phase == "Running"
    assert running.condition("Ready") == ("True", "Running")
    assert running.condition("Degraded") == ("True", "CreateRefused")
    message = next(condition.message for condition in running.status.conditions if condition.type == "Degraded")
    assert message == running.create_refused
    # What was refused once and is there by now is no fault.
    running.services["orders-driver"] = service
    running.step()
    assert running.condition("Degraded")[0] == "False"


def test_a_pod_that_the_api_server_refuses_is_told(cluster: SimulatedCluster) -> None:
    cluster.step()
    cluster.pods.clear()
    cluster.create_refused = "403 Forbidden: exceeded quota: compute"
    cluster.step()
    assert cluster.condition("Degraded") == ("True", "CreateRefused")
    assert "exceeded quota" in cluster.status.conditions[0].message
    cluster.create_refused = ""
    cluster.step()
    assert cluster.condition("Degraded")[0] == "False"


def refuse_a_second_pod(cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of `count/pods: 1`, which counts pods that have ended too."""
    create = cluster._create

    def within_quota(manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "Pod" and cluster.pods and manifest["metadata"]["name"] not in cluster.pods:
            cluster.create_refused = "403 Forbidden: exceeded quota: pods, requested: count/pods=1, used: count/pods=1"
        else:
            create(manifest)
            cluster.create_refused = "" if manifest["kind"] == "Pod" else cluster.create_refused

    monkeypatch.setattr(cluster, "_create", within_quota)


def test_an_ended_driver_gives_way_where_a_quota_leaves_no_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimulatedCluster(resource())
    refuse_a_second_pod(cluster, monkeypatch)
    cluster.started(1)
    cluster.end(cluster.driver(1), None)
    cluster.step()
    cluster.pass_time(60)
    for _ in range(3):
        cluster.step()
    assert [*cluster.pods] == [cluster.driver(2)]


def test_an_ended_driver_gives_way_to_the_pod_that_deletes_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimulatedCluster(resource(cleanup="deleteState"))
    refuse_a_second_pod(cluster, monkeypatch)
    cluster.started(1)
    cluster.end(cluster.driver(1), None)
    cluster.delete()
    for _ in range(3):
        cluster.step()
    assert [*cluster.pods] == ["orders-delete-state"]


def test_valid_tells_of_more_connections_than_postgres_takes() -> None:
    cluster = SimulatedCluster(resource(spark={"executor": {"instances": 120}}))
    cluster.started(1)
    (valid,) = (condition for condition in cluster.status.conditions if condition.type == "Valid")
    assert (valid.status, valid.reason) == ("True", "Valid")
    assert "MANY CONNECTIONS: 120 executors of 1 core" in valid.message
