"""The node's own network, mounts and processes, in namespaces that end with their first process.

Everything in them ends then, so nothing that the node starts or mounts, and none of its bridges, routes and packet
filters, can remain.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from joinery_devkit.kubernetes import machine
from joinery_devkit.kubernetes.kubectl import wait_until
from joinery_devkit.kubernetes.sandbox_init import READY
from joinery_devkit.processes import ChildProcess, without_frames
from joinery_runtime.errors import EnvironmentProblem

_WAIT_SECONDS = 20.0
_POLL_SECONDS = 0.05
_NAMESPACES = ("--mount", "--net", "--pid", "--ipc")


@dataclass(frozen=True, slots=True)
class _Identity:
    """Identifies a process, and never a later one with the same pid."""

    pid: int
    created: float

    @classmethod
    def of(cls, process: psutil.Process) -> _Identity:
        return cls(process.pid, process.create_time())

    def find(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            alive = process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if alive else None


@dataclass(frozen=True, slots=True)
class _Record:
    """What `stop` must know, even in a later process. `keeper` made the namespaces; when it ends, so does `first`."""

    keeper: _Identity
    first: _Identity
    kept: bool
    kernel: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> _Record | None:
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        return cls(_Identity(**fields["keeper"]), _Identity(**fields["first"]), fields["kept"], fields["kernel"])


class Sandbox:
    """The namespaces of a node. Their state is in `directory`, which `stop` removes. `link` names this machine's end of
    the cable to them."""

    def __init__(self, directory: Path, link: str) -> None:
        self.directory, self.logs, self._link = directory, directory / "log", link
        self._record = directory / "sandbox.json"
        self._guarded: ChildProcess | None = None
        self._services: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def running(self) -> bool:
        record = _Record.read(self._record)
        return record is not None and record.first.find() is not None

    @property
    def detached(self) -> bool:
        """Whether the sandbox runs, and keeps running when the process that started it ends."""
        record = _Record.read(self._record)
        return record is not None and record.kept and self.running

    def start(self, detached: bool) -> None:
        """Start a new sandbox. Unless it is `detached`, it ends with this process, in whatever way that ends."""
        self.stop()
        self.logs.mkdir(parents=True)
        kernel, log = machine.kernel_settings(), self.logs / "sandbox"
        options = ["--fork", "--kill-child=KILL", "--propagation=slave", "--mount-proc"]
        init = [sys.executable, str(Path(__file__).with_name("sandbox_init.py")), str(self.directory)]
        command = ["unshare", *_NAMESPACES, *options, "--", *init]
        if detached:
            keeper = psutil.Process(self._start_detached("sandbox", command).pid)
        else:
            self._guarded = ChildProcess(command, log)
            keeper = psutil.Process(self._guarded.pid)
        self._wait_while_starting(lambda: bool(keeper.children()))
        first = keeper.children()[0]
        self._record.write_text(
            json.dumps(asdict(_Record(_Identity.of(keeper), _Identity.of(first), detached, kernel)))
        )
        self._wait_while_starting((self.directory / READY).exists)

    def connect(self, host: str, node: str, networks: Sequence[str]) -> None:
        """Add a cable between this machine (`host`, such as 10.0.0.1) and the node (`node`), over which `networks` are
        reached."""
        machine.add_link(self._link, self._first_pid(), host, node, networks)

    def spawn(self, name: str, command: Sequence[str]) -> None:
        """Start a service in the sandbox; its output is in `logs`/`name`."""
        self._start_detached(name, self._command_inside(command))

    def run(self, command: Sequence[str], stdin: Path | None = None) -> str:
        """Run a command in the sandbox, and return what it prints."""
        if stdin is None:
            return machine.run(self._command_inside(command))
        with stdin.open("rb") as source:
            return machine.run(self._command_inside(command), source)

    def ended_service(self) -> str | None:
        """Return the name of a service that ended by itself, if there is one."""
        return next((name for name, process in self._services.items() if process.poll() is not None), None)

    def last_words(self, name: str, lines: int = 15) -> str:
        log = self.logs / name
        return "\n".join(without_frames(log.read_text(errors="replace"))[-lines:]) if log.exists() else ""

    def stop(self) -> bool:
        """End the sandbox, even one whose owner was killed, and remove what it leaves. Returns whether there was
        one."""
        record = _Record.read(self._record)
        if self._guarded is not None:
            self._guarded.kill()
            self._guarded = None
        if record is not None:
            if keeper := record.keeper.find():
                keeper.kill()  # the kernel then ends `first`, and with it everything inside
            link = Path("/sys/class/net") / self._link
            wait_until("the node's namespaces end", lambda: record.first.find() is None and not link.exists())
        for service in self._services.values():
            service.wait(_WAIT_SECONDS)
        self._services.clear()
        if record is not None:
            machine.restore_kernel_settings(record.kernel)
        shutil.rmtree(self.directory, ignore_errors=True)
        return record is not None

    def _start_detached(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.logs / name).open("ab") as log:
            self._services[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=machine.ENVIRONMENT,
                start_new_session=True,
            )
        return self._services[name]

    def _command_inside(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", f"--target={self._first_pid()}", *_NAMESPACES, "--", *command]

    def _first_pid(self) -> int:
        record = _Record.read(self._record)
        assert record is not None, "the sandbox has not been started"
        return record.first.pid

    def _wait_while_starting(self, met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not met():
            guarded_ended = self._guarded is not None and not self._guarded.running()
            if guarded_ended or self.ended_service() or time.monotonic() > deadline:
                raise EnvironmentProblem(
                    "The namespaces of the tests' Kubernetes node cannot be made",
                    facts=self.last_words("sandbox") or f"not within {_WAIT_SECONDS:.0f} s",
                    todo="They need root and a Linux that lets it make namespaces",
                )
            time.sleep(_POLL_SECONDS)
