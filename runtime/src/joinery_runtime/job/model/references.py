"""How a resource names a column of an input, pairs of them, and paths into nested records:
`payload.after.items[0].sku`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlglot import exp, tokenize
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from joinery_runtime.job.model.expression_tree import parse_tree
from joinery_runtime.job.model.function_calls import NAME


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference such as `orders.amount`, split in two. A column name may hold dots, an input name never does."""

    input: str
    column: str

    def __str__(self) -> str:
        return f"{self.input}.{self.column}"

    @property
    def reads(self) -> tuple[Reference, ...]:
        """The input's columns that decide its value."""
        return (self,)


@dataclass(frozen=True, slots=True)
class ComputedKey(Reference):
    """A key that is an expression over columns of one input (rule J12). `column` is the expression in one way of
    writing, without the input: the name of the column that the input's rows get. `text` is the same with the input."""

    text: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return self.text

    @property
    def reads(self) -> tuple[Reference, ...]:
        return tuple(Reference(self.input, column) for column in self.columns)


def parse_reference(text: str) -> Reference | None:
    """Parse `input.column`; None if the text is anything else."""
    input_name, dot, column = text.partition(".")
    return Reference(input_name, column) if dot and input_name and column else None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One equality of a step: `left` is of an input joined before, `right` of the step's right input."""

    left: Reference
    right: Reference


# --- keys of a join: columns, or expressions over columns of one input (rule J12) -------------------------------------

Columns = Mapping[str, Collection[str]]
"""The columns of inputs, by the inputs' names."""


def read_key(text: str, columns: Columns) -> Reference | exp.Expr | None:
    """Read one side of a key. A text that names a column which exists is that column, whatever else it may mean; an
    expression is returned as its tree. None: the text is neither."""
    ref = parse_reference(text)
    if ref is not None and ref.column in columns.get(ref.input, ()):
        return ref
    try:
        tree = parse_tree(text).unnest()
    except SqlglotError:
        return ref if ref is not None and ref.input in columns else None
    if isinstance(tree, exp.Alias):  # `orders.order id`: a column that does not exist
        return ref
    if not isinstance(tree, exp.Column):
        return tree
    named = Reference(tree.table, tree.name)
    return named if tree.name in columns.get(tree.table, ()) else ref


def inputs_of(tree: exp.Expr) -> list[str]:
    """Return the inputs whose columns an expression reads; the empty name for columns without an input."""
    return sorted({column.table for column in tree.find_all(exp.Column)})


def computed_key(tree: exp.Expr) -> ComputedKey:
    """Return the key that an expression over one input's columns computes. How the expression is written decides
    nothing."""
    written = tree.copy()
    for identifier in written.find_all(exp.Identifier):
        # A name needs no quotes if it is a word, and none of SQL's.
        plain = re.fullmatch(NAME, identifier.name) and tokenize(identifier.name)[0].token_type is TokenType.VAR
        identifier.set("quoted", not plain)
    (name,) = inputs_of(written)
    text = written.sql(comments=False)
    columns = sorted({column.name for column in written.find_all(exp.Column)})
    for column in written.find_all(exp.Column):
        column.set("table", None)
    return ComputedKey(name, written.sql(comments=False), text, tuple(columns))


def key_pairs(keys: Mapping[str, str], columns: Columns) -> tuple[KeyPair, ...]:
    """Return the keys of a valid step, in order. `columns` are those of all inputs."""
    pairs = []
    for texts in keys.items():
        sides = list[Reference]()
        for text in texts:
            side = read_key(text, columns)
            assert side is not None, "the rules have checked the keys"
            sides.append(side if isinstance(side, Reference) else computed_key(side))
        pairs.append(KeyPair(*sides))
    return tuple(pairs)


JoinType = Literal["inner", "left", "right", "full", "semi", "anti"]
EXISTENCE: Final = ("semi", "anti")
"""The types of join that emit left rows alone, by whether they have a match (rule E1)."""


# --- columns that the engine adds -------------------------------------------------------------------------------------

WINDOW_COLUMNS = ("window_start", "window_end")
"""The columns that a window join can emit beside those of its inputs (rule W4): int64 milliseconds."""
ROW_NUMBER = "row_number"
RANK_COLUMNS = (*WINDOW_COLUMNS, ROW_NUMBER)
"""The columns that a row of `topN` has beside those of its inputs (rule R3): int64 milliseconds twice, int64."""
RANKS = ("rank", "dense_rank", "row_number", "percent_rank", "cume_dist", "ntile")
"""Functions of `topN.totals` that say where a row stands in an order (rule R10)."""
VALUES_OF_OTHERS = ("lag", "lead", "first_value")
"""Functions of `topN.totals` whose value is that of another row in an order (rule R11)."""
MOST_RANKED_ROWS = 10_000
"""How many rows of each key and window `topN` emits at most."""
WINDOW_TIME = "$window_time"
"""The event time of an aggregate's row in the next aggregate: the last millisecond of its window (rule G10)."""
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
STAR_NAMINGS: tuple[Naming, Naming] = ("whenNeeded", "sidesWhenNeeded")
"""How the columns of stars in SQL are named: in jobs without state, and as in earlier releases."""
POSTGRES_NAME_BYTES = 63
Named = tuple[str, str, str]
"""The name in the output, the input and its column."""


def namings(prefixes: object) -> tuple[Naming, ...]:
    """Return the ways in which a job with this field may name its columns, the one of a job without state first. The
    others are for jobs whose state has their names."""
    match prefixes:
        case "always":
            return ("always",)
        case "whenNeeded":
            return ("whenNeeded", "sidesWhenNeeded")
        case _:
            return ("whenNeeded", "always", "sidesWhenNeeded")


def side_prefixes(inputs: Sequence[str]) -> tuple[str, ...]:
    """Return the prefixes of each input's columns, in the job's order, under `always`."""
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
    """Return the way in which a job without stored names has its columns named: the first one under which all names
    differ, are of at most `most_bytes`, and include the output's `keys`. Jobs of earlier releases have keys such as
    `left_order_id`."""
    required_names, ways = set(keys), namings(prefixes)
    for naming in ways:
        names = [*engine_names, *(name for name, *_ in default_names(inputs, naming, engine_names))]
        short = most_bytes is None or all(len(name.encode()) <= most_bytes for name in names)
        if short and len(set(names)) == len(names) and required_names <= set(names):
            return naming
    return ways[0]


Path = tuple[str | int, ...]
"""Names of fields in objects and positions in arrays, from the outermost inwards. The first step is a name."""

_STEP = re.compile(r'(?P<dot>\.)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^."\[\]]+))|\[(?P<index>\d{1,6})\]')
_FORM = 'a path is names and positions, for example payload.after.id, items[0].sku or "a.b".c (a name with dots)'


def parse_path(text: str) -> Path:
    """Return the steps of a path. Raises ValueError, which shows the form."""
    if text.startswith("$"):
        raise ValueError(f"{text!r} begins with $; leave it out: {_FORM}")
    steps: list[str | int] = []
    at = 0
    while at < len(text) or not steps:
        match = _STEP.match(text, at)
        # A dot separates two steps if the second one is a name.
        if match is None or (match["index"] is None and bool(match["dot"]) != bool(steps)):
            raise ValueError(f"{text!r} is not a path (see character {at + 1}): {_FORM}")
        if match["index"] is None:
            name = match["plain"]
            if (quoted := match["quoted"]) is not None:
                try:
                    name = str(json.loads(f'"{quoted}"'))
                except ValueError as error:
                    raise ValueError(f'"{quoted}" is not a name in quotes as JSON has it') from error
            steps.append(name)
        elif steps:
            steps.append(int(match["index"]))
        else:
            raise ValueError(f"{text!r} begins with a position, and a record is an object: {_FORM}")
        at = match.end()
    return tuple(steps)
