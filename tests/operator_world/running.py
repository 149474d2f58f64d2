"""Starts and ends `operator_process`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from joinery_devkit.kubernetes.kubectl import wait_until
from joinery_devkit.processes import ChildProcess, free_port

TESTS = Path(__file__).parents[1]


class Running:
    """`namespaces`: those that it works for (none: all); `more`: further environment variables."""

    def __init__(self, kubeconfig: Path, log: Path, namespaces: Sequence[str], more: Mapping[str, str]) -> None:
        self.port = free_port()
        settings = {
            "NAMESPACES": ",".join(namespaces),
            "RUNTIME_IMAGE": "example/joinery-runtime:1",
            "METRICS_PORT": str(self.port),
            "POLL_SECONDS": "0.2",
            "FIGURES_SECONDS": "0.4",
        }
        environment = {f"JOINERY_OPERATOR_{name}": value for name, value in settings.items()}
        path = {"PYTHONPATH": str(TESTS)}
        command = [sys.executable, "-m", "operator_world.operator_process", str(kubeconfig)]
        self.process = ChildProcess(command, log, {**os.environ, **environment, **path, **more})

    @property
    def log(self) -> str:
        return self.process.log.read_text()

    def wait_until_ready(self) -> None:
        wait_until("the operator works", lambda: "the operator works" in self.log or self._ended())

    def _ended(self) -> bool:
        if not self.process.running():
            raise AssertionError(f"the operator ended ({self.process.exit_code()}): {self.log}")
        return False

    def stop(self) -> int:
        """As the kubelet does it; returns the exit code."""
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(30)
