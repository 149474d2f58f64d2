"""What an installation decides, from environment variables that the chart sets."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.job.crd import STATUS_PORT

_PREFIX = "JOINERY_OPERATOR_"


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is the environment variable `JOINERY_OPERATOR_<FIELD>`; times are seconds, `namespaces` are separated
    by commas (none: all of the cluster). `status_from`: the NetworkPolicyPeers, as a JSON list, that may reach the
    status ports of drivers; "" makes no NetworkPolicies. `figures_seconds`: how often mere figures of a job are written
    to its status. `metrics_port` serves /metrics and the probes."""

    runtime_image: str = field(default="")
    service_account: str = "joinery-driver"
    namespaces: tuple[str, ...] = ()
    status_port: int = STATUS_PORT
    status_from: str = ""
    metrics_port: int = 8080
    poll_seconds: float = 5.0
    figures_seconds: float = 15.0
    stuck_seconds: float = 300.0
    stop_grace_seconds: int = 120
    backoff_first_seconds: float = 10.0
    backoff_last_seconds: float = 300.0
    healthy_seconds: float = 600.0


def settings_from(environment: Mapping[str, str] = os.environ) -> Settings:
    """Raises EnvironmentProblem that names the variable."""
    given: dict[str, Any] = {}
    for each in fields(Settings):
        name = _PREFIX + each.name.upper()
        if text := environment.get(name, "").strip():
            given[each.name] = _parsed(name, text, each.default)
    return Settings(**given)


def _parsed(name: str, text: str, default: object) -> object:
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if name == f"{_PREFIX}STATUS_FROM":
        return _peers(name, text)
    if isinstance(default, str):
        return text
    try:
        value = type(default)(text)  # type: ignore[call-arg]
        if value <= 0:  # type: ignore[operator]
            raise ValueError("not positive")
    except ValueError:
        raise EnvironmentProblem(
            f"{name} is {text!r}", facts="it must be a positive number", todo="Correct the operator's environment"
        ) from None
    return value


def _peers(name: str, text: str) -> str:
    try:
        peers = json.loads(text)
    except ValueError:
        peers = None
    if not isinstance(peers, list) or not all(isinstance(peer, dict) for peer in peers):
        raise EnvironmentProblem(
            f"{name} is {text!r}",
            facts="it must be a JSON list of NetworkPolicyPeers",
            todo="Correct networkPolicy.jobs of the chart, or the operator's environment",
        )
    return text
