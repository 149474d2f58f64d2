"""What Kubernetes' own controllers write on a pod whose node stops answering, beside a pod whose node was tainted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.kubectl import wait_until
from joinery_operator.manifests import driver_pod
from joinery_operator.pod_defaults import PodDefaults
from joinery_operator.reconcile.pods import PodObservation, observe_pod
from joinery_operator.reconcile.reasons import NODE_UNREACHABLE
from joinery_operator.revision import JobRevision
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import KINDS
from simulated_cluster.fake_node import ApiServerClient
from simulated_cluster.resources import resource_of

pytestmark = pytest.mark.services

CONTROLLERS = ("node-lifecycle-controller", "taint-eviction-controller")
GRACE_SECONDS, TOLERATION_SECONDS = 6, 2
LOST, ANSWERS = "lost", "answers"


@pytest.fixture
def cluster() -> Iterator[ApiServerClient]:
    options = (f"--node-monitor-grace-period={GRACE_SECONDS}s", "--node-monitor-period=1s")
    with ApiServer(CONTROLLERS, options) as server:
        server.kubectl("create", "serviceaccount", "joinery-driver", "-n", "default")
        yield ApiServerClient(server.kubeconfig)


def test_a_lost_node_is_told_from_a_tainted_one(cluster: ApiServerClient) -> None:
    for number, node in enumerate((LOST, ANSWERS), start=1):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
        cluster.call("POST", "/api/v1/nodes", body)
        report_node(cluster, node)
        run_driver(cluster, number, node, {"status": "True"})
        run_driver(cluster, number + 2, node, {"status": "False", "reason": "ContainersNotReady"})

    def deleted(number: int) -> bool:
        report_node(cluster, ANSWERS)
        return pod_of(cluster, number).deletion_time is not None

    wait_until("the driver on the lost node is deleted", lambda: deleted(1))
    lost = pod_of(cluster, 1)
    assert lost.disruption is not None
    assert lost.disruption.reason == NODE_UNREACHABLE
    assert lost.is_stuck(datetime.now(UTC), 300.0)

    wait_until("the driver that starts on the lost node is deleted", lambda: deleted(3))
    starting = pod_of(cluster, 3)
    assert starting.disruption is not None
    assert starting.disruption.reason == "DeletionByTaintManager"

    assert pod_of(cluster, 2).disruption is None
    taint = {"key": "maintenance", "effect": "NoExecute"}
    merge = "application/merge-patch+json"
    cluster.call("PATCH", f"/api/v1/nodes/{ANSWERS}", {"spec": {"taints": [taint]}}, merge)
    for number in (2, 4):
        wait_until("a driver on the tainted node is deleted", lambda number=number: deleted(number))
        tainted = pod_of(cluster, number)
        assert tainted.disruption is not None
        assert tainted.disruption.reason == "DeletionByTaintManager"
        assert not tainted.is_stuck(datetime.now(UTC), 300.0)


def report_node(cluster: ApiServerClient, node: str) -> None:
    """A kubelet's report, as of now."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now, "reason": "Ready"}
    body = {"status": {"conditions": [ready]}}
    cluster.call("PATCH", f"/api/v1/nodes/{node}/status", body, "application/merge-patch+json")


def run_driver(cluster: ApiServerClient, number: int, node: str, readiness: Mapping[str, str]) -> None:
    """A driver on that node, which stays on a lost one more briefly than in earnest. `readiness` is of a kubelet."""
    resource = resource_of(KINDS[0])
    resource["metadata"] |= {"namespace": "default", "uid": "uid-job"}
    job = KINDS[0].model.model_validate(resource, by_alias=True, by_name=False)
    pod: Any = driver_pod(JobRevision(job, resource, "abc", "joinery:1", Settings(), {}, PodDefaults()), number)
    pod["spec"]["nodeName"] = node
    for toleration in pod["spec"]["tolerations"]:
        toleration["tolerationSeconds"] = TOLERATION_SECONDS
    created = cluster.create(pod, "default")
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    ready = {"type": "Ready", **readiness, "lastTransitionTime": now}
    status = {"phase": "Running", "conditions": [ready]}
    cluster.patch("Pod", "default", created["metadata"]["name"], {"status": status}, "status")


def pod_of(cluster: ApiServerClient, number: int) -> PodObservation:
    pod = cluster.get("Pod", "default", f"orders-driver-{number}")
    assert pod is not None
    return observe_pod(pod)
