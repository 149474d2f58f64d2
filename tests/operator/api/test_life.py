"""A job's life as kubectl's user sees it: the real reconcile on a real API server, with pods that only pretend."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.kubectl import KubectlFailed, wait_until
from joinery_operator.names import ChildNames, labels
from joinery_runtime.job.crd import KINDS, ResourceKind
from joinery_runtime.job.model.owner import STATE_OWNER
from joinery_runtime.job.model.resource import API_VERSION
from simulated_cluster.fake_node import ApiServerClient, FakeDrivers, FakeKubelet, Refused, end_pod
from simulated_cluster.operator_process import OperatorProcess
from simulated_cluster.resources import resource_of

pytestmark = pytest.mark.services

JOB = "orders"


class World:
    """A namespace where an operator, a kubelet and drivers work, and a job of a kind; `said` is what the drivers say,
    by field."""

    def __init__(self, server: ApiServer, cluster: ApiServerClient, namespace: str, kind: ResourceKind) -> None:
        self.kubectl, self.cluster, self.namespace, self.kind = server.kubectl, cluster, namespace, kind
        self.manifest = _manifest(kind)
        self.names = ChildNames(self.manifest)
        self.driver_status: dict[str, object] = {"ready": True, "committed": 1, "epoch": 7, "job_generation": 3}
        self.kubelet: FakeKubelet
        self.operator: OperatorProcess

    def answer(self, address: str) -> dict[str, object] | None:
        """The pod's revision goes with it: a driver knows its own."""
        pod = self.kubelet.pods_by_address.get(address)
        if pod is None:
            return None
        environment = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
        return {"revision": environment["JOINERY_REVISION"], **self.driver_status}

    def apply(self) -> None:
        self.kubectl.apply(self.manifest, self.namespace)

    def edit(self, **spec: object) -> None:
        self.cluster.patch(self.kind.name, self.namespace, JOB, {"spec": spec})

    def delete(self) -> None:
        self.cluster.delete(self.kind.name, self.namespace, JOB)

    @property
    def job(self) -> dict:
        resource = self.cluster.get(self.kind.name, self.namespace, JOB)
        assert resource is not None
        return resource

    @property
    def phase(self) -> str:
        return self.job.get("status", {}).get("phase", "")

    def condition(self, kind: str) -> tuple[str, str]:
        conditions = {condition["type"]: condition for condition in self.job["status"]["conditions"]}
        return conditions[kind]["status"], conditions[kind]["reason"]

    def wait_for(self, phase: str) -> None:
        try:
            wait_until(f"phase {phase}", lambda: self.phase == phase)
        except TimeoutError as error:
            error.add_note(json.dumps(self.job.get("status")))
            raise

    def pods(self) -> list[str]:
        return self.cluster.ours(self.namespace)["Pod"]

    def driver(self, attempt: int) -> dict:
        pod = self.cluster.get("Pod", self.namespace, self.names.driver(attempt))
        assert pod is not None
        return pod


def _manifest(kind: ResourceKind) -> dict:
    manifest = resource_of(kind, JOB)
    del manifest["metadata"]["namespace"]
    return manifest


@pytest.fixture
def kind() -> ResourceKind:
    """Of the job in `world`."""
    return KINDS[0]


@pytest.fixture
def world(with_crds: ApiServer, cluster: ApiServerClient, shop: str, start, kind: ResourceKind) -> Iterator[World]:
    world = World(with_crds, cluster, shop, kind)
    with (
        FakeDrivers(world.answer) as drivers,
        FakeKubelet(cluster.kubeconfig, shop) as world.kubelet,
        start(
            JOINERY_OPERATOR_STATUS_PORT=str(drivers.port),
            JOINERY_OPERATOR_PAGE_URL="https://joinery.example.com/{namespace}/{name}/",
            JOINERY_OPERATOR_PAGE_INGRESS="{}",
            JOINERY_OPERATOR_POD="default/joinery-operator-0/0a4e6e5c",
        ) as operator,
    ):
        operator.wait_until_ready()
        world.operator = operator
        yield world
        assert operator.stop() == 0, operator.log
        assert "Traceback" not in operator.log


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_job_runs_is_suspended_resumed_and_deleted(world, kind):
    world.apply()
    world.wait_for("Running")
    owner = {"kind": kind.name, "name": JOB, "uid": world.job["metadata"]["uid"], "controller": True}
    for child in ("Pod", "ConfigMap", "Service", "Ingress"):
        (name,) = world.cluster.ours(world.namespace)[child]
        (reference,) = world.cluster.get(child, world.namespace, name)["metadata"]["ownerReferences"]
        assert owner.items() <= reference.items()
    (main,) = world.cluster.get("Pod", world.namespace, world.names.driver(1))["spec"]["containers"]
    (candidate,) = [json.loads(variable["value"]) for variable in main["env"] if variable["name"] == STATE_OWNER]
    system = json.loads(world.kubectl("get", "namespace", "kube-system", "-o", "json"))
    assert candidate["owner"]["cluster"] == system["metadata"]["uid"]
    assert candidate["owner"]["uid"] == owner["uid"]
    assert world.condition("Ready") == ("True", "Running")
    assert {condition["observedGeneration"] for condition in world.job["status"]["conditions"]} == {1}
    progress = lambda: (world.job["status"].get("epoch"), world.job["status"].get("jobGeneration"))  # noqa: E731
    wait_until("what the driver says", lambda: progress() == (7, 3))

    world.driver_status |= {
        "rows_per_second": 1200,
        "inputs": [{"name": "orders", "lag": 34}, {"name": "payments", "lag": 8}],
    }
    wait_until("figures", lambda: world.job["status"].get("lag") == 42)
    assert world.job["status"]["page"] == f"https://joinery.example.com/{world.namespace}/{JOB}/"
    assert world.job["status"]["outputs"] == [{"name": "output", "kind": "postgres", "target": "out"}]
    ingress = world.cluster.get("Ingress", world.namespace, world.names.page)
    assert ingress["metadata"]["generation"] == 1, "what the API server fills in is not taken for somebody's edit"
    columns = world.kubectl("get", kind.short, JOB, "-n", world.namespace).splitlines()[1].split()
    assert columns[:6] == [JOB, "Running", "True", "Running", "1200", "42"]

    group = API_VERSION.partition("/")[0]
    version = world.job["apiVersion"].partition("/")[2]
    path = f"/apis/{group}/{version}/namespaces/{world.namespace}/{kind.plural}/{JOB}/scale"
    scale = json.loads(world.kubectl("get", "--raw", path))
    assert dict(label.split("=") for label in scale["status"]["selector"].split(",")) == labels(world.job, "executor")

    world.edit(suspend=True)
    world.wait_for("Suspended")
    assert world.pods() == []
    world.edit(suspend=False)
    world.wait_for("Running")
    assert world.pods() == [world.names.driver(2)]

    world.delete()
    wait_until("nothing is left", lambda: not any(world.cluster.ours(world.namespace).values()))


def test_applying_the_same_again_is_no_difference(world):
    """What GitOps tools look at: a dry run of the manifest returns what is there."""
    world.apply()
    world.wait_for("Running")
    applied = world.job
    command = ["apply", "--server-side", "--dry-run=server", "--namespace", world.namespace, "-f", "-", "-o", "json"]
    again = json.loads(world.kubectl(*command, stdin=yaml.safe_dump(world.manifest)))
    for manifest in (applied, again):
        # When a manager last applied is not a difference.
        manifest["metadata"].pop("managedFields", None)
    assert again["spec"] == applied["spec"]
    assert again["metadata"] == applied["metadata"] | {"resourceVersion": again["metadata"]["resourceVersion"]}
    assert "annotations" not in applied["metadata"]
    assert "finalizers" not in applied["metadata"]


def test_what_others_did_to_children_is_put_right(world):
    world.apply()
    world.wait_for("Running")
    pod, (service,) = world.names.driver(1), world.cluster.ours(world.namespace)["Service"]
    world.cluster.delete("Service", world.namespace, service)
    wait_until("the Service is back", lambda: world.cluster.ours(world.namespace)["Service"] == [service])
    labels = world.driver(1)["metadata"]["labels"]
    world.cluster.patch("Pod", world.namespace, pod, {"metadata": {"labels": dict.fromkeys(labels)}})
    wait_until("the labels are back", lambda: world.driver(1)["metadata"].get("labels") == labels)
    assert world.pods() == [pod]
    world.cluster.delete("Pod", world.namespace, pod)
    wait_until("another driver", lambda: world.pods() == [world.names.driver(2)])


def test_a_driver_that_failed_waits_and_one_that_is_done_is_not_started_again(world):
    world.apply()
    world.wait_for("Running")
    ending = {"outcome": "failed", "error": "the broker is away", "kind": "SourceError", "retry": True}
    end_pod(world.cluster, world.driver(1), 1, json.dumps(ending))
    wait_until("the back-off is told", lambda: world.condition("Ready")[1] == "BackOff")
    assert "the broker is away" in world.job["status"]["lastError"]
    assert world.job["status"]["driver"]["failures"] == 1
    wait_until("the next attempt", lambda: world.names.driver(2) in world.pods())
    wait_until("it runs", lambda: world.driver(2)["status"]["phase"] == "Running")
    end_pod(world.cluster, world.driver(2), 0, json.dumps({"outcome": "finished"}))
    world.wait_for("Finished")
    assert world.names.driver(3) not in world.pods()
    # Events are told after the status that they are about.
    wait_until("Events", lambda: len({event["reason"] for event in world.cluster.list("Event", world.namespace)}) >= 3)


@pytest.mark.parametrize("kind", [KINDS[1]], ids=lambda kind: kind.name)
def test_out_of_a_way_back_without_its_config_map_leads_the_edit_that_its_condition_names(world):
    fatal = {"outcome": "failed", "kind": "SourceError", "error": "no topic", "retry": False}

    def ends(name: str, ending: dict[str, object], code: int = 0) -> None:
        wait_until(f"{name} runs", lambda: _phase(world, name) == "Running")
        end_pod(world.cluster, world.cluster.get("Pod", world.namespace, name), code, json.dumps(ending))

    def passes() -> None:
        wait_until("a check", lambda: any("-check-" in name for name in world.pods()))
        (name,) = (name for name in world.pods() if "-check-" in name)
        ends(name, {"fits": True, "refused": [], "warnings": [], "targetVersion": 1, "epoch": 7})

    world.apply()
    world.wait_for("Running")
    wait_until("it has committed", lambda: world.job["status"].get("epoch") == 7)
    before, world.driver_status["committed"] = world.job["status"]["revision"], 0
    world.edit(trigger={"maxRecordsPerEpoch": 8})
    passes()
    wait_until("it starts", lambda: _phase(world, world.names.driver(2)) == "Running")
    deleted = world.cluster.get("ConfigMap", world.namespace, world.names.config_map(before))
    world.cluster.delete("ConfigMap", world.namespace, world.names.config_map(before))
    # The operator deletes a ConfigMap that no revision needs. It sees the deletion above first: before that, it would
    # start the third attempt from the ConfigMap in its cache.
    unneeded = {"name": "unneeded"} | {key: deleted["metadata"][key] for key in ("labels", "ownerReferences")}
    world.cluster.create({**deleted, "kind": "ConfigMap", "metadata": unneeded}, world.namespace)
    wait_until("the deletion is seen", lambda: not world.cluster.get("ConfigMap", world.namespace, "unneeded"))
    ends(world.names.driver(2), fatal, code=1)
    missing = f"ConfigMap {world.names.config_map(before)} is missing"
    wait_until("it is stuck", lambda: missing in _message(world, "Degraded"))
    assert world.condition("Degraded") == ("True", "RollbackFailed")
    assert "apply another job" in _message(world, "Degraded")
    world.edit(trigger={"maxRecordsPerEpoch": 9})
    # The third attempt, of the revision in force, had no ConfigMap to begin with.
    ends(world.names.driver(4), {"outcome": "finished"})
    passes()
    wait_until("it starts", lambda: _phase(world, world.names.driver(5)) == "Running")
    world.driver_status["committed"] = 1
    world.wait_for("Running")
    wait_until("it is in force", lambda: "rollout" not in world.job["status"])
    assert world.job["status"]["revision"] == world.job["status"]["targetRevision"] != before


def _message(world: World, kind: str) -> str:
    return next(condition["message"] for condition in world.job["status"]["conditions"] if condition["type"] == kind)


def _phase(world: World, name: str) -> str:
    pod = world.cluster.get("Pod", world.namespace, name)
    return pod["status"]["phase"] if pod else ""


@pytest.mark.parametrize("kind", [KINDS[1]], ids=lambda kind: kind.name)
def test_jobs_of_one_name_run_side_by_side_or_the_younger_one_waits_for_the_others_end(world, with_crds):
    """Names of children never meet; the state would."""
    world.apply()
    world.wait_for("Running")
    other = World(with_crds, world.cluster, world.namespace, KINDS[0])
    other.apply()
    wait_until("it is refused", lambda: other.phase == "Failed")
    assert other.condition("Valid") == ("False", "StateTaken")
    other.edit(stateStore={"postgres": {"schema": "other"}})
    other.wait_for("Running")
    assert world.pods() == sorted([world.names.driver(1), other.names.driver(1)])
    other.delete()
    wait_until("it is gone", lambda: world.pods() == [world.names.driver(1)])
    other.apply()
    wait_until("it is refused", lambda: other.phase == "Failed")
    world.delete()
    other.wait_for("Running")


def test_a_savepoint_is_pinned_and_unpinned_with_its_resource(world):
    """What `kubectl wait --for=condition=Ready` waits for, and what the API server refuses."""
    (namespace, cluster), noon = (world.namespace, world.cluster), {"name": "noon"}
    written = {"apiVersion": API_VERSION, "kind": "Savepoint", "metadata": noon, "spec": {"job": {"name": JOB}}}
    names, state = ChildNames(written), lambda: (cluster.get("Savepoint", namespace, "noon") or {}).get("status", {})

    def runs(name: str) -> bool:
        pod = cluster.get("Pod", namespace, name)
        return pod is not None and pod["status"]["phase"] == "Running"

    world.kubectl.apply(written, namespace)
    wait_until("it waits for the job", lambda: state().get("phase") == "Pending")
    world.apply()
    world.wait_for("Running")
    wait_until("it is being pinned", lambda: runs(names.savepoint("create")))
    result = {"epoch": 7, "time": "2026-01-15T12:00:00Z", "rows": 1200, "bytes": 34567}
    end_pod(cluster, cluster.get("Pod", namespace, names.savepoint("create")), 0, json.dumps(result))
    wait_until("it is ready", lambda: state().get("phase") == "Completed")
    assert {key: state()[key] for key in result} == result
    columns = world.kubectl("get", "jsp", "noon", "-n", namespace).splitlines()[1].split()
    assert columns[:7] == ["noon", JOB, "Completed", "True", "Completed", "7", "1200"]
    wait_until("its pod is gone", lambda: world.pods() == [world.names.driver(1)])  # the status comes first
    with pytest.raises(Refused, match="make another Savepoint"):
        cluster.patch("Savepoint", namespace, "noon", {"spec": {"job": {"name": "another"}}})

    cluster.delete("Savepoint", namespace, "noon")
    wait_until("it is being unpinned", lambda: runs(names.savepoint("delete")))
    end_pod(cluster, cluster.get("Pod", namespace, names.savepoint("delete")), 0, json.dumps({"outcome": "finished"}))
    wait_until("it is gone", lambda: cluster.get("Savepoint", namespace, "noon") is None)


OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"


def test_a_job_that_is_deleted_before_its_finalizer_is_told_of_and_can_be_waited_for(world):
    """As by `kubectl apply` and `kubectl delete` in one breath."""
    world.apply()
    world.wait_for("Running")
    os.kill(world.operator.process.pid, signal.SIGSTOP)
    try:
        world.edit(cleanup="deleteState")
        world.delete()
        assert world.cluster.get(world.kind.name, world.namespace, JOB) is None
    finally:
        os.kill(world.operator.process.pid, signal.SIGCONT)
    wait_until("it is told", lambda: "StateLeftBehind" in world.operator.log)
    query = ("get", "events", "-n", world.namespace, "--field-selector=reason=StateLeftBehind", "-o", "json")
    wait_until("the Event", lambda: json.loads(world.kubectl(*query))["items"])
    (event,) = json.loads(world.kubectl(*query))["items"]
    assert (event["type"], event["involvedObject"]["name"]) == ("Warning", JOB)
    assert "stays in schema joinery of dsnSecretRef state-db/dsn" in event["message"]

    world.manifest["spec"]["cleanup"] = "deleteState"
    world.apply()
    (line,) = (
        line.strip() for line in OPERATIONS.read_text().splitlines() if "kubectl wait" in line and "finalizers" in line
    )
    program, *arguments = shlex.split(line.replace("JOB", JOB))
    assert program == "kubectl"
    world.kubectl(*arguments, "-n", world.namespace, "--timeout=120s")
    assert world.job["metadata"]["finalizers"] == ["joinery.dev/delete-state"]
    world.edit(cleanup="retainState")
    wait_until("it is let go", lambda: not world.job["metadata"].get("finalizers"))
    with pytest.raises(KubectlFailed, match="timed out"):
        world.kubectl(*arguments, "-n", world.namespace, "--timeout=1s")
    world.delete()


def run_job_that_deletes_its_state(world):
    """Its operator may write Events about its own pod, which is in another namespace."""
    account = f"--serviceaccount={world.namespace}:joinery-operator"
    world.kubectl("create", "role", world.namespace, "-n", "default", "--verb=create,patch", "--resource=events")
    world.kubectl("create", "rolebinding", world.namespace, "-n", "default", f"--role={world.namespace}", account)
    world.manifest["spec"]["cleanup"] = "deleteState"
    world.apply()
    world.wait_for("Running")
    assert world.job["metadata"]["finalizers"] == ["joinery.dev/delete-state"]


def expect_state_left_behind(world):
    query = ("get", "events", "-n", "default", "--field-selector=reason=StateLeftBehind", "-o", "json")
    words = f"the state of {world.kind.name} {world.namespace}/{JOB} stays in"

    def events():
        return [event for event in json.loads(world.kubectl(*query))["items"] if words in event["message"]]

    wait_until("the Event", events)
    (event,) = events()
    assert (event["type"], event["involvedObject"]["name"]) == ("Warning", "joinery-operator-0")
    assert "a namespace ends" in world.operator.log


def test_a_namespace_ends_with_the_permissions_of_its_operator(world):
    """Kubernetes deletes the RoleBinding along with the job: the operator has let the job go before."""
    run_job_that_deletes_its_state(world)
    world.kubectl("delete", "namespace", world.namespace, "--timeout=60s")
    expect_state_left_behind(world)


def test_a_namespace_ends_that_its_operator_may_not_read(world):
    """No pod can be created in it, so none can delete the state."""
    role = json.loads(world.kubectl("get", "role", "joinery-operator", "-n", world.namespace, "-o", "json"))
    role["rules"] = [rule for rule in role["rules"] if "namespaces" not in rule["resources"]]
    world.kubectl.apply(role)
    run_job_that_deletes_its_state(world)
    wait_until("it says so", lambda: "may not see whether a namespace is being deleted" in world.operator.log)
    world.kubectl("delete", "namespace", world.namespace, "--wait=false")
    # As the namespace controller does 5 s later, in no order.
    for config_map in world.cluster.ours(world.namespace)["ConfigMap"]:
        world.cluster.delete("ConfigMap", world.namespace, config_map)
    world.delete()
    wait_until("it is let go", lambda: world.cluster.get(world.kind.name, world.namespace, JOB) is None)
    expect_state_left_behind(world)
