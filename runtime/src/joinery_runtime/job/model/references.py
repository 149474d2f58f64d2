"""How a resource names a column of an input, and pairs of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal


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


JoinType = Literal["inner", "left", "right", "full", "semi", "anti"]
EXISTENCE: Final = ("semi", "anti")
"""The types of join that emit left rows alone, by whether they have a match (rule E1)."""


# --- columns that the engine adds -------------------------------------------------------------------------------------

WINDOW_COLUMNS = ("window_start", "window_end")
"""The columns that a window join can emit beside those of its inputs (rule W4): int64 milliseconds."""
WINDOW_START, SESSION_ID = WINDOW_COLUMNS[0], "session_id"
SESSION_COLUMNS = (*WINDOW_COLUMNS, SESSION_ID)
"""The columns of a session beside its groups and aggregates (rule S6): int64 milliseconds twice, uint64."""
RETRACTED = "retracted"
"""The last column if `emitRetractions` is on: whether this row retracts the earlier one with the same key."""


# --- the names of output columns that no `select` names (rule J10) ----------------------------------------------------

Prefixes = Literal["always", "whenNeeded"]
"""What a job can say."""
Naming = Literal["always", "whenNeeded", "sidesWhenNeeded"]
"""How columns are named. `sidesWhenNeeded` is what `whenNeeded` meant in earlier releases, whose jobs keep it: of
two inputs, the prefixes are those of `always`."""
POSTGRES_NAME_BYTES = 63
Named = tuple[str, str, str]
"""The name in the output, the input and its column."""


def namings(prefixes: object) -> tuple[Naming, ...]:
    """The ways in which a job with this field may name its columns, the one of a job without state first. The others
    are for jobs whose state has their names."""
    match prefixes:
        case "always":
            return ("always",)
        case "whenNeeded":
            return ("whenNeeded", "sidesWhenNeeded")
        case _:
            return ("whenNeeded", "always", "sidesWhenNeeded")


def side_prefixes(inputs: Sequence[str]) -> tuple[str, ...]:
    """The prefixes of each input's columns, in the job's order, under `always` and in SQL."""
    return ("left", "right") if len(inputs) == 2 else tuple(inputs)


def naming_prefixes(naming: Naming, inputs: Sequence[str]) -> tuple[str, ...]:
    return tuple(inputs) if naming == "whenNeeded" else side_prefixes(inputs)


def default_names(
    inputs: Mapping[str, Iterable[str]],
    naming: Naming,
    engine_names: Sequence[str] = (),
    stored_names: Mapping[Reference, str] | None = None,
) -> Iterator[Named]:
    """Yield every column of every input, in the job's order. Unless all have prefixes, a column gets its input's only
    if several inputs, or the engine's `engine_names`, have that name. `stored_names` are kept."""
    shared = Counter([*engine_names, *(column for columns in inputs.values() for column in columns)])
    stored_names = stored_names or {}
    used_names = set(stored_names.values())
    for prefix, (side, columns) in zip(naming_prefixes(naming, list(inputs)), inputs.items(), strict=True):
        for column in columns:
            bare = naming != "always" and shared[column] == 1 and column not in used_names
            yield stored_names.get(Reference(side, column), column if bare else f"{prefix}_{column}"), side, column


def fitting_naming(
    prefixes: object,
    inputs: Mapping[str, Iterable[str]],
    engine_names: Sequence[str],
    keys: Iterable[str],
    *,
    most_bytes: int | None,
) -> Naming:
    """The way in which a job without stored names has its columns named: the first one under which all names differ,
    are of at most `most_bytes`, and include the output's `keys`. Jobs of earlier releases have keys such as
    `left_order_id`."""
    required_names, ways = set(keys), namings(prefixes)
    for naming in ways:
        names = [*engine_names, *(name for name, *_ in default_names(inputs, naming, engine_names))]
        short = most_bytes is None or all(len(name.encode()) <= most_bytes for name in names)
        if short and len(set(names)) == len(names) and required_names <= set(names):
            return naming
    return ways[0]
