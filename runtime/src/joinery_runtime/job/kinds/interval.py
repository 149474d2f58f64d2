"""Interval steps: rows match whose times are near each other (rules J1-J8); without keys, the join on time only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from joinery_runtime.job.kinds.base import Chain, Rules, StepKind, StepWords, milliseconds, plus
from joinery_runtime.job.model.base import Bound, Model, Text
from joinery_runtime.job.model.cel import Rule, time
from joinery_runtime.job.model.draft import Finding, JobDraft, StepDraft, dig
from joinery_runtime.job.model.wording import either, listed


def _interval(draft: JobDraft) -> Iterator[Finding]:
    for step in draft.steps:
        interval, at = step.data.get("interval"), (*step.at, "interval")
        lower, upper = milliseconds(dig(interval, "lower")), milliseconds(dig(interval, "upper"))
        if lower is not None and upper is not None and lower > upper:
            facts = f"lower ({dig(interval, 'lower')}) is above upper ({dig(interval, 'upper')})"
            yield at, f"{facts}, so nothing can match; swap them"
        origin = dig(interval, "of")
        if step.left and isinstance(origin, str) and origin not in step.left_names:
            yield (*at, "of"), _not_before(origin, step)


def _not_before(origin: str, step: StepDraft) -> str:
    names = step.left_names
    absent = next((absent for absent in step.absent if absent.source.name == origin), None)
    if absent is not None:
        return f"{origin!r} has no time any more: {absent.reason} (rule E1); write {either(names)}"
    swap = (
        " (to count from the right input, negate the bounds and swap them)" if origin == step.data.get("right") else ""
    )
    if len(names) == 1:
        return f"{origin!r} is not the left input; bounds count from {names[0]!r}: write of: {names[0]}{swap}"
    return f"{origin!r} is not joined before this step; bounds count from an input that is: write {either(names)}{swap}"


class Interval(Model, StepKind):
    """`right.ts - of.ts` lies in [lower, upper], both ends included, in milliseconds; either may be negative."""

    field: ClassVar[str] = "interval"
    chains: ClassVar[bool] = True
    shorter: ClassVar[str] = "narrow the interval"
    padding: ClassVar[str] = "each once, when evicted without a match"
    matched: ClassVar[str] = "each once, at its first match"
    widens: ClassVar[Mapping[str, tuple[str, int]]] = {"lower": ("lower bound", -1), "upper": ("upper bound", 1)}
    rules: ClassVar[Rules] = (_interval,)
    cel_of_job: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.sql) || !has(self.joins) || "
            "self.joins.all(step, !has(step.interval) || (step.interval.of != step.right && "
            "self.inputs.exists(i, i.name == step.interval.of)))",
            "bounds count from an input that was joined before: `interval.of` must name one "
            "(to count from the right input, negate the bounds and swap them)",
            ".joins",
        ),
    )

    of: Text = Field(examples=["orders"])
    """The input from whose event time the bounds count: one that was joined before."""
    lower: Bound = Field(examples=["-5m"])
    """The earliest event time of the right row, counted from that of `of`: a duration, also a negative one."""
    upper: Bound = Field(examples=["24h"])
    """The latest event time of the right row, counted from that of `of`: a duration, also a negative one."""

    @property
    def name(self) -> str:
        return "interval"

    @property
    def title(self) -> str:
        return "interval"

    @property
    def counted_from(self) -> str:
        return self.of

    def durations(self) -> dict[str, Any]:
        return {"of": self.of, "lower": self.lower, "upper": self.upper}

    def keeps(self, chain: Chain, left: tuple[str, ...], right: str) -> tuple[int, int]:
        """How long rows are kept (rule J3), including the other side's lag: that side's watermark trails the times that
        arrive together with this row."""
        lag, distances = chain.lag, chain.distances
        kept_ms = max(0, self.upper + lag[right]), max(0, -self.lower + lag[self.of])
        lag[right] = max(lag[right], kept_ms[1])
        for name in left:
            lag[name] = max(lag[name], kept_ms[0] - distances[self.of, name][0])
        distances[right, right] = (0, 0)
        for name in left:
            low, high = distances[name, self.of]
            low, high = low + self.lower, high + self.upper
            distances[name, right], distances[right, name] = (low, high), (-high, -low)
        return kept_ms

    def bound(self, words: StepWords) -> tuple[str, str]:
        left, right = words.time(self.of), words.time(words.right)
        bounds = ", ".join(f"{left} {plus(ms)}" for ms in (self.lower, self.upper))
        return "bound", f"{right} in [{bounds}], both ends included"

    def kept_until(self, words: StepWords) -> tuple[str, str]:
        """Until when rows are kept, in words. Between steps nothing is late (N2), so no lateness is added."""
        left, right = (
            f"{words.watermark(name)} > ts {plus(ms)} [{bound}]{'' if words.chained(name) else f' + {words.lateness}'}"
            for name, ms, bound in ((words.right, self.upper, "upper"), (self.of, -self.lower, "-lower"))
        )
        return left, right

    def late(self, words: StepWords) -> str:
        """What happens to late rows, in words (rules J6 and J7)."""
        if words.late_data == "reopen":
            return "joined with what is still kept, and never dropped (lateData: reopen)"
        if words.only_inner:
            reach = plus(max(self.upper, -self.lower))
            return f"{words.dropped} when ts {reach} [the wider bound] + {words.lateness} < {words.lower_watermark()}"
        inputs = listed(words.labels if words.number == 0 else words.labels[1:])
        return f"of {inputs}, {words.dropped} when ts < the input's own watermark - {words.lateness}"


Interval.cel = {
    Interval: (Rule(f"{time('lower')} <= {time('upper')}", "lower is above upper, so nothing can match; swap them"),)
}
Interval.schemas = {(Interval, "of"): {"maxLength": 253}}
