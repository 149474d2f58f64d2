"""ArgoCD's and Flux's own code, from their Go modules: what ArgoCD's application controller says of objects, and what
Flux's source-controller makes of a repository."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joinery_devkit.kubernetes.binaries import built_program

_MODULE = Path(__file__).with_name("programs")


def build() -> None:
    """Build both programs ahead."""
    for package in ("argocd", "flux"):
        built_program(_MODULE, package)


@dataclass(frozen=True, slots=True)
class ArgoVerdict:
    """What ArgoCD shows of an object: its health, and whether it differs from what Git has. `live` and `predicted` are
    the two sides that were compared."""

    health: str | None
    message: str
    out_of_sync: bool
    live: Mapping[str, Any]
    predicted: Mapping[str, Any]


def argo_verdicts(
    objects: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], health_scripts: Mapping[str, str]
) -> list[ArgoVerdict]:
    """Judge objects, each as it is on the cluster and as Git has it. `health_scripts` are Lua by group/kind, as in
    `argocd-cm`. Raises CalledProcessError, with ArgoCD's words on standard error."""
    questions = [{"live": live, "target": target, "health": health_scripts} for live, target in objects]
    command = [str(built_program(_MODULE, "argocd"))]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, check=True)
    return [
        ArgoVerdict(
            health=(answer["health"] or {}).get("status"),
            message=(answer["health"] or {}).get("message", ""),
            out_of_sync=answer["modified"],
            live=answer["live"],
            predicted=answer["predicted"],
        )
        for answer in json.loads(done.stdout)
    ]


def flux_checkout(repository: Path, target: Path) -> None:
    """Pack a repository's files as Flux's source-controller does, and unpack them into `target` as its other
    controllers do."""
    target.mkdir()
    subprocess.run([str(built_program(_MODULE, "flux")), str(repository), str(target)], check=True)
