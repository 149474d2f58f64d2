"""What `joinery explain` says about a step: what it does, and roughly how much state it will keep."""

from __future__ import annotations

from dataclasses import dataclass

from joinery_runtime.job.model.base import Limits
from joinery_runtime.job.model.quantity import format_bytes
from joinery_runtime.job.model.wording import counted, listed

RATE = 1_000  # the rows per second and input that the state estimate assumes

# The bytes that the engine adds to a stored row: key hash, event time, partition, offset.
ENGINE_ROW_BYTES = 8 + 8 + 4 + 8
COMPUTED_BYTES = 20  # of a computed column, whose type is not known here

# Arrow's widths. Those of text, and of binary and JSON, are guesses: 16 and 32 bytes of content, and a 4-byte offset.
BYTES = {
    "boolean": 1,
    "int32": 4,
    "int64": 8,
    "float": 4,
    "double": 8,
    "string": 20,
    "binary": 36,
    "decimal": 16,
    "date": 4,
    "timestamp": 8,
    "json": 36,
}


@dataclass(frozen=True, slots=True)
class SidePlan:
    """How long rows of one side wait. `rows_of` names their input, or the inputs whose joined rows they are.
    `kept_for_ms` is event time after the row's own, in steady flow. `rows` and `bytes` are the expected state at RATE
    rows per second, uncompressed. If the side `holds` sessions, that is the most: each row is a session of its own."""

    part: str
    rows_of: str
    kept_until: str
    kept_for_ms: int
    row_bytes: int
    holds: str = "rows"

    @property
    def rows(self) -> int:
        return self.kept_for_ms * RATE // 1000

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: `title` says what it is, `lines` are (name, text) in order, `shorter` is what makes its state
    smaller. `right` is the input that a join reads beside what comes from before."""

    title: str
    lines: tuple[tuple[str, str], ...]
    sides: tuple[SidePlan, ...]
    shorter: str
    right: str | None = None


def limits_text(limits: Limits, subject: str) -> str:
    """The limits in words; `subject` is what the caps are on."""
    sizes = [format_bytes(limits.max_state_bytes)] if limits.max_state_bytes else []
    sizes += [counted(limits.max_records, "row")] if limits.max_records else []
    read = "of that side is read" if subject == "a side" else "is read"
    then = "the job fails" if limits.on_limit == "fail" else f"no more {read} until it has shrunk"
    cap = f"{subject} holds at most {listed(sizes)}, else {then}; " if sizes else ""
    return f"{cap}a key with more than {counted(limits.hot_key_warning, 'row')} is warned about"
