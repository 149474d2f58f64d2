"""kubectl as a subprocess."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from joinery_runtime.errors import EnvironmentProblem, JoineryError


class KubectlFailed(JoineryError):
    """kubectl ended with an error of its own."""

    def __init__(self, what: str, message: str, code: int) -> None:
        self.message, self.code = message, code
        super().__init__(what, facts=message)

    def __reduce__(self) -> tuple[object, ...]:
        return (KubectlFailed, (self.what, self.message, self.code))


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster and namespace; without them, as kubectl is set up.

    Parameters
    ----------
    namespace
        The job's namespace.
    context
        A context of the kubeconfig.
    kubeconfig
        The kubeconfig.
    """

    namespace: Annotated[str | None, Parameter(name=["--namespace", "-n"])] = None
    context: str | None = None
    kubeconfig: str | None = None

    def read(self, *arguments: str) -> Any:
        """What kubectl answers as JSON. Raises KubectlFailed."""
        done = subprocess.run(
            [*self._command(), *arguments, "--output=json"], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {arguments[0]} failed", done.stderr.strip(), done.returncode)
        return json.loads(done.stdout)

    def run(self, *arguments: str) -> int:
        """Lets kubectl talk to the user; its exit code."""
        return subprocess.run([*self._command(), *arguments], check=False).returncode

    def _command(self) -> list[str]:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise EnvironmentProblem("There is no kubectl on PATH", todo="Install it; this command is a plugin of it")
        given = {"namespace": self.namespace, "context": self.context, "kubeconfig": self.kubeconfig}
        return [kubectl, *(f"--{name}={value}" for name, value in given.items() if value is not None)]
