"""The cross-field rules of a StreamJoin. Each yields the places it finds wrong; missing parts silence it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joinery_runtime.job import input_rules, output_rules, step_rules
from joinery_runtime.job.parts import Finding, take_apart

_RULES = (*input_rules.RULES, *step_rules.RULES, *output_rules.RULES)


def broken_rules(data: Mapping[str, Any]) -> list[Finding]:
    """Every finding as (path, message), for a resource with its YAML field names."""
    parts = take_apart(data)
    return [finding for rule in _RULES for finding in rule(parts)]
