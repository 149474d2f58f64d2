"""A job's life as kubectl's user sees it: the real reconcile on a real API server, with pods that only pretend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.api_server import ApiServer
from cluster.kubectl import wait_until
from operator_world.cluster import Cluster, Kubelet, end_pod
from operator_world.drivers import Drivers

pytestmark = pytest.mark.services

EXAMPLE = Path(__file__).parents[3] / "examples" / "orders-payments.yaml"
JOB = "orders-payments"


class World:
    """A namespace where an operator, a kubelet and drivers work; `said` is what the drivers say, by field."""

    def __init__(self, server: ApiServer, cluster: Cluster, namespace: str) -> None:
        self.kubectl, self.cluster, self.namespace = server.kubectl, cluster, namespace
        self.said: dict[str, object] = {"ready": True, "committed": 1, "epoch": 7, "job_generation": 3}
        self.kubelet: Kubelet

    def answer(self, address: str) -> dict[str, object] | None:
        """The pod's revision goes with it: a driver knows its own."""
        pod = self.kubelet.pods_by_address.get(address)
        if pod is None:
            return None
        environment = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        return {"revision": environment["JOINERY_REVISION"], **self.said}

    def apply(self, manifest: dict) -> None:
        self.kubectl.apply(manifest, self.namespace)

    @property
    def job(self) -> dict:
        found = self.cluster.get("StreamJoin", self.namespace, JOB)
        assert found is not None
        return found

    @property
    def phase(self) -> str:
        return self.job.get("status", {}).get("phase", "")

    def condition(self, kind: str) -> tuple[str, str]:
        found = {each["type"]: each for each in self.job["status"]["conditions"]}
        return found[kind]["status"], found[kind]["reason"]

    def wait_for(self, phase: str) -> None:
        try:
            wait_until(f"phase {phase}", lambda: self.phase == phase, 30)
        except TimeoutError as error:
            error.add_note(json.dumps(self.job.get("status")))
            raise

    def pods(self) -> list[str]:
        return self.cluster.ours(self.namespace)["Pod"]

    def driver(self, attempt: int) -> dict:
        found = self.cluster.get("Pod", self.namespace, f"{JOB}-driver-{attempt}")
        assert found is not None
        return found


@pytest.fixture
def manifest() -> dict:
    found = yaml.safe_load(EXAMPLE.read_text())
    found["spec"]["stateStore"] = {"postgres": {"dsn": "postgresql://nowhere/state", "schema": "joinery"}}
    return found


@pytest.fixture
def world(with_crds: ApiServer, cluster: Cluster, shop: str, start) -> Iterator[World]:
    world = World(with_crds, cluster, shop)
    with (
        Drivers(world.answer) as drivers,
        Kubelet(cluster.kubeconfig, shop) as world.kubelet,
        start(JOINERY_OPERATOR_STATUS_PORT=str(drivers.port)) as operator,
    ):
        operator.wait_until_ready()
        yield world
        assert operator.stop() == 0, operator.log
        assert "Traceback" not in operator.log


def test_a_job_runs_is_suspended_resumed_and_deleted(world, manifest):
    world.apply(manifest)
    world.wait_for("Running")
    owner = {"kind": "StreamJoin", "name": JOB, "uid": world.job["metadata"]["uid"], "controller": True}
    for kind in ("Pod", "ConfigMap", "Service"):
        (name,) = world.cluster.ours(world.namespace)[kind]
        (reference,) = world.cluster.get(kind, world.namespace, name)["metadata"]["ownerReferences"]
        assert owner.items() <= reference.items()
    assert world.condition("Ready") == ("True", "Running")
    assert {each["observedGeneration"] for each in world.job["status"]["conditions"]} == {1}
    told = lambda: (world.job["status"].get("epoch"), world.job["status"].get("jobGeneration"))  # noqa: E731
    wait_until("what the driver says", lambda: told() == (7, 3))

    world.said |= {"rows_per_second": 1200, "inputs": [{"name": "orders", "lag": 34}, {"name": "payments", "lag": 8}]}
    wait_until("figures", lambda: world.job["status"].get("lag") == 42)
    columns = world.kubectl("get", "sj", JOB, "-n", world.namespace).splitlines()[1].split()
    assert columns[:4] == [JOB, "Running", "1200", "42"]

    world.cluster.patch("StreamJoin", world.namespace, JOB, {"spec": {"suspend": True}})
    world.wait_for("Suspended")
    assert world.pods() == []
    world.cluster.patch("StreamJoin", world.namespace, JOB, {"spec": {"suspend": False}})
    world.wait_for("Running")
    assert world.pods() == [f"{JOB}-driver-2"]

    world.cluster.delete("StreamJoin", world.namespace, JOB)
    wait_until("nothing is left", lambda: not any(world.cluster.ours(world.namespace).values()), 120)


def test_applying_the_same_again_is_no_difference(world, manifest):
    """What GitOps tools look at: a dry run of the manifest returns what is there."""
    world.apply(manifest)
    world.wait_for("Running")
    there = world.job
    command = ["apply", "--server-side", "--dry-run=server", "--namespace", world.namespace, "-f", "-", "-o", "json"]
    again = json.loads(world.kubectl(*command, stdin=yaml.safe_dump(manifest)))
    for each in (there, again):
        # When a manager last applied is not a difference.
        each["metadata"].pop("managedFields", None)
    assert again["spec"] == there["spec"]
    assert again["metadata"] == there["metadata"] | {"resourceVersion": again["metadata"]["resourceVersion"]}
    assert "annotations" not in there["metadata"]
    assert "finalizers" not in there["metadata"]


def test_what_others_did_to_children_is_put_right(world, manifest):
    world.apply(manifest)
    world.wait_for("Running")
    pod, (service,) = f"{JOB}-driver-1", world.cluster.ours(world.namespace)["Service"]
    world.cluster.delete("Service", world.namespace, service)
    wait_until("the Service is back", lambda: world.cluster.ours(world.namespace)["Service"] == [service])
    labels = world.driver(1)["metadata"]["labels"]
    world.cluster.patch("Pod", world.namespace, pod, {"metadata": {"labels": dict.fromkeys(labels)}})
    wait_until("the labels are back", lambda: world.driver(1)["metadata"].get("labels") == labels)
    assert world.pods() == [pod]
    world.cluster.delete("Pod", world.namespace, pod)
    wait_until("another driver", lambda: world.pods() == [f"{JOB}-driver-2"])


def test_a_driver_that_failed_waits_and_one_that_is_done_is_not_started_again(world, manifest):
    world.apply(manifest)
    world.wait_for("Running")
    ending = {"outcome": "failed", "error": "the broker is away", "kind": "SourceError", "retry": True}
    end_pod(world.cluster, world.driver(1), 1, json.dumps(ending))
    wait_until(
        "the back-off is told",
        lambda: "not_before" in str(world.job["status"]) or world.condition("Ready")[1] == "BackOff",
    )
    assert "the broker is away" in world.job["status"]["lastError"]
    assert world.job["status"]["driver"]["failures"] == 1
    wait_until("the next attempt", lambda: f"{JOB}-driver-2" in world.pods(), 30)
    wait_until("it runs", lambda: world.driver(2)["status"]["phase"] == "Running")
    end_pod(world.cluster, world.driver(2), 0, json.dumps({"outcome": "finished"}))
    world.wait_for("Finished")
    assert f"{JOB}-driver-3" not in world.pods()
    reasons = {each["reason"] for each in world.cluster.list("Event", world.namespace)}
    assert len(reasons) >= 3, reasons
