"""ArgoCD's own code on what the operator and the API server make of jobs and of the chart, and Flux's on this
repository."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.health import FOLDER
from charts.rendering import CHART, NAMESPACE, ROOT, Chart, HelmFailed
from joinery_devkit.gitops import ArgoVerdict, argo_verdicts, flux_checkout
from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_operator.names import PAUSE_ANNOTATION
from joinery_operator.revision import RESTARTED_AT

pytestmark = pytest.mark.services

Manifest = dict[str, Any]
CASES = yaml.safe_load((FOLDER / "health_test.yaml").read_text())["tests"]
EXAMPLES = ROOT / "examples" / "kubernetes"


def health_scripts() -> dict[str, str]:
    """As ArgoCD reads its ConfigMap: `resource.customizations.health.<group>_<kind>`."""
    settings = yaml.safe_load((FOLDER / "argocd-cm.yaml").read_text())["data"]
    prefix = "resource.customizations.health."
    return {key.removeprefix(prefix).replace("_", "/"): script for key, script in settings.items()}


def judge(pairs: Sequence[tuple[Manifest, Manifest]]) -> list[ArgoVerdict]:
    return argo_verdicts(pairs, health_scripts())


def test_argocd_sees_the_health_that_the_fixtures_say() -> None:
    """In its own Lua, with its own restrictions, by the keys of its ConfigMap."""
    resources = [yaml.safe_load((FOLDER / case["inputPath"]).read_text()) for case in CASES]
    verdicts = judge([(resource, resource) for resource in resources])
    assert [{"status": verdict.health, "message": verdict.message} for verdict in verdicts] == [
        case["healthStatus"] for case in CASES
    ]


@pytest.mark.parametrize(("name", "apply"), [("orders-payments", "server-side"), ("session-window", "client-side")])
def test_what_argocd_calls_out_of_sync(api_server: ApiServer, api_namespace: str, name: str, apply: str) -> None:
    kubectl = api_server.kubectl
    kubectl.define(ROOT / "crds")
    path = EXAMPLES / f"{name}.yaml"
    target = yaml.safe_load(path.read_text())
    target["metadata"]["namespace"] = api_namespace
    kubectl("apply", *(["--server-side"] if apply == "server-side" else []), "-n", api_namespace, "-f", str(path))
    job = f"{target['kind'].lower()}/{target['metadata']['name']}"

    def live_after(body: Manifest, *options: str) -> Manifest:
        kubectl("patch", job, "-n", api_namespace, "--type=merge", f"--patch={json.dumps(body)}", *options)
        live: Manifest = json.loads(kubectl("get", job, "-n", api_namespace, "-o", "json"))
        return live

    status = {"phase": "Running", "observedGeneration": 1, "lag": 5, "executors": 2, "history": []}
    live_after({"status": status}, "--subresource=status")
    written = live_after({"metadata": {"finalizers": ["joinery.dev/delete-state"]}})
    annotations = {RESTARTED_AT: "2026-11-28T00:00:00Z", PAUSE_ANNOTATION: "rollouts"}
    annotated = live_after({"metadata": {"annotations": annotations}})
    suspended = live_after({"spec": {"suspend": True}})
    with_field = {**target, "spec": {**target["spec"], "suspend": False}}
    verdicts = judge([(written, target), (annotated, target), (suspended, target), (suspended, with_field)])
    assert [verdict.out_of_sync for verdict in verdicts] == [False, False, False, True], verdicts


def test_argocd_calls_every_object_of_the_chart_in_sync(
    chart: Chart, api_server: ApiServer, api_namespace: str
) -> None:
    """Also with everything on: else `selfHeal` would apply for ever."""
    kubectl = api_server.kubectl
    values = {
        "operator.replicas": 2,
        "watch.namespaces": [api_namespace],
        "watch.class": "blue",
        "networkPolicy.enabled": True,
        "metrics.dashboard.enabled": True,
        "demoPostgres": {"enabled": True, "secretName": "demo"},
    }
    objects = [_moved(target, api_namespace) for target in chart.render(values).objects]
    targets = [target for target in objects if "helm.sh/hook" not in target["metadata"].get("annotations", {})]
    kinds = {target["kind"] for target in targets}
    assert {"CustomResourceDefinition", "Deployment", "PodDisruptionBudget", "Role", "NetworkPolicy"} <= kinds
    pairs = []
    for target in targets:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(target))
        reference = f"{target['kind']}.{_group(target)}/{target['metadata']['name']}".replace("./", "/")
        namespace_flags = ["-n", target["metadata"]["namespace"]] if "namespace" in target["metadata"] else []
        pairs.append((json.loads(kubectl("get", reference, *namespace_flags, "-o", "json")), target))
    for (_, target), verdict in zip(pairs, judge(pairs), strict=True):
        name = f"{target['kind']} {target['metadata']['name']}"
        assert not verdict.out_of_sync, (name, verdict.live, verdict.predicted)


def _group(target: Manifest) -> str:
    return target["apiVersion"].rpartition("/")[0]


def _moved(target: Manifest, namespace: str) -> Manifest:
    """The object in the test's namespace instead of the release's."""
    moved: Manifest = json.loads(json.dumps(target).replace(f'"{NAMESPACE}"', f'"{namespace}"'))
    return moved


def _checkout(folder: Path) -> Path:
    """The files of this repository that Git has, as a clone has them."""
    folder.mkdir()
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True).stdout
    subprocess.run(
        ["tar", "-C", ROOT, "--null", "--files-from=-", "-cf", folder / "files.tar"], input=files, check=True
    )
    subprocess.run(["tar", "-C", folder, "-xf", folder / "files.tar"], check=True)
    (folder / "files.tar").unlink()
    return folder


def test_flux_delivers_the_chart_whole(chart: Chart, tmp_path: Path) -> None:
    """Flux packs a repository without its symlinks, and without what its own patterns and .sourceignore leave out."""
    flux_checkout(_checkout(tmp_path / "clone"), tmp_path / "delivered")
    delivered = tmp_path / "delivered" / "charts" / "joinery"
    assert _files(delivered) == _files(CHART)
    assert Chart(chart.helm, delivered).render().objects == chart.render().objects
    assert (tmp_path / "delivered" / "deploy" / "kustomization.yaml").is_file()


def test_a_chart_whose_definitions_are_symlinks_fails_there(chart: Chart, tmp_path: Path) -> None:
    """So that the test above means something."""
    definitions = _checkout(tmp_path / "clone") / "charts" / "joinery" / "files" / "crds"
    for definition in definitions.iterdir():
        definition.unlink()
        definition.symlink_to(ROOT / "crds" / definition.name)
    flux_checkout(tmp_path / "clone", tmp_path / "delivered")
    with pytest.raises(HelmFailed, match=r"has no files/crds/\*\.yaml"):
        Chart(chart.helm, tmp_path / "delivered" / "charts" / "joinery").render()


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
