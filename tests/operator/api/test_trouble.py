"""The API server goes away, or its watches fall silent."""

from __future__ import annotations

import urllib.error
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


def test_a_dead_watch_is_noticed_and_jobs_go_on_all_the_same(start, cluster, shop, manifest):
    with start(TEST_RECONCILE="small", TEST_BLIND="1") as operator, FakeKubelet(cluster.kubeconfig, shop):
        operator.wait_until_ready()
        cluster.create(manifest, shop)
        wait_until("the driver is there", lambda: cluster.ours(shop)["Pod"] == [f"{JOB}-driver-1"], 90)
        assert live(operator.port) == ""
        wait_until("the probe fails", lambda: f"StreamJoin {shop}/{JOB} has resourceVersion" in live(operator.port), 90)


def live(port: int) -> str:
    """What /healthz complains of."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).close()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    return ""
