"""As-of steps: a row of a stream takes the version of a table that is valid at its time (rules A1-A4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from joinery_runtime.job.kinds.base import Chain, Rules, StepKind, StepWords, milliseconds
from joinery_runtime.job.model.base import Length, Model, PositiveDuration, Text
from joinery_runtime.job.model.cel import Rule, names_input, positive, time
from joinery_runtime.job.model.draft import Finding, JobDraft, StepDraft, items, reference
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.references import EXISTENCE
from joinery_runtime.job.model.wording import listed


def _check_as_of(draft: JobDraft) -> Iterator[Finding]:
    for step in draft.steps:
        if step.data.get("asOf") is not None and (milliseconds(step.data.get("allowedLateness")) or 0) > 0:
            facts = "an asOf step drops no row as late (rule A3)"
            yield (*step.at, "allowedLateness"), f"{facts}; to wait for late versions write asOf.grace instead"
        if isinstance(step.data.get("asOf"), Mapping):
            raw = step.data["asOf"]
            grace, retention = milliseconds(raw.get("grace")), milliseconds(raw.get("historyRetention"))
            if grace is not None and retention is not None and grace >= retention > 0:
                facts = f"grace ({raw['grace']}) is not below historyRetention ({raw['historyRetention']})"
                todo = "so versions would go before the rows that wait; keep them longer"
                yield (*step.at, "asOf", "grace"), f"{facts}, {todo}"
            yield from _check_table(step)
            kind = step.data.get("type", "inner")
            if kind in ("right", "full"):
                facts = f"a {kind} join would keep unmatched versions of the table, which have no last moment"
                yield (*step.at, "type"), f"{facts} (rule A4); write inner or left"
            if kind in EXISTENCE:
                facts = f"an asOf step has one version for each row, and {kind} is for any number of partners"
                yield (*step.at, "type"), f"{facts} (rule E1); write inner or left"


def _check_table(step: StepDraft) -> Iterator[Finding]:
    if step.right is None:
        return
    keys, name = step.data.get("keys"), step.right.name
    columns = keys.values() if isinstance(keys, Mapping) else ()
    refs = ((text, reference(text)) for text in columns)
    inputs = {name, *step.left_names}
    named = [ref.column if ref is not None and ref.input in inputs else str(text) for text, ref in refs]
    if step.right.data.get("table") is None:
        todo = f"write table: {{key: [{', '.join(named)}]}} in that input"
        yield (*step.at, "asOf"), f"{name!r} is not a table: its versions have no key; {todo}"
        return
    table_key = [column for column in items(step.right.data, "table", "key") if isinstance(column, str)]
    if keys and table_key and sorted(named) != sorted(table_key):
        facts = f"the keys name {listed(named)} of {name!r}, whose table key is {listed(table_key)}"
        yield (*step.at, "keys"), f"{facts}; a version is looked up by the whole key and nothing else: name just that"


def _check_tables_elsewhere(draft: JobDraft) -> Iterator[Finding]:
    """Reject a table outside of an as-of step: a table is read as versions, which only such a step understands."""
    if (not draft.steps and len(draft.inputs) > 1) or not all(step.sides_known for step in draft.steps):
        return
    looked_up = {step.data.get("right") for step in draft.steps if step.data.get("asOf") is not None}
    for source in draft.inputs:
        if source.data.get("table") is not None and source.name not in looked_up:
            facts = f"{source.name!r} is a table, but not the right input of an asOf step"
            yield (*source.at, "table"), f"{facts}; drop `table`, or write asOf in the step whose right it is"


class AsOf(Model, StepKind):
    """Each row takes the table's version that is valid at its time."""

    field: ClassVar[str] = "asOf"
    why_last: ClassVar[str] = ""
    bounds_right: ClassVar[bool] = False
    counts: ClassVar[str] = "a version is the one at the time of"
    never_late: ClassVar[str] = "no row of an asOf step is late (rule A3)"
    what_is_final: ClassVar[str] = "a row that was emitted"
    adds_lateness: ClassVar[bool] = False
    shorter: ClassVar[str] = "shorten historyRetention and grace"
    padding: ClassVar[str] = "where no version is valid"
    widens: ClassVar[Mapping[str, tuple[str, int]]] = {"historyRetention": ("historyRetention", 1)}
    rules: ClassVar[Rules] = (_check_as_of, _check_tables_elsewhere)
    cel_of_job: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.sql) || !has(self.joins) || "
            "self.joins.all(step, !has(step.asOf) || !has(step.asOf.of) || (step.asOf.of != step.right && "
            f"{names_input('step.asOf.of')}))",
            "a version is the one at the time of an input that was joined before: `asOf.of` must name one",
            ".joins",
        ),
    )
    cel_of_step: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.asOf) || {time('allowedLateness')} == duration('0s')",
            "an asOf step drops no row as late (rule A3); to wait for late versions write asOf.grace instead",
            ".allowedLateness",
        ),
        Rule(
            "!has(self.asOf) || self.type in ['inner', 'left']",
            "an asOf step is inner or left: the table's versions have no last moment (rule A4)",
            ".type",
        ),
    )

    of: Text | None = Field(default=None, examples=["orders"])
    """The input at whose event time the version is valid: one that was joined before; if absent, the first."""
    history_retention: Length = Field(examples=["24h"])
    """How long a version is kept after a newer one has superseded it, a duration."""
    grace: PositiveDuration = Field(default=0, examples=["30s"])
    """How long a row waits for late versions, a duration."""

    @property
    def title(self) -> str:
        return "as-of"

    @property
    def counted_from(self) -> str | None:
        return self.of

    def durations(self) -> dict[str, Any]:
        origin = {"of": self.of} if self.of is not None else {}
        return {**origin, "historyRetention": self.history_retention, "grace": self.grace}

    def keeps(self, chain: Chain, left: tuple[str, ...], right: str) -> tuple[int, int]:
        """Say how long rows wait, and versions stay. In a chain versions stay for the rows that the steps before may
        still hand on (rule A2)."""
        origin = self.of or left[0]
        retention_ms = self.history_retention + (chain.lag[origin] if len(left) > 1 else 0)
        chain.keep_left(left, origin, self.grace)
        return self.grace, retention_ms

    def bound(self, words: StepWords) -> tuple[str, str]:
        wait = "at once" if not self.grace else f"after {format_duration(self.grace)} [grace]"
        left, right = words.time(self.of or words.left[0]), words.time(words.right)
        text = f"the version of {words.right} that is valid at {left} (newest with {right} <= it), joined {wait}"
        return "table", text

    def kept_until(self, words: StepWords) -> tuple[str, str]:
        origin = self.of or words.left[0]
        waits = f"the highest event time of {origin} >= ts + {format_duration(self.grace)} [grace]"
        reached = f"the highest event time of {words.right}"
        if words.chained(origin):
            reached = f"min({reached}, {words.watermark(origin)})"
        return waits if self.grace else "they are joined, at once", (
            f"a newer version of the key is older than {reached} - "
            f"{format_duration(self.history_retention)} [historyRetention]; the newest of every key stays"
        )

    def late(self, words: StepWords) -> str:
        """Return what happens to late rows, in words (rule A3)."""
        return (
            "no row of the stream is dropped; a version is dropped, and counted, if it was superseded longer than "
            "historyRetention before it came"
        )


AsOf.cel = {
    AsOf: (
        Rule(
            f"{time('grace')} < {time('historyRetention')}",
            "grace is not below historyRetention, so versions would go before the rows that wait; keep them longer",
            ".grace",
        ),
    ),
    (AsOf, "historyRetention"): positive(),
}
AsOf.schemas = {(AsOf, "of"): {"maxLength": 253}}
