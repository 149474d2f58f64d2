"""Interval steps: rows match whose times are near each other (rules J1-J8); without keys, the join on time only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from joinery_runtime.job.kinds.base import Chain, Rules, StepKind, StepWords, milliseconds, plus
from joinery_runtime.job.model.base import Bound, Model, Text
from joinery_runtime.job.model.cel import Rule, names_input, time
from joinery_runtime.job.model.draft import Finding, JobDraft, dig
from joinery_runtime.job.model.wording import listed


def _check_interval(draft: JobDraft) -> Iterator[Finding]:
    for step in draft.steps:
        interval, at = step.data.get("interval"), (*step.at, "interval")
        lower, upper = milliseconds(dig(interval, "lower")), milliseconds(dig(interval, "upper"))
        if lower is not None and upper is not None and lower > upper:
            facts = f"lower ({dig(interval, 'lower')}) is above upper ({dig(interval, 'upper')})"
            yield at, f"{facts}, so nothing can match; swap them"


class Interval(Model, StepKind):
    """`right.ts - of.ts` lies in [lower, upper], both ends included, in milliseconds; either may be negative."""

    field: ClassVar[str] = "interval"
    why_last: ClassVar[str] = ""
    without_keys: ClassVar[bool] = True
    shorter: ClassVar[str] = "narrow the interval"
    padding: ClassVar[str] = "each once, when evicted without a match"
    matched: ClassVar[str] = "each once, at its first match"
    widens: ClassVar[Mapping[str, tuple[str, int]]] = {"lower": ("lower bound", -1), "upper": ("upper bound", 1)}
    rules: ClassVar[Rules] = (_check_interval,)
    cel_of_job: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.sql) || !has(self.joins) || "
            "self.joins.all(step, !has(step.interval) || (step.interval.of != step.right && "
            f"{names_input('step.interval.of')}))",
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
    def title(self) -> str:
        return "interval"

    @property
    def counted_from(self) -> str:
        return self.of

    def durations(self) -> dict[str, Any]:
        return {"of": self.of, "lower": self.lower, "upper": self.upper}

    def keeps(self, chain: Chain, left: tuple[str, ...], right: str) -> tuple[int, int]:
        """Say how long rows are kept (rule J3), including the other side's lag: that side's watermark trails the times
        that arrive together with this row."""
        kept_ms = max(0, self.upper + chain.lag[right]), max(0, -self.lower + chain.lag[self.of])
        chain.lag[right] = max(chain.lag[right], kept_ms[1])
        chain.keep_left(left, self.of, kept_ms[0])
        chain.add_bound(left, self.of, right, (self.lower, self.upper))
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
        """Return what happens to late rows, in words (rules J6 and J7)."""
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
