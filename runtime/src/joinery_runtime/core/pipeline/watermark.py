"""Watermarks per input (rules T1-T7): computes the next epoch's watermarks from what was read.

Nothing here reads a clock. Idleness is passed in: the driver says which partitions are idle (T4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

# The watermark of an input that has ended (rule T7); printed as this number.
END_OF_TIME: Final = 2**63 - 1
BEGIN_OF_TIME: Final = -(2**63)

Watermark = int | None  # None: not known yet

BRANCH_END: Final = ":"
"""What follows the name of the branch in the partitions of a union; no name of an input or topic has it."""


def clamp(ts: int) -> int:
    """Keep arithmetic on watermarks within int64."""
    return END_OF_TIME if ts >= END_OF_TIME else max(BEGIN_OF_TIME, ts)


def passed_multiple(watermark: Watermark, every: int) -> Watermark:
    """Return the last multiple of `every` (ms) that a watermark has reached (G8)."""
    if watermark is None or watermark >= END_OF_TIME:
        return watermark
    return clamp(watermark // every * every)


def earlier(watermark: Watermark, by_ms: int) -> Watermark:
    """`watermark - by_ms`. END_OF_TIME is infinite: it stays what it is."""
    if watermark is None or watermark == END_OF_TIME:
        return watermark
    return clamp(watermark - by_ms)


@dataclass(frozen=True, slots=True)
class InputTime:
    """An input's watermark in an epoch's plan, and the highest event time that earlier epochs have read from it.

    `reached` is the event time up to which an input of a join with a table was read, as far as its records can be read
    at all. END_OF_TIME: all of them were; BEGIN_OF_TIME: nothing is known of some partition. A table is judged by what
    is left unread after the epoch (its rows come first), a stream by what was unread before it."""

    watermark: Watermark = None
    highest: int | None = None
    reached: int = END_OF_TIME


Times = Mapping[str, InputTime]
OutputWatermarks = Mapping[str, Watermark]  # by input: the lowest event time that may still arrive


@dataclass(frozen=True, slots=True)
class InputProgress:
    """The progress of one input. Times are event-time milliseconds.

    `highest` is the highest event time seen per partition (None: no row yet). `watermark` is the input's own or the one
    it was given while idle (T5); it never goes back. While all inputs are idle (T6), it advances from `idle_from`, so
    far by `idle_ms` (`idle_from` None: it does not advance, or rows were read since).
    """

    highest: Mapping[str, int | None] = field(default_factory=dict)
    watermark: Watermark = None
    idle_from: Watermark = None
    idle_ms: int = 0

    @property
    def ended(self) -> bool:
        return self.watermark == END_OF_TIME

    @property
    def newest(self) -> int | None:
        """The highest event time over all partitions; None before the first row."""
        return max((ts for ts in self.highest.values() if ts is not None), default=None)

    @property
    def time(self) -> InputTime:
        return InputTime(self.watermark, self.newest)

    def saw(self, highest: Mapping[str, int | None]) -> InputProgress:
        """Return the progress after an epoch whose rows reached these event times."""
        merged = dict(self.highest)
        for partition, ts in highest.items():
            merged[partition] = _later(merged.get(partition), ts)
        return replace(self, highest=merged)

    def raised(self, watermark: Watermark) -> InputProgress:
        return replace(self, watermark=_later(self.watermark, watermark))

    def implied(self, clock: InputClock, idle: Collection[str] = ()) -> Watermark:
        """T1: the lowest (highest event time - delay) over the partitions that are not idle. None while one of these
        has had no row, or when all partitions are idle."""
        seen = {partition: ts for partition, ts in self.highest.items() if partition not in idle}
        if not seen or None in seen.values():
            return None
        return min(ts - clock.delay_of(partition) for partition, ts in seen.items() if ts is not None)


@dataclass(frozen=True, slots=True)
class InputClock:
    """How one input's watermark is made. `explicit`: it moves only when told (traces). `branch_delays` are the delays
    of a union's branches by their names, of which `delay_ms` is the longest."""

    delay_ms: int
    explicit: bool = False
    advance_on_idle: bool = False
    branch_delays: Mapping[str, int] = field(default_factory=dict)

    def delay_of(self, partition: str) -> int:
        """Return the delay (ms) of a partition, by its name in the progress."""
        return self.branch_delays.get(partition.partition(BRANCH_END)[0], self.delay_ms)


def advance(
    progress: Mapping[str, InputProgress],
    clocks: Mapping[str, InputClock],
    *,
    idle: Mapping[str, Collection[str]],
    ended: Collection[str] = (),
    idle_for_ms: int = 0,
) -> dict[str, InputProgress]:
    """Compute the progress whose watermarks the next plan uses.

    `idle` names the idle partitions per input, `ended` the inputs read to their final end (T7), `idle_for_ms` how long
    all inputs have been idle (T6). An input without partitions counts as not idle. An ended input does not count among
    T5's "not idle" inputs: its +infinity would make every later row of an idle input late.
    """
    own = dict(progress)
    for name, value in progress.items():
        if name in ended:
            own[name] = value.raised(END_OF_TIME)
        elif not clocks[name].explicit:
            own[name] = value.raised(value.implied(clocks[name], idle.get(name, ())))
    silent = {name for name in own if _all_idle(own[name], idle.get(name, ()))}
    speaking = [own[name].watermark for name in own if name not in silent and not own[name].ended]
    if not speaking:
        return _advance_idle_inputs(own, clocks, idle_for_ms)
    lowest = None if None in speaking else min(w for w in speaking if w is not None)
    return {name: value.raised(lowest) if name in silent else value for name, value in own.items()}


def all_idle(progress: Mapping[str, InputProgress], idle: Mapping[str, Collection[str]]) -> bool:
    """Whether every input that has not ended is idle (T6)."""
    open_ = {name: value for name, value in progress.items() if not value.ended}
    return bool(open_) and all(_all_idle(value, idle.get(name, ())) for name, value in open_.items())


def _all_idle(progress: InputProgress, idle: Collection[str]) -> bool:
    return not progress.ended and bool(progress.highest) and all(p in idle for p in progress.highest)


def _advance_idle_inputs(
    own: Mapping[str, InputProgress], clocks: Mapping[str, InputClock], idle_for_ms: int
) -> dict[str, InputProgress]:
    """T6: all inputs are idle. Holds their watermarks or advances them at the pace of the wall clock. An input without
    any known time advances from the lowest of the others."""
    starts = dict[str, Watermark]()
    for name, value in own.items():
        if value.ended:
            continue
        starts[name] = value.idle_from
        if value.idle_from is None:  # its highest event time - delay, or its own or given watermark if that is higher
            delay_of = clocks[name].delay_of
            newest = [ts - delay_of(partition) for partition, ts in value.highest.items() if ts is not None]
            starts[name] = _later(value.watermark, max(newest, default=None))
    lowest = min((start for start in starts.values() if start is not None), default=None)
    going = {name: lowest if start is None else start for name, start in starts.items() if clocks[name].advance_on_idle}
    return {
        name: value
        if (start := going.get(name)) is None
        else replace(value.raised(clamp(start + idle_for_ms)), idle_from=start, idle_ms=idle_for_ms)
        for name, value in own.items()
    }


def _later(a: Watermark, b: Watermark) -> Watermark:
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)
