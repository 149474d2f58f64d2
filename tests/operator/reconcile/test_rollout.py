"""Another revision on its way: every stage, each way out of it, and what a person may do meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from joinery_operator.names import digest_of
from joinery_runtime.job.crd import DriverStatus, OutputStatus, Waiting
from simulated_cluster.simulation import SimulatedCluster, resource

FATAL = {"outcome": "failed", "kind": "SourceError", "error": "no topic orders", "retry": False}
TRANSIENT = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}
OLD, NEW, BACK, AGAIN = (f"orders-driver-{number}" for number in range(1, 5))
LIFE = digest_of("uid-job")[:6]


@pytest.fixture
def cluster() -> SimulatedCluster:
    """A job that has run for a while and is changed."""
    cluster = SimulatedCluster(resource())
    name = cluster.started(1)
    cluster.commit(name)
    cluster.tell(name)
    cluster.pass_time(60)
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    return cluster


def stage(cluster: SimulatedCluster) -> str | None:
    return cluster.status.rollout.stage if cluster.status.rollout else None


def check(cluster: SimulatedCluster) -> str:
    return next(name for name in cluster.pods if "-check-" in name)


def stopping(cluster: SimulatedCluster) -> None:
    name = check(cluster)
    cluster.run(name)
    cluster.check_result(name, fits=True)
    cluster.step()


def starting(cluster: SimulatedCluster) -> None:
    stopping(cluster)
    cluster.stopped(OLD)
    cluster.step()


def rolling_back(cluster: SimulatedCluster) -> None:
    starting(cluster)
    cluster.run(NEW)
    cluster.end(NEW, FATAL)
    cluster.step()


REACH: dict[str, Any] = {
    "Checking": lambda _: None,
    "Stopping": stopping,
    "Starting": starting,
    "RollingBack": rolling_back,
}


def initial(cluster: SimulatedCluster, name: str) -> list[str]:
    arguments: list[str] = cluster.pods[name]["spec"]["initContainers"][-1]["args"]
    return arguments


def restored(cluster: SimulatedCluster, name: str) -> str:
    """The savepoint that a pod returns to, which is all that it does."""
    (container,) = cluster.pods[name]["spec"]["containers"]
    assert "initContainers" not in cluster.pods[name]["spec"]
    *command, flag, savepoint, before = container["args"]
    assert (command[:3], flag, before) == (["joinery", "state", "restore"], "--savepoint", "--before-first-commit")
    return str(savepoint)


def test_the_old_driver_runs_until_the_check_has_passed(cluster: SimulatedCluster) -> None:
    assert (stage(cluster), cluster.status.phase) == ("Checking", "Running")
    assert cluster.condition("Progressing") == ("True", "RolloutChecking")
    old, new = cluster.status.revision, cluster.status.rollout.revision  # type: ignore[union-attr]
    stopping(cluster)
    assert (stage(cluster), cluster.status.phase) == ("Stopping", "Stopping")
    assert "deletionTimestamp" in cluster.pods[OLD]["metadata"]
    assert NEW not in cluster.pods
    cluster.stopped(OLD)
    cluster.step()
    assert (stage(cluster), cluster.status.phase) == ("Starting", "Migrating")
    assert initial(cluster, NEW)[-2:] == ["--savepoint", f"rollout-{new}-{LIFE}-2"]
    cluster.run(NEW)
    cluster.get_ready(NEW)
    cluster.step()
    assert (stage(cluster), cluster.status.revision) == ("Starting", old)
    cluster.commit(NEW)
    cluster.tell(NEW)
    cluster.step()
    assert (stage(cluster), cluster.status.revision, cluster.status.phase) == (None, new, "Running")
    assert set(cluster.config_maps) == {f"orders-job-{old}", f"orders-job-{new}"}  # the history keeps the old one
    assert cluster.step().status is None


@pytest.mark.parametrize("fits", [True, False])
def test_the_status_names_the_output_that_is_written(fits: bool) -> None:
    """Whatever the spec says meanwhile: that of the old driver until the new one has committed."""
    cluster = SimulatedCluster(resource())
    name = cluster.started(1)
    cluster.commit(name)
    cluster.tell(name)
    cluster.edit(output={"kafka": {"bootstrapServers": "kafka:9092", "topic": "green"}})
    cluster.step()
    old, new = OutputStatus(name="output", kind="postgres", target="out"), ("output", "kafka", "green")
    assert (stage(cluster), cluster.status.outputs) == ("Checking", (old,))
    cluster.run(check(cluster))
    cluster.check_result(check(cluster), fits=fits)
    cluster.step()
    assert (stage(cluster), cluster.status.outputs) == ("Stopping" if fits else None, (old,))
    if not fits:
        return
    cluster.stopped(OLD)
    cluster.step()
    cluster.run(NEW)
    cluster.get_ready(NEW)
    cluster.step()
    assert (stage(cluster), cluster.status.outputs) == ("Starting", (old,))
    cluster.commit(NEW)
    cluster.tell(NEW)
    cluster.step()
    (output,) = cluster.status.outputs
    assert (output.name, output.kind, output.target) == new


def test_warnings_of_the_check_are_told(cluster: SimulatedCluster) -> None:
    name = check(cluster)
    cluster.run(name)
    cluster.check_result(name, fits=True, warnings=("what was evicted stays gone",))
    cluster.step()
    assert "what was evicted stays gone" in cluster.status.conditions[1].message
    assert any(event.endswith("what was evicted stays gone") for event in cluster.events)


def test_a_ready_driver_without_records_goes_on_and_can_be_taken_back(cluster: SimulatedCluster) -> None:
    starting(cluster)
    cluster.run(NEW)
    cluster.get_ready(NEW)
    again_after = cluster.step().again_after
    assert again_after == 600
    cluster.pass_time(again_after)
    cluster.step()
    assert (stage(cluster), cluster.status.phase) == ("Starting", "Running")
    assert cluster.condition("Progressing")[0] == "False"
    cluster.end(NEW, TRANSIENT)  # long after the deadline, as any driver may
    cluster.pass_time(10)
    cluster.step()
    cluster.pass_time(10)
    cluster.step()
    cluster.run(BACK)
    cluster.get_ready(BACK)
    cluster.step()
    assert (stage(cluster), cluster.status.refused) == ("Starting", None)
    cluster.edit(trigger={"maxRecordsPerEpoch": 4})  # the job that ran before
    cluster.step()
    cluster.stopped(BACK)
    cluster.step()
    assert restored(cluster, AGAIN) == cluster.status.rollout.savepoint  # type: ignore[union-attr]


def test_what_does_not_fit_the_state_is_refused_and_the_old_driver_goes_on(cluster: SimulatedCluster) -> None:
    name = check(cluster)
    cluster.run(name)
    cluster.check_result(name, fits=False)
    cluster.step()
    assert (stage(cluster), cluster.status.phase) == (None, "Running")
    assert cluster.condition("StateCompatible") == ("False", "IncompatibleState")
    assert cluster.condition("Degraded") == ("True", "IncompatibleState")
    assert "the keys of step 1 differ" in cluster.status.refused.message  # type: ignore[union-attr]
    # What `kubectl get` shows: the old driver goes on, and the edit was refused.
    assert cluster.condition("Ready") == ("True", "IncompatibleState")
    assert "was rejected: the keys of step 1 differ" in cluster.status.conditions[0].message
    assert list(cluster.pods) == [OLD]
    cluster.pass_time(10_000)
    assert cluster.step().again_after is None
    cluster.edit(upgrade={"mode": "stateless"})  # leaves the state behind, and that is said
    cluster.step()
    assert stage(cluster) == "Checking"
    name = check(cluster)
    cluster.run(name)
    cluster.check_result(name, fits=False)
    cluster.step()
    cluster.stopped(OLD)
    cluster.step()
    assert initial(cluster, NEW)[-1] == "--anew"


CHECKS: list[tuple[str, Any]] = [
    ("no image", lambda c: c.wait(check(c), "ErrImagePull", "not found")),
    ("evicted", lambda c: c.evict(check(c))),
    ("no database", lambda c: (c.run(check(c)), c.end(check(c), TRANSIENT))),
    ("no node", lambda c: c.unschedulable(check(c))),
]


@pytest.mark.parametrize("fails", [case[1] for case in CHECKS], ids=[case[0] for case in CHECKS])
def test_a_check_that_tells_nothing_is_tried_until_the_deadline(cluster: SimulatedCluster, fails: Any) -> None:
    cluster.edit(upgrade={"progressDeadline": "1m"})
    for _ in range(100):
        if stage(cluster) is None:
            break
        if any("-check-" in name for name in cluster.pods):
            fails(cluster)
        decision = cluster.step()
        if decision.status is None and not decision.actions and decision.again_after is not None:
            cluster.pass_time(decision.again_after)
    assert cluster.status.refused is not None
    assert cluster.status.refused.reason == "CheckFailed"
    words = ("not found", "Evicted", "connection refused", "0/1 nodes")
    assert any(word in cluster.status.refused.message for word in words)
    assert cluster.status.phase == "Running"


def test_a_check_is_not_tried_at_once_where_the_clock_of_a_node_is_behind(cluster: SimulatedCluster) -> None:
    cluster.node_ahead = timedelta(minutes=-10)
    name = check(cluster)
    uid = cluster.pods[name]["metadata"]["uid"]
    cluster.run(name)
    cluster.end(name, TRANSIENT)
    assert cluster.step().again_after == 10
    assert cluster.pods[name]["metadata"]["uid"] == uid
    cluster.pass_time(10)
    cluster.step()
    cluster.step()
    assert cluster.pods[name]["metadata"]["uid"] != uid


def test_a_check_is_tried_again_soon_where_the_clock_of_a_node_is_ahead(cluster: SimulatedCluster) -> None:
    name = check(cluster)
    cluster.run(name)
    cluster.pass_time(3600)
    cluster.end(name, None)
    cluster.pass_time(-3600)
    again_after = cluster.step().again_after
    assert again_after is not None
    assert again_after <= 10
    cluster.pass_time(again_after)
    cluster.step()
    assert name not in cluster.pods


def test_a_check_that_would_fail_again_is_the_end(cluster: SimulatedCluster) -> None:
    name = check(cluster)
    cluster.run(name)
    cluster.end(name, FATAL)
    cluster.step()
    assert cluster.status.refused is not None
    assert "no topic orders" in cluster.status.refused.message


def test_a_driver_that_fails_for_good_is_taken_back(cluster: SimulatedCluster) -> None:
    rolling_back(cluster)
    assert (stage(cluster), cluster.status.phase) == ("RollingBack", "RollingBack")
    savepoint = cluster.status.rollout.savepoint  # type: ignore[union-attr]
    assert cluster.revision_of(BACK) == cluster.status.revision
    assert restored(cluster, BACK) == savepoint
    cluster.run(BACK)
    cluster.step()
    assert stage(cluster) is None
    assert "initContainers" not in cluster.pods[AGAIN]["spec"]
    cluster.started(4)
    assert cluster.status.phase == "Running"
    assert cluster.condition("Degraded") == ("True", "StartFailed")
    cluster.pass_time(10_000)
    cluster.step()
    assert cluster.step().again_after is None


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        (lambda c: c.fail_first(NEW, FATAL), "MigrationFailed"),
        (lambda c: c.fail_first(NEW, {**FATAL, "kind": "IncompatibleState"}), "IncompatibleState"),
        (lambda c: (c.run(NEW), c.end(NEW, FATAL)), "StartFailed"),
        (lambda c: (c.unschedulable(NEW), c.pass_time(601)), "DeadlineExceeded"),
        (lambda c: (c.run(NEW), c.step(), c.pass_time(601)), "DeadlineExceeded"),
    ],
)
def test_why_it_was_taken_back(cluster: SimulatedCluster, fails: Any, reason: str) -> None:
    starting(cluster)
    fails(cluster)
    cluster.step()
    assert stage(cluster) == "RollingBack"
    assert cluster.status.refused is not None
    assert cluster.status.refused.reason == reason


def test_a_driver_that_waits_for_a_system_is_not_taken_back(cluster: SimulatedCluster) -> None:
    """The deadline counts from when the system is back."""
    starting(cluster)
    cluster.run(NEW)
    cluster.step()
    uid = cluster.pods[NEW]["metadata"]["uid"]
    waiting = Waiting(system="store", since=cluster.now, reason="Connection refused")
    cluster.driver_statuses[uid] = DriverStatus(revision=cluster.revision_of(NEW), waiting=waiting)
    cluster.pass_time(10_000)
    cluster.step()
    assert stage(cluster) == "Starting"
    assert cluster.condition("Ready") == ("False", "WaitingForStateStore")
    cluster.tell(NEW)
    cluster.step()
    cluster.pass_time(500)
    cluster.step()
    assert stage(cluster) == "Starting"
    cluster.pass_time(101)
    cluster.step()
    assert stage(cluster) == "RollingBack"


def executor(name: str, reason: str) -> dict[str, Any]:
    waiting = {"name": "spark-kubernetes-executor", "state": {"waiting": {"reason": reason, "message": "not found"}}}
    metadata = {"name": name, "namespace": "shop", "uid": name, "creationTimestamp": "2026-11-21T10:00:00Z"}
    return {"metadata": metadata, "status": {"phase": "Pending", "containerStatuses": [waiting]}}


def test_an_edit_whose_executors_do_not_come_is_taken_back(cluster: SimulatedCluster) -> None:
    """What keeps them away is most often the edit: more memory than any node has, an image that is not there."""
    starting(cluster)
    cluster.run(NEW)
    cluster.step()
    uid = cluster.pods[NEW]["metadata"]["uid"]
    waiting = Waiting(system="executors", since=cluster.now, reason="No executor runs")
    cluster.driver_statuses[uid] = DriverStatus(revision=cluster.revision_of(NEW), waiting=waiting)
    cluster.executors = {name: executor(name, "ImagePullBackOff") for name in ("exec-1", "exec-2")}
    cluster.pass_time(500)
    cluster.step()
    assert stage(cluster) == "Starting"
    assert cluster.condition("Ready") == ("False", "WaitingForExecutors")
    assert cluster.condition("Degraded")[0] == "False"
    message = next(condition.message for condition in cluster.status.conditions if condition.type == "Ready")
    assert "No executor runs: pod exec-2: ImagePullFailed: " in message
    assert "exec-1" not in message, "the same fault is told once"
    cluster.pass_time(101)
    cluster.step()
    assert stage(cluster) == "RollingBack"
    assert cluster.status.refused is not None
    assert cluster.status.refused.reason == "DeadlineExceeded"
    assert "ImagePullFailed" in cluster.status.refused.message


def test_what_has_committed_unseen_is_not_taken_back(cluster: SimulatedCluster) -> None:
    starting(cluster)
    new = cluster.status.rollout.revision  # type: ignore[union-attr]
    cluster.run(NEW)
    cluster.commit(NEW)
    cluster.end(NEW, FATAL)
    cluster.step()
    cluster.run(BACK)  # the restore is refused
    cluster.step()
    assert (stage(cluster), cluster.status.revision, cluster.status.refused) == (None, new, None)
    cluster.step()
    assert cluster.revision_of("orders-driver-4") == new


def test_a_way_back_that_fails_is_told_with_what_to_do_and_tried_again_when_asked(cluster: SimulatedCluster) -> None:
    rolling_back(cluster)
    savepoint = cluster.status.rollout.savepoint  # type: ignore[union-attr]
    cluster.end(BACK, {**FATAL, "error": "segment 7 is gone"})
    cluster.step()
    assert cluster.status.phase == "Failed"
    assert cluster.condition("Ready") == ("False", "RollbackFailed")
    message = cluster.status.conditions[0].message
    assert all(word in message for word in ("segment 7 is gone", savepoint, "restartedAt"))
    cluster.edit(cleanup="deleteState")  # any change will do
    cluster.step()
    assert restored(cluster, AGAIN) == savepoint
    assert cluster.revision_of(AGAIN) == cluster.status.revision


def test_a_way_back_that_may_pass_is_tried_again(cluster: SimulatedCluster) -> None:
    rolling_back(cluster)
    cluster.end(BACK, TRANSIENT)
    again_after = cluster.step().again_after
    assert again_after is not None
    assert (stage(cluster), cluster.status.phase) == ("RollingBack", "RollingBack")
    cluster.pass_time(again_after)
    cluster.step()
    assert restored(cluster, AGAIN) == restored(cluster, BACK)


@pytest.mark.parametrize(("at", "then"), [("Checking", None), ("Stopping", None), ("Starting", "RollingBack")])
def test_the_change_is_taken_back_meanwhile(cluster: SimulatedCluster, at: str, then: str | None) -> None:
    REACH[at](cluster)
    assert stage(cluster) == at
    cluster.edit(trigger={"maxRecordsPerEpoch": 4})
    cluster.step()
    assert stage(cluster) == then
    assert cluster.status.refused is None
    if at == "Checking":
        assert list(cluster.pods) == [OLD]
        assert cluster.status.phase == "Running"


@pytest.mark.parametrize(
    ("at", "then"),
    [("Checking", "Checking"), ("Stopping", "Checking"), ("Starting", "RollingBack"), ("RollingBack", "RollingBack")],
)
def test_a_third_revision_is_asked_for_meanwhile(cluster: SimulatedCluster, at: str, then: str) -> None:
    REACH[at](cluster)
    second = cluster.status.rollout.revision  # type: ignore[union-attr]
    cluster.edit(trigger={"maxRecordsPerEpoch": 9})
    cluster.step()
    assert stage(cluster) == then
    assert (cluster.status.rollout.revision == second) == (then == "RollingBack")  # type: ignore[union-attr]
    assert cluster.status.refused is None


@pytest.mark.parametrize("at", list(REACH))
def test_an_invalid_edit_changes_nothing(cluster: SimulatedCluster, at: str) -> None:
    REACH[at](cluster)
    before = cluster.status.rollout
    cluster.edit(trigger={"maxRecordsPerEpoch": "many"})
    cluster.step()
    assert cluster.status.rollout == before
    assert cluster.condition("Valid") == ("False", "Invalid")


@pytest.mark.parametrize(("at", "continues"), [("Checking", False), ("Stopping", False), ("Starting", True)])
def test_suspension_meanwhile(cluster: SimulatedCluster, at: str, continues: bool) -> None:
    REACH[at](cluster)
    cluster.edit(suspend=True)
    cluster.step()
    for pod in cluster.alive("driver"):
        cluster.pods.pop(pod["metadata"]["name"])
    cluster.step()
    assert cluster.status.phase == "Suspended"
    assert not cluster.pods
    cluster.pass_time(10_000)
    assert cluster.step().status is None
    cluster.edit(suspend=False)
    cluster.step()
    assert stage(cluster) == ("Starting" if continues else "Checking")
    if continues:
        assert initial(cluster, BACK)[-1] == f"rollout-{cluster.status.target_revision}-{LIFE}-2"


@pytest.mark.parametrize("at", list(REACH))
def test_deletion_meanwhile(cluster: SimulatedCluster, at: str) -> None:
    cluster.edit(cleanup="deleteState")
    cluster.step()
    REACH[at](cluster)
    cluster.delete()
    cluster.step()
    for pod in cluster.alive("driver"):
        cluster.stopped(pod["metadata"]["name"])
    for pod in cluster.alive("check"):
        cluster.gone(pod["metadata"]["name"])
    cluster.step()
    cluster.run("orders-delete-state")
    cluster.state_is_deleted("orders-delete-state")
    cluster.step()
    assert cluster.resource is None


def test_the_same_revision_tried_again_has_a_savepoint_of_its_own(cluster: SimulatedCluster) -> None:
    rolling_back(cluster)
    first = cluster.status.rollout.savepoint  # type: ignore[union-attr]
    cluster.run(BACK)
    cluster.commit(cluster.started(4))
    cluster.edit(trigger={"maxRecordsPerEpoch": 4})
    cluster.step()
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    stopping(cluster)
    cluster.stopped(AGAIN)
    cluster.step()
    assert initial(cluster, "orders-driver-5")[-1] not in {first, "--anew"}


def test_a_job_that_never_was_ready_is_replaced_without_ceremony() -> None:
    cluster = SimulatedCluster(resource(spark={"image": "joinery:misspelt"}))
    cluster.step()
    cluster.wait(OLD, "ImagePullBackOff", "not found")
    cluster.step()
    cluster.edit(spark={"image": "joinery:1"})
    cluster.step()
    cluster.step()
    assert cluster.pods[NEW]["spec"]["containers"][0]["image"] == "joinery:1"
    assert (stage(cluster), list(cluster.pods)) == (None, [NEW])


def test_a_job_whose_state_dies_with_it_is_replaced_without_ceremony() -> None:
    output = {"file": {"path": "joined"}, "format": "json"}
    cluster = SimulatedCluster(resource(stateStore={"memory": {}}, output=output))
    cluster.started(1)
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    cluster.stopped(OLD)
    cluster.step()
    assert "initContainers" not in cluster.pods[NEW]["spec"]


def test_state_of_an_earlier_life_is_left_behind_only_when_the_resource_says_so() -> None:
    cluster = SimulatedCluster(resource())
    cluster.step()
    cluster.run(OLD)
    cluster.end(OLD, {**FATAL, "kind": "IncompatibleState"})
    cluster.step()
    assert cluster.status.phase == "Failed"
    assert cluster.condition("StateCompatible") == ("False", "IncompatibleState")
    cluster.edit(upgrade={"mode": "stateless"})
    cluster.step()
    arguments = initial(cluster, NEW)
    assert arguments[-1] == "--anew"
    cluster.run(NEW)
    cluster.end(NEW, TRANSIENT)
    cluster.step()
    cluster.pass_time(10)
    cluster.step()
    assert initial(cluster, BACK) == arguments


def test_the_old_revision_cannot_be_started_without_its_config_map(cluster: SimulatedCluster) -> None:
    name = check(cluster)
    cluster.run(name)
    cluster.check_result(name, fits=False)
    cluster.step()
    cluster.config_maps.clear()
    cluster.end(OLD, TRANSIENT)
    cluster.step()
    cluster.pass_time(10)
    cluster.step()
    assert cluster.condition("Ready") == ("False", "RevisionLost")
    cluster.edit(trigger={"maxRecordsPerEpoch": 4})
    cluster.step()
    assert NEW in cluster.pods


MEMORY = {"stateStore": {"memory": {}}, "output": {"file": {"path": "joined"}, "format": "json"}}


def test_state_is_not_left_behind_for_a_store_that_keeps_none() -> None:
    cluster = SimulatedCluster(resource())
    cluster.started(1)
    before = cluster.status.revision
    cluster.edit(**MEMORY)
    cluster.step()
    assert (cluster.status.revision, cluster.status.phase) == (before, "Running")
    assert cluster.condition("StateCompatible") == ("False", "IncompatibleState")
    assert all(word in cluster.status.refused.message for word in ("spec.stateStore.memory", "upgrade.mode"))  # type: ignore[union-attr]
    assert cluster.step().status is None
    cluster.edit(upgrade={"mode": "stateless"})
    cluster.step()
    assert cluster.status.revision == cluster.status.target_revision != before
    assert cluster.status.refused is None


def test_a_store_that_is_no_longer_named_changes_nothing() -> None:
    cluster = SimulatedCluster(resource())
    cluster.started(1)
    before = cluster.status.revision
    cluster.edit(stateStore={})
    cluster.step()
    assert cluster.condition("Valid") == ("False", "Incomplete")
    assert (cluster.status.revision, cluster.status.phase) == (before, "Running")


def test_a_job_that_would_find_no_state_is_refused() -> None:
    cluster = SimulatedCluster(resource())
    cluster.started(1)
    store = {"postgres": {"dsnSecretRef": {"name": "other-db", "key": "dsn"}, "schema": "elsewhere"}}
    cluster.edit(stateStore=store)
    cluster.step()
    cluster.run(check(cluster))
    cluster.check_result(check(cluster), fits=True, there_is_state=False)
    cluster.step()
    assert (stage(cluster), cluster.status.phase) == (None, "Running")
    assert cluster.condition("StateCompatible") == ("False", "IncompatibleState")
    message = cluster.status.refused.message  # type: ignore[union-attr]
    assert all(word in message for word in ("schema elsewhere", "other-db/dsn", "joinery state move", "stateless"))
    cluster.edit(upgrade={"mode": "stateless"})
    cluster.step()
    cluster.run(check(cluster))
    cluster.check_result(check(cluster), fits=True, there_is_state=False)
    cluster.step()
    assert stage(cluster) == "Stopping"


def test_rows_that_differ_in_the_shadow_are_refused_until_the_mode_says_that_they_may(
    cluster: SimulatedCluster,
) -> None:
    cluster.edit(upgrade={"mode": "shadow"})
    cluster.step()
    cluster.step()
    name = check(cluster)
    assert name.endswith("-shadow")
    assert "mode: shadow" in cluster.config_maps[f"orders-job-{cluster.status.target_revision}"]["data"]["job.yaml"]
    cluster.run(name)
    cluster.check_result(name, fits=False, rows_differ=True)
    cluster.step()
    assert (stage(cluster), cluster.status.phase) == (None, "Running")
    assert cluster.condition("Degraded") == ("True", "RowsDiffer")
    assert "epochs 5 to 7 differ" in cluster.status.refused.message  # type: ignore[union-attr]
    assert list(cluster.pods) == [OLD]
    assert cluster.step().status is None
    cluster.edit(upgrade={"mode": "stateful"})
    cluster.step()
    cluster.run(check(cluster))
    cluster.check_result(check(cluster), fits=True)
    cluster.step()
    assert stage(cluster) == "Stopping"


def test_rows_that_are_the_same_in_the_shadow_lead_to_the_cut_over(cluster: SimulatedCluster) -> None:
    cluster.edit(upgrade={"mode": "shadow", "progressDeadline": "1m", "shadow": {"within": "10m"}})
    cluster.step()
    cluster.step()
    cluster.run(check(cluster))
    cluster.pass_time(65)  # the check waits for epochs: that is no lack of progress
    cluster.step()
    assert stage(cluster) == "Checking"
    cluster.check_result(check(cluster), fits=True, warnings=("shadow: epochs 5 to 7 (10 rows) are the same",))
    cluster.step()
    assert stage(cluster) == "Stopping"
    assert "are the same" in cluster.status.rollout.reason  # type: ignore[union-attr]
    cluster.stopped(OLD)
    cluster.step()
    assert "--anew" not in initial(cluster, NEW)


def test_a_shadow_that_says_nothing_is_refused_after_both_times(cluster: SimulatedCluster) -> None:
    cluster.edit(upgrade={"mode": "shadow", "progressDeadline": "1m", "shadow": {"within": "10m"}})
    cluster.step()
    cluster.step()
    cluster.run(check(cluster))
    cluster.step()
    cluster.pass_time(11 * 60 + 1)
    cluster.step()
    assert cluster.condition("Degraded") == ("True", "CheckFailed")
    assert "1m (upgrade.progressDeadline) and 10m (upgrade.shadow.within)" in cluster.status.refused.message  # type: ignore[union-attr]


def test_a_shadow_of_other_length_has_a_file_of_its_own(cluster: SimulatedCluster) -> None:
    cluster.edit(upgrade={"mode": "shadow", "shadow": {"epochs": 5}})
    cluster.step()
    cluster.step()
    cluster.run(check(cluster))
    cluster.evict(check(cluster))
    cluster.edit(upgrade={"mode": "shadow", "shadow": {"epochs": 6}})
    cluster.step()
    cluster.step()
    cluster.pass_time(60)
    cluster.step()
    cluster.step()
    assert "epochs: 6" in cluster.config_maps[f"orders-job-{cluster.status.target_revision}"]["data"]["job.yaml"]


def test_a_check_of_the_other_mode_is_no_answer(cluster: SimulatedCluster) -> None:
    cluster.edit(upgrade={"mode": "stateless"})
    cluster.step()
    cluster.step()
    name = check(cluster)
    config = cluster.config_maps[f"orders-job-{cluster.status.target_revision}"]
    assert "mode: stateless" in config["data"]["job.yaml"]
    cluster.run(name)
    cluster.check_result(name, fits=True)  # unseen, as the mode changes at the same moment
    cluster.edit(upgrade={"mode": "stateful"})
    cluster.step()
    assert stage(cluster) == "Checking"
    assert not cluster.alive("check")  # the ConfigMap is replaced when nothing can hold on to it
    cluster.step()
    assert check(cluster) != name
    config = cluster.config_maps[f"orders-job-{cluster.status.target_revision}"]
    assert "mode: stateful" in config["data"]["job.yaml"]
    cluster.run(check(cluster))
    cluster.check_result(check(cluster), fits=False)
    cluster.step()
    assert cluster.condition("StateCompatible") == ("False", "IncompatibleState")


def test_another_life_of_a_resource_has_savepoints_of_its_own() -> None:
    names = []
    for uid in ("uid-job", "uid-of-another-life"):
        cluster = SimulatedCluster(resource())
        assert cluster.resource is not None
        cluster.resource["metadata"]["uid"] = uid
        cluster.started(1)
        cluster.edit(trigger={"maxRecordsPerEpoch": 8})
        cluster.step()
        starting(cluster)
        names.append(initial(cluster, NEW)[-1])
    assert names[0] != names[1]


def test_a_check_that_the_api_server_refuses_says_why(cluster: SimulatedCluster) -> None:
    cluster.pods.pop(check(cluster))
    cluster.create_refused = "403 Forbidden: exceeded quota: compute"
    cluster.step()
    assert "exceeded quota" in cluster.status.rollout.reason  # type: ignore[union-attr]
    cluster.pods.pop(check(cluster))
    cluster.pass_time(601)
    cluster.step()
    assert "exceeded quota" in cluster.status.refused.message  # type: ignore[union-attr]
