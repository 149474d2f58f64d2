"""The programs of a Kubernetes for tests, built once from pinned Go modules and cached in the user's cache.

A program is looked for in `$KUBEBUILDER_ASSETS`, then in the cache, and built if it is in neither. programs/ is one Go
module for all of them, so that shared code is compiled once; therefore its pins keep to the releases of etcd, CoreDNS
and Helm that use the Kubernetes libraries of KUBERNETES_VERSION. A program that a user may have installed (kubectl,
helm) is also taken from PATH.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from joinery_devkit.environment import cache_directory, locked
from joinery_runtime.errors import EnvironmentProblem

KUBERNETES_VERSION = "1.34.4"  # 1.34 is the last whose kubelet accepts cgroup v1 without a setting
MODULE = Path(__file__).with_name("programs")
PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "etcd": "./etcd",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        "helm": "helm.sh/helm/v3/cmd/helm",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubelet": "k8s.io/kubernetes/cmd/kubelet",
        "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
        "kube-router": "./kube-router",
        "coredns": "./coredns",
        "pause": "./pause",
    }
)
API_TIER: Sequence[str] = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm")
WHOLE_NODE: Sequence[str] = tuple(PACKAGES)
_STAMP = "k8s.io/component-base/version"
_ON_PATH = ("kubectl", "helm")
_ERROR_LINES = 15


def program(name: str) -> Path:
    """Return the path of a program, which is built if this machine has none. Concurrent callers wait for the first.

    Raises EnvironmentProblem if Go is missing or the build fails.
    """
    if prebuilt := _find_prebuilt(name):
        return prebuilt
    if name in _ON_PATH and (on_path := shutil.which(name)):
        return Path(on_path)
    build([name])
    return programs_folder() / name


def build(names: Sequence[str]) -> None:
    """Build those of these programs that this machine lacks, all at once."""
    if all(map(_find_prebuilt, names)):  # so that nobody waits for builds of other programs
        return
    folder = programs_folder()
    with locked(folder / "lock"):
        if missing := [name for name in names if _find_prebuilt(name) is None]:
            _compile_programs(folder, missing)


def programs_folder() -> Path:
    """Return the folder of the programs that the present pins give."""
    return cache_directory() / f"kubernetes-{KUBERNETES_VERSION}-{_sources_digest(MODULE)}"


@cache
def _sources_digest(module: Path) -> str:
    content = b"\0".join(path.read_bytes() for path in sorted(module.rglob("*.*")))
    return hashlib.sha256(content).hexdigest()[:8]


def _find_prebuilt(name: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [*([Path(assets)] if assets else []), programs_folder()]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _compile_programs(folder: Path, names: Sequence[str]) -> None:
    go = go_command()
    print(f"joinery: building {', '.join(names)}, once (minutes)", file=sys.stderr, flush=True)
    begun = time.monotonic()
    for partial in folder.glob("partial-*"):  # of a build that was killed: the running one holds the lock
        shutil.rmtree(partial)
    with tempfile.TemporaryDirectory(dir=folder, prefix="partial-") as work:
        title = f"The programs of Kubernetes {KUBERNETES_VERSION}"
        # The linker's options give the programs their version.
        major, minor, _ = KUBERNETES_VERSION.split(".")
        stamped = {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor}
        stamps = " ".join(f"-X {_STAMP}.{name}={value}" for name, value in stamped.items())
        # In a folder, each program is named after the last part of its package.
        go_build(go, MODULE, f"{work}/", [PACKAGES[name] for name in names], link_options=stamps, title=title)
        # The rename comes last, so a program with its final name is complete.
        for name in names:
            (Path(work) / name).rename(folder / name)
    print(f"joinery: built them in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def built_program(module: Path, package: str = ".") -> Path:
    """Return the path of the program that a package of this Go module is, which is built once and cached. Concurrent
    callers wait for the first. Raises EnvironmentProblem if Go is missing or the build fails."""
    sources = b"\0".join(path.read_bytes() for path in sorted(module.rglob("*.*")))
    folder = f"{module.parent.name}-{hashlib.sha256(sources).hexdigest()[:8]}"
    target = cache_directory() / folder / (module / package).resolve().name
    with locked(target.with_suffix(".lock")):
        if not target.exists():
            go = go_command()
            print(f"joinery: building {target.name}, once (minutes)", file=sys.stderr, flush=True)
            partial = target.with_suffix(".partial")
            go_build(go, module, str(partial), [f"./{package}"], title=target.name)
            partial.rename(target)
    return target


def go_build(
    go: str, module: Path, target: str, packages: Sequence[str], *, link_options: str = "", title: str
) -> None:
    """Build packages of a Go module into `target`. `title` names them in an error. Raises EnvironmentProblem."""
    # A compiler that makes no debug information and rarely collects garbage takes 40 % less time.
    options = ["-mod=readonly", "-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags=-s -w {link_options}"]
    done = subprocess.run(
        [go, "build", *options, "-o", target, *packages],
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOGC": "400", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last_words = "\n".join((done.stdout + done.stderr).splitlines()[-_ERROR_LINES:])
        raise EnvironmentProblem(
            f"{title} cannot be built",
            facts=f"go build ended with {done.returncode}:\n{last_words}",
            todo="If it cannot download modules, check `go env GOPROXY` and the network",
        )


def go_command() -> str:
    command = shutil.which("go")
    if command is None:
        raise EnvironmentProblem(
            "The tests' Kubernetes cannot be built",
            facts="there is no `go` on PATH",
            todo="Install Go 1.24 or newer, or name a folder that has the programs in KUBEBUILDER_ASSETS",
        )
    return command
