"""The operator in a process of its own: `python -m simulated_cluster.operator_process KUBECONFIG`.

`TEST_RECONCILE=small` puts the small reconcile in place of the real one. `TEST_KILL_AT=N` ends the process without
any clean-up as soon as the API server has carried out its Nth call that changes something. `TEST_BLIND=1` drops all
events of the watches, as a dead connection does. `TEST_TERMINATED=1` sends SIGTERM when the watches end
for the first time, for whatever reason.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from joinery_devkit.kubernetes.kubectl import wait_until
from joinery_devkit.processes import ChildProcess, free_port
from joinery_operator.decision import Manifest
from joinery_operator.kube import process
from joinery_operator.kube.api import Api, ApiResponse
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.process import log_json
from joinery_operator.kube.reconciler import Reconcile
from joinery_operator.kube.resources import ApiResource
from joinery_operator.settings import read_settings
from joinery_runtime.errors import JoineryError

_IMPORTS_FROM = Path(__file__).parents[1]
KILLED = 137


class OperatorProcess:
    """Starts and ends the process. `namespaces`: those that it watches (none: all); `more`: further environment
    variables."""

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
        path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(_IMPORTS_FROM), os.environ.get("PYTHONPATH")]))}
        command = [sys.executable, "-m", "simulated_cluster.operator_process", str(kubeconfig)]
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
        return self.process.wait(120)


class KilledApi(Api):
    """Counts the calls that change something; reviews of rights do not."""

    calls = 0

    async def _send(self, method: str, address: str, headers: dict[str, str], body: Manifest | None) -> ApiResponse:
        answer = await super()._send(method, address, headers, body)
        if method != "GET" and "selfsubjectaccessreviews" not in address:
            KilledApi.calls += 1
            if str(KilledApi.calls) == os.environ.get("TEST_KILL_AT"):
                os._exit(KILLED)
        return answer


class BlindController(Controller):
    async def on_watch_event(self, resource: ApiResource, manifest: Manifest, deleted: bool) -> None:
        pass


class TerminatedController(Controller):
    terminated = False

    async def close(self) -> None:
        if not TerminatedController.terminated:
            TerminatedController.terminated = True
            os.kill(os.getpid(), signal.SIGTERM)
        await super().close()


def chosen_reconcile() -> Reconcile:
    if os.environ.get("TEST_RECONCILE") == "small":
        from simulated_cluster.small_reconcile import reconcile as small_reconcile  # noqa: PLC0415

        return small_reconcile
    from joinery_operator.reconcile import reconcile  # noqa: PLC0415

    return reconcile


if __name__ == "__main__":
    log_json()
    if os.environ.get("TEST_BLIND"):
        process.Controller = BlindController  # type: ignore[misc]
    if os.environ.get("TEST_TERMINATED"):
        process.Controller = TerminatedController  # type: ignore[misc]
    if os.environ.get("TEST_FEW_TRIES"):
        hurried = process.kopf_settings(read_settings().owner_selector)
        hurried.networking.error_backoffs = (0.1,)
        process.kopf_settings = lambda _: hurried
        process.REGAIN_SECONDS = 0.5
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(process.serve(read_settings(), chosen_reconcile(), Path(sys.argv[1]), KilledApi))
    except JoineryError as error:
        sys.exit(str(error))
