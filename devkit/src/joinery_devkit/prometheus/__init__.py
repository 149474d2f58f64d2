"""Evaluates alerting rules with Prometheus' own engine, as `promtool test rules` does.

The program alerts/ is built from Go once and cached. promtool itself contains every service discovery, and takes much
longer to build.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joinery_devkit.environment import cache_directory, locked
from joinery_devkit.kubernetes.binaries import go_command
from joinery_runtime.errors import EnvironmentProblem

_MODULE = Path(__file__).with_name("alerts")


@dataclass(frozen=True, slots=True)
class FiredAlert:
    """An alert that began to fire in that minute."""

    minute: int
    alert: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def fired_alerts(rules: Path, series: Mapping[str, str], minutes: int) -> list[FiredAlert]:
    """Evaluates the rules once a minute. `series` has a sample per minute, in the notation of promtool's unit tests:
    `{'up{job="a"}': "1x5 0x10"}`. Raises ValueError for rules or series that Prometheus rejects."""
    load = "load 1m\n" + "".join(f"  {name} {samples}\n" for name, samples in series.items())
    command = [str(_program()), str(rules), str(minutes)]
    done = subprocess.run(command, input=load, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return [FiredAlert(**alert) for alert in json.loads(done.stdout)]


def _program() -> Path:
    sources = b"\0".join(path.read_bytes() for path in sorted(_MODULE.iterdir()))
    program = cache_directory() / f"prometheus-{hashlib.sha256(sources).hexdigest()[:8]}" / "alerts"
    with locked(program.with_suffix(".lock")):
        if not program.exists():
            _build(program)
    return program


def _build(program: Path) -> None:
    print("joinery: building Prometheus' rules engine, once (minutes)", file=sys.stderr, flush=True)
    partial = program.with_suffix(".partial")
    done = subprocess.run(
        [go_command(), "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(partial), "."],
        cwd=_MODULE,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise EnvironmentProblem(
            "Prometheus' rules engine cannot be built",
            facts=f"go build ended with {done.returncode}:\n{done.stderr[-2000:]}",
            todo="If it cannot download modules, check `go env GOPROXY` and the network",
        )
    partial.rename(program)
