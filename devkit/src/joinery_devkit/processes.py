"""Child processes that never outlive this one: started directly, ended by pid."""

from __future__ import annotations

import os
import random
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# Waits for the end of its input, which comes when the owner dies in any way, and then kills the child.
_GUARD = 'read -r _; kill -KILL "$1" 2>/dev/null'
_PORTS = range(15_000, 32_000)
_taken_ports: set[int] = set()


class ChildProcess:
    """One program running beside this process, with its output in `log`.

    The child has a session of its own, so that Ctrl-C at a terminal reaches the owner first. A guard process kills the
    child if the owner dies without a chance to clean up.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command, self.log = tuple(command), log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(os.environ if environment is None else environment),
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def running(self) -> bool:
        return self._child.poll() is None

    def exit_code(self) -> int | None:
        """Return the exit code; None while the child runs; negative: the signal that ended it."""
        return self._child.poll()

    def wait(self, timeout_seconds: float) -> int:
        """Wait until the child ends by itself, and return its exit code. Raises subprocess.TimeoutExpired if it does
        not end in time."""
        return self._child.wait(timeout_seconds)

    def stop(self, grace_seconds: float = 10.0) -> None:
        """Ask the child to end, and kill it if it has not ended after `grace_seconds`."""
        if self.running():
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._reap()

    def kill(self) -> None:
        """Kill the child at once, as a crash would (SIGKILL)."""
        self._child.kill()
        self._reap()

    def _reap(self) -> None:
        # The guard goes first: once the child is reaped, its pid may belong to another process.
        self._guard.kill()
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._child.wait()

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the child's output, without Java's stack frames, which would push out the
        message."""
        return "\n".join(without_frames(self.log.read_text(errors="replace"))[-lines:])

    def __str__(self) -> str:
        return shlex.join(self.command[:1]) + f" (pid {self.pid})"


def without_frames(text: str) -> list[str]:
    """Return the lines of a Java program's output that are not stack frames."""
    return [line for line in text.splitlines() if not line.startswith(("\tat ", "\t... "))]


def free_port() -> int:
    """Return a loopback port that nothing listens on, another one at each call.

    It lies below the kernels' ephemeral ranges. Within them, a client that keeps trying the port of a server that is
    down may get that very port as its own and connect to itself; then the server cannot come back.
    """
    for port in random.sample(_PORTS, 200):
        if port in _taken_ports:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _taken_ports.add(port)
            return port
    raise OSError("no free loopback port among 200 tried")


def deadline_after(seconds: float) -> float:
    """Return a time of the monotonic clock, for `time.monotonic() < deadline` loops."""
    return time.monotonic() + seconds
