"""What each step of a job does, in words: what matches, how long each side is kept, what is late, what is capped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from joinery_runtime.job.join.retention import kept_for
from joinery_runtime.job.join.row_sizes import RATE, row_bytes
from joinery_runtime.job.join.steps import JoinStep, Limits
from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.quantity import format_bytes
from joinery_runtime.job.model.wording import listed
from joinery_runtime.job.signature import part_names

_NAMES = {"interval": "interval", "asOf": "as-of"}
_SHORTER = {"interval": "narrow the interval", "asOf": "shorten historyRetention and grace"}


@dataclass(frozen=True, slots=True)
class SidePlan:
    """How long rows of one side wait. `rows_of` names their input, or the inputs whose joined rows they are;
    `kept_for_ms` is event time after the row's own, in steady flow; `rows` and `bytes` are the state expected at RATE
    rows per second, uncompressed. Where it `holds` sessions, that is the most, each row being a session of its own."""

    part: str
    rows_of: str
    kept_until: str
    kept_for_ms: int
    row_bytes: int
    holds: Literal["rows", "sessions"] = "rows"

    @property
    def rows(self) -> int:
        return self.kept_for_ms * RATE // 1000

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: `title` says what it is, `facts` are (name, text) in the order they are told, `shorter` is what makes
    its state smaller."""

    title: str
    facts: tuple[tuple[str, str], ...]
    sides: tuple[SidePlan, ...]
    shorter: str


def step_plans(job: StreamJoin, stored: Mapping[str, Sequence[str]]) -> tuple[StepPlan, ...]:
    """`stored` names the columns that segments keep, per part of the state."""
    return tuple(_Step(job, number).plan(stored) for number in range(len(job.joins)))


class _Step:
    def __init__(self, job: StreamJoin, number: int) -> None:
        self._job, self._number = job, number
        self._step: JoinStep = job.joins[number]
        self._left = job.left_inputs(number)
        self._labels = (" + ".join(self._left), self._step.right)

    def plan(self, stored: Mapping[str, Sequence[str]]) -> StepPlan:
        kept, until = kept_for(self._job)[self._number], self._kept_until()
        sides = [
            SidePlan(part, self._labels[i], until[i], kept[i], row_bytes(self._job, self._number, i, stored[part]))
            for i, part in enumerate(part_names(self._number))
        ]
        shorter = _SHORTER.get(self._step.kind, "make the windows shorter")
        return StepPlan(self.title, tuple(self._facts()), tuple(sides), shorter)

    @property
    def title(self) -> str:
        kind = _NAMES.get(self._step.kind, f"{self._step.kind} window")
        return f"{self._step.type} {kind} join"

    def _facts(self) -> Iterator[tuple[str, str]]:
        step = self._step
        yield "keys", self._keys()
        yield self._bound()
        if step.where is not None:
            yield "where", step.where
        if any(step.preserved):
            sides = listed(label for label, kept in zip(self._labels, step.preserved, strict=True) if kept)
            yield "unmatched", f"{sides} rows go out padded with nulls, {self._padded()}"
        yield "late rows", self._late()
        if step.limits is not None:
            yield "limits", limits_text(step.limits, "a side")

    def _keys(self) -> str:
        pairs = [f"{pair.left} = {pair.right}" for pair in self._job.keys_of(self._step)]
        if pairs:
            return ", ".join(pairs)
        return f"none, a join on time only; every shard gets all rows of {self._step.broadcast} (broadcast)"

    def _bound(self) -> tuple[str, str]:
        step = self._step
        if step.interval is not None:
            left, right = (self._time(name) for name in (step.interval.of, step.right))
            bounds = ", ".join(f"{left} {_plus(ms)}" for ms in (step.interval.lower, step.interval.upper))
            return "bound", f"{right} in [{bounds}], both ends included"
        return ("window", self._window()) if step.window is not None else ("table", self._table())

    def _window(self) -> str:
        window = self._step.window
        assert window is not None, "asked of window steps"
        if window.session is not None:
            gap = format_duration(window.session.gap)
            return f"a session of both sides' rows of a key, which ends when none comes for longer than {gap}"
        if window.hopping is not None:
            size, slide = format_duration(window.hopping.size), format_duration(window.hopping.slide)
            return f"{size} long, one starts every {slide}; a pair goes out once per window that holds both"
        return f"{format_duration(window.tumbling or 0)} long, one after the other"

    def _table(self) -> str:
        as_of = self._step.as_of
        assert as_of is not None, "asked of as-of steps"
        wait = "at once" if not as_of.grace else f"after {format_duration(as_of.grace)} [grace]"
        left, right = (self._time(name) for name in self._labels)
        return f"the version of {self._step.right} that is valid at {left} (newest with {right} <= it), joined {wait}"

    def _time(self, name: str) -> str:
        return f"{name}.{self._job.input(name).event_time}"

    def _padded(self) -> str:
        if self._step.interval is not None:
            return "each once, when evicted without a match"
        return "once per window without a partner" if self._step.window is not None else "where no version is valid"

    # --- how long rows are kept -----------------------------------------------------------------------------------

    def _kept_until(self) -> tuple[str, str]:
        step = self._step
        late = f"{format_duration(step.allowed_lateness)} [allowedLateness]"
        if step.interval is not None:
            reaches = ((step.right, step.interval.upper, "upper"), (step.interval.of, -step.interval.lower, "-lower"))
            left, right = (f"{self._mark(of)} > ts {_plus(ms)} [{name}]{self._late_of(of)}" for of, ms, name in reaches)
            return left, right
        if step.as_of is not None:
            retention = format_duration(step.as_of.history_retention)
            return _waits(self._labels[0], step.as_of.grace), (
                f"a newer version of the key is older than the highest event time of {step.right} - {retention} "
                "[historyRetention]; the newest of every key stays"
            )
        end = "the end of their last window" if step.kind != "session" else "their session's last row + gap"
        sign = ">=" if step.kind != "session" else ">"
        text = f"min({self._marks()}) {sign} {end} + {late}"
        return text, text

    def _chained(self, name: str) -> bool:
        return self._number > 0 and name != self._step.right

    def _mark(self, name: str) -> str:
        """A later step sees the watermark that the step before hands on (rule N3)."""
        return f"wm({name} after step {self._number})" if self._chained(name) else f"wm({name})"

    def _late_of(self, name: str) -> str:
        """Nothing is late between steps (N2)."""
        late = format_duration(self._step.allowed_lateness)
        return "" if self._chained(name) else f" + {late} [allowedLateness]"

    def _marks(self) -> str:
        return ", ".join(f"wm({name})" for name in self._labels)

    # --- what is late ---------------------------------------------------------------------------------------------

    def _late(self) -> str:
        """Rules J6, J7, W2 and A3."""
        step, late = self._step, f"{format_duration(self._step.allowed_lateness)} [allowedLateness]"
        if step.as_of is not None:
            return "none are dropped; versions that are superseded beyond historyRetention on arrival are, and counted"
        if step.late_data == "reopen":
            return "joined with what is still kept, and never dropped (lateData: reopen)"
        if step.window is not None:
            end = "the end of their last window" if step.kind != "session" else "ts + gap"
            sign = "<=" if step.kind != "session" else "<"
            return f"dropped and counted when {end} + {late} {sign} min({self._marks()})"
        if step.interval is not None and len(self._job.joins) == 1 and step.type == "inner":
            reach = max(step.interval.upper, -step.interval.lower)
            return f"dropped and counted when ts {_plus(reach)} [the wider bound] + {late} < min({self._marks()})"
        inputs = listed(self._labels if self._number == 0 else self._labels[1:])
        return f"of {inputs}, dropped and counted when ts < the input's own watermark - {late}"


def limits_text(limits: Limits, of: str) -> str:
    """`of` is what the caps are on."""
    sizes = [format_bytes(limits.max_state_bytes)] if limits.max_state_bytes else []
    sizes += [f"{limits.max_records:,} rows"] if limits.max_records else []
    read = "of that side is read" if of == "a side" else "is read"
    then = "the job fails" if limits.on_limit == "fail" else f"no more {read} until it has shrunk"
    cap = f"{of} holds at most {listed(sizes)}, else {then}; " if sizes else ""
    return f"{cap}a key with more than {limits.hot_key_warning:,} rows is warned about"


def _waits(name: str, grace: int) -> str:
    if not grace:
        return "they are joined, at once"
    return f"the highest event time of {name} >= ts + {format_duration(grace)} [grace]"


def _plus(ms: int) -> str:
    return f"{'-' if ms < 0 else '+'} {format_duration(abs(ms))}"
