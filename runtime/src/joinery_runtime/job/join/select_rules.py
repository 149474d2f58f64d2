"""Cross-field rules of `spec.select`, and the names of the output columns (J10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from joinery_runtime.job.join.steps import STEP_KINDS
from joinery_runtime.job.kinds.ranking import RANKING_KINDS, RankingKind
from joinery_runtime.job.model.draft import (
    Finding,
    JobDraft,
    Loc,
    checked_tree,
    dig,
    exactly_one,
    items,
    reference,
    repeats,
    unknown_column,
)
from joinery_runtime.job.model.output_rules import outputs, row_columns, unknown_columns
from joinery_runtime.job.model.references import (
    POSTGRES_NAME_BYTES,
    RANK_COLUMNS,
    WINDOW_COLUMNS,
    default_names,
    fitting_naming,
)
from joinery_runtime.job.model.wording import listed, suggestion


def _check_items(draft: JobDraft) -> Iterator[Finding]:
    for i, item in enumerate(items(draft.data, "spec", "select")):
        at = ("spec", "select", i)
        yield from exactly_one(item, at, ("column", "expression"))
        column = dig(item, "column")
        ref = reference(column)
        if column not in _engine_columns(draft):
            if column in WINDOW_COLUMNS:
                facts = f"{column!r} is a column of window joins only (rule W4)"
                yield (*at, "column"), f"{facts}; write <input>.{column}, or leave it out"
            elif ref is not None:
                yield from _check_name((*at, "column"), ref.input, ref.column, draft)
            elif isinstance(column, str) and column:
                yield (*at, "column"), f"{column!r} does not name its input; write <input>.{column}"
        if isinstance(text := dig(item, "expression"), str):
            yield from check_expression((*at, "expression"), text, draft)
            if dig(item, "as") is None:
                yield at, "an expression has no name of its own; add one: as: <name>"


def check_expression(at: Loc, text: str, draft: JobDraft) -> Iterator[Finding]:
    """Check the columns of an expression and its calls of functions. The core checks its type."""
    tree = yield from checked_tree(at, text, "expression")
    if tree is None:
        return
    for column in tree.find_all(exp.Column):
        if not column.table and column.name in WINDOW_COLUMNS and _is_windowed(draft) and not _named_rankings(draft):
            continue
        if not column.table and column.name in _engine_columns(draft):
            todo = f"select it as it is: column: {column.name}" if at[1] == "select" else "write a column of an input"
            yield at, f"{column.name!r} is computed after expressions; {todo}"
        elif not column.table:
            yield at, f"{column.name!r} does not name its input; write <input>.{column.name}"
        elif column.args.get("db") is None:
            yield from _check_name(at, column.table, column.name, draft)


def _check_name(at: Loc, input_name: str, column: str, draft: JobDraft) -> Iterator[Finding]:
    side = draft.by_name.get(input_name)
    if not draft.all_named:
        return
    if side is None:
        hint = suggestion(input_name, draft.by_name)
        yield at, f"{input_name!r} is not an input{hint}; inputs are {listed(draft.by_name)}"
    elif (absent := draft.absent.get(input_name)) is not None:
        yield at, f"'{input_name}.{column}' is not there any more: {absent.reason} (rule E1); leave it out"
    elif side.types is not None and column not in side.types:
        yield at, unknown_column(column, side)


# --- names --------------------------------------------------------------------------------------------------------


def _check_names(draft: JobDraft) -> Iterator[Finding]:
    names = [_output_name(item) for item in items(draft.data, "spec", "select")]
    for i, repeated in repeats(names):
        yield ("spec", "select", i), f"two output columns are named {repeated!r} (rule J10); rename one with `as`"
    for i, name in enumerate(names):
        if name is not None and name.startswith("$"):
            yield ("spec", "select", i), f"{name!r} starts with `$`, which engine columns do; rename it with `as`"
    if dig(draft.data, "spec", "select") is None:
        # Two columns may have one default name: `a.b_c` and `a_b.c` would both be a_b_c.
        for _, name in repeats(list(_every_column(draft))):
            todo = "name the columns with `select`, or rename an input"
            yield ("spec", "inputs"), f"two output columns would be named {name!r} (rule J10); {todo}"
    elif dig(draft.data, "spec", "prefixes") == "whenNeeded":
        yield ("spec", "prefixes"), "`select` or `sql` names the columns; drop `prefixes`"
    yield from unknown_columns(draft, output_names(draft))


def output_names(draft: JobDraft) -> list[str] | None:
    """Return all output columns; None while a mistake hides one."""
    if dig(draft.data, "spec", "select") is not None:
        names = [_output_name(item) for item in items(draft.data, "spec", "select")]
        columns = [name for name in names if name is not None]
        if len(columns) < len(names):
            return None
        return columns or None
    columns = list(_every_column(draft))
    return [*columns, *_engine_columns(draft)] if columns else None


def _output_name(item: object) -> str | None:
    renamed, column = dig(item, "as"), dig(item, "column")
    if isinstance(renamed, str):
        return renamed
    if column in RANK_COLUMNS:
        return str(column)
    source = reference(column)
    return source.column if source is not None else None


def _every_column(draft: JobDraft) -> Iterator[str]:
    """Yield the default names of all columns; nothing unless every column is known."""
    if not draft.all_named or any(source.types is None for source in draft.inputs):
        return
    columns = {name: tuple(source.types or ()) for name, source in draft.by_name.items() if name not in draft.absent}
    times = _engine_columns(draft)
    naming = fitting_naming(
        dig(draft.data, "spec", "prefixes"),
        columns,
        times,
        (name for name in row_columns(draft.data) if isinstance(name, str)),
        most_bytes=POSTGRES_NAME_BYTES if any("postgres" in output for _, output in outputs(draft.data)) else None,
    )
    yield from (name for name, *_ in default_names(columns, naming, times))


def _engine_columns(draft: JobDraft) -> tuple[str, ...]:
    """Return the columns that rows have beside those of inputs."""
    if rankings := _named_rankings(draft):
        return tuple(name for kind in rankings for name in kind.adds)
    return WINDOW_COLUMNS if _is_windowed(draft) else ()


def _named_rankings(draft: JobDraft) -> list[type[RankingKind]]:
    return [kind for kind in RANKING_KINDS if dig(draft.data, "spec", kind.field) is not None]


def _is_windowed(draft: JobDraft) -> bool:
    """Say whether a step puts rows into windows."""
    fields = {kind.field for kind in STEP_KINDS if kind.windowed}
    return any(step.data.get(field) is not None for step in draft.steps for field in fields)


RULES: tuple[Callable[[JobDraft], Iterator[Finding]], ...] = (_check_items, _check_names)
