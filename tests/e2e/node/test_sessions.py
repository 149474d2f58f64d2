"""A SessionWindow on a real node: whatever happens to it, its table has every session once, as its rows make it.

The tests go on from one another, in this order; those of `make soak` come in between. What is the same for every kind
is in test_life.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.node.cluster_job import ClusterJob
from e2e.node.conftest import MakeJob
from e2e.node.works import Pairs, Sessions
from joinery_runtime.core.table.segment import STATE_VERSION

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def job(make_job: MakeJob) -> Iterator[ClusterJob]:
    job = make_job("visits", Sessions)
    yield job
    job.log.close()


def test_it_runs(job: ClusterJob) -> None:
    job.apply(cleanup="deleteState")
    with job.feeder:
        job.wait_until_running()


def test_its_first_sessions_are_there_once(job: ClusterJob) -> None:
    job.judge()
    (columns,) = job.kubectl("get", "sw", job.name, "-n", job.namespace, "--no-headers").splitlines()
    assert columns.split()[:2] == [job.name, "Running"]


@pytest.mark.soak
def test_a_join_of_its_name_does_not_touch_its_state(job: ClusterJob, make_job: MakeJob) -> None:
    """The younger one says whose the state is, and goes without deleting it."""
    second = make_job(job.name, Pairs)
    second.apply(cleanup="deleteState", upgrade={"mode": "stateless"})
    second.wait("it is refused", lambda: second.condition("Valid").get("reason") == "StateTaken")
    assert "SessionWindow" in second.condition("Valid")["message"]
    second.delete()
    second.log.close()
    assert second.children() == []
    assert job.log.record() is not None
    with job.feeder:
        job.wait_for_more_epochs(3)
    job.judge()


def test_its_driver_is_killed(job: ClusterJob) -> None:
    before = job.driver()["metadata"]["uid"]
    with job.feeder:
        job.kubectl(
            "delete", "pod", job.driver()["metadata"]["name"], "-n", job.namespace, "--grace-period=0", "--force"
        )
        job.wait("another driver", lambda: [p["metadata"]["uid"] for p in job.running("driver")] not in ([], [before]))
        job.wait_until_running()
    job.judge()


def test_its_shards_and_executors_are_changed_while_it_is_suspended(job: ClusterJob) -> None:
    with job.feeder:
        job.apply(suspend=True)
        job.wait("it is suspended", lambda: job.status.get("phase") == "Suspended")
        executor = {**job.manifest["spec"]["spark"]["executor"], "instances": 1}
        job.apply(shards=7, spark={**job.manifest["spec"]["spark"], "executor": executor}, suspend=False)
        job.wait_until_running()


def test_with_other_shards_every_session_is_there_once(job: ClusterJob) -> None:
    job.judge()
    assert job.log.entries()[-1]["plan"]["shards"] == 7


def test_another_grouping_is_refused(job: ClusterJob) -> None:
    before = job.driver()["metadata"]["uid"]
    with job.feeder:
        job.apply(groupBy=["page"])
        job.wait("it is refused", lambda: job.condition("StateCompatible").get("status") == "False")
        assert "groupBy was user" in job.condition("StateCompatible")["message"]
        job.wait_for_more_epochs(3)
        job.apply(groupBy=["user"])
        job.wait_until_running()
    job.judge()
    assert job.driver()["metadata"]["uid"] == before


@pytest.mark.soak
def test_an_image_with_a_migration_is_rolled_out(job: ClusterJob, migrating: str) -> None:
    with job.feeder:
        job.apply_spark(image=migrating)
        job.wait_until_running()
    job.judge()
    assert job.images() == [migrating]
    assert job.state_versions() == {STATE_VERSION + 1}


@pytest.mark.soak
def test_its_state_is_looked_into_and_pinned(job: ClusterJob) -> None:
    assert json.loads(job.joinery("state", job.name, "stats"))["epoch"] > 0
    job.joinery("savepoint", f"sw/{job.name}", "by-hand")
    assert "by-hand" in job.joinery("state", job.name, "savepoint", "--list")


def test_deleted_with_its_state_it_leaves_nothing(job: ClusterJob) -> None:
    assert job.log.record() is not None
    job.delete()
    job.wait("its children are gone", lambda: not job.children())
    assert job.log.record() is None
