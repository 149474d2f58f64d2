"""Window steps: rows match that are in one window (rules W1-W7), tumbling, hopping, or a session of both sides."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, PrivateAttr

from joinery_runtime.job.kinds.aggregate.windows import (
    AlignedWindow,
    HoppingOfGroup,
    TumblingOfGroup,
    alignment,
    local_length_problem,
    offset_problem,
)
from joinery_runtime.job.kinds.base import Chain, StepKind, StepWords, milliseconds
from joinery_runtime.job.model.base import PLAIN_NUMBERS, Length, Model, PositiveDuration, Text
from joinery_runtime.job.model.cel import Rule, exactly_one, positive, time
from joinery_runtime.job.model.draft import Finding, JobDraft, StepDraft, dig, padded_inputs
from joinery_runtime.job.model.draft import exactly_one as one_of
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.time_formats import alignment_fields, checked_zone
from joinery_runtime.job.model.wording import either


def _check_window(draft: JobDraft) -> Iterator[Finding]:
    """Check each window by itself."""
    for step in draft.steps:
        window, at = step.data.get("window"), (*step.at, "window")
        yield from one_of(window, at, ("tumbling", "hopping", "session"))
        size, slide = (milliseconds(dig(window, "hopping", name)) for name in ("size", "slide"))
        if size is not None and slide is not None and slide > size:
            raw = dig(window, "hopping")
            facts = f"slide ({raw['slide']}) is longer than size ({raw['size']}), so rows between windows would be lost"
            yield (*at, "hopping", "slide"), f"{facts}; write at most the size"
        for where, problem in _alignment_problems(window):
            yield (*at, *where), problem


_LENGTHS = (("tumbling",), ("hopping", "size"), ("hopping", "slide"))
_ALIGNED = ("offset", "timeZone")


def _alignment_problems(window: Any) -> Iterator[Finding]:
    """Check from where the windows count. Places are below that of the window."""
    if dig(window, "session") is not None:
        for name in _ALIGNED:
            if dig(window, name) is not None:
                yield (name,), "a session begins with a row, at whatever time that is; leave it out"
        return
    for where in _LENGTHS if dig(window, "timeZone") is not None else ():
        length = milliseconds(dig(window, *where))
        if length and (problem := local_length_problem(length)):
            yield where, problem
    size = milliseconds(dig(window, "tumbling")) or milliseconds(dig(window, "hopping", "size"))
    offset = milliseconds(dig(window, "offset"))
    if size and offset is not None and (problem := offset_problem(offset, size)):
        yield ("offset",), problem


def _check_one_window(draft: JobDraft) -> Iterator[Finding]:
    """Require that all window steps of a chain join in the same windows, and that rows are in one (W5)."""
    first: StepDraft | None = None
    for step in draft.steps:
        window, at = step.data.get("window"), (*step.at, "window")
        if window is None:
            continue
        padded = padded_inputs(draft.steps[: step.number])
        if first is None:
            origin = dig(window, "of")
            counted = origin if isinstance(origin, str) else next(iter(step.left_names), None)
            timed = [name for name in step.left_names if name not in padded]
            if counted in padded:
                facts = f"rows of {counted!r} may be missing, because {padded[counted]}"
                no_window = "a row without an event time is in no window (rule W6)"
                todo = f"write of: {either(timed)}" if timed else "write type: left or inner in the steps before"
                yield (*at, "of") if origin else at, f"{facts}, and {no_window}; {todo}"
            first = step
            continue
        before = first.number + 1
        if dig(window, "of") is not None:
            facts = f"rows of step {before} are in windows already, whatever time counted there (rule W5)"
            yield (*at, "of"), f"{facts}; leave it out"
        if _lengths(window) != _lengths(first.data.get("window")):
            facts = f"step {before} has put the rows into other windows, and a row is in one (rule W5)"
            todo = f"write the window of step {before}, or join in these windows in a job of its own"
            yield at, f"{facts}; {todo}"
        for other in draft.steps[before : step.number]:
            if other.data.get("window") is None and other.data.get("type") in {"right", "full"}:
                facts = f"rows of {other.data.get('right')!r} that match nothing are in no window, and step"
                todo = f"write type: left or inner, or join {other.data.get('right')!r} after this step"
                yield (*other.at, "type"), f"{facts} {step.number + 1} joins in windows (rule W6); {todo}"


def _lengths(window: Any) -> tuple[Any, ...]:
    """Return what tells windows apart: a tumbling one is a hopping one whose slide is its size. Zones are compared by
    name."""
    tumbling = milliseconds(dig(window, "tumbling"))
    size, slide = (milliseconds(dig(window, "hopping", name)) for name in ("size", "slide"))
    gap = milliseconds(dig(window, "session", "gap"))
    aligned = milliseconds(dig(window, "offset")) or 0, dig(window, "timeZone")
    return (tumbling, tumbling, None, *aligned) if tumbling is not None else (size, slide, gap, *aligned)


class _Window(StepKind):
    """What the forms of a window share: both sides are closed by the lower watermark."""

    field: ClassVar[str] = "window"
    why_last: ClassVar[str] = ""
    counts: ClassVar[str] = "windows count the time of"
    what_is_final: ClassVar[str] = "a window that has closed"
    windowed: ClassVar[bool] = True
    fixed: ClassVar[Mapping[str, str]] = {
        "size": "window's size",
        "slide": "window's slide",
        "gap": "session gap",
        "offset": "windows' offset",
        "timeZone": "windows' time zone",
    }
    padding: ClassVar[str] = "once per window without a partner"
    matched: ClassVar[str] = "once per window with a partner"

    last: ClassVar[tuple[str, str]] = (">=", "the end of their last window")
    """Up to where rows are kept: the lower watermark is so far from it."""
    over: ClassVar[tuple[str, str]] = ("the end of their last window", "<=")
    """From where on a row is late."""

    @property
    @abstractmethod
    def length(self) -> int:
        """How long after its own time a row's last window ends, at most; for a session, if no other row extends it."""

    _origin_name: str | None
    """The input whose event time left rows have."""

    @property
    def counted_from(self) -> str | None:
        return self._origin_name

    @property
    def _origin(self) -> dict[str, str]:
        return {"of": self._origin_name} if self._origin_name is not None else {}

    def keeps(self, chain: Chain, left: tuple[str, ...], right: str) -> tuple[int, int]:
        """Say how long rows are kept: the lower watermark has to reach the end of their last window. Rows are handed on
        when their window closes."""
        origin = chain.window_of or self._origin_name or left[0]
        lag = max(chain.lag[origin] if chain.window_of is None else chain.window_lag, chain.lag[right])
        waits = self.length + lag
        chain.lag[right] = max(chain.lag[right], waits)
        chain.keep_left(left, origin, waits)
        chain.add_bound(left, origin, right, (1 - self.length, self.length - 1))
        chain.window_of, chain.window_lag = origin, lag
        return waits, waits

    def bound(self, words: StepWords) -> tuple[str, str]:
        more = f"; left rows count by {words.time(self._origin_name or words.left[0])}" if words.number else ""
        if words.windows_of_step is not None:
            more = f"; left rows stay in the window in which step {words.windows_of_step} joined them"
        return "window", f"{self.text}{more}"

    @property
    @abstractmethod
    def text(self) -> str:
        """The windows in words, as `explain` names them."""

    def kept_until(self, words: StepWords) -> tuple[str, str]:
        sign, end = self.last
        text = f"{words.lower_watermark(self._origin_name)} {sign} {end} + {words.lateness}"
        return text, text

    def late(self, words: StepWords) -> str:
        """Return what happens to late rows, in words (rule W2)."""
        end, sign = self.over
        records = f"of {words.right}, " if words.number else ""
        return (
            f"{records}{words.dropped} when {end} + {words.lateness} {sign} {words.lower_watermark(self._origin_name)}"
        )


class _Aligned(Model, _Window):
    """Windows that begin at midnight UTC, or at an offset from it, or at these times by the clocks of a zone (W7)."""

    _origin_name: str | None = PrivateAttr(default=None)
    _offset: int = PrivateAttr(default=0)
    _time_zone: str | None = PrivateAttr(default=None)

    size: Length = Field(examples=["1h"])
    """How long a window is, a duration."""

    @property
    def offset(self) -> int:
        """How long after midnight of 1970-01-01 a window begins (ms)."""
        return self._offset

    @property
    def time_zone(self) -> str | None:
        """The zone whose midnights count; None: those of UTC."""
        return self._time_zone

    @property
    def length(self) -> int:
        return self.size

    @property
    def _alignment(self) -> dict[str, Any]:
        return {"size": self.size, "offset": self.offset, "timeZone": self.time_zone}

    def durations(self) -> dict[str, Any]:
        return {**self._origin, "size": self.size, **alignment_fields(self.offset, self.time_zone)}

    def _aligned(self, text: str) -> str:
        moved = self.offset or self.time_zone is not None
        return f"{text}, {alignment(self.offset, self.time_zone)}" if moved else text


class Tumbling(_Aligned):
    """One window after the other."""

    form: ClassVar[str] = "tumbling"

    @property
    def slide(self) -> int:
        return self.size

    @property
    def aligned(self) -> AlignedWindow:
        return TumblingOfGroup.model_validate(self._alignment, context=PLAIN_NUMBERS)

    @property
    def text(self) -> str:
        return self._aligned(f"{format_duration(self.size)} long, one after the other")


class Hopping(_Aligned):
    """A window of `size` starts every `slide`; a row is in several when they overlap."""

    form: ClassVar[str] = "hopping"

    slide: Length = Field(examples=["15m"])
    """How often a window starts, a duration; at most `size`."""

    @property
    def aligned(self) -> AlignedWindow:
        return HoppingOfGroup.model_validate({**self._alignment, "slide": self.slide}, context=PLAIN_NUMBERS)

    def durations(self) -> dict[str, Any]:
        return {**super().durations(), "slide": self.slide}

    @property
    def text(self) -> str:
        windows = f"{format_duration(self.size)} long, one starts every {format_duration(self.slide)}"
        return f"{self._aligned(windows)}; a pair is emitted once per window that holds both"


class Session(Model, _Window):
    """A window ends when neither side has had a row of the key for longer than `gap`."""

    form: ClassVar[str] = "session"
    why_last: ClassVar[str] = "a session may begin any time before it ends, so no time of its rows is bounded"
    last: ClassVar[tuple[str, str]] = (">", "their session's last row + gap")
    over: ClassVar[tuple[str, str]] = ("ts + gap", "<")

    _origin_name: str | None = PrivateAttr(default=None)

    gap: Length = Field(examples=["30m"])
    """A session ends when the key has no row for longer than this, a duration."""

    @property
    def length(self) -> int:
        return self.gap

    def durations(self) -> dict[str, Any]:
        return {**self._origin, "gap": self.gap}

    @property
    def text(self) -> str:
        gap = format_duration(self.gap)
        return f"a session of both sides' rows of a key, which ends when none comes for longer than {gap}"


class Window(Model):
    """Rows match when both are in the same window; exactly one of the three."""

    field: ClassVar[str] = "window"
    kinds: ClassVar[tuple[type[StepKind], ...]] = (Tumbling, Hopping, Session)

    tumbling: Length | None = Field(default=None, examples=["1h"])
    """Windows of this length (a duration), one after the other."""
    hopping: Hopping | None = None
    """Windows that overlap."""
    session: Session | None = None
    """Windows that end when no row comes."""
    # No default that the API server would fill in: stored jobs stay as they are, and sessions have none.
    offset: PositiveDuration | None = Field(default=None, examples=["6h"])
    """How long after midnight of 1970-01-01 a tumbling or hopping window begins, a duration below its size. If absent,
    none."""
    time_zone: Annotated[Text, AfterValidator(checked_zone)] | None = Field(default=None, examples=["Europe/Zurich"])
    """The zone whose midnights count for tumbling and hopping windows, such as `Europe/Zurich`: a day on which clocks
    change has 23 or 25 hours. If absent, those of UTC."""
    of: Text | None = Field(default=None, examples=["orders"])
    """In a chain, the input joined before whose event time counts; if absent, the first input. Only the first window
    step can name it: the rows of later ones are in windows already."""

    @property
    def form(self) -> StepKind:
        if self.session is not None:
            session = self.session.model_copy()
            session._origin_name = self.of
            return session
        aligned: Tumbling | Hopping
        if self.hopping is not None:
            aligned = self.hopping.model_copy()
        else:
            aligned = Tumbling.model_construct(size=self.tumbling)
        aligned._origin_name, aligned._offset, aligned._time_zone = self.of, self.offset or 0, self.time_zone
        return aligned


_Window.rules = (_check_window, _check_one_window)
_Window.cel = {
    Window: (
        exactly_one("tumbling", "hopping", "session"),
        *(
            Rule(
                f"!has(self.{name}) || !has(self.session)",
                "a session begins with a row, at whatever time that is; leave it out",
                f".{name}",
            )
            for name in _ALIGNED
        ),
        *(
            Rule(
                f"!has(self.offset) || !has(self.{form}) || {time('offset')} < {time(size)}",
                "must be less than size",
                ".offset",
            )
            for form, size in (("tumbling", "tumbling"), ("hopping", "hopping.size"))
        ),
    ),
    Hopping: (
        Rule(
            f"{time('slide')} <= {time('size')}",
            "slide is longer than size, so rows between windows would be lost; write at most the size",
            ".slide",
        ),
    ),
    **{(model, name): positive() for model, name in ((Window, "tumbling"), (Hopping, "size"), (Hopping, "slide"))},
    (Session, "gap"): positive(),
}
