"""Runs an image without a cluster, like a restricted pod: as its user, without rights, with only /tmp writable."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The last command stays process 1 of its namespace, as in a container.
_SCRIPT = """
set -e
root=$1; scratch=$2; shift 2
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount --bind "$scratch" "$root/tmp"
for file in hosts resolv.conf; do touch "$root/etc/$file"; mount --bind "/etc/$file" "$root/etc/$file"; done
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """A mounted image. `settings` are the image's own (Env, Entrypoint, Cmd, User, WorkingDir)."""

    root: Path
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that the pod sets, beside the image's own."""

    def start(self, scratch: Path, arguments: Sequence[str] = (), user: str = "") -> subprocess.Popen[str]:
        """Start the entry point with `arguments` (without any: the image's own) and with `scratch` as its /tmp. The
        process is `unshare`; its one child is the container's process 1, which ends with it."""
        scratch.chmod(0o1777)
        isolate = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
        drop = ["setpriv", f"--reuid={user or self.settings['User']}", "--regid=0", "--clear-groups"]
        drop += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        variables = [*self.settings["Env"], *(f"{name}={value}" for name, value in self.environment.items())]
        enter = ["env", "--ignore-environment", f"--chdir={self.settings['WorkingDir']}", *variables]
        command = [*self.settings.get("Entrypoint", []), *(arguments or self.settings.get("Cmd", []))]
        script = ["sh", "-c", _SCRIPT, "sh", str(self.root), str(scratch)]
        return subprocess.Popen(
            [*isolate, *script, *drop, *enter, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, scratch: Path, *arguments: str, user: str = "", timeout: float = 300) -> tuple[int, str]:
        """Return the exit code, and all that was printed. `timeout` is in seconds."""
        with self.start(scratch, arguments, user) as process:
            try:
                printed, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            return process.returncode, printed
