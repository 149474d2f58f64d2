"""The life of one job on a real node, from `helm install` on: whatever happens to it, every pair goes out once.

The tests go on from one another, in this order; those of `make soak` come in between.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from e2e.node import probe
from e2e.node.cluster_job import PATIENCE_S, ClusterJob
from e2e.node.conftest import MakeJob
from e2e.node.installation import OPERATOR_NAMESPACE, jobs_policies
from e2e.node.works import Pairs, Sessions
from joinery_devkit.kubernetes.providers import KubernetesCluster
from joinery_devkit.spark_cluster import NOT_LET_IN
from joinery_devkit.time_limit import TOOK
from joinery_operator.reconcile.context import FINALIZER
from joinery_runtime.core.table.segment import STATE_VERSION
from joinery_runtime.job.model.resource import API_VERSION

# The first one waits for images that are built from nothing.
pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]

GetImage = Callable[[str], str]
SHADOW: dict[str, Any] = {"mode": "shadow", "shadow": {"epochs": 3}}
COMPARED = r"shadow: epochs (\d+) to (\d+) \(([\d,]+) rows\)"


@pytest.fixture(scope="module")
def job(make_job: MakeJob) -> Iterator[ClusterJob]:
    job = make_job("life", Pairs)
    yield job
    job.log.close()


def test_it_runs_with_two_executors(job: ClusterJob) -> None:
    job.apply()
    with job.feeder:
        job.wait_until_running()
        assert len(job.running("executor")) == 2
    job.wait("its status has its epochs", lambda: job.status.get("epoch", 0) > 0)


def test_java_starts_with_the_images_archive_of_classes(
    job: ClusterJob, record_property: Callable[[str, object], None]
) -> None:
    """How long a start takes is recorded only: what others do on the machine decides more about that."""
    driver = job.driver()["metadata"]["name"]
    log = job.kubectl("logs", driver, "-n", job.namespace).splitlines()
    events = [json.loads(line) for line in log if line.startswith("{")]
    context = next(datetime.fromisoformat(event["timestamp"]) for event in events if event["event"] == "started")
    executors = [pod["metadata"]["name"] for pod in job.running("executor")]
    job.wait("every executor has run a task", lambda: all(probe.java_of(job, name).first_child for name in executors))
    for name in [driver, *executors]:
        java = probe.java_of(job, name)
        assert java.archives == ["/opt/joinery/share/joinery/image.jsa"], name
        ready = context.timestamp() if name == driver else java.first_child
        assert ready is not None
        what = "until the job began" if name == driver else "until its first task"
        record_property(TOOK, f"{name}: {ready - java.began:.1f} s {what}, {java.cpu:.1f} s of CPU in Java so far")


@pytest.mark.soak
def test_its_first_pairs_go_out_once(job: ClusterJob) -> None:
    job.judge()


def test_its_executors_belong_to_its_driver(job: ClusterJob) -> None:
    driver = job.driver()
    for executor in job.running("executor"):
        (owner,) = executor["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Pod", driver["metadata"]["uid"])
    (owner,) = driver["metadata"]["ownerReferences"]
    assert owner["uid"] == job.resource["metadata"]["uid"]


def test_strangers_reach_no_port_of_its_pods(job: ClusterJob) -> None:
    (operator,) = job.kubectl.names("pods", OPERATOR_NAMESPACE, "app.kubernetes.io/name=joinery-operator")
    executor = job.running("executor")[1]["metadata"]["name"]
    with job.feeder:
        job.wait("strangers are kept out", lambda: not probe.reached_by_stranger(job))
        by_operator, by_executor = {probe.STATUS}, set(probe.ports(job))
        job.wait("the operator is let in", lambda: probe.reached_from(job, operator, OPERATOR_NAMESPACE) == by_operator)
        job.wait("executors are let in", lambda: probe.reached_from(job, executor, job.namespace) == by_executor)
        seen = job.status["epoch"]
        job.wait("the operator reads its status", lambda: job.status["epoch"] > seen)
        job.wait_for_more_epochs(3)
        assert not probe.reached_by_stranger(job)


def test_where_the_chart_wants_no_policies_strangers_reach_every_port_and_the_driver_does_not_listen_to_them(
    cluster: KubernetesCluster, job: ClusterJob
) -> None:
    driver = job.driver()["metadata"]["uid"]
    jobs_policies(cluster, enabled=False)
    try:
        job.wait("strangers come in", lambda: probe.reached_by_stranger(job) == set(probe.ports(job)))
        with ThreadPoolExecutor(3) as pool:
            secrets = (None, "guessed", probe.application_secret(job))
            nothing, guessed, invited = pool.map(lambda secret: probe.guest_is_told(job, secret), secrets)
        assert probe.HEARD in invited, "or the other two are refused for another reason"
        for refused in (nothing, guessed):
            assert probe.HEARD not in refused
            assert re.search(NOT_LET_IN, refused), refused
        assert len(job.running("executor")) == 2
    finally:
        jobs_policies(cluster, enabled=True)
    job.wait("strangers are kept out again", lambda: not probe.reached_by_stranger(job))
    assert job.driver()["metadata"]["uid"] == driver


def test_its_driver_is_deleted_and_what_the_next_one_says_to_its_executors_cannot_be_read(
    job: ClusterJob, cluster_namespace: str
) -> None:
    """From their registration on, with settings and tasks: no secret, nothing of the job, no word of Spark's own."""
    password = conninfo_to_dict(job.work.dsn)["password"]
    words = [password, "payments", "joinery_runtime", "org.apache.spark"]
    before = job.driver()["metadata"]["uid"]
    probe.listen(job, cluster_namespace, words)
    with job.feeder:
        job.kubectl("delete", "pod", job.driver()["metadata"]["name"], "-n", job.namespace, "--grace-period=1")
        job.wait("another driver", lambda: [p["metadata"]["uid"] for p in job.running("driver")] not in ([], [before]))
        job.wait_until_running()
    overheard = probe.overheard(job, cluster_namespace)
    assert overheard.bytes > 100_000
    assert not overheard.words
    own = {name: value for name, value in probe.environment_of_executor(job).items() if password in value}
    assert not own, "an executor has the password from the Secret, not from what anybody may see of its pod"


@pytest.mark.soak
def test_after_another_driver_came_every_pair_went_out_once(job: ClusterJob) -> None:
    job.judge()


@pytest.mark.soak
def test_its_node_is_drained(job: ClusterJob) -> None:
    """The driver is evicted, and the next one starts as soon as there is a node for it."""
    before = job.driver()["metadata"]["uid"]
    (node,) = job.kubectl.names("nodes")
    with job.feeder:
        who = f"--pod-selector={job.labels},joinery.dev/role=driver"
        job.kubectl("drain", node, who, "--force", "--delete-emptydir-data", timeout_seconds=PATIENCE_S)
        job.kubectl("uncordon", node)
        job.wait_until_running()
    job.judge()
    assert job.driver()["metadata"]["uid"] != before
    assert job.status["driver"].get("failures", 0) == 0


def test_kubectl_joinery_looks_into_it(job: ClusterJob) -> None:
    assert job.name in job.joinery("ls")
    assert "Ready" in job.joinery("status", job.name)
    assert '"event": "epoch"' in job.joinery("logs", job.name)
    assert json.loads(job.joinery("state", job.name, "stats"))["epoch"] > 0
    job.joinery("savepoint", job.name, "by-hand")
    assert "by-hand" in job.joinery("state", job.name, "savepoint", "--list")


def test_a_savepoint_is_a_resource(job: ClusterJob) -> None:
    """Pinned beside the driver, by the job's own image; unpinned before the resource is gone."""
    spec = {"job": {"kind": job.resource["kind"], "name": job.name}}
    written = {"apiVersion": API_VERSION, "kind": "Savepoint", "metadata": {"name": "as-resource"}, "spec": spec}
    driver = job.driver()["metadata"]["uid"]
    job.kubectl.apply(written, job.namespace)

    def savepoint() -> dict[str, Any]:
        return job.kubectl.get("jsp", "as-resource", job.namespace) or {}

    job.wait("it is pinned", lambda: savepoint().get("status", {}).get("phase") == "Completed")
    assert 0 < savepoint()["status"]["epoch"] <= job.log.committed()
    assert "as-resource" in job.joinery("state", job.name, "savepoint", "--list")
    job.kubectl("delete", "jsp", "as-resource", "-n", job.namespace, timeout_seconds=PATIENCE_S)
    assert "as-resource" not in job.joinery("state", job.name, "savepoint", "--list")
    assert job.driver()["metadata"]["uid"] == driver


@pytest.mark.soak
def test_an_executor_is_deleted(job: ClusterJob) -> None:
    driver = job.driver()["metadata"]["uid"]
    with job.feeder:
        victim = job.running("executor")[0]["metadata"]["name"]
        job.kubectl("delete", "pod", victim, "-n", job.namespace, "--grace-period=0", "--force")
        job.wait_until_running()
    job.judge()
    assert job.driver()["metadata"]["uid"] == driver
    assert victim not in [pod["metadata"]["name"] for pod in job.pods("executor")]


@pytest.mark.soak
def test_the_operator_is_gone_and_comes_back(job: ClusterJob) -> None:
    driver = job.driver()["metadata"]["uid"]
    with job.feeder:
        _scale_operator(job, 0)
        job.apply(cleanup="deleteState")
        job.wait_for_more_epochs(5)
        _scale_operator(job, 1)
        job.wait_until_running()
    job.judge()
    assert job.driver()["metadata"]["uid"] == driver, "an operator that starts leaves jobs as they are"


@pytest.mark.soak
def test_it_is_suspended_and_resumed(job: ClusterJob) -> None:
    with job.feeder:
        job.apply(suspend=True)
        job.wait("it is suspended", lambda: job.status.get("phase") == "Suspended")
        assert job.pods("driver") == job.pods("executor") == []
        job.apply(suspend=False)
        job.wait_until_running()
    job.judge()


def test_it_becomes_wider_and_narrower_while_it_runs(job: ClusterJob) -> None:
    def scaled(shards: int, executors: int) -> bool:
        return job.log.entries()[-1]["plan"]["shards"] == shards and len(job.running("executor")) == executors

    driver, generation = job.driver()["metadata"]["uid"], job.log.entries()[-1]["generation"]
    with job.feeder:
        job.apply(shards=7)
        job.kubectl("scale", f"{job.kind}/{job.name}", "--replicas=3", "-n", job.namespace)
        job.wait("it is wider", lambda: scaled(7, 3))
        job.wait_for_more_epochs(3)
        executor = {**job.manifest["spec"]["spark"]["executor"], "instances": 1}
        job.apply(shards=3, spark={**job.manifest["spec"]["spark"], "executor": executor})
        job.wait("it is narrower", lambda: scaled(3, 1))
        job.wait_for_more_epochs(3)
    job.judge()
    assert (job.driver()["metadata"]["uid"], job.log.entries()[-1]["generation"]) == (driver, generation)


@pytest.mark.soak
def test_it_scales_by_its_load(job: ClusterJob) -> None:
    """One percent of busy time is little: any load asks for all executors, and none for one."""
    driver, generation = job.driver()["metadata"]["uid"], job.log.entries()[-1]["generation"]
    bounds = {"minInstances": 1, "maxInstances": 4, "targetBusy": 1, "upAfter": "5s", "downAfter": "5s"}
    with job.feeder:
        job.apply(autoscale=bounds)
        job.wait("it is wide", lambda: len(job.running("executor")) == 4)
        job.wait("epochs have as many shards", lambda: job.log.entries()[-1]["plan"]["shards"] == 4)
    job.wait("it is narrow", lambda: len(job.pods("executor")) == 1)
    job.wait("the status says why", lambda: "1 executors instead of" in job.status["scaling"]["reason"])
    assert "records/s arrive" in job.status["scaling"]["reason"]
    del job.manifest["spec"]["autoscale"]
    job.apply()
    job.judge()
    assert (job.driver()["metadata"]["uid"], job.log.entries()[-1]["generation"]) == (driver, generation)
    job.wait("its Event", lambda: any("executors instead of" in message for message in job.events("Rescaled")))


@pytest.mark.soak
def test_a_change_that_does_not_fit_its_state_is_refused(job: ClusterJob) -> None:
    """Another key: the driver that runs goes on."""
    before, fitting = job.driver()["metadata"]["uid"], job.manifest["spec"]["joins"]
    with job.feeder:
        job.apply(joins=[{**fitting[0], "keys": {"orders.amount": "payments.paid"}}])
        job.wait("it is refused", lambda: job.condition("StateCompatible").get("status") == "False")
        assert "orders.id" in job.condition("StateCompatible")["message"]
        job.wait_for_more_epochs(3)
        assert job.driver()["metadata"]["uid"] == before
        job.apply(joins=fitting)
        job.wait_until_running()
    job.judge()
    assert job.driver()["metadata"]["uid"] == before


@pytest.mark.soak
def test_an_image_whose_migration_would_fail_is_refused(job: ClusterJob, cluster_image: GetImage) -> None:
    """The dry run says so, and the driver that runs goes on."""
    before, image = job.driver()["metadata"]["uid"], cluster_image("failing-migration")
    with job.feeder:
        job.apply_spark(image=image)
        job.wait("it is refused", lambda: job.condition("StateCompatible").get("status") == "False")
        assert "cannot be brought to the next version" in job.condition("StateCompatible")["message"]
        job.wait_for_more_epochs(3)
    job.judge()
    assert job.driver()["metadata"]["uid"] == before


@pytest.mark.soak
def test_an_image_that_fails_after_its_migration_is_rolled_back(job: ClusterJob, cluster_image: GetImage) -> None:
    image = cluster_image("failing-start")
    with job.feeder:
        job.apply(upgrade={"progressDeadline": "2m"})
        job.apply_spark(image=image)
        job.wait("it is refused", lambda: job.status.get("refused") is not None and "rollout" not in job.status)
        job.wait("the old image runs", lambda: job.images() == [job.image])
        job.wait_for_more_epochs(3)
        assert "does not start" in job.status["refused"]["message"]
        assert job.condition("Degraded")["status"] == "True"
        assert STATE_VERSION + 1 not in job.state_versions()
        job.apply_spark(image=job.image)
        job.wait_until_running()
    job.judge()
    assert job.condition("Degraded")["status"] == "False"


def test_rows_that_differ_in_the_shadow_are_refused(job: ClusterJob) -> None:
    """The edited job would leave pairs out: the driver that runs goes on."""
    before, (step,) = job.driver()["metadata"]["uid"], job.manifest["spec"]["joins"]
    with job.feeder:
        job.apply(joins=[{**step, "where": "payments.paid % 2 = 0"}], upgrade=SHADOW)
        job.wait("it is refused", lambda: job.condition("Degraded").get("reason") == "RowsDiffer")
        message = job.condition("Degraded")["message"]
        job.apply(joins=[step])
        job.wait_until_running()
    assert job.driver()["metadata"]["uid"] == before
    compared = re.search(rf"{COMPARED} differ under the edited job: ([\d,]+) missing", message)
    assert compared, message
    first, last, rows, missing = (int(number.replace(",", "")) for number in compared.groups())
    assert last - first + 1 == SHADOW["shadow"]["epochs"]
    assert rows > missing > 0
    (epoch, expected) = re.search(
        r"epoch (\d+), output, (?:orders|payments) \d/\d+ with (?:orders|payments) \d/\d+: missing; expected ({.*?})",
        message,
    ).groups()
    assert first <= int(epoch) <= last
    assert json.loads(expected)["right_paid"] % 2 == 1, "a pair that the edit leaves out"


def test_an_image_with_a_migration_is_rolled_out(job: ClusterJob, migrating: str) -> None:
    """After its shadow gave the same rows, from segments that it has migrated for itself."""
    with job.feeder:
        job.apply(upgrade=SHADOW)
        job.apply_spark(image=migrating)
        job.wait_until_running()
    assert job.images() == [migrating]
    assert job.state_versions() == {STATE_VERSION + 1}
    matches = [
        re.search(rf"{COMPARED} are the same under the edited job", message)
        for message in job.events("RolloutStopping")
    ]
    (compared,) = (match for match in matches if match)
    first, last, rows = (int(number.replace(",", "")) for number in compared.groups())
    assert last - first + 1 == SHADOW["shadow"]["epochs"]
    assert rows > 0


def test_after_the_migration_every_pair_went_out_once(job: ClusterJob) -> None:
    """From the first one on, whatever happened in between."""
    job.judge()


def test_deleted_with_its_state_it_leaves_nothing(job: ClusterJob) -> None:
    job.apply(cleanup="deleteState")
    # Without the operator's finalizer Kubernetes deletes the resource at once, and its state stays.
    job.wait("the operator holds it", lambda: FINALIZER in job.resource["metadata"].get("finalizers", ()))
    assert job.log.record() is not None
    job.delete()
    job.wait("its children are gone", lambda: not job.children())
    assert job.log.record() is None


@pytest.mark.soak
def test_deleted_without_its_state_it_goes_on_when_it_is_back(make_job: MakeJob) -> None:
    job = make_job("back", Sessions)
    for _ in range(2):
        job.apply()
        with job.feeder:
            job.wait_until_running()
        job.wait_until_read()
        job.delete()
        job.wait("its children are gone", lambda job=job: not job.children())
    job.judge()
    job.log.close()


def _scale_operator(job: ClusterJob, replicas: int) -> None:
    (name,) = job.kubectl.names("deployments", OPERATOR_NAMESPACE)
    job.kubectl("scale", f"deployment/{name}", f"--replicas={replicas}", "-n", OPERATOR_NAMESPACE)
    job.wait("the operator is there, or gone", lambda: _operators(job) == replicas)


def _operators(job: ClusterJob) -> int:
    return len(job.kubectl.names("pods", OPERATOR_NAMESPACE, "app.kubernetes.io/name=joinery-operator"))
