"""The programs of a Kubernetes for tests, built from their Go modules once and kept in the user's cache.

A program is looked for in `$KUBEBUILDER_ASSETS`, then in the cache, and built when it is in neither. The pinned modules
are in go_modules/. A program that a user may have installed (kubectl, helm) is also taken from PATH.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from joinery_devkit.environment import cache_directory
from joinery_runtime.errors import EnvironmentProblem

KUBERNETES_VERSION = "1.34.4"  # 1.34 is the last whose kubelet takes cgroup v1 as it is
_MODULES = Path(__file__).with_name("go_modules")
_STAMP = "k8s.io/component-base/version"
_ON_PATH = ("kubectl", "helm")
_ERROR_LINES = 15


@dataclass(frozen=True, slots=True)
class Build:
    """Programs that one `go build` makes of one pinned module; `packages` is by program."""

    module: str
    version: str
    packages: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return cache_directory() / f"{self.module}-{self.version}"


def _kubernetes(*programs: str) -> Build:
    return Build("kubernetes", KUBERNETES_VERSION, {name: f"k8s.io/kubernetes/cmd/{name}" for name in programs})


ETCD = Build("etcd", "3.6.5", {"etcd": "go.etcd.io/etcd/server/v3"})
API_SERVER = _kubernetes("kube-apiserver", "kube-controller-manager", "kubectl")
NODE = _kubernetes("kube-scheduler", "kubelet", "kube-proxy")
COREDNS = Build("coredns", "1.14.7", {"coredns": "github.com/coredns/coredns"})
HELM = Build("helm", "3.21.4", {"helm": "helm.sh/helm/v3/cmd/helm"})
API_TIER: Sequence[Build] = (ETCD, API_SERVER)
WHOLE_NODE: Sequence[Build] = (*API_TIER, NODE, COREDNS, HELM)


def program(name: str) -> Path:
    """The path of a program, which is built first when this machine has none. Concurrent callers wait for the first.

    Raises EnvironmentProblem when Go is missing or the build fails.
    """
    return _assets(name) or _cached(name) or _on_path(name) or _built(name)


def build(builds: Sequence[Build]) -> None:
    """Builds what the cache does not have yet of these."""
    for each in builds:
        for name in each.packages:
            if _assets(name) is None:
                _built(name)


def _build_of(name: str) -> Build:
    return next(each for each in WHOLE_NODE if name in each.packages)


def _assets(name: str) -> Path | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    return _existing(Path(folder) / name) if folder else None


def _cached(name: str) -> Path | None:
    return _existing(_build_of(name).folder / name)


def _on_path(name: str) -> Path | None:
    found = shutil.which(name) if name in _ON_PATH else None
    return Path(found) if found else None


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def _built(name: str) -> Path:
    build = _build_of(name)
    build.folder.mkdir(parents=True, exist_ok=True)
    with _locked(build.folder / "lock"):
        missing = {
            each: package
            for each, package in build.packages.items()
            if not (build.folder / each).is_file() and _assets(each) is None
        }
        if missing:
            _compile(build, missing)
    return build.folder / name


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _compile(build: Build, packages: Mapping[str, str]) -> None:
    go = go_command()
    print(f"joinery: building {', '.join(packages)} {build.version}, once (minutes)", file=sys.stderr, flush=True)
    begun = time.monotonic()
    for left in build.folder.glob("partial-*"):  # by a build that was killed: who builds has the lock
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=build.folder, prefix="partial-") as work:
        source, out = Path(work) / "source", Path(work) / "out"
        source.mkdir()
        out.mkdir()
        for kind in ("mod", "sum"):
            shutil.copy(_MODULES / f"{build.module}.{kind}", source / f"go.{kind}")
        for names, target in _targets(packages, out):
            _go_build(go, source, target, names, build)
        # The rename comes last, so a program that has its final name is whole.
        for name in packages:
            (out / name).rename(build.folder / name)
    print(f"joinery: built them in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _targets(packages: Mapping[str, str], out: Path) -> list[tuple[list[str], str]]:
    """One build for many packages shares their dependencies, but names each program after its folder."""
    if all(package.endswith(f"/{name}") for name, package in packages.items()):
        return [(list(packages.values()), f"{out}/")]
    return [([package], str(out / name)) for name, package in packages.items()]


def _go_build(go: str, source: Path, target: str, packages: Sequence[str], build: Build) -> None:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    facts = {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(["-s -w", *(f"-X {_STAMP}.{name}={value}" for name, value in facts.items())])
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", target, *packages],
        cwd=source,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last_words = "\n".join((done.stdout + done.stderr).splitlines()[-_ERROR_LINES:])
        raise EnvironmentProblem(
            f"{build.module} {build.version} cannot be built",
            facts=f"go build ended with {done.returncode}:\n{last_words}",
            todo="If it cannot download modules, check `go env GOPROXY` and the network",
        )


def go_command() -> str:
    found = shutil.which("go")
    if found is None:
        raise EnvironmentProblem(
            "The tests' Kubernetes cannot be built",
            facts="there is no `go` on PATH",
            todo="Install Go 1.24 or newer, or name a folder that has the programs in KUBEBUILDER_ASSETS",
        )
    return found
