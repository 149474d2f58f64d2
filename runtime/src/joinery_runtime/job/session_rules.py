"""The cross-field rules of a SessionWindow. Each yields the places it finds wrong; missing parts silence it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joinery_runtime.job.parts import Finding


def broken_rules(data: Mapping[str, Any]) -> list[Finding]:  # noqa: ARG001
    """Every finding as (path, message), for a resource with its YAML field names."""
    return []
