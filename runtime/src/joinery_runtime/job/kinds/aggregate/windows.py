"""Windows of an aggregate. Tumbling, hopping and cumulative ones are aligned to the epoch, or to local midnights (rules
G1 to G5 and G12). Those of sessions hold rows of a group that are near each other (rules S1 to S3)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from math import gcd
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from joinery_runtime.job.kinds.base import WindowKind, milliseconds
from joinery_runtime.job.model.base import Length, Model, PositiveDuration, Text
from joinery_runtime.job.model.cel import Rule, exactly_one, positive, time
from joinery_runtime.job.model.draft import Finding, Loc, dig
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.references import SESSION_COLUMNS, SESSION_ID, WINDOW_COLUMNS
from joinery_runtime.job.model.time_formats import alignment_fields, checked_zone

MOST_WINDOWS = 10_000  # that hold one row
_HOUR, _DAY = 3_600_000, 86_400_000
_LOCAL_LENGTHS = (
    "with a timeZone, windows begin at the same local times each day (rule G12); write hours that divide a day, such "
    "as 1h or 6h, or whole days, such as 24h or 168h"
)


def _too_many(size: int, every: int, at: Loc) -> Iterator[Finding]:
    """Reject windows of which too many hold one row: one of `size` ends at each `every` (ms). A row of the output for
    each of them would be emitted."""
    count = -(-size // every)
    if count > MOST_WINDOWS:
        facts = f"is {format_duration(every)}, so {count:,} windows of {format_duration(size)} would hold each row, and"
        least = format_duration(-(-size // MOST_WINDOWS))
        yield at, f"{facts} {MOST_WINDOWS:,} is the most; write {least} or longer, or a shorter size"


def local_length_problem(length: int) -> str | None:
    """Say why windows of a zone cannot have this length (ms); None: they can."""
    if length % _HOUR or (length % _DAY and _DAY % length):
        return f"is {format_duration(length)}, and {_LOCAL_LENGTHS}"
    return None


def offset_problem(offset: int, size: int) -> str | None:
    """Say why windows of a size cannot have this offset (ms each); None: they can."""
    if offset < size:
        return None
    facts = f"is {format_duration(offset)}, and windows begin every {format_duration(size)} or more often"
    return f"{facts}; write {format_duration(offset % size)}"


def alignment(offset: int, time_zone: str | None) -> str:
    """Say from where windows count, in words."""
    midnight = f"local midnight in {time_zone}" if time_zone is not None else "midnight UTC"
    aligned = f", {format_duration(offset)} [offset] after the full ones" if offset else ""
    return f"aligned to {midnight}{aligned}"


def signed_window_text(field: str, signed: int | str) -> str:
    """Write a field of a window's signature for people: a duration (ms), or a time zone (0: there is none)."""
    if field == "timeZone":
        return str(signed or "UTC")
    return format_duration(int(signed))


class AlignedWindow(Model, WindowKind):
    """What windows that are aligned to the epoch, or to local midnights, share."""

    columns: ClassVar[tuple[str, ...]] = WINDOW_COLUMNS
    identity: ClassVar[tuple[str, ...]] = WINDOW_COLUMNS
    rows: ClassVar[str] = "windows"
    shorter: ClassVar[str] = "shorten the windows, or count distinct values with method: hll"
    reaches: ClassVar[str] = ">="
    fixed: ClassVar[Mapping[str, str]] = {
        "size": "the windows' size",
        "slide": "the windows' slide",
        "step": "the windows' step",
        "offset": "the windows' offset",
        "timeZone": "the windows' time zone",
    }
    lengths: ClassVar[tuple[str, ...]] = ("size",)
    """The fields that decide where windows begin and end, beside the offset."""

    size: Length = Field(examples=["1h"])
    """How long a window is, a duration."""
    offset: PositiveDuration = Field(default=0, examples=["6h"])
    """How long after midnight of 1970-01-01 a window begins, a duration below `size`."""
    time_zone: Annotated[Text, AfterValidator(checked_zone)] | None = Field(default=None, examples=["Europe/Zurich"])
    """The zone whose midnights count, such as `Europe/Zurich`: a day on which clocks change has 23 or 25 hours. If
    absent, those of UTC."""

    @classmethod
    def problems(cls, data: Any, at: Loc) -> Iterator[Finding]:
        for name in cls.lengths if dig(data, "timeZone") is not None else ():
            length = milliseconds(dig(data, name))
            if length and (problem := local_length_problem(length)):
                yield (*at, name), problem
        size, offset = (milliseconds(dig(data, name)) for name in ("size", "offset"))
        if size and offset is not None and (problem := offset_problem(offset, size)):
            yield (*at, "offset"), problem

    def durations(self) -> dict[str, Any]:
        return {"size": self.size, **alignment_fields(self.offset, self.time_zone)}

    @property
    def closes_after(self) -> int:
        return self.size

    def lines(self) -> Iterator[tuple[str, str]]:
        yield "windows", f"{self.text}, {alignment(self.offset, self.time_zone)}"
        if self.time_zone is not None:
            yield (
                "local time",
                "bounds are times of the zone's clocks: where clocks change, a window is longer or shorter",
            )
        yield "a window", "holds its start, and not its end; one without rows is not emitted"
        if self.size > self.pane:
            spans = f"{self.size // self.pane:,} spans of {format_duration(self.pane)}"
            yield "kept as", f"spans of time that all windows hold whole or not at all: up to {spans} make a window"

    @property
    @abstractmethod
    def pane(self) -> int:
        """The longest time such that each window holds all or none of it, from one multiple to the next."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The windows in words."""

    @property
    def end_text(self) -> str:
        return "the window's end"

    def late_text(self, watermark: str, late: str) -> str:
        return f"the end of their last window + {late} <= {watermark}"


class TumblingOfGroup(AlignedWindow):
    """One window after the other."""

    field: ClassVar[str] = "tumbling"

    @property
    def pane(self) -> int:
        return self.size

    @property
    def text(self) -> str:
        return f"{format_duration(self.size)} long, one after the other"


class HoppingOfGroup(AlignedWindow):
    """A window of `size` begins every `slide`; a row is in several."""

    field: ClassVar[str] = "hopping"
    lengths: ClassVar[tuple[str, ...]] = ("size", "slide")

    slide: Length = Field(examples=["15m"])
    """How often a window begins, a duration; at most `size`."""

    @classmethod
    def problems(cls, data: Any, at: Loc) -> Iterator[Finding]:
        yield from super().problems(data, at)
        size, slide = (milliseconds(dig(data, name)) for name in ("size", "slide"))
        if size and slide and slide > size:
            facts = f"slide ({format_duration(slide)}) is longer than size ({format_duration(size)})"
            yield (*at, "slide"), f"{facts}, so rows between windows would be lost; write at most the size"
        elif size and slide:
            yield from _too_many(size, slide, (*at, "slide"))

    def durations(self) -> dict[str, Any]:
        return {**super().durations(), "slide": self.slide}

    @property
    def pane(self) -> int:
        return gcd(self.size, self.slide)

    @property
    def text(self) -> str:
        return f"{format_duration(self.size)} long, one begins every {format_duration(self.slide)}"


class CumulativeOfGroup(AlignedWindow):
    """Windows that begin every `size` and end at each further `step`, up to `size`."""

    field: ClassVar[str] = "cumulative"
    lengths: ClassVar[tuple[str, ...]] = ("size", "step")

    step: Length = Field(examples=["15m"])
    """How much longer each window is than the one before, a duration that divides `size`."""

    @classmethod
    def problems(cls, data: Any, at: Loc) -> Iterator[Finding]:
        yield from super().problems(data, at)
        size, step = (milliseconds(dig(data, name)) for name in ("size", "step"))
        if size and step and size % step:
            facts = f"step ({format_duration(step)}) does not divide size ({format_duration(size)})"
            yield (
                (*at, "step"),
                f"{facts}, so the last window would be cut off; write for example {format_duration(gcd(size, step))}",
            )
        elif size and step:
            yield from _too_many(size, step, (*at, "step"))

    def durations(self) -> dict[str, Any]:
        return {**super().durations(), "step": self.step}

    @property
    def pane(self) -> int:
        return self.step

    @property
    def text(self) -> str:
        size, step = format_duration(self.size), format_duration(self.step)
        return f"{step}, {format_duration(2 * self.step)}, ... up to {size} long, from the same start every {size}"


ALIGNED_WINDOWS: tuple[type[AlignedWindow], ...] = (TumblingOfGroup, HoppingOfGroup, CumulativeOfGroup)


class OwnWindow(Model):
    """Windows of event time, of one kind that is aligned to the epoch."""

    fields: ClassVar[tuple[str, ...]] = tuple(kind.field for kind in ALIGNED_WINDOWS)

    tumbling: TumblingOfGroup | None = Field(default=None, examples=[{"size": "1h"}])
    """Windows of one length, one after the other."""
    hopping: HoppingOfGroup | None = None
    """Windows that overlap."""
    cumulative: CumulativeOfGroup | None = None
    """Windows that begin together and grow step by step."""

    @property
    def form(self) -> AlignedWindow:
        """The one kind of window that is named."""
        named = [window for window in (self.tumbling, self.hopping, self.cumulative) if window is not None]
        assert named, "a window is named"
        return named[0]


_OFFSET = Rule(f"!has(self.offset) || {time('offset')} < {time('size')}", "must be less than size", ".offset")

AlignedWindow.cel = {
    **{(kind, "size"): positive() for kind in ALIGNED_WINDOWS},
    (HoppingOfGroup, "slide"): positive(),
    (CumulativeOfGroup, "step"): positive(),
    TumblingOfGroup: (_OFFSET,),
    HoppingOfGroup: (
        _OFFSET,
        Rule(
            f"{time('slide')} <= {time('size')}",
            "slide is longer than size, so rows between windows would be lost; write at most the size",
            ".slide",
        ),
    ),
    CumulativeOfGroup: (_OFFSET,),
    OwnWindow: (exactly_one(*OwnWindow.fields),),
}


class SessionOfGroup(Model, WindowKind):
    """A session ends when its group has no row for longer than `gap`."""

    field: ClassVar[str] = "session"
    columns: ClassVar[tuple[str, ...]] = SESSION_COLUMNS
    identity: ClassVar[tuple[str, ...]] = (SESSION_ID,)
    renames: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = True
    rows: ClassVar[str] = "sessions"
    shorter: ClassVar[str] = "shorten the gap, or count distinct values with method: hll"

    gap: Length = Field(examples=["30s"])
    """A session ends when the group has no row for longer than this, a duration."""
    max_duration: Length = Field(examples=["2h"])
    """The longest that a session may be, a duration: a longer one is cut."""

    @classmethod
    def problems(cls, data: Any, at: Loc) -> Iterator[Finding]:
        gap, cap = (milliseconds(dig(data, name)) for name in ("gap", "maxDuration"))
        if gap is not None and cap is not None and 0 < cap <= gap:
            yield (*at, "maxDuration"), too_short_a_cap(cap, gap)

    def durations(self) -> dict[str, Any]:
        return {"gap": self.gap, "maxDuration": self.max_duration}

    @property
    def closes_after(self) -> int:
        return self.gap

    def lines(self) -> Iterator[tuple[str, str]]:
        yield "gap", f"consecutive rows that are at most {format_duration(self.gap)} apart are of one session"
        cap = format_duration(self.max_duration)
        crossing = f"a row at {cap} [maxDuration] or more after a session's first one"
        yield "cap", f"{crossing} ends it at once and opens the next"
        yield (
            "inside a capped session",
            "later rows are dropped and counted as closed, rows on time too; how many depends on where epochs end",
        )

    @property
    def end_text(self) -> str:
        return f"last + {format_duration(self.gap)} [gap]"

    def late_text(self, watermark: str, late: str) -> str:
        return f"ts < {watermark} - {late}"


def too_short_a_cap(cap: int, gap: int) -> str:
    """Say why a cap (ms) of at most the gap (ms) is rejected."""
    return (
        f"a maxDuration of {format_duration(cap)} is not longer than the gap of {format_duration(gap)}: a row that "
        "continues a session would nearly always end it, and which rows are dropped as `closed` would depend on the "
        f"order of arrival (rule S2); write more than {format_duration(gap)}, or a shorter gap"
    )


SessionOfGroup.cel = {(SessionOfGroup, name): positive() for name in ("gap", "maxDuration")}
