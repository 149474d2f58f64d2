"""The API server goes away, or its watches fall silent."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from joinery_devkit.kubernetes.kubectl import wait_until
from joinery_devkit.tcp_proxy import TcpProxy
from simulated_cluster.fake_node import FakeKubelet
from simulated_cluster.operator_process import OperatorProcess

pytestmark = [pytest.mark.services, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[3] / "examples" / "orders-payments.yaml"
JOB = "orders-payments"


@pytest.fixture
def manifest():
    return yaml.safe_load(EXAMPLE.read_text())


def test_it_outlives_an_api_server_that_is_away(with_crds, cluster, shop, log_in, manifest, tmp_path):
    kubeconfig = log_in(shop, "joinery-operator")
    port = urlsplit(with_crds.url).port
    with TcpProxy(port) as proxy, FakeKubelet(cluster.kubeconfig, shop):
        kubeconfig.write_text(kubeconfig.read_text().replace(f":{port}", f":{proxy.port}"))
        operator = OperatorProcess(kubeconfig, tmp_path / "log", [shop], {"TEST_RECONCILE": "small"})
        try:
            cluster.create(manifest, shop)
            wait_until("the driver is there", lambda: cluster.ours(shop)["Pod"] == [f"{JOB}-driver-1"])
            proxy.cut()
            cluster.patch("StreamJoin", shop, JOB, {"spec": {"suspend": True}})
            wait_until("it is noticed", lambda: "will retry" in operator.log)
            proxy.restore()
            wait_until("the edit is acted on", lambda: cluster.ours(shop)["Pod"] == [])
            assert operator.stop() == 0
        finally:
            operator.process.kill()


def test_jobs_go_on_although_the_watches_deliver_nothing(start, cluster, shop, manifest):
    with start(TEST_RECONCILE="small", TEST_BLIND="1") as operator, FakeKubelet(cluster.kubeconfig, shop):
        operator.wait_until_ready()
        cluster.create(manifest, shop)
        wait_until("the driver is there", lambda: cluster.ours(shop)["Pod"] == [f"{JOB}-driver-1"])


def test_a_namespace_that_is_deleted_stops_no_other_and_is_worked_on_when_it_is_back(
    with_crds, cluster, shop, log_in, manifest, tmp_path
):
    """With a namespace go the operator's rights there; kopf ends all watches when the next connection is refused."""
    kubectl, other = with_crds.kubectl, f"{shop}-other"
    kubectl("create", "namespace", other)
    account = f"{shop}:joinery-operator"
    bound = f"--serviceaccount={account}"
    bind = ("create", "rolebinding", "operator", "--clusterrole=cluster-admin", bound, "-n", other)
    kubectl(*bind)
    kubeconfig = log_in(shop, "joinery-operator")
    port = urlsplit(with_crds.url).port
    with TcpProxy(port) as proxy, FakeKubelet(cluster.kubeconfig, shop):
        kubeconfig.write_text(kubeconfig.read_text().replace(f":{port}", f":{proxy.port}"))
        operator = OperatorProcess(
            kubeconfig, tmp_path / "log", [shop, other], {"TEST_RECONCILE": "small", "TEST_FEW_TRIES": "1"}
        )
        try:
            operator.wait_until_ready()
            kubectl("delete", "rolebinding", "operator", "-n", other)
            query = ("list", "pods", "-n", other, "--as", f"system:serviceaccount:{account}")
            wait_until("it is forbidden there", lambda: not kubectl.may(*query))
            proxy.cut()
            proxy.restore()
            wait_until("it is left out", lambda: "a namespace is excluded" in operator.log)
            cluster.create(manifest, shop)
            wait_until("the driver is there", lambda: cluster.ours(shop)["Pod"] == [f"{JOB}-driver-1"])
            metric = f'joinery_operator_namespace_left_out{{namespace="{other}"}}'
            assert f"{metric} 1.0" in fetch(operator.port, "/metrics")
            cluster.create(manifest, other)
            kubectl(*bind)
            wait_until("its driver too", lambda: cluster.ours(other)["Pod"] == [f"{JOB}-driver-1"])
            assert f"{metric} 0.0" in fetch(operator.port, "/metrics")
            cluster.patch("StreamJoin", shop, JOB, {"spec": {"suspend": True}})
            wait_until("the first one is watched", lambda: cluster.ours(shop)["Pod"] == [])
            assert operator.stop() == 0
        finally:
            operator.process.kill()


def test_it_ends_at_a_sigterm_that_comes_while_a_namespace_is_regained(with_crds, shop, start):
    kubectl, other = with_crds.kubectl, f"{shop}-back"
    kubectl("create", "namespace", other)
    account = f"--serviceaccount={shop}:joinery-operator"
    with start(
        TEST_RECONCILE="small",
        TEST_FEW_TRIES="1",
        TEST_TERMINATED="1",
        JOINERY_OPERATOR_NAMESPACES=f"{shop},{other}",
    ) as operator:
        operator.wait_until_ready()
        kubectl("create", "rolebinding", "operator", "--clusterrole=cluster-admin", account, "-n", other)
        assert operator.process.wait(240) == 0
        assert "the operator has ended" in operator.log
        assert "Traceback" not in operator.log


def fetch(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())
