"""The chart on a real API server: installed, upgraded and removed by Helm, applied server-side, judged by RBAC and Pod
Security. No node and no Deployment controller are there, so pods are judged by dry runs."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.rendering import CHART, ROOT, Chart
from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.kubectl import Kubectl, KubectlFailed, wait_until
from joinery_operator.kube.resources import JOBS as RESOURCES

pytestmark = pytest.mark.services

UPGRADE = ROOT / "docs/how-to/upgrade.md"
EXAMPLES = ROOT / "examples" / "kubernetes"
JOBS = [f"{job.plural}.{job.group}" for job in RESOURCES]


@dataclass(frozen=True, slots=True)
class Release:
    """A release named after its namespace, which is a restricted one."""

    chart: Chart
    kubectl: Kubectl
    namespace: str

    @property
    def name(self) -> str:
        return self.namespace

    @property
    def operator(self) -> str:
        return f"{self.name}-joinery-operator"

    def helm(self, *arguments: str) -> str:
        target = ["--namespace", self.namespace, "--kubeconfig", str(self.kubectl.kubeconfig)]
        return self.chart.run(*arguments, *target)

    def install(self, folder: Path = CHART, verb: str = "install", **values: Any) -> str:
        flags = [f"--set-json={name.replace('__', '.')}={json.dumps(value)}" for name, value in values.items()]
        # The definitions are the cluster's, and another test may have brought them.
        return self.helm(verb, self.name, str(folder), "--take-ownership", *flags)


@pytest.fixture
def release(chart: Chart, api_server: ApiServer, api_namespace: str) -> Iterator[Release]:
    kubectl = api_server.kubectl
    kubectl.restrict(api_namespace)  # so that it means something if a pod is taken
    release = Release(chart, kubectl, api_namespace)
    yield release
    release.helm("uninstall", release.name, "--ignore-not-found")


def test_helm_installs_and_kubernetes_takes_every_pod(release: Release) -> None:
    notes = release.install().partition("NOTES:\n")[2]
    assert f"It was made in: {release.namespace}." in notes
    assert "PRODUCTION" not in notes
    (listing,) = (line.strip() for line in notes.splitlines() if "kubectl get sj,sw,jsp" in line)
    release.kubectl.await_definitions()
    release.kubectl(*shlex.split(listing)[1:])
    assert listing.replace("--all-namespaces", "-A") in UPGRADE.read_text()
    deployment = release.kubectl.get("deployment", release.operator, release.namespace)
    assert deployment is not None
    _dry_run_pod(release, deployment["spec"]["template"])
    hooks = list(yaml.safe_load_all(release.helm("get", "hooks", release.name)))
    assert [hook["kind"] for hook in hooks] == ["Pod"]
    _dry_run_pod(release, hooks[0])


def test_the_demo_database_is_taken_and_warned_of(release: Release) -> None:
    notes = release.install(demoPostgres={"enabled": True, "secretName": "demo"}).partition("NOTES:\n")[2]
    assert "IT IS NO PRODUCTION DATABASE" in notes
    deployment = release.kubectl.get("deployment", f"{release.name}-joinery-demo-postgres", release.namespace)
    assert deployment is not None
    _dry_run_pod(release, deployment["spec"]["template"])


def test_a_pod_that_is_not_restricted_is_refused_there(release: Release) -> None:
    """So that the two tests above mean something."""
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        _dry_run_pod(release, {"metadata": {}, "spec": {"containers": [{"name": "x", "image": "x"}]}})


def _dry_run_pod(release: Release, template: dict[str, Any]) -> None:
    metadata = {"name": "judged", "labels": template["metadata"].get("labels", {})}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    release.kubectl("create", "--dry-run=server", "-n", release.namespace, "-f", "-", stdin=yaml.safe_dump(pod))


def test_an_upgrade_upgrades_the_definitions_and_a_removal_keeps_them(release: Release, tmp_path: Path) -> None:
    definition = "streamjoins.joinery.dev"
    release.install(_chart_with_older_definition(tmp_path))
    assert _columns(release.kubectl, definition) == []
    release.install(verb="upgrade")
    assert _columns(release.kubectl, definition)
    release.helm("uninstall", release.name)
    assert _columns(release.kubectl, definition)
    assert release.kubectl.get("deployment", release.operator, release.namespace) is None


def _chart_with_older_definition(folder: Path) -> Path:
    older = folder / "joinery"
    shutil.copytree(CHART, older)
    path = older / "files/crds/joinery.dev_streamjoins.yaml"
    definition = yaml.safe_load(path.read_text())
    for version in definition["spec"]["versions"]:
        version["additionalPrinterColumns"] = []
    path.write_text(yaml.safe_dump(definition, sort_keys=False))
    return older


def _columns(kubectl: Kubectl, definition: str) -> list[str]:
    crd = kubectl.get("crd", definition)
    assert crd is not None
    return [column["name"] for column in crd["spec"]["versions"][0].get("additionalPrinterColumns", [])]


def test_rights_cluster_wide(release: Release, tmp_path: Path) -> None:
    release.install()
    operator = release.kubectl.log_in_as(release.operator, release.namespace, tmp_path / "operator")
    wait_until("its rights count", lambda: operator.may("watch", JOBS[0], "-n", "default"))
    for namespace_flags in (["-n", "default"], ["--all-namespaces"]):
        assert all(operator.may("watch", job, *namespace_flags) for job in JOBS)
        assert operator.may("list", "pods", *namespace_flags)
    for job in JOBS:
        assert operator.may("patch", job, "-n", "default")
        assert operator.may("update", job, "--subresource=status", "-n", "default")
        assert not operator.may("update", job, "-n", "default")
    assert not operator.may("create", "pods", "--subresource=exec", "-n", "default")
    for verb, resource in (("get", "secrets"), ("create", "roles")):
        assert not operator.may(verb, resource, "-n", "default")


def test_rights_in_namespaces_only(release: Release, tmp_path: Path) -> None:
    release.install(watch__namespaces=[release.namespace])
    operator = release.kubectl.log_in_as(release.operator, release.namespace, tmp_path / "operator")
    driver = release.kubectl.log_in_as("joinery-driver", release.namespace, tmp_path / "driver")
    namespace_flags = ("-n", release.namespace)
    wait_until(
        "rights count",
        lambda: operator.may("watch", JOBS[0], *namespace_flags) and driver.may("get", "pods", *namespace_flags),
    )
    for job in JOBS:
        assert operator.may("watch", job, "-n", release.namespace)
        assert not operator.may("watch", job, "-n", "default")
    assert not operator.may("list", "pods", "--all-namespaces")
    for verb in ("get", "list", "watch", "create", "delete", "deletecollection"):
        assert driver.may(verb, "pods", "-n", release.namespace)
        assert not driver.may(verb, "pods", "-n", "default")
    for resource in (*JOBS, "configmaps", "secrets", "services"):
        assert not driver.may("get", resource, "-n", release.namespace)


def test_a_second_apply_of_the_plain_manifests_changes_nothing(api_server: ApiServer) -> None:
    kubectl = api_server.kubectl
    folder = ROOT / "deploy"
    apply = ("apply", "--server-side", "--force-conflicts", "-k", str(folder))
    kubectl(*apply)
    try:
        before = _versions(kubectl, folder)
        kubectl(*apply)
        assert _versions(kubectl, folder) == before
    finally:
        kubectl("delete", "namespace", "joinery-system", "--wait=false")


def test_a_server_side_apply_takes_an_operator_from_two_replicas_to_one(release: Release) -> None:
    """The API server takes no `rollingUpdate` beside Recreate, and adds one that nobody owns where it is not set."""
    for replicas in (2, 1):
        only = ("--kube-version=1.34", "--show-only=templates/deployment.yaml", f"--set=operator.replicas={replicas}")
        rendered = release.helm("template", release.name, str(CHART), *only)
        release.kubectl("apply", "--server-side", "-n", release.namespace, "-f", "-", stdin=rendered)
    deployment = release.kubectl.get("deployment", release.operator, release.namespace)
    assert deployment is not None
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    release.kubectl("delete", "deployment", release.operator, "-n", release.namespace)


def _versions(kubectl: Kubectl, folder: Path) -> list[str]:
    """The resourceVersion of every object."""
    items = json.loads(kubectl("get", "-k", str(folder), "-o", "json"))["items"]
    return [item["metadata"]["resourceVersion"] for item in items]


@pytest.mark.parametrize("name", ["orders-payments", "session-window"])
def test_a_synced_job_shows_no_difference(api_server: ApiServer, api_namespace: str, name: str) -> None:
    """What ArgoCD and Flux compare: the object, and what a server-side dry run of the same file makes of it, also after
    the operator has written its status and finalizer."""
    kubectl = api_server.kubectl
    kubectl.define(ROOT / "crds")
    manifest = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    job = f"{manifest['kind'].lower()}/{manifest['metadata']['name']}"
    kubectl.apply(EXAMPLES / f"{name}.yaml", api_namespace)
    _as_the_operator(kubectl, api_namespace, job)
    live = json.loads(kubectl("get", job, "-n", api_namespace, "-o", "json"))
    dry_run = kubectl(
        "apply", "--server-side", "--dry-run=server", "-n", api_namespace, "-o", "json",
        "-f", str(EXAMPLES / f"{name}.yaml"),
    )  # fmt: skip
    assert live["status"]["phase"] == "Running"
    assert json.loads(dry_run) == live


def _as_the_operator(kubectl: Kubectl, namespace: str, job: str) -> None:
    status = {"status": {"phase": "Running", "observedGeneration": 1, "lag": 5, "executors": 2}}
    finalizers = {"metadata": {"finalizers": ["joinery.dev/delete-state"]}}
    for body, more in ((status, ["--subresource=status"]), (finalizers, [])):
        kubectl(
            "patch", job, "-n", namespace, "--type=merge",
            "--field-manager=joinery-operator", f"--patch={json.dumps(body)}", *more,
        )  # fmt: skip
