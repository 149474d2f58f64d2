"""Window steps: rows match that are in one window (rules W1-W4), tumbling, hopping, or a session of both sides."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from joinery_runtime.job.kinds.base import Chain, StepKind, StepWords, milliseconds
from joinery_runtime.job.model.base import Length, Model
from joinery_runtime.job.model.cel import Rule, exactly_one, positive, time
from joinery_runtime.job.model.draft import Finding, JobDraft, dig
from joinery_runtime.job.model.draft import exactly_one as one_of
from joinery_runtime.job.model.duration import format_duration


def _window(draft: JobDraft) -> Iterator[Finding]:
    for step in draft.steps:
        window, at = step.data.get("window"), (*step.at, "window")
        yield from one_of(window, at, ("tumbling", "hopping", "session"))
        size, slide = (milliseconds(dig(window, "hopping", name)) for name in ("size", "slide"))
        if size is not None and slide is not None and slide > size:
            raw = dig(window, "hopping")
            facts = f"slide ({raw['slide']}) is longer than size ({raw['size']}), so rows between windows would be lost"
            yield (*at, "hopping", "slide"), f"{facts}; write at most the size"


class _Window(StepKind):
    """What the forms of a window share: both sides are closed by the lower watermark."""

    field: ClassVar[str] = "window"
    chain_rule: ClassVar[str] = " (rule W4)"
    what_is_final: ClassVar[str] = "a window that has closed"
    windowed: ClassVar[bool] = True
    fixed: ClassVar[Mapping[str, str]] = {"size": "window's size", "slide": "window's slide", "gap": "session gap"}
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

    def keeps(self, chain: Chain, left: tuple[str, ...], right: str) -> tuple[int, int]:
        waits = self.length + max(chain.lag.values())
        return waits, waits

    def bound(self, words: StepWords) -> tuple[str, str]:
        return "window", self.text

    @property
    @abstractmethod
    def text(self) -> str:
        """The windows in words, as `explain` names them."""

    def kept_until(self, words: StepWords) -> tuple[str, str]:
        sign, end = self.last
        text = f"{words.lower_watermark()} {sign} {end} + {words.lateness}"
        return text, text

    def late(self, words: StepWords) -> str:
        """What happens to late rows, in words (rule W2)."""
        end, sign = self.over
        return f"{words.dropped} when {end} + {words.lateness} {sign} {words.lower_watermark()}"


class Tumbling(Model, _Window):
    """One window after the other."""

    size: Length

    @property
    def name(self) -> str:
        return "tumbling"

    @property
    def slide(self) -> int:
        return self.size

    @property
    def length(self) -> int:
        return self.size

    def durations(self) -> dict[str, Any]:
        return {"size": self.size}

    @property
    def text(self) -> str:
        return f"{format_duration(self.size)} long, one after the other"


class Hopping(Model, _Window):
    """A window of `size` starts every `slide`; a row is in several when they overlap."""

    size: Length = Field(examples=["1h"])
    """How long a window is, a duration."""
    slide: Length = Field(examples=["15m"])
    """How often a window starts, a duration; at most `size`."""

    @property
    def name(self) -> str:
        return "hopping"

    @property
    def length(self) -> int:
        return self.size

    def durations(self) -> dict[str, Any]:
        return {"size": self.size, "slide": self.slide}

    @property
    def text(self) -> str:
        size, slide = format_duration(self.size), format_duration(self.slide)
        return f"{size} long, one starts every {slide}; a pair is emitted once per window that holds both"


class Session(Model, _Window):
    """A window ends when neither side has had a row of the key for longer than `gap`."""

    last: ClassVar[tuple[str, str]] = (">", "their session's last row + gap")
    over: ClassVar[tuple[str, str]] = ("ts + gap", "<")

    gap: Length = Field(examples=["30m"])
    """A session ends when the key has no row for longer than this, a duration."""

    @property
    def name(self) -> str:
        return "session"

    @property
    def length(self) -> int:
        return self.gap

    def durations(self) -> dict[str, Any]:
        return {"gap": self.gap}

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

    @property
    def form(self) -> StepKind:
        if self.session is not None or self.hopping is not None:
            return self.session or self.hopping  # type: ignore[return-value]
        return Tumbling.model_construct(size=self.tumbling)


_Window.rules = (_window,)
_Window.cel = {
    Window: (exactly_one("tumbling", "hopping", "session"),),
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
