"""The first process of the node's namespaces: sets them up, and reaps orphaned processes.

A program of its own, run with the folder of the node's state as its argument. The node sees the machine's files, except
in /var/lib, /var/log and /run, where it finds and leaves only its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

READY = "sandbox-ready"
_SWITCHES = ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables")


def main(directory: Path) -> None:
    # Blocks the signal before there is a child, so that no child ends unnoticed.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    _run("mount", "--make-rshared", "/")
    for name in ("lib", "log"):
        own = directory / "var" / name
        own.mkdir(parents=True)
        _run("mount", "--bind", str(own), f"/var/{name}")
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _run("ip", "link", "set", "lo", "up")
    for name in _SWITCHES:
        (Path("/proc/sys/net") / name).write_text("1")
    (directory / READY).touch()
    while True:
        signal.sigwait({signal.SIGCHLD})
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
