"""How long rows wait in a chain of steps, in steady flow: event time that comes in as fast as the clock goes."""

from __future__ import annotations

from collections.abc import Iterator

from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.kinds.base import Chain


def kept_for(job: StreamJoin) -> Iterator[tuple[int, int]]:
    """Per step, for how many milliseconds of event time after their own the left and the right rows are kept."""
    first = job.spec.inputs[0].name
    chain = Chain({}, {(first, first): (0, 0)})
    for number, step in enumerate(job.joins):
        left = job.left_inputs(number)
        for name in (*(left if number == 0 else ()), step.right):
            chain.lag[name] = job.input(name).watermark.delay + step.allowed_lateness
        yield step.matching.keeps(chain, left, step.right)
