"""What a person has asked for is what runs: nothing starts that is not asked for any more, and from every stage that is
stuck some edit leads to a job that runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from joinery_operator.reconcile.rollout_table import STAGES as STAGE_RULES
from joinery_operator.reconcile.rollout_table import TABLE, Act, RolloutStage
from joinery_runtime.job.crd import DriverStatus
from simulated_cluster.simulation import SimulatedCluster, resource

FATAL = {"outcome": "failed", "kind": "SourceError", "error": "no topic orders", "retry": False}
TRANSIENT = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}
OLD, NEW, BACK, AGAIN = (f"orders-driver-{number}" for number in range(1, 5))
MEMORY = {"stateStore": {"memory": {}}, "output": {"file": {"path": "joined"}, "format": "json"}}
ELSEWHERE = {"postgres": {"dsnSecretRef": {"name": "state-db", "key": "dsn"}, "schema": "elsewhere"}}


@pytest.fixture
def cluster() -> SimulatedCluster:
    return established()


def established(**spec: Any) -> SimulatedCluster:
    """A job that has run for a while."""
    cluster = SimulatedCluster(resource(**spec))
    name = cluster.started(1)
    cluster.commit(name)
    cluster.tell(name)
    cluster.pass_time(60)
    cluster.step()
    return cluster


def suspended(cluster: SimulatedCluster) -> None:
    cluster.edit(suspend=True)
    cluster.step()
    for pod in cluster.alive():
        cluster.stopped(pod["metadata"]["name"])
    cluster.step()
    assert cluster.status.phase == "Suspended"


def failed_for_good(cluster: SimulatedCluster) -> None:
    cluster.end(OLD, FATAL)
    cluster.step()
    assert cluster.status.phase == "Failed"


def stage(cluster: SimulatedCluster) -> str | None:
    return cluster.status.rollout.stage if cluster.status.rollout else None


# Nothing starts that is not asked for any more


EDITS: dict[str, Callable[[SimulatedCluster], None]] = {
    "edited, then resumed": lambda c: (
        suspended(c),
        c.edit(trigger={"maxRecordsPerEpoch": 8}),
        c.step(),
        c.edit(suspend=False),
    ),  # type: ignore[func-returns-value]
    "edited and resumed at once": lambda c: (suspended(c), c.edit(trigger={"maxRecordsPerEpoch": 8}, suspend=False)),  # type: ignore[func-returns-value]
    "edited and resumed while it stops": lambda c: (
        c.edit(suspend=True),
        c.step(),
        c.edit(trigger={"maxRecordsPerEpoch": 8}, suspend=False),
    ),  # type: ignore[func-returns-value]
    "mended after it failed for good": lambda c: (failed_for_good(c), c.edit(trigger={"maxRecordsPerEpoch": 8})),  # type: ignore[func-returns-value]
    "suspended after it failed": lambda c: (
        failed_for_good(c),
        suspended(c),
        c.edit(trigger={"maxRecordsPerEpoch": 8}, suspend=False),
    ),  # type: ignore[func-returns-value]
}


@pytest.fixture(params=EDITS.values(), ids=EDITS)
def edited(cluster: SimulatedCluster, request: pytest.FixtureRequest) -> SimulatedCluster:
    """Its check runs."""
    request.param(cluster)
    for _ in range(3):
        cluster.step()
        for pod in cluster.alive():
            if "deletionTimestamp" in pod["metadata"]:
                cluster.stopped(pod["metadata"]["name"])
    return cluster


def drivers(cluster: SimulatedCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.created if "-driver-" in pod["metadata"]["name"]]


def test_nothing_starts_before_the_check_has_passed(edited: SimulatedCluster) -> None:
    assert (stage(edited), edited.status.phase, drivers(edited)) == ("Checking", "Pending", [OLD])
    assert edited.condition("Ready") == ("False", "Checking")
    edited.run(edited.check())
    edited.step()
    assert drivers(edited) == [OLD]
    edited.passes()
    name = edited.driver(edited.status.driver.number)  # type: ignore[union-attr]
    assert edited.revision_of(name) == edited.status.rollout.revision  # type: ignore[union-attr]


def test_what_is_refused_then_starts_nothing_until_a_person_decides(edited: SimulatedCluster) -> None:
    edited.run(edited.check())
    edited.check_result(edited.check(), fits=False)
    edited.step()
    edited.pass_time(10_000)
    edited.step()
    assert (stage(edited), edited.status.phase, drivers(edited)) == (None, "Failed", [OLD])
    assert edited.condition("Ready") == ("False", "IncompatibleState")
    assert "to have it start again" in edited.status.conditions[0].message
    edited.edit(trigger={"maxRecordsPerEpoch": 4})
    edited.step()
    name = edited.driver(edited.status.driver.number)  # type: ignore[union-attr]
    assert drivers(edited) == [OLD, name]
    assert edited.revision_of(name) == edited.status.revision


@pytest.mark.parametrize("ended", [suspended, failed_for_good], ids=["suspended", "failed for good"])
def test_an_edit_that_is_no_job_starts_nothing_either(
    cluster: SimulatedCluster, ended: Callable[[SimulatedCluster], None]
) -> None:
    ended(cluster)
    cluster.edit(trigger={"maxRecordsPerEpoch": "many"}, suspend=False)
    cluster.step()
    assert (cluster.status.phase, drivers(cluster)) == ("Failed", [OLD])
    assert cluster.condition("Ready")[0] == "False"
    assert cluster.condition("Valid") == ("False", "Invalid")
    cluster.edit(trigger={"maxRecordsPerEpoch": 4})
    cluster.step()
    assert drivers(cluster) == [OLD, NEW]


def test_a_suspended_rollout_that_is_edited_is_undone_without_the_old_driver(cluster: SimulatedCluster) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    cluster.passes()
    cluster.run(NEW)
    suspended(cluster)
    cluster.edit(trigger={"maxRecordsPerEpoch": 9}, suspend=False)
    cluster.step()
    assert stage(cluster) == "RollingBack"
    cluster.run(BACK)  # it returns to the savepoint, and is no driver
    cluster.step()
    cluster.step()
    assert (stage(cluster), cluster.database.migrated_for) == ("Checking", None)
    assert drivers(cluster) == [OLD, NEW, BACK]


def test_a_suspended_rollout_goes_on_and_a_way_back_after_it_ends_with_the_old_driver(
    cluster: SimulatedCluster,
) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    cluster.passes()
    cluster.run(NEW)
    suspended(cluster)
    cluster.pass_time(10_000)  # does not count
    cluster.edit(suspend=False)
    cluster.step()
    assert (stage(cluster), cluster.status.refused) == ("Starting", None)
    cluster.run(BACK)
    cluster.end(BACK, FATAL)
    cluster.step()
    cluster.run(AGAIN)
    cluster.step()
    cluster.step()
    assert cluster.revision_of("orders-driver-5") == cluster.status.revision


def test_a_suspended_job_takes_nothing_over() -> None:
    cluster = SimulatedCluster(resource(spark={"image": "misspelt"}))
    cluster.step()
    first = cluster.status.revision
    cluster.edit(suspend=True, spark={"image": "joinery:1"})
    cluster.step()
    assert cluster.status.revision == first
    cluster.edit(suspend=False)
    cluster.step()
    assert cluster.status.revision == cluster.status.target_revision != first


def test_an_image_that_the_status_lost_is_decided_on_again(cluster: SimulatedCluster) -> None:
    assert cluster.resource is not None
    del cluster.resource["status"]["image"]
    cluster.step()
    assert (cluster.status.image, cluster.status.phase) == ("joinery:1", "Running")


# The deadline counts from the last progress


def test_a_slow_start_is_no_reason_to_go_back_as_long_as_it_gets_on(cluster: SimulatedCluster) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": 8}, upgrade={"progressDeadline": "2m"})
    cluster.step()
    cluster.passes()
    status = cluster.pods[NEW]["status"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T10:00:00Z"}
    running = {"name": "migrate", "state": {"running": {"startedAt": "2026-11-21T10:00:00Z"}}}
    ended = {"name": "migrate", "state": {"terminated": {"exitCode": 0}}}
    for seen in (
        {"conditions": [scheduled]},
        {"conditions": [scheduled], "initContainerStatuses": [running]},
        {"conditions": [scheduled], "initContainerStatuses": [ended]},
    ):
        cluster.pass_time(119)
        status.update(seen)
        cluster.step()
        assert stage(cluster) == "Starting"
    cluster.pass_time(120)
    cluster.step()
    assert cluster.status.refused.reason == "DeadlineExceeded"  # type: ignore[union-attr]
    assert "2m (upgrade.progressDeadline)" in cluster.status.refused.message  # type: ignore[union-attr]


def test_a_slow_migration_is_waited_for_as_long_as_it_migrates(cluster: SimulatedCluster) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    cluster.passes()
    cluster.migrates(NEW, 0)
    cluster.step()
    for segments in (100, 200, 300):
        cluster.pass_time(599)
        cluster.migrates(NEW, segments)
        cluster.step()
        assert (stage(cluster), cluster.status.rollout.segments) == ("Starting", segments)  # type: ignore[union-attr]
    cluster.pass_time(600)
    cluster.step()
    assert stage(cluster) == "RollingBack"


def test_a_first_epoch_is_waited_for_as_long_as_its_tasks_end(cluster: SimulatedCluster) -> None:
    """With a backlog, a driver is ready only once it has committed."""
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    cluster.passes()
    cluster.run(NEW)
    cluster.step()
    uid, revision = cluster.pods[NEW]["metadata"]["uid"], cluster.revision_of(NEW)
    for tasks in (1, 4, 9):
        cluster.pass_time(599)
        cluster.driver_statuses[uid] = DriverStatus(revision=revision, tasks=tasks)
        cluster.step()
        assert (stage(cluster), cluster.status.rollout.tasks) == ("Starting", tasks)  # type: ignore[union-attr]
    cluster.pass_time(300)
    # The epoch is run again, and gets no further.
    cluster.driver_statuses[uid] = DriverStatus(revision=revision, tasks=8)
    cluster.step()
    cluster.pass_time(300)
    cluster.step()
    assert stage(cluster) == "RollingBack"
    assert cluster.status.rollout.tasks == 0  # type: ignore[union-attr]


def test_attempts_that_get_no_further_are_no_progress(cluster: SimulatedCluster) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    cluster.passes()
    began = cluster.now
    while stage(cluster) == "Starting":
        name = cluster.driver(cluster.status.driver.number)  # type: ignore[union-attr]
        if name in cluster.pods and cluster.pods[name]["status"]["phase"] == "Pending":
            cluster.run(name)
            cluster.end(name, TRANSIENT)
        ended = cluster.now
        cluster.pass_time(cluster.step().again_after or 10)
    assert (ended - began).total_seconds() == pytest.approx(600, abs=30)
    assert stage(cluster) == "RollingBack"


# Who goes back


def starts_in_vain(rollback: str, *, ends: bool) -> SimulatedCluster:
    """A job whose new revision was not ready by its deadline, because its pod ended or just went on."""
    cluster = established(upgrade={"rollback": rollback})
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    cluster.passes()
    cluster.run(NEW)
    if ends:
        cluster.end(NEW, FATAL)
    cluster.step()
    cluster.pass_time(601)
    cluster.step()
    cluster.step()
    return cluster


@pytest.mark.parametrize("ends", [True, False], ids=["failed", "no progress"])
def test_manual_waits_for_a_person(ends: bool) -> None:
    cluster = starts_in_vain("manual", ends=ends)
    assert (stage(cluster), cluster.status.phase) == ("Starting", "Failed")
    assert cluster.condition("Degraded") == ("True", "StartFailed")
    assert "apply the job of revision" in cluster.status.conditions[0].message
    cluster.edit(trigger={"maxRecordsPerEpoch": 4})
    cluster.step()
    assert stage(cluster) == "RollingBack"


@pytest.mark.parametrize("ends", [True, False], ids=["failed", "no progress"])
def test_disabled_never_goes_back(ends: bool) -> None:
    cluster = starts_in_vain("disabled", ends=ends)
    new = cluster.status.revision
    assert (stage(cluster), cluster.status.target_revision, cluster.status.proved) == (None, new, None)
    assert cluster.status.phase == ("Failed" if ends else "Starting")
    cluster.edit(trigger={"maxRecordsPerEpoch": 9})
    cluster.step()
    assert cluster.status.revision == cluster.status.target_revision != new


# Every row that reports what keeps a stage has a condition with the facts and the way out


def edit(cluster: SimulatedCluster) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()


def keeps_checking(cluster: SimulatedCluster) -> str:
    edit(cluster)
    cluster.wait(cluster.check(), "ImagePullBackOff", "not found")
    return "ImagePullBackOff"


def keeps_checking_with_nothing_running(cluster: SimulatedCluster) -> str:
    failed_for_good(cluster)
    return keeps_checking(cluster)


def keeps_stopping(cluster: SimulatedCluster) -> str:
    """Its grace period ends 480 s after the deadline's."""
    cluster.pods[OLD]["spec"]["terminationGracePeriodSeconds"] = 1080
    edit(cluster)
    cluster.run(cluster.check())
    cluster.check_result(cluster.check(), fits=True)
    cluster.step()
    cluster.pass_time(601)
    return f"pod {OLD} is taken for dead at 10:24:00 UTC"


def keeps_starting(cluster: SimulatedCluster) -> str:
    cluster.edit(upgrade={"rollback": "manual"})
    edit(cluster)
    cluster.passes()
    cluster.wait(NEW, "ImagePullBackOff", "not found")
    cluster.step()
    cluster.pass_time(601)
    return "upgrade.rollback is manual"


def keeps_rolling_back(cluster: SimulatedCluster) -> str:
    edit(cluster)
    cluster.passes()
    cluster.run(NEW)
    cluster.end(NEW, FATAL)
    cluster.step()
    cluster.end(BACK, FATAL)
    return "no topic orders"


KEEPS = {
    "Checking": (keeps_checking, "Progressing"),
    "Checking, held": (keeps_checking_with_nothing_running, "Ready"),
    "Stopping": (keeps_stopping, "Degraded"),
    "Starting": (keeps_starting, "Degraded"),
    "RollingBack": (keeps_rolling_back, "Degraded"),
}


def test_every_stage_that_reports_what_keeps_it_is_one_of_these() -> None:
    assert {row.stage.value for row in TABLE if row.act is Act.REPORT} == {name.partition(",")[0] for name in KEEPS}


@pytest.mark.parametrize("name", KEEPS)
def test_a_stage_that_is_kept_names_what_keeps_it_and_the_way_out(cluster: SimulatedCluster, name: str) -> None:
    keep, type_ = KEEPS[name]
    facts = keep(cluster)
    cluster.step()
    cluster.step()
    assert stage(cluster) == name.partition(",")[0]
    condition = next(condition for condition in cluster.status.conditions if condition.type == type_)
    assert condition.status == ("False" if type_ == "Ready" else "True")
    assert facts in condition.message
    assert condition.message.endswith(
        STAGE_RULES[RolloutStage(stage(cluster))].way_out.format(revision=cluster.status.revision)
    )


# A way back that is stuck has a way out


def rolling_back(cluster: SimulatedCluster) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    cluster.passes()
    cluster.run(NEW)
    cluster.end(NEW, FATAL)


def image_lost(cluster: SimulatedCluster) -> None:
    cluster.missing_images.add("joinery:1")
    rolling_back(cluster)
    cluster.step()
    cluster.run(BACK)


def config_map_lost(cluster: SimulatedCluster) -> None:
    rolling_back(cluster)
    del cluster.config_maps[f"orders-job-{cluster.status.revision}"]


def fails(cluster: SimulatedCluster) -> None:
    rolling_back(cluster)
    cluster.step()
    cluster.end(BACK, FATAL)


STUCK = {"image lost": image_lost, "ConfigMap lost": config_map_lost, "fails": fails}


@pytest.fixture(params=STUCK.values(), ids=STUCK)
def stuck(request: pytest.FixtureRequest) -> SimulatedCluster:
    """The image that is asked for now can be pulled."""
    cluster = established()
    cluster.edit(spark={"image": "joinery:2"})  # from now on it is the resource that names it
    for _ in range(2):
        cluster.step()
    request.param(cluster)
    cluster.step()
    cluster.pass_time(601)
    cluster.step()
    cluster.step()
    assert stage(cluster) == "RollingBack"
    return cluster


def test_the_condition_names_the_way_out(stuck: SimulatedCluster) -> None:
    assert (stuck.status.phase, stuck.condition("Degraded")) == ("Failed", ("True", "RollbackFailed"))
    message = stuck.status.conditions[0].message
    assert all(word in message for word in (stuck.status.rollout.savepoint, "another job", "restartedAt"))  # type: ignore[union-attr]


@pytest.mark.parametrize("way_out", ["trigger", "restartedAt"])
def test_another_job_leads_out(stuck: SimulatedCluster, way_out: str) -> None:
    before = stuck.status.revision
    if way_out == "trigger":
        stuck.edit(trigger={"maxRecordsPerEpoch": 9})
    else:
        stuck.resource["metadata"]["annotations"] = {"joinery.dev/restartedAt": "now"}  # type: ignore[index]
    for _ in range(40):
        stuck.goes_well()
    assert (stuck.status.phase, stage(stuck)) == ("Running", None)
    assert stuck.status.revision == stuck.status.target_revision != before
    assert not stuck.database.misread


def test_a_job_with_its_state_elsewhere_does_not_lead_out_and_one_that_gives_it_up_does(
    stuck: SimulatedCluster,
) -> None:
    for edit in ({"stateStore": ELSEWHERE}, MEMORY):
        stuck.edit(**edit)
        stuck.step()
        stuck.step()
        assert stage(stuck) == "RollingBack"
        assert "elsewhere" in stuck.status.conditions[0].message
    stuck.edit(upgrade={"mode": "stateless"})
    stuck.step()
    assert (stage(stuck), stuck.status.revision) == (None, stuck.status.target_revision)


def test_a_restorer_that_is_of_no_use_either_can_be_changed(stuck: SimulatedCluster) -> None:
    stuck.edit(trigger={"maxRecordsPerEpoch": 9}, spark={"image": "misspelt"})
    stuck.missing_images.add("misspelt")
    for _ in range(20):
        stuck.goes_well()
    stuck.pass_time(601)
    stuck.step()
    assert (stage(stuck), stuck.status.phase) == ("RollingBack", "Failed")
    stuck.edit(trigger={"maxRecordsPerEpoch": 9}, spark={"image": "joinery:2"})
    for _ in range(40):
        stuck.goes_well()
    assert (stuck.status.phase, stuck.status.revision) == ("Running", stuck.status.target_revision)


# From every stage and with every fault, some edit leads to a job that runs


FAULTS: dict[str, Callable[[SimulatedCluster], object]] = {
    "old image lost": lambda c: c.missing_images.add("joinery:1"),
    "both images lost": lambda c: c.missing_images.update({"joinery:1", "joinery:2"}),
    "ConfigMaps lost": lambda c: c.config_maps.clear(),
    "all lost": lambda c: (c.config_maps.clear(), c.missing_images.update({"joinery:1", "joinery:2"})),
    "suspended": lambda c: c.edit(suspend=True),
    "pods lost": lambda c: c.pods.clear(),
}
STAGES: dict[str, Callable[[SimulatedCluster], object]] = {
    "Stable": lambda c: None,
    "Checking": lambda c: c.step(),
    "Stopping": lambda c: (c.step(), c.run(c.check()), c.check_result(c.check(), fits=True), c.step()),
    "Starting": lambda c: (c.step(), c.passes()),
    "Migrated": lambda c: (c.step(), c.passes(), c.run(NEW), c.step()),
    "RollingBack": lambda c: (c.step(), c.passes(), c.run(NEW), c.end(NEW, FATAL), c.step()),
    "Refused": lambda c: (c.step(), c.run(c.check()), c.check_result(c.check(), fits=False), c.step()),
}
WALK = [
    *product(STAGES, FAULTS, ["automatic"]),
    *product(["Starting", "Migrated"], ["old image lost", "all lost", "suspended"], ["manual", "disabled"]),
]


@pytest.mark.search
@pytest.mark.parametrize(("at", "fault", "rollback"), WALK)
def test_from_every_stage_with_every_fault_an_edit_leads_to_running(at: str, fault: str, rollback: str) -> None:
    cluster = established(spark={"image": "joinery:1"}, upgrade={"rollback": rollback})
    cluster.edit(spark={"image": "joinery:2"})
    STAGES[at](cluster)
    FAULTS[fault](cluster)
    for _ in range(12):
        cluster.goes_well()
    cluster.edit(spark={"image": "joinery:3"}, suspend=False)
    for _ in range(80):
        cluster.goes_well()
        if cluster.status.phase == "Running" and cluster.status.rollout is None:
            break
    assert cluster.status.phase == "Running", cluster.status
    assert (cluster.status.revision, cluster.status.image) == (cluster.status.target_revision, "joinery:3")
    assert rollback == "disabled" or not cluster.database.misread
