"""How a resource names a column of an input, and pairs of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference such as `orders.amount`, split in two. A column name may hold dots, an input name never does."""

    input: str
    column: str

    def __str__(self) -> str:
        return f"{self.input}.{self.column}"


def parse_reference(text: str) -> Reference | None:
    """Parses `input.column`; None if the text is anything else."""
    input_name, dot, column = text.partition(".")
    return Reference(input_name, column) if dot and input_name and column else None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One equality of a step: `left` is a column of an input joined before, `right` one of the step's right input."""

    left: Reference
    right: Reference


# --- columns that the engine adds -------------------------------------------------------------------------------------

WINDOW_COLUMNS = ("window_start", "window_end")
"""The columns that a window join can emit beside those of its inputs (rule W4): int64 milliseconds."""
WINDOW_START, SESSION_ID = WINDOW_COLUMNS[0], "session_id"
SESSION_COLUMNS = (*WINDOW_COLUMNS, SESSION_ID)
"""The columns of a session beside its groups and aggregates (rule S6): int64 milliseconds twice, uint64."""
RETRACTED = "retracted"
"""The last column if `emitRetractions` is on: whether this row retracts the earlier one with the same key."""


Prefixes = Literal["always", "whenNeeded"]


def output_prefixes(inputs: Sequence[str]) -> tuple[str, ...]:
    """The prefixes of each input's columns, in the job's order, if there is no `select` (rule J10)."""
    return ("left", "right") if len(inputs) == 2 else tuple(inputs)


def default_names(
    inputs: Mapping[str, Iterable[str]], prefixes: Prefixes, others: Sequence[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """Yields every column of every input, in the job's order, as (name in the output, input, column). `whenNeeded`: a
    column gets its input's prefix only if several inputs, or the engine's `others`, have that name."""
    shared = Counter([*others, *(column for columns in inputs.values() for column in columns)])
    for prefix, (side, columns) in zip(output_prefixes(list(inputs)), inputs.items(), strict=True):
        for column in columns:
            bare = prefixes == "whenNeeded" and shared[column] == 1
            yield column if bare else f"{prefix}_{column}", side, column
