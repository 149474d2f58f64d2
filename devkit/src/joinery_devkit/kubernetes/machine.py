"""What the node uses of this machine outside its namespaces: one end of a virtual cable, cgroups, kernel settings."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from joinery_runtime.errors import EnvironmentProblem

_CGROUPS = ("sys/fs/cgroup/kubepods", "sys/fs/cgroup/*/kubepods")
_CGROUP_SECONDS = 10.0
_KERNEL = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
_PROC = Path("/proc/sys")
# Debian has some programs in folders that a user's PATH lacks.
ENVIRONMENT = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def run(command: Sequence[str], stdin: IO[bytes] | None = None) -> str:
    """Run a command, and return what it prints. Raises EnvironmentProblem with its own message if it fails."""
    source = stdin or subprocess.DEVNULL
    done = subprocess.run(command, stdin=source, capture_output=True, check=False, env=ENVIRONMENT)
    if done.returncode != 0:
        raise EnvironmentProblem(
            "A step of the tests' Kubernetes node failed",
            facts=f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}",
        )
    return done.stdout.decode(errors="replace")


def add_link(link: str, namespace_of: int, host: str, node: str, networks: Sequence[str]) -> None:
    """Add a virtual cable from `link` here (address `host`) to eth0 in the network namespace of process `namespace_of`
    (address `node`), over which `networks` are reached."""
    inside = ["nsenter", f"--target={namespace_of}", "--net", "ip"]
    run(["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(namespace_of)])
    run(["ip", "addr", "add", f"{host}/24", "dev", link])
    run(["ip", "link", "set", link, "up"])
    run([*inside, "addr", "add", f"{node}/24", "dev", "eth0"])
    run([*inside, "link", "set", "eth0", "up"])
    run([*inside, "route", "add", "default", "via", host])
    for network in networks:
        run(["ip", "route", "add", network, "via", node])


def pod_cgroups() -> list[Path]:
    """Return the cgroups of pods that a kubelet on this machine makes, one folder per hierarchy."""
    return [folder for pattern in _CGROUPS for folder in Path("/").glob(pattern)]


def remove_pod_cgroups() -> None:
    """Remove the cgroups of pods whose processes have been killed; the kernel may need a moment to reap these."""
    deadline = time.monotonic() + _CGROUP_SECONDS
    for root in pod_cgroups():
        for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
            _remove_cgroup(folder, deadline)
        _remove_cgroup(root, deadline)


def _remove_cgroup(cgroup: Path, deadline: float) -> None:
    while True:
        try:
            cgroup.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def kernel_settings() -> dict[str, str]:
    """Return the kernel settings that kubelet changes."""
    return {name: (_PROC / name).read_text() for name in _KERNEL}


def restore_kernel_settings(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        if (_PROC / name).read_text() != value:
            (_PROC / name).write_text(value)
