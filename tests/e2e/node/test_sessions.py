"""A SessionWindow on a real node: whatever happens to it, its table has every session once, as its rows make it.

The tests go on from one another, in this order; those of `make soak` come in between. What is the same for every kind
is in test_life.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from e2e.node.cluster_job import ClusterJob
from e2e.node.conftest import MakeJob
from e2e.node.works import Pairs, Sessions
from joinery_devkit.time_limit import TOOK
from joinery_operator.names import REVISION_LABEL
from joinery_runtime.core.table.segment import STATE_VERSION

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]

EPOCH = 100  # records: what it reads at most while it is to lag
WAITING, GROWS_PER_S = 3 * EPOCH, 20  # records
WIDE = 4  # executors
SCALE = {"maxInstances": WIDE, "targetBusy": 100, "targetLag": "5s", "upAfter": "2s", "downAfter": "5s"}
DEADLINE_S = 60
# No limit of the product: what may go by on a machine that is not this test's alone.
PAUSE_MS = 20_000


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


def test_suspended_edited_and_resumed_it_never_starts_what_was_suspended(job: ClusterJob) -> None:
    """Nor with the executors and shards of before. Every start has the next number, and takes part in it."""
    job.apply(suspend=True)
    job.wait("it is suspended", lambda: job.status.get("phase") == "Suspended")
    before = job.status
    assert json.loads(job.joinery("state", job.name, "stats"))["epoch"] == job.log.committed()
    executor = {**job.manifest["spec"]["spark"]["executor"], "instances": 1}
    job.apply(shards=7, spark={**job.manifest["spec"]["spark"], "executor": executor})
    job.apply(trigger={"maxRecordsPerEpoch": EPOCH})
    job.apply(suspend=False)
    with job.feeder:
        job.wait_until_running()
    assert job.driver()["metadata"]["labels"][REVISION_LABEL] == job.status["revision"] != before["revision"]
    assert job.status["driver"]["number"] == before["driver"]["number"] + 1
    assert job.log.entries()[-1]["plan"]["shards"] == 7


def test_under_a_growing_lag_it_becomes_wide_without_a_pause(
    job: ClusterJob, record_property: Callable[[str, object], None]
) -> None:
    """Epochs are small, so that records wait on any machine; more arrive than are read."""
    driver, generation = job.driver()["metadata"]["uid"], job.log.entries()[-1]["generation"]
    began = len(job.log.commits())
    _wait_under_a_growing_lag(job, "epochs of one executor", lambda: len(job.log.commits()) >= began + 5)
    applied_at = len(job.log.commits())
    _apply_under_a_growing_lag(job, autoscale=SCALE)
    _wait_under_a_growing_lag(job, "it is wide", lambda: len(job.running("executor")) == WIDE and _shards(job) == 8)
    commits = job.log.commits()
    usual, wider = (_longest(commits[at]) for at in (slice(began, applied_at), slice(applied_at - 1, None)))
    record_property(TOOK, f"output to output at most {usual} ms of one executor, {wider} ms while {WIDE - 1} more came")
    # Who waited for the executors would wait for most of the time that they take to come.
    assert wider < usual + max(PAUSE_MS, (commits[-1] - commits[applied_at - 1]) // 2)
    assert (job.driver()["metadata"]["uid"], job.log.entries()[-1]["generation"]) == (driver, generation)
    # The status says so until the next change, which may follow within seconds once the lag shrinks.
    why = re.compile(
        rf"{WIDE} executors instead of .*records/s arrive and [1-9][\d,]* wait; an executor can read", re.DOTALL
    )
    _wait_under_a_growing_lag(job, "its Event says why", lambda: any(map(why.search, job.events("Rescaled"))))


def test_with_a_lower_limit_and_then_without_a_load_it_becomes_narrow_without_a_pause(
    job: ClusterJob, record_property: Callable[[str, object], None]
) -> None:
    driver, generation = job.driver()["metadata"]["uid"], job.log.entries()[-1]["generation"]
    began = len(job.log.commits())
    _wait_under_a_growing_lag(job, "epochs of four", lambda: len(job.log.commits()) >= began + 5)
    applied_at = len(job.log.commits())
    _apply_under_a_growing_lag(job, autoscale={**SCALE, "maxInstances": 2})
    _wait_under_a_growing_lag(job, "it is narrower", lambda: len(job.pods("executor")) == 2)
    _wait_under_a_growing_lag(job, "epochs of two", lambda: len(job.log.commits()) >= applied_at + 5)
    commits = job.log.commits()
    usual, narrower = (_longest(commits[at]) for at in (slice(began, applied_at), slice(applied_at - 1, None)))
    record_property(
        TOOK, f"output to output at most {usual} ms of four executors, {narrower} ms while {WIDE - 2} of them went"
    )
    assert narrower < usual + PAUSE_MS
    job.wait("it is narrow", lambda: len(job.pods("executor")) == 1)
    del job.manifest["spec"]["autoscale"]
    job.apply()
    with job.feeder:
        job.wait("its shards are those of its file", lambda: _shards(job) == 7)
        job.wait_for_more_epochs(3)
    job.judge()
    assert _shards(job) == 7
    assert (job.driver()["metadata"]["uid"], job.log.entries()[-1]["generation"]) == (driver, generation)


def test_an_image_that_cannot_be_pulled_is_named_and_an_edit_leads_out(job: ClusterJob) -> None:
    before, image = job.driver()["metadata"]["uid"], "localhost/joinery-runtime:nowhere"
    with job.feeder:
        job.apply_spark(image=image)
        pull_failure = re.compile(rf"ImagePullFailed.*{re.escape(image)}", re.DOTALL)
        job.wait("it is told", lambda: pull_failure.search(job.condition("Progressing")["message"]) is not None)
        job.wait_for_more_epochs(3)
        job.apply_spark(image=job.image)
        job.wait_until_running()
    assert job.driver()["metadata"]["uid"] == before


def test_an_edit_whose_executors_no_node_has_room_for_is_rolled_back_in_its_deadline(
    job: ClusterJob, record_property: Callable[[str, object], None]
) -> None:
    """Its driver is alive all the while, and waits for them."""
    spark, revision = job.manifest["spec"]["spark"], job.status["revision"]
    with job.feeder:
        job.apply(
            upgrade={"progressDeadline": f"{DEADLINE_S}s"},
            spark={**spark, "executor": {**spark["executor"], "memory": "500g"}},
        )
        job.wait("its driver waits", lambda: job.condition("Ready").get("reason") == "WaitingForExecutors")
        waits, driver = time.monotonic(), job.driver()
        assert driver["metadata"]["labels"][REVISION_LABEL] != revision
        assert job.status["rollout"]["stage"] == "Starting"
        job.wait("it is told what keeps them away", lambda: "Insufficient memory" in job.condition("Ready")["message"])
        job.wait("it is taken back", lambda: job.status.get("refused") is not None)
        took = time.monotonic() - waits
        record_property(TOOK, f"rolled back after {took:.0f} s of waiting, with a deadline of {DEADLINE_S} s")
        refused = job.status["refused"]
        assert (refused["revision"], refused["reason"]) == (
            driver["metadata"]["labels"][REVISION_LABEL],
            "DeadlineExceeded",
        )
        assert "Insufficient memory" in refused["message"]
        job.wait("the driver of before runs", lambda: "rollout" not in job.status and _revisions(job) == [revision])
        job.wait_for_more_epochs(3)
        assert job.status["revision"] == revision
        job.apply(spark=spark)
        job.wait_until_running()


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


def _wait_under_a_growing_lag(job: ClusterJob, what: str, met: Callable[[], bool]) -> None:
    """Records arrive as fast as it reads, and some more."""
    began = time.monotonic()

    def fed() -> bool:
        more = WAITING + GROWS_PER_S * (time.monotonic() - began) - job.behind()
        for _ in range(max(0, int(more)) // 4):
            job.feeder.tick()
        return met()

    job.wait(what, fed)


def _apply_under_a_growing_lag(job: ClusterJob, **changes: object) -> None:
    """So that a pause while kubectl takes its time is no pause without records."""
    with ThreadPoolExecutor(1) as pool:
        applied = pool.submit(job.apply, **changes)
        _wait_under_a_growing_lag(job, "it is applied", applied.done)
        applied.result()


def _revisions(job: ClusterJob) -> list[str]:
    return [pod["metadata"]["labels"][REVISION_LABEL] for pod in job.running("driver")]


def _shards(job: ClusterJob) -> int:
    shards: int = job.log.entries()[-1]["plan"]["shards"]
    return shards


def _longest(commits: Sequence[int]) -> int:
    return max(after - before for before, after in pairwise(commits))
