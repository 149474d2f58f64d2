"""Where the programs come from: named folders, the cache, a build that counts only when it is whole."""

from __future__ import annotations

import shutil
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


def built() -> list[str]:
    return sorted(path.name for path in cache_directory().glob("*/*") if path.name != "lock")


def test_every_program_is_of_this_module_or_of_one_that_it_pins() -> None:
    pins = (binaries.MODULE / "go.mod").read_text()
    for package in binaries.PACKAGES.values():
        if package.startswith("./"):
            assert (binaries.MODULE / package / "main.go").is_file()
        else:
            assert f"\t{package}\n" in pins, "a tool of the module, so that `go mod tidy` keeps what it needs"
    assert f"k8s.io/kubernetes v{binaries.KUBERNETES_VERSION}" in pins


def test_a_named_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_machine: Path) -> None:
    fake_go(empty_machine)
    binaries.build(binaries.API_TIER)
    assets = tmp_path / "assets"
    assets.mkdir()
    named = executable(assets / "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert binaries.program("etcd") == named
    assert binaries.program("kube-apiserver") == binaries.programs_folder() / "kube-apiserver"


def test_only_what_a_named_folder_lacks_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_machine: Path
) -> None:
    fake_go(empty_machine)
    for name in ("etcd", "kube-apiserver", "kubectl", "helm"):
        executable(tmp_path / name)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    binaries.build(binaries.API_TIER)
    assert built() == ["kube-controller-manager"]


def test_a_kubectl_of_the_user_s_will_do_and_an_etcd_will_not(empty_machine: Path) -> None:
    theirs = {name: executable(empty_machine / name) for name in ("kubectl", "etcd")}
    assert binaries.program("kubectl") == theirs["kubectl"]
    with pytest.raises(EnvironmentProblem, match="there is no `go` on PATH"):
        binaries.program("etcd")


def test_a_build_makes_what_is_asked_for_together_and_only_once(empty_machine: Path) -> None:
    fake_go(empty_machine)
    binaries.build(["kubelet", "coredns"])
    (empty_machine / "go").unlink()
    binaries.build(["kubelet", "coredns"])
    assert built() == ["coredns", "kubelet"]


def test_other_pins_mean_other_programs(empty_machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_go(empty_machine)
    before = binaries.program("etcd")
    shutil.copytree(binaries.MODULE, tmp_path / "programs")
    with (tmp_path / "programs" / "go.mod").open("a") as pins:
        pins.write("// another pin\n")
    monkeypatch.setattr(binaries, "MODULE", tmp_path / "programs")
    after = binaries.program("etcd")
    assert after != before
    assert after.read_text() == before.read_text() + "// another pin\n"


def test_a_build_that_fails_says_why_and_leaves_nothing(empty_machine: Path) -> None:
    fake_go(empty_machine, then='sys.exit("no such module")')
    with pytest.raises(EnvironmentProblem, match=r"(?s)Kubernetes 1.34.4 cannot be built.*no such module.*GOPROXY"):
        binaries.program("helm")
    assert built() == []


def test_a_build_that_was_killed_does_not_count(empty_machine: Path) -> None:
    fake_go(empty_machine, then="import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    command = [sys.executable, "-c", "from joinery_devkit.kubernetes import binaries; binaries.program('coredns')"]
    killed = subprocess.run(command, capture_output=True, check=False)
    assert killed.returncode == -9
    assert not (binaries.programs_folder() / "coredns").exists()

    fake_go(empty_machine)

    assert binaries.program("coredns").is_file()
    assert built() == ["coredns"]
