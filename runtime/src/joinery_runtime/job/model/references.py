"""How a resource names a column of an input, and pairs of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


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


Prefixes = Literal["always", "whenNeeded"]


def output_prefixes(inputs: Sequence[str]) -> tuple[str, ...]:
    """What names the columns of each input, in the job's order, where no `select` does (rule J10)."""
    return ("left", "right") if len(inputs) == 2 else tuple(inputs)


def default_names(
    inputs: Mapping[str, Iterable[str]], prefixes: Prefixes, others: Sequence[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """Every column of every input, by the inputs' names in the job's order, as (name in the output, input, column).
    `whenNeeded`: only what several inputs have, or the engine's `others`, has the prefix of its input."""
    shared = Counter([*others, *(column for columns in inputs.values() for column in columns)])
    for prefix, (side, columns) in zip(output_prefixes(list(inputs)), inputs.items(), strict=True):
        for column in columns:
            bare = prefixes == "whenNeeded" and shared[column] == 1
            yield column if bare else f"{prefix}_{column}", side, column
