"""What the annotation joinery.dev/pause keeps the operator from, and the condition for whoever waits for a rollout."""

from __future__ import annotations

from typing import Any

import pytest

from joinery_operator.names import PAUSE_ANNOTATION
from reconcile.test_rollout import FATAL, NEW, OLD, REACH, check, cluster, stage, starting, stopping
from simulated_cluster.simulation import SimulatedCluster, resource

__all__ = ["cluster"]


def pause(cluster: SimulatedCluster, value: str | None) -> None:
    assert cluster.resource is not None
    annotations = cluster.resource["metadata"].setdefault("annotations", {})
    annotations.pop(PAUSE_ANNOTATION, None)
    if value is not None:
        annotations[PAUSE_ANNOTATION] = value


def complete(cluster: SimulatedCluster) -> None:
    starting(cluster)
    cluster.run(NEW)
    cluster.get_ready(NEW)
    cluster.commit(NEW)
    cluster.tell(NEW)
    cluster.step()


@pytest.mark.parametrize("reached", ["Checking", "Stopping"])
def test_paused_rollouts_do_not_begin_and_the_current_revision_runs(cluster: SimulatedCluster, reached: str) -> None:
    old = cluster.status.revision
    REACH[reached](cluster)
    pause(cluster, "rollouts")
    cluster.step()
    assert (stage(cluster), cluster.status.revision) == (None, old)
    assert cluster.condition("UpToDate") == ("False", "RolloutsPaused")
    assert cluster.condition("Paused") == ("True", "Rollouts")
    assert cluster.condition("Reconciling") == ("True", "RolloutsPaused")
    if reached == "Stopping":
        cluster.stopped(OLD)
        cluster.step()
        cluster.run(NEW)  # the next driver of the old revision
        cluster.get_ready(NEW)
        cluster.step()
    assert cluster.condition("Ready") == ("True", "Running")
    pause(cluster, None)
    cluster.step()
    assert stage(cluster) == "Checking"
    assert not [condition for condition in cluster.status.conditions if condition.type == "Paused"]
    assert [event.split(":")[0] for event in cluster.events if "pause" in event] == ["Normal Paused", "Normal Resumed"]


def test_a_driver_that_fails_is_restarted_while_rollouts_are_paused(cluster: SimulatedCluster) -> None:
    pause(cluster, "rollouts")
    cluster.step()
    cluster.end(OLD, {"outcome": "failed", "kind": "StoreUnavailable", "error": "refused", "retry": True})
    cluster.step()
    cluster.pass_time(10)
    cluster.step()
    assert NEW in cluster.pods


@pytest.mark.parametrize("reached", ["Starting", "RollingBack"])
def test_a_rollout_that_has_begun_is_not_left_half_way(cluster: SimulatedCluster, reached: str) -> None:
    REACH[reached](cluster)
    pause(cluster, "rollouts")
    cluster.step()
    assert stage(cluster) == reached
    assert cluster.alive()


def test_a_new_job_starts_although_rollouts_are_paused() -> None:
    cluster = SimulatedCluster(resource())
    pause(cluster, "rollouts")
    cluster.started(1)
    assert cluster.condition("UpToDate") == ("True", "RolledOut")


@pytest.mark.parametrize("value", ["all", "true"])
def test_nothing_is_done_for_a_paused_job(cluster: SimulatedCluster, value: str) -> None:
    before = cluster.status
    pause(cluster, value)
    cluster.edit(trigger={"maxRecordsPerEpoch": 2})
    cluster.delete_child("ConfigMap", f"orders-job-{before.revision}")
    cluster.run(check(cluster))
    cluster.check_result(check(cluster), fits=True)
    cluster.end(OLD, FATAL)
    assert cluster.step().actions == ()
    assert cluster.condition("Paused") == ("True", "Everything")
    assert before.rollout is not None
    assert cluster.status.rollout == before.rollout.model_copy(update={"progressed": None})
    assert cluster.status.observed_generation == before.observed_generation
    assert cluster.step().status is None
    pause(cluster, None)
    cluster.step()
    assert cluster.status.observed_generation == before.observed_generation + 1  # type: ignore[operator]


def test_a_pause_does_not_count_towards_the_deadline_of_a_rollout(cluster: SimulatedCluster) -> None:
    starting(cluster)
    pause(cluster, "all")
    cluster.step()
    cluster.pass_time(86_400)
    assert cluster.step().again_after is None
    pause(cluster, None)
    cluster.step()
    assert stage(cluster) == "Starting", "the whole deadline is left"
    cluster.pass_time(86_400)
    cluster.step()
    assert stage(cluster) == "RollingBack"


def test_a_paused_job_can_be_deleted_with_its_state() -> None:
    cluster = SimulatedCluster(resource(cleanup="deleteState"))
    name = cluster.started(1)
    pause(cluster, "all")
    cluster.step()
    cluster.delete()
    cluster.step()
    assert "deletionTimestamp" in cluster.pods[name]["metadata"]


def test_up_to_date_follows_a_rollout(cluster: SimulatedCluster) -> None:
    assert cluster.condition("UpToDate") == ("False", "RolloutChecking")
    complete(cluster)
    assert cluster.condition("UpToDate") == ("True", "RolledOut")


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda cluster: cluster.edit(inputs=[]), "Invalid"),
        (lambda cluster: cluster.check_result(check(cluster), fits=False), "IncompatibleState"),
        (lambda cluster: cluster.edit(suspend=True), "Suspended"),
    ],
)
def test_up_to_date_says_why_not(cluster: SimulatedCluster, act: Any, reason: str) -> None:
    cluster.run(check(cluster))
    act(cluster)
    cluster.step()
    assert cluster.condition("UpToDate") == ("False", reason)


def test_a_first_driver_that_was_never_ready_is_not_up_to_date() -> None:
    cluster = SimulatedCluster(resource())
    cluster.step()
    cluster.run(OLD)
    cluster.end(OLD, FATAL)
    cluster.step()
    assert cluster.condition("UpToDate") == ("False", "SourceError")


def test_the_history_has_revisions_that_worked_with_their_jobs(cluster: SimulatedCluster) -> None:
    first = cluster.status.revision
    complete(cluster)
    (past,) = cluster.status.history
    assert (past.revision, past.image) == (first, "joinery:1")
    assert past.since < past.until == cluster.now
    assert set(cluster.config_maps) == {f"orders-job-{first}", f"orders-job-{cluster.status.revision}"}
    cluster.step()
    assert f"orders-job-{first}" in cluster.config_maps


def test_a_revision_that_is_current_again_leaves_the_history(cluster: SimulatedCluster) -> None:
    first = cluster.status.revision
    complete(cluster)
    second = cluster.status.revision
    cluster.edit(trigger={"maxRecordsPerEpoch": 4})  # the job that ran before
    cluster.step()
    stopping(cluster)
    cluster.stopped(NEW)
    cluster.step()
    name = "orders-driver-3"
    cluster.run(name)
    cluster.get_ready(name)
    cluster.commit(name)
    cluster.tell(name)
    cluster.step()
    assert (cluster.status.revision, [past.revision for past in cluster.status.history]) == (first, [second])
