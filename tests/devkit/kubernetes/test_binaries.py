"""Where the programs come from: named folders, the cache, a build that counts only when it is whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from joinery_devkit.environment import cache_directory
from joinery_devkit.kubernetes import binaries
from joinery_runtime.errors import EnvironmentProblem

# Writes every program that it is asked for, slowly enough to be interrupted in the middle when told so.
GO = """#!{python}
import pathlib, sys, time
target, packages = sys.argv[sys.argv.index("-o") + 1], sys.argv[sys.argv.index("-o") + 2:]
for package in packages:
    out = pathlib.Path(target) / package.rsplit("/", 1)[1] if target.endswith("/") else pathlib.Path(target)
    out.write_text(pathlib.Path("go.mod").read_text())
    print("wrote", out, flush=True)
{then}
"""


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No programs anywhere; the folder of the only ones on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return folder


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_go(folder: Path, then: str = "") -> None:
    executable(folder / "go", GO.format(python=sys.executable, then=then))


def test_every_program_is_built_from_a_module_that_is_pinned() -> None:
    names = [name for build in binaries.WHOLE_NODE for name in build.packages]
    assert len(names) == len(set(names)) == 9
    for build in binaries.WHOLE_NODE:
        pinned = (Path(binaries.__file__).with_name("go_modules") / f"{build.module}.mod").read_text()
        assert f"v{build.version}\n" in pinned


def test_a_named_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_machine: Path) -> None:
    fake_go(empty_machine)
    binaries.build(binaries.API_TIER)
    assets = tmp_path / "assets"
    assets.mkdir()
    named = executable(assets / "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert binaries.program("etcd") == named
    assert binaries.program("kube-apiserver") == binaries.API_SERVER.folder / "kube-apiserver"


def test_only_what_a_named_folder_lacks_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_machine: Path
) -> None:
    fake_go(empty_machine)
    for name in ("etcd", "kube-apiserver", "kubectl"):
        executable(tmp_path / name)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    binaries.build(binaries.API_TIER)
    built = [each.name for each in cache_directory().glob("*/*") if each.name != "lock"]
    assert built == ["kube-controller-manager"]


def test_a_kubectl_of_the_user_s_will_do_and_an_etcd_will_not(empty_machine: Path) -> None:
    theirs = {name: executable(empty_machine / name) for name in ("kubectl", "etcd")}
    assert binaries.program("kubectl") == theirs["kubectl"]
    with pytest.raises(EnvironmentProblem, match="there is no `go` on PATH"):
        binaries.program("etcd")


def test_a_build_makes_the_programs_of_one_module_together_and_only_once(empty_machine: Path) -> None:
    fake_go(empty_machine)
    built = binaries.program("kubelet")
    assert "k8s.io/kubernetes v1.34.4" in built.read_text()
    (empty_machine / "go").unlink()
    assert binaries.program("kube-proxy").parent == built.parent
    assert sorted(each.name for each in built.parent.iterdir()) == ["kube-proxy", "kube-scheduler", "kubelet", "lock"]


def test_a_build_that_fails_says_why_and_leaves_nothing(empty_machine: Path) -> None:
    fake_go(empty_machine, then='sys.exit("no such module")')
    with pytest.raises(EnvironmentProblem, match=r"(?s)helm 3.21.4 cannot be built.*no such module.*GOPROXY"):
        binaries.program("helm")
    assert [each.name for each in binaries.HELM.folder.iterdir()] == ["lock"]


def test_a_build_that_was_killed_does_not_count(empty_machine: Path) -> None:
    fake_go(empty_machine, then="import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    command = [sys.executable, "-c", "from joinery_devkit.kubernetes import binaries; binaries.program('coredns')"]
    killed = subprocess.run(command, capture_output=True, check=False)
    assert killed.returncode == -9
    assert not (binaries.COREDNS.folder / "coredns").exists()

    fake_go(empty_machine)

    assert binaries.program("coredns").is_file()
    assert sorted(each.name for each in binaries.COREDNS.folder.iterdir()) == ["coredns", "lock"]
