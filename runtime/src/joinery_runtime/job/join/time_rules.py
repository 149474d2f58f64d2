"""Cross-field rules of how a step matches rows in time: what the kinds share, then each kind's own (J8, W4)."""

from __future__ import annotations

from collections.abc import Iterator

from joinery_runtime.job.join.steps import FIELDS, STEP_KINDS
from joinery_runtime.job.kinds.base import Rules
from joinery_runtime.job.model.parts import Finding, Parts
from joinery_runtime.job.model.wording import listed


def _one_way(parts: Parts) -> Iterator[Finding]:
    for step in parts.steps:
        named = [way for way in FIELDS if step.data.get(way) is not None]
        if step.data and not named:
            yield (
                (*step.at, "interval"),
                "the join has no bound on time, so its state would grow for ever (rule J8); "
                "write interval: {of: <left input>, lower: 0s, upper: 1h}",
            )
        if len(named) > 1:
            yield step.at, f"needs exactly one of {listed(FIELDS)}: {listed(named)} are named"


def _alone(parts: Parts) -> Iterator[Finding]:
    """Steps of some kinds are no part of a chain."""
    count = len(parts.steps)
    for step in parts.steps:
        for way, rule in {kind.field: kind.chain_rule for kind in STEP_KINDS if not kind.chains}.items():
            if count > 1 and step.data.get(way) is not None:
                facts = f"{way} steps do not take part in chains{rule}, and there are {count} steps"
                yield (*step.at, way), f"{facts}; write interval, or make it a job of its own"


def _lateness(parts: Parts) -> Iterator[Finding]:
    final = {kind.field: kind.what_is_final for kind in STEP_KINDS if kind.what_is_final}
    for step in parts.steps:
        facts = next((text for way, text in final.items() if step.data.get(way) is not None), None)
        if facts is not None and step.data.get("lateData") == "reopen":
            yield (*step.at, "lateData"), f"reopen is for interval steps, {facts} stays as it is; write drop"


RULES: Rules = (_one_way, _alone, _lateness, *dict.fromkeys(rule for kind in STEP_KINDS for rule in kind.rules))
