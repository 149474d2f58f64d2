"""Evaluates alerting rules with Prometheus' own engine, as `promtool test rules` does.

The program alerts/ is built from Go once and cached. promtool itself contains every service discovery, and takes much
longer to build.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joinery_devkit.kubernetes.binaries import built_program

_MODULE = Path(__file__).with_name("alerts")


@dataclass(frozen=True, slots=True)
class FiredAlert:
    """An alert that began to fire in that minute."""

    minute: int
    alert: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def fired_alerts(rules: Path, series: Mapping[str, str], minutes: int) -> list[FiredAlert]:
    """Evaluate the rules once a minute. `series` has a sample per minute, in the notation of promtool's unit tests:
    `{'up{job="a"}': "1x5 0x10"}`. Raises ValueError for rules or series that Prometheus rejects."""
    load = "load 1m\n" + "".join(f"  {name} {samples}\n" for name, samples in series.items())
    command = [str(built_program(_MODULE)), str(rules), str(minutes)]
    done = subprocess.run(command, input=load, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return [FiredAlert(**alert) for alert in json.loads(done.stdout)]
