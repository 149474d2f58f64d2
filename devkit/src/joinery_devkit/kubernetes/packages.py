"""Installs Debian packages that tests need and this machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from joinery_devkit.environment import cache_directory, locked
from joinery_runtime.errors import EnvironmentProblem

CNI_PROGRAMS = Path("/usr/lib/cni")
# By the program that shows whether a package is installed.
NODE_PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "containerd": "containerd",
        "runc": "runc",
        str(CNI_PROGRAMS / "bridge"): "containernetworking-plugins",
        "conntrack": "conntrack",
        "ip": "iproute2",
        "ipset": "ipset",
        "iptables": "iptables",
        "nsenter": "util-linux",
        "openssl": "openssl",
    }
)
BUSYBOX: Mapping[str, str] = MappingProxyType({"/bin/busybox": "busybox-static"})
IMAGE_PACKAGES: Mapping[str, str] = MappingProxyType({"buildah": "buildah", "debootstrap": "debootstrap"})
COMPILER: Mapping[str, str] = MappingProxyType({"cc": "build-essential"})
POOLER: Mapping[str, str] = MappingProxyType({"pgbouncer": "pgbouncer"})
ALL: Mapping[str, str] = MappingProxyType({**NODE_PACKAGES, **BUSYBOX, **IMAGE_PACKAGES})
_LOCK_SECONDS = 300


def install(packages: Mapping[str, str]) -> None:
    """Install, with apt-get, the packages whose program is missing. Raises EnvironmentProblem if that is
    impossible."""
    missing = _missing_packages(packages)
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise EnvironmentProblem(
            "The tests lack programs",
            facts=f"not on this machine: {', '.join(sorted(set(packages) & set(missing)))}",
            todo=f"Install the packages {' '.join(missing.values())} (Debian's names), or run as root on Debian",
        )
    # apt-get fails while another one updates its lists, whatever its timeout.
    with locked(cache_directory() / "packages.lock"):
        apt = ["apt-get", "-qq", "-o", f"DPkg::Lock::Timeout={_LOCK_SECONDS}"]
        if missing := _missing_packages(packages):  # another process may have installed them meanwhile
            _run([*apt, "update"])
            _run([*apt, "install", "--yes", "--no-install-recommends", *sorted(missing.values())])
    if still := _missing_packages(packages):
        raise EnvironmentProblem("apt-get installed the packages without these programs", facts=", ".join(still))


def _missing_packages(packages: Mapping[str, str]) -> dict[str, str]:
    # Debian has iptables and other programs in folders that a user's PATH lacks.
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return {program: package for program, package in packages.items() if shutil.which(program, path=path) is None}


def _run(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EnvironmentProblem(
            "A package cannot be installed",
            facts=f"{' '.join(command)} said: {(done.stderr or done.stdout).strip()}",
            todo="Install it by hand",
        )
