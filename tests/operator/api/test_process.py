"""The process around reconcile, with a small one in its place: what it writes, what it survives, how it ends."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.kubectl import wait_until
from joinery_operator.kube.resources import BLUE_GREEN, OWNERS
from simulated_cluster.fake_node import ApiServerClient, FakeKubelet, end_pod
from simulated_cluster.operator_process import KILLED, OperatorProcess

pytestmark = pytest.mark.services

EXAMPLE = Path(__file__).parents[3] / "examples" / "orders-payments.yaml"
SMALL_RECONCILE = {"TEST_RECONCILE": "small"}
JOB = "orders-payments"
KILLED_BY = 4  # tests share the calls after which an operator is killed: one test would take two minutes


@pytest.fixture
def manifest():
    return yaml.safe_load(EXAMPLE.read_text())


def pods(cluster: ApiServerClient, namespace: str) -> list[str]:
    return cluster.ours(namespace)["Pod"]


def end_first_driver(cluster: ApiServerClient, namespace: str) -> None:
    end_pod(cluster, cluster.get("Pod", namespace, f"{JOB}-driver-1"), 1)


def test_it_leaves_no_traces_of_kopf_and_ends_at_sigterm(start, cluster, shop, manifest):
    cluster.create(manifest, shop)
    with start(**SMALL_RECONCILE) as operator, FakeKubelet(cluster.kubeconfig, shop):
        operator.wait_until_ready()
        wait_until("the children are there", lambda: pods(cluster, shop) == [f"{JOB}-driver-1"])
        wait_until("readiness", lambda: fetch(operator.port, "/readyz") == "ok\n")
        assert fetch(operator.port, "/healthz") == "ok\n"
        metrics = fetch(operator.port, "/metrics")
        assert 'joinery_operator_cached_objects{kind="StreamJoin"} 1.0' in metrics
        assert "joinery_operator_healthy 1.0" in metrics
        labels = f'job_kind="StreamJoin",job_name="{JOB}",job_namespace="{shop}"'
        assert f"joinery_operator_job_attempts{{{labels}}} 1.0" in metrics
        cluster.patch("StreamJoin", shop, JOB, {"spec": {"trigger": {"maxRecordsPerEpoch": 4}}})
        wait_until(
            "the edit is seen", lambda: cluster.get("StreamJoin", shop, JOB)["status"]["observedGeneration"] == 2
        )
        assert operator.stop() == 0
    children = [child for kind in ("Pod", "ConfigMap", "Service") for child in cluster.list(kind, shop)]
    job = cluster.get("StreamJoin", shop, JOB)
    # Who wrote what is still known, though the operator does not keep it.
    assert len(job["metadata"]["managedFields"]) == 2
    for resource in (job, *(child for child in children if child["metadata"].get("ownerReferences"))):
        assert "annotations" not in resource["metadata"], resource
        assert "finalizers" not in resource["metadata"], resource
        assert "kopf" not in yaml.safe_dump(resource)
    fields = {"phase", "observedGeneration", "conditions", "held", "driver", "history"}
    fields |= {"inputs", "outputs", "hottestKeys"}
    assert set(job["status"]) <= fields
    lines = operator.log.splitlines()
    assert all(line.startswith("{") for line in lines), operator.log
    assert len(lines) < 10, operator.log


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, KILLED_BY + 1))
def test_killed_after_each_call_it_makes_the_same_children_once(start, cluster, shop, manifest, first):
    """With the real reconcile: the first driver starts and fails, the second one starts. Killed after call number
    `first` of those that change something, then every KILLED_BY calls later, until a life needs no more calls."""
    manifest["spec"]["stateStore"] = {"postgres": {"dsn": "postgresql://nowhere/state", "schema": "joinery"}}
    number, expected = first, None
    while True:
        cluster.create(manifest, shop)
        with FakeKubelet(cluster.kubeconfig, shop) as kubelet:
            with start(**QUICK, TEST_KILL_AT=str(number)) as operator:
                dead = live(cluster, shop, operator)
                assert operator.process.exit_code() == (KILLED if dead else None), operator.log
            if dead:
                with start(**QUICK) as operator:
                    assert not live(cluster, shop, operator), operator.log
                    operator.wait_until_ready()  # nothing may have been left to do: then it is still starting
                    assert operator.stop() == 0
            assert sorted(kubelet.created.values()) == [f"{JOB}-driver-1", f"{JOB}-driver-2"], number
        objects = cluster.ours(shop)
        expected = expected or objects
        assert objects == expected, number
        clear(cluster, shop)
        if not dead:
            break
        number += KILLED_BY
    assert number > 8


QUICK = {"JOINERY_OPERATOR_BACKOFF_FIRST_SECONDS": "0.1"}


def live(cluster, namespace, operator) -> bool:
    """The job gets its first driver, which fails, and its second one. Whether the operator was killed before."""

    def dead():
        return not operator.process.running()

    def phase(number):
        pod = cluster.get("Pod", namespace, f"{JOB}-driver-{number}")
        return pod["status"]["phase"] if pod else ""

    wait_until("the first driver", lambda: dead() or phase(1) in {"Running", "Failed"} or phase(2))
    if phase(1) == "Running":
        end_first_driver(cluster, namespace)
    wait_until("the second driver", lambda: dead() or phase(2) == "Running")

    def settled():
        status = cluster.get("StreamJoin", namespace, JOB)["status"]
        return status["phase"] == "Running" and status["driver"]["number"] == 2

    wait_until("it is told", lambda: dead() or (settled() and pods(cluster, namespace) == [f"{JOB}-driver-2"]))
    return dead()


def clear(cluster, namespace):
    cluster.delete("StreamJoin", namespace, JOB)
    for kind in ("Pod", "ConfigMap", "Service"):
        for name in cluster.ours(namespace)[kind]:
            cluster.delete(kind, namespace, name, grace_seconds=0)
    wait_until("all is gone", lambda: not any(cluster.ours(namespace).values()))


def test_two_operators_at_once_are_harmless(start, cluster, shop, manifest):
    names = [f"job-{number}" for number in range(10)]
    with (
        FakeKubelet(cluster.kubeconfig, shop) as kubelet,
        start(**SMALL_RECONCILE) as one,
        start(**SMALL_RECONCILE) as other,
    ):
        one.wait_until_ready()
        other.wait_until_ready()
        for name in names:
            cluster.create({**manifest, "metadata": {"name": name}}, shop)
        first = [f"{name}-driver-1" for name in names]
        wait_until("the first drivers run", lambda: running(cluster, shop) == sorted(first))
        for name in first:
            end_pod(cluster, cluster.get("Pod", shop, name), 1)
        both = sorted([*first, *(f"{name}-driver-2" for name in names)])
        wait_until("the second drivers", lambda: pods(cluster, shop) == both)
        assert (one.stop(), other.stop()) == (0, 0)
        wait_until("the kubelet has seen them", lambda: len(kubelet.created) >= len(both))
        assert sorted(kubelet.created.values()) == both


def running(cluster, namespace):
    running_pods = (pod for pod in cluster.list("Pod", namespace) if pod["status"]["phase"] == "Running")
    return sorted(pod["metadata"]["name"] for pod in running_pods)


def fetch(port: int, path: str) -> str:
    """What it answers; also that it is not ready yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def test_missing_rights_are_named(log_in, with_crds, cluster, shop, start):
    """The chart's role is just enough; without one of its verbs the operator says which."""
    role = with_crds.kubectl.get("role", "joinery-operator", shop)
    (of_pods,) = (number for number, rule in enumerate(role["rules"]) if "pods" in rule["resources"])
    patch = [{"op": "replace", "path": f"/rules/{of_pods}/verbs", "value": ["get", "list", "watch", "create", "patch"]}]
    with_crds.kubectl("patch", "role", "joinery-operator", "-n", shop, "--type=json", "-p", json.dumps(patch))
    with start(**SMALL_RECONCILE) as operator:
        assert operator.process.wait(240) == 1
        expected = "; ".join(f"delete {plural} in namespace {shop}" for plural in ("pods", "configmaps", "services"))
        assert f"The operator's service account lacks permissions: {expected}. Bind it to" in operator.log


def test_a_namespace_without_rights_stops_no_other_one(start, cluster, shop, manifest):
    cluster.create(manifest, shop)
    with start(**SMALL_RECONCILE, JOINERY_OPERATOR_NAMESPACES=f"{shop},{shop}-gone") as operator:
        operator.wait_until_ready()
        wait_until("the children are there", lambda: pods(cluster, shop) == [f"{JOB}-driver-1"])
        left_out = f'joinery_operator_namespace_left_out{{namespace="{shop}-gone"}} 1.0'
        assert left_out in fetch(operator.port, "/metrics")
        assert operator.stop() == 0


HTTP_ROUTES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "httproutes.gateway.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/2245"},
    },
    "spec": {
        "group": "gateway.networking.k8s.io",
        "names": {"kind": "HTTPRoute", "listKind": "HTTPRouteList", "plural": "httproutes", "singular": "httproute"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def test_the_page_has_a_route_and_loses_it_when_the_setting_goes(start, with_crds, cluster, shop, manifest):
    with_crds.kubectl.define(HTTP_ROUTES)
    try:
        url = {"JOINERY_OPERATOR_PAGE_URL": "https://{name}.{namespace}.example.com/"}
        manifest["spec"]["stateStore"] = {"postgres": {"dsn": "postgresql://nowhere/state", "schema": "joinery"}}
        cluster.create(manifest, shop)
        with start(**url, JOINERY_OPERATOR_PAGE_ROUTE='{"parentRefs": [{"name": "public"}]}') as operator:
            operator.wait_until_ready()
            wait_until("its route", lambda: cluster.names("HTTPRoute", shop) == [f"{JOB}-page"])
            route = cluster.get("HTTPRoute", shop, f"{JOB}-page")
            assert route["spec"]["hostnames"] == [f"{JOB}.{shop}.example.com"]
            assert cluster.get("StreamJoin", shop, JOB)["status"]["page"] == f"https://{JOB}.{shop}.example.com/"
            cluster.delete("HTTPRoute", shop, f"{JOB}-page")
            wait_until(
                "another one", lambda: (cluster.get("HTTPRoute", shop, f"{JOB}-page") or route)["metadata"]["uid"]
                != route["metadata"]["uid"],
            )  # fmt: skip
            assert operator.stop() == 0
        with start(**url) as operator:
            operator.wait_until_ready()
            wait_until("none", lambda: cluster.names("HTTPRoute", shop) == [])
            assert operator.stop() == 0
    finally:
        with_crds.kubectl("delete", "crd", HTTP_ROUTES["metadata"]["name"])


@pytest.mark.slow
def test_what_is_missing_is_named(tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    with ApiServer(controllers=()) as bare:
        kubeconfig.write_text(bare.kubeconfig.read_text())
        code, output = ended(kubeconfig, tmp_path)
        assert code == 1
        all_of_them = ", ".join(f"{owner.plural}.joinery.dev (v1alpha1)" for owner in OWNERS if owner != BLUE_GREEN)
        assert f"CustomResourceDefinitions are missing: {all_of_them}. Apply them" in output
    code, output = ended(kubeconfig, tmp_path)
    assert code == 1
    assert "The API server does not answer the operator: " in output


def ended(kubeconfig, folder):
    running = OperatorProcess(kubeconfig, folder / "log", ["default"], SMALL_RECONCILE)
    try:
        return running.process.wait(240), running.log
    finally:
        running.process.kill()
