"""The operator as a process of its own, with the chart's rights and no more, on a real API server."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.binaries import program
from simulated_cluster.fake_node import ApiServerClient
from simulated_cluster.operator_process import OperatorProcess

REPOSITORY = Path(__file__).parents[3]
CHART = REPOSITORY / "charts" / "joinery"
OPERATOR, DRIVERS = "joinery-operator", "joinery-driver"

Start = Callable[..., AbstractContextManager[OperatorProcess]]


@pytest.fixture(scope="session")
def with_crds(api_server: ApiServer) -> ApiServer:
    api_server.kubectl.define(REPOSITORY / "crds")
    return api_server


@pytest.fixture
def cluster(with_crds: ApiServer) -> ApiServerClient:
    return ApiServerClient(with_crds.kubeconfig)


@pytest.fixture
def shop(with_crds: ApiServer, api_namespace: str) -> str:
    """A namespace with the service accounts of operator and drivers, and what the chart lets the operator do."""
    kubectl = with_crds.kubectl
    for account in (OPERATOR, DRIVERS):
        kubectl("create", "serviceaccount", account, "-n", api_namespace)
    kubectl.apply(chart_rights(api_namespace))
    return api_namespace


@pytest.fixture
def log_in(with_crds: ApiServer, tmp_path: Path) -> Callable[[str, str], Path]:
    """The kubeconfig of a service account of a namespace."""

    def log_in(namespace: str, account: str) -> Path:
        return with_crds.kubectl.log_in_as(account, namespace, tmp_path / f"kubeconfig-{account}").kubeconfig

    return log_in


@pytest.fixture
def start(shop: str, log_in: Callable[[str, str], Path], tmp_path: Path) -> Start:
    """Starts the operator for `shop`; leaving the context kills what still runs."""
    kubeconfig = log_in(shop, OPERATOR)
    numbers = iter(range(100))

    @contextmanager
    def start(**environment: str) -> Iterator[OperatorProcess]:
        running = OperatorProcess(kubeconfig, tmp_path / f"operator-{next(numbers)}.log", [shop], environment)
        try:
            yield running
        finally:
            running.process.kill()

    return start


def chart_rights(namespace: str, *values: str) -> list[dict[str, Any]]:
    """Role and binding, as the chart renders them for an operator of that namespace that runs in it."""
    command = [str(program("helm")), "template", "joinery", str(CHART), "--namespace", namespace]
    command += ["--kube-version", "1.34.0", "--show-only", "templates/rbac.yaml"]
    pages = "jobPage.ingress.permissions=true,jobPage.httpRoute.permissions=true"
    command += ["--set", ",".join([f"watch.namespaces={{{namespace}}}", pages, *values])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]
