"""Session windows of an aggregate: rows of a group that are near each other (rules S1 to S3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from joinery_runtime.job.kinds.base import WindowKind, milliseconds
from joinery_runtime.job.model.base import Length, Model
from joinery_runtime.job.model.cel import positive
from joinery_runtime.job.model.draft import Finding, Loc, dig
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.references import SESSION_COLUMNS, SESSION_ID


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
        f"is {format_duration(cap)}, not longer than the gap of {format_duration(gap)}: a row that continues a session "
        "would nearly always end it, and which rows are dropped as `closed` would depend on the order of arrival (rule "
        f"S2); write more than {format_duration(gap)}, or a shorter gap"
    )


SessionOfGroup.cel = {(SessionOfGroup, name): positive() for name in ("gap", "maxDuration")}
