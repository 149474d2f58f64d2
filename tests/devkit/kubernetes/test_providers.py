"""Who provides the cluster of the end-to-end tests, and how kind is told what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from joinery_devkit.kubernetes.providers import ExistingCluster, kind_is_here, open_cluster
from joinery_runtime.errors import EnvironmentProblem

# Notes how it was called; `docker network inspect` answers as Docker does for a network with both kinds of addresses.
TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >>"{calls}"
case "$1 $2" in "network inspect") echo "fc00:f853:ccd:e793::1 172.18.0.1 ";; esac
exit {code}
"""
ENVIRONMENT = ("JOINERY_E2E_KUBECONFIG", "JOINERY_E2E_LOAD_IMAGE", "JOINERY_E2E_HOST")


class Tools:
    """Stand-ins for docker and kind, the first on PATH."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._calls = folder, folder / "calls"

    def add(self, name: str, exit_code: int = 0) -> None:
        path = self._folder / name
        path.write_text(TOOL.format(calls=self._calls, code=exit_code))
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    # No node of our own that is up counts here.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return Tools(folder)


def test_a_cluster_that_the_user_names_comes_first(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docker", "kind", "push-image"):
        tools.add(name)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()
    monkeypatch.setenv("JOINERY_E2E_KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("JOINERY_E2E_LOAD_IMAGE", "push-image --to here")
    monkeypatch.setenv("JOINERY_E2E_HOST", "192.0.2.7")
    with open_cluster() as cluster:
        assert cluster.kubeconfig == kubeconfig
        assert cluster.host_address == "192.0.2.7"
        cluster.load_image(tmp_path / "image.tar")
    assert tools.calls == [f"push-image --to here {tmp_path}/image.tar"]


def test_a_kubeconfig_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOINERY_E2E_KUBECONFIG", "/nowhere/config")
    with pytest.raises(EnvironmentProblem, match="'/nowhere/config' is not a file"), open_cluster():
        pass


def test_what_a_named_cluster_cannot_tell_has_to_be_said() -> None:
    cluster = ExistingCluster(Path("kubeconfig"))
    with pytest.raises(EnvironmentProblem, match="JOINERY_E2E_LOAD_IMAGE is not set"):
        cluster.load_image(Path("image.tar"))
    with pytest.raises(EnvironmentProblem, match="JOINERY_E2E_HOST is not set"):
        assert cluster.host_address


def test_kind_s_cluster_is_made_fed_and_deleted(tools: Tools, tmp_path: Path) -> None:
    for tool in ("docker", "kind", "kubectl"):
        tools.add(tool)
    with open_cluster() as cluster:
        assert cluster.host_address == "172.18.0.1"
        cluster.load_image(tmp_path / "image.tar")
        kubeconfig = cluster.kubeconfig
    probed, created, waited, inspected, loaded, deleted = tools.calls
    name = created.split()[3]
    assert probed == "docker version"
    assert created == f"kind create cluster {name} --kubeconfig={kubeconfig} --wait=180s"
    assert waited.startswith(f"kubectl --kubeconfig={kubeconfig} rollout status deployment/coredns ")
    assert inspected.startswith("docker network inspect kind ")
    assert loaded == f"kind load image-archive {tmp_path}/image.tar {name}"
    assert deleted == f"kind delete cluster {name} --kubeconfig={kubeconfig}"
    assert not kubeconfig.parent.exists()


def test_what_kind_left_of_a_cluster_that_it_could_not_make_is_deleted(tools: Tools) -> None:
    tools.add("docker")
    tools.add("kind", exit_code=1)
    with pytest.raises(EnvironmentProblem, match="`kind create cluster"), open_cluster():
        pass
    assert [call.split()[1] for call in tools.calls if call.startswith("kind")] == ["create", "delete"]


def test_kind_without_a_docker_that_answers_is_not_used(tools: Tools) -> None:
    tools.add("kind")
    tools.add("docker", exit_code=1)
    assert not kind_is_here()
