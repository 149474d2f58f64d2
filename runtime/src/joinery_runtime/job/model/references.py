"""How a resource names a column of an input, and pairs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """`orders.amount` taken apart. A column name may itself hold dots, an input name never does."""

    input: str
    column: str

    def __str__(self) -> str:
        return f"{self.input}.{self.column}"


def parse_reference(text: str) -> Reference | None:
    """None when the text is not `input.column`."""
    input_name, dot, column = text.partition(".")
    return Reference(input_name, column) if dot and input_name and column else None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One equality of a step: `left` is a column of an input joined before, `right` one of the step's right input."""

    left: Reference
    right: Reference


# --- columns that the engine adds -------------------------------------------------------------------------------------

WINDOW_COLUMNS = ("window_start", "window_end")
"""What a window join can put out beside columns of its inputs (rule W4): int64 milliseconds."""
WINDOW_START, SESSION_ID = WINDOW_COLUMNS[0], "session_id"
SESSION_COLUMNS = (*WINDOW_COLUMNS, SESSION_ID)
"""What a session has beside its groups and aggregates (rule S6): int64 milliseconds twice, uint64."""
RETRACTED = "retracted"
"""The last column where `emitRetractions` is on: whether this row takes back the one with its key that went out."""


def output_prefixes(inputs: Sequence[str]) -> tuple[str, ...]:
    """What names the columns of each input, in the job's order, where no `select` does (rule J10)."""
    return ("left", "right") if len(inputs) == 2 else tuple(inputs)
