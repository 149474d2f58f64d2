"""Which kernel runs a step: by the step's rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joinery_runtime.core.kinds import asof, session_join, window
from joinery_runtime.core.kinds import interval as join
from joinery_runtime.core.kinds.session import window as session_window
from joinery_runtime.core.pipeline.spec import (
    LEFT,
    AsOf,
    Interval,
    Rule,
    SessionGap,
    SessionWindow,
    StepSpec,
    TumblingWindow,
)
from joinery_runtime.core.pipeline.step import Horizon, KeptRun, Kernel, StepResult, StepWork, Survivors


@dataclass(frozen=True, slots=True)
class _Functions:
    run: Kernel
    survivors: Survivors


_KERNELS: dict[type[Rule], _Functions] = {
    Interval: _Functions(join.run, join.survivors),
    TumblingWindow: _Functions(window.run, window.survivors),
    SessionGap: _Functions(session_join.run, session_join.survivors),
    AsOf: _Functions(asof.run, asof.survivors),
    SessionWindow: _Functions(session_window.run, session_window.survivors),
}


def run_step(step: StepSpec, work: StepWork) -> StepResult:
    return _KERNELS[type(step.rule)].run(step, work)


def survivors(step: StepSpec, side: int, runs: Sequence[KeptRun], horizon: Horizon) -> Sequence[KeptRun]:
    """What of these runs of one side a compaction keeps; see `core.pipeline.step.Survivors`."""
    return _KERNELS[type(step.rule)].survivors(step, side, runs, horizon)


def needs_state(step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
    """Whether the kernel looks at what is kept of `side`: which sides have arrivals, and whether rows may leave."""
    match step.rule:
        case Interval():
            return arrived[1 - side] or (closing and step.sides[side].preserved)
        case TumblingWindow():
            return closing
        case SessionGap() | SessionWindow():
            return True
        case AsOf():
            return closing or (side != LEFT and any(arrived))
