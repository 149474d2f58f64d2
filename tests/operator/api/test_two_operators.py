"""Several operators in one cluster: replicas that share a Lease, and operators of different classes."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.conftest import OPERATOR, Start, chart_rights
from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.kubectl import wait_until
from joinery_operator.settings import CLASS_LABEL
from simulated_cluster.fake_node import ApiServerClient, FakeKubelet
from simulated_cluster.operator_process import OperatorProcess

pytestmark = pytest.mark.services

EXAMPLE = Path(__file__).parents[3] / "examples" / "orders-payments.yaml"
SMALL = {"TEST_RECONCILE": "small"}
FAILOVER_SECONDS = 20.0


def example(name: str, **labels: str) -> dict[str, Any]:
    job = deepcopy(yaml.safe_load(EXAMPLE.read_text()))
    job["metadata"] |= {"name": name, "labels": labels}
    return job


def is_reconciled(cluster: ApiServerClient, namespace: str, name: str) -> Callable[[], bool]:
    """Whether an operator has seen the newest generation of the job."""

    def seen() -> bool:
        job = cluster.get("StreamJoin", namespace, name)
        return job["status"]["observedGeneration"] == job["metadata"]["generation"]

    return seen


@pytest.fixture
def replica(start: Start, with_crds: ApiServer, shop: str) -> Callable[[ExitStack], OperatorProcess]:
    with_crds.kubectl.apply(chart_rights(shop, "operator.replicas=2"))

    def start_in(stack: ExitStack) -> OperatorProcess:
        return stack.enter_context(start(**SMALL, JOINERY_OPERATOR_LEASE=f"{shop}/{OPERATOR}"))

    return start_in


def stands_by(operator: OperatorProcess) -> bool:
    if not operator.process.running():
        raise AssertionError(operator.log)
    return "the operator stands by" in operator.log


def test_a_standby_takes_over_when_the_operator_is_killed_or_ends(
    replica: Callable[[ExitStack], OperatorProcess], cluster: ApiServerClient, shop: str
) -> None:
    with ExitStack() as stack, FakeKubelet(cluster.kubeconfig, shop):
        first = replica(stack)
        first.wait_until_ready()
        second = replica(stack)
        wait_until("the second one stands by", lambda: stands_by(second))
        with urllib.request.urlopen(f"http://localhost:{second.port}/readyz", timeout=10) as answer:
            assert answer.read() == b"ok\n"
        cluster.create(example("before"), shop)
        wait_until("the first one works", is_reconciled(cluster, shop, "before"))
        first.process.kill()
        killed = time.monotonic()
        cluster.create(example("after"), shop)
        wait_until("the second one works", is_reconciled(cluster, shop, "after"), poll_seconds=0.1)
        failover = time.monotonic() - killed
        print(f"{failover:.1f} s from the kill to the next reconcile")
        assert failover <= FAILOVER_SECONDS
        third = replica(stack)
        wait_until("the third one stands by", lambda: stands_by(third))
        ends = time.monotonic()
        assert second.stop() == 0
        cluster.create(example("last"), shop)
        wait_until("the third one works", is_reconciled(cluster, shop, "last"), poll_seconds=0.1)
        print(f"{time.monotonic() - ends:.1f} s from SIGTERM to the next reconcile")
        assert time.monotonic() - ends <= FAILOVER_SECONDS
        pods = ["after-driver-1", "before-driver-1", "last-driver-1"]
        wait_until("each job has one driver", lambda: cluster.ours(shop).get("Pod") == pods)  # its status comes first
        assert third.stop() == 0


def test_missing_permissions_on_the_lease_are_named(start: Start, shop: str) -> None:
    with start(**SMALL, JOINERY_OPERATOR_LEASE=f"{shop}/{OPERATOR}") as operator:
        assert operator.process.wait(120) == 1
        assert f"create, get, update leases.coordination.k8s.io {OPERATOR} in namespace {shop}" in operator.log


def test_operators_of_different_classes_run_their_own_jobs(start: Start, cluster: ApiServerClient, shop: str) -> None:
    with ExitStack() as stack, FakeKubelet(cluster.kubeconfig, shop):
        plain, blue = (
            stack.enter_context(start(**SMALL)),
            stack.enter_context(
                start(**SMALL, JOINERY_OPERATOR_JOB_CLASS="blue", JOINERY_OPERATOR_JOB_SELECTOR="team in (risk, fraud)")
            ),
        )
        for name, labels in {
            "unlabelled": {},
            "risk": {CLASS_LABEL: "blue", "team": "risk"},
            "tax": {CLASS_LABEL: "blue", "team": "tax"},
        }.items():
            cluster.create(example(name, **labels), shop)
        for name in ("unlabelled", "risk"):
            wait_until(f"job {name} runs", is_reconciled(cluster, shop, name))
        assert "/risk" not in plain.log
        assert "/unlabelled" not in blue.log
        # A job changes hands with its label; neither operator takes it for deleted.
        cluster.patch(
            "StreamJoin", shop, "unlabelled", {"metadata": {"labels": {CLASS_LABEL: "blue", "team": "fraud"}}}
        )
        wait_until("the first one has let it go", lambda: 'kind="StreamJoin"} 0.0' in metrics(plain))
        cluster.patch("StreamJoin", shop, "unlabelled", {"spec": {"trigger": {"maxRecordsPerEpoch": 4}}})
        wait_until("the other one sees its edit", is_reconciled(cluster, shop, "unlabelled"))
        cluster.patch("StreamJoin", shop, "tax", {"metadata": {"labels": {CLASS_LABEL: None}}})
        wait_until("the first one runs a job that lost its class", is_reconciled(cluster, shop, "tax"))
        drivers = ["risk-driver-1", "tax-driver-1", "unlabelled-driver-1"]
        wait_until("every job has one driver", lambda: cluster.ours(shop)["Pod"] == drivers)
        for operator in (plain, blue):
            assert "is gone" not in operator.log
            assert operator.stop() == 0


def metrics(operator: OperatorProcess) -> str:
    with urllib.request.urlopen(f"http://localhost:{operator.port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return "\n".join(line for line in text.splitlines() if line.startswith("joinery_operator_cached_objects"))
