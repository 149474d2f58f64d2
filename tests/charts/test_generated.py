"""What is generated from the chart is in step with it, and the kustomize bases build."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from charts.rendering import NAMESPACE, ROOT, Chart, Manifest
from joinery_devkit.kubernetes.binaries import program

pytestmark = pytest.mark.services


def _identity(manifest: Manifest) -> tuple[str, str, str]:
    return manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def _built(folder: str) -> dict[tuple[str, str, str], Manifest]:
    command = [program("kubectl"), "kustomize", str(ROOT / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return {_identity(manifest): manifest for manifest in yaml.safe_load_all(done.stdout)}


def test_generated_files_are_in_step(chart: Chart) -> None:
    command = [sys.executable, str(ROOT / "deploy/render.py"), "--check", "--helm", str(chart.helm)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), "run `python deploy/render.py`"


def test_the_plain_manifests_are_what_the_chart_renders(chart: Chart) -> None:
    """But for what only Helm reads, and the pod of `helm test`."""
    plain = {
        _identity(resource): resource for resource in yaml.safe_load_all((ROOT / "deploy/joinery.yaml").read_text())
    }
    rendered = {_identity(resource): resource for resource in chart.render().objects}
    assert set(rendered) - set(plain) == {("Pod", NAMESPACE, "joinery-test-ready")}
    for identity, manifest in plain.items():
        same = [name for name in manifest if name != "metadata"]
        assert {name: manifest[name] for name in same} == {name: rendered[identity][name] for name in same}
        assert "Helm" not in manifest["metadata"]["labels"].values()


def test_the_kustomize_base_is_the_plain_manifests_and_a_restricted_namespace() -> None:
    plain = {
        _identity(resource): resource for resource in yaml.safe_load_all((ROOT / "deploy/joinery.yaml").read_text())
    }
    built = _built("deploy")
    namespace = built.pop(("Namespace", "", NAMESPACE))
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert built == plain


def test_the_example_overlay_names_images_and_the_jobs_namespace() -> None:
    built = _built("examples/kubernetes/install")
    deployment = built["Deployment", NAMESPACE, "joinery-operator"]
    (operator,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {variable["name"]: variable["value"] for variable in operator["env"] if "value" in variable}
    assert operator["image"] == "example/joinery-operator:0.1.0"
    assert environment["JOINERY_OPERATOR_RUNTIME_IMAGE"] == "example/joinery-runtime:0.1.0"
    binding = built["RoleBinding", "jobs", "joinery-driver"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "joinery-driver", "namespace": "jobs"}]
    assert ("ServiceAccount", "jobs", "joinery-driver") in built
