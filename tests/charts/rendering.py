"""Renders charts/joinery, and takes rendered objects apart."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "joinery"
NAMESPACE = "joinery-system"
Manifest = dict[str, Any]


class HelmFailed(AssertionError):
    """What Helm printed when it refused."""


@dataclass(frozen=True, slots=True)
class Rendered:
    objects: Sequence[Manifest]
    by_name: dict[tuple[str, str], list[Manifest]] = field(init=False)

    def __post_init__(self) -> None:
        by_name: dict[tuple[str, str], list[Manifest]] = {}
        for manifest in self.objects:
            by_name.setdefault((manifest["kind"], manifest["metadata"]["name"]), []).append(manifest)
        object.__setattr__(self, "by_name", by_name)

    def one(self, kind: str, name: str) -> Manifest:
        (manifest,) = self.by_name[kind, name]
        return manifest

    def of(self, kind: str) -> list[Manifest]:
        return [manifest for manifest in self.objects if manifest["kind"] == kind]

    def pods(self) -> Iterator[tuple[str, Manifest]]:
        """Every pod's spec, with the name of what it belongs to."""
        for manifest in self.objects:
            if manifest["kind"] == "Pod":
                yield manifest["metadata"]["name"], manifest["spec"]
            elif "template" in manifest.get("spec", {}):
                yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]

    @property
    def operator(self) -> Manifest:
        """The operator's container."""
        (container,) = self.one("Deployment", "joinery-operator")["spec"]["template"]["spec"]["containers"]
        return container

    @property
    def environment(self) -> dict[str, str]:
        return {variable["name"]: variable["value"] for variable in self.operator["env"] if "value" in variable}


@dataclass(frozen=True, slots=True)
class Chart:
    helm: Path
    folder: Path = CHART

    def render(self, values: Manifest | None = None, release: str = "joinery") -> Rendered:
        """All objects, those of hooks included. Raises HelmFailed."""
        command = ["template", release, str(self.folder), "--namespace", NAMESPACE, "--kube-version", "1.34.0"]
        text = self.run(*command, *_flags(values))
        return Rendered([manifest for manifest in yaml.safe_load_all(text) if manifest is not None])

    def run(self, *arguments: str) -> str:
        done = subprocess.run([self.helm, *arguments], capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0:
            raise HelmFailed(done.stderr + done.stdout)
        return done.stdout


def _flags(values: Manifest | None) -> list[str]:
    return [f"--set-json={name}={json.dumps(value)}" for name, value in (values or {}).items()]
