"""Cross-field rules of `spec.unions` (rule U3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pydantic import ValidationError
from sqlglot import exp

from joinery_runtime.job.model.draft import (
    Finding,
    InputDraft,
    JobDraft,
    Loc,
    checked_tree,
    dig,
    exactly_one,
    items,
    reference,
    repeats,
    union_fields,
    unknown_column,
)
from joinery_runtime.job.model.inputs import Watermark
from joinery_runtime.job.model.union_columns import BranchField, Types, event_time_name, event_time_names, union_types
from joinery_runtime.job.model.wording import listed, suggestion

# How the watermark of the whole union moves; each branch has a delay of its own.
_SHARED = ("idleTimeout", "onIdle", "maxFuture", "lateWarning", "explicit")


def _list_unions(draft: JobDraft) -> Sequence[tuple[Loc, Mapping[str, object]]]:
    unions = enumerate(items(draft.data, "spec", "unions"))
    return [(("spec", "unions", number), union) for number, union in unions if isinstance(union, Mapping)]


def _list_branches(draft: JobDraft) -> Iterator[tuple[Loc, object, InputDraft | None]]:
    """Yield each branch of each union with its place, and its input if there is one of that name."""
    for at, union in _list_unions(draft):
        for number, branch in enumerate(items(union, "branches")):
            yield (*at, "branches", number), branch, draft.declared(dig(branch, "input"))


def _check_names(draft: JobDraft) -> Iterator[Finding]:
    inputs = [source.name for source in draft.sources]
    for number, name in repeats([*inputs, *(union.get("name") for _, union in _list_unions(draft))]):
        if number >= len(inputs):
            at: Loc = ("spec", "unions", number - len(inputs), "name")
            yield at, f"another input or union is called {name!r} too; choose another name"


def _check_inputs(draft: JobDraft) -> Iterator[Finding]:
    unions = {union.get("name") for _, union in _list_unions(draft)}
    inputs = [source.name or "" for source in draft.sources]
    seen: set[str] = set()
    for at, branch, source in _list_branches(draft):
        name = dig(branch, "input")
        if not isinstance(name, str):
            continue
        if source is None and name in unions:
            yield (*at, "input"), f"{name!r} is a union, and a branch is an input; name its branches here"
        elif source is None:
            hint = suggestion(name, inputs)
            yield (*at, "input"), f"{name!r} is not an input{hint}; inputs are {listed(inputs)}"
        elif name in seen:
            facts = f"{name!r} is a branch already, and each record counts once"
            todo = "drop one, or declare a second input that reads the same"
            if dig(draft.data, "spec", "sql") is not None:
                todo = f"give it an alias here, FROM {name} <alias>, and it is read again for this SELECT"
            yield (*at, "input"), f"{facts} (rule U3); {todo}"
        elif source.data.get("table") is not None:
            facts = f"{name!r} is a table, whose rows replace each other"
            yield (*at, "input"), f"{facts}; drop `table`, or let a job write the changelogs to one topic"
        seen.add(name)


def _check_steps(draft: JobDraft) -> Iterator[Finding]:
    union_of = {
        dig(branch, "input"): union.get("name")
        for _, union in _list_unions(draft)
        for branch in items(union, "branches")
        if isinstance(dig(branch, "input"), str)
    }
    for number, written in enumerate(items(draft.data, "spec", "joins")):
        name = dig(written, "right")
        if isinstance(name, str) and name in union_of:
            facts = f"{name!r} is a branch of the union {union_of[name]!r}, whose rows are joined"
            yield ("spec", "joins", number, "right"), f"{facts}; name the union"
    unions = {union.get("name") for _, union in _list_unions(draft)}
    for step in draft.steps:
        sides = [*step.left_names, step.right.name if step.right is not None else None]
        if step.data.get("coPartitioned") is True and any(name in unions for name in sides):
            facts = "the branches of a union have partitions of their own, which are not those of its key"
            yield (*step.at, "coPartitioned"), f"{facts}; leave it out"


def _check_columns(draft: JobDraft) -> Iterator[Finding]:
    for at, branch, source in _list_branches(draft):
        where = dig(branch, "where")
        if isinstance(where, str):
            yield from _check_expression((*at, "where"), where, "condition", source)
        names = []
        for number, item in enumerate(items(branch, "select")):
            loc, column, expression = (*at, "select", number), dig(item, "column"), dig(item, "expression")
            yield from exactly_one(item, loc, ("column", "expression"))
            names.append(dig(item, "as") or column)
            if isinstance(column, str) and source is not None and source.types is not None:
                ref = reference(column)
                if column not in source.types and ref is not None and ref.input == source.name:
                    yield (*loc, "column"), f"a branch has one input; write {ref.column!r} without its name"
                elif column not in source.types:
                    yield (*loc, "column"), unknown_column(column, source)
            if isinstance(expression, str):
                if dig(item, "as") is None:
                    yield loc, "an expression has no name of its own; add one: as: <name>"
                yield from _check_expression((*loc, "expression"), expression, "expression", source)
        for number, name in repeats(names):
            yield (*at, "select", number), f"two columns of the branch are called {name!r}; give one another name"


def _check_expression(at: Loc, text: str, kind: str, source: InputDraft | None) -> Iterator[Finding]:
    tree = yield from checked_tree(at, text, kind)
    if tree is None or source is None or source.types is None:
        return
    for column in dict.fromkeys((node.table, node.name) for node in tree.find_all(exp.Column)):
        qualifier, name = column
        if qualifier not in {"", source.name}:
            yield (
                at,
                f"{text!r} uses {f'{qualifier}.{name}'!r}, and the branch has the columns of {source.name!r} alone",
            )
        elif name not in source.types:
            yield at, f"{text!r}: {unknown_column(name, source)}"


def _check_alike(draft: JobDraft) -> Iterator[Finding]:
    """Find branches that differ in the names or types of their columns, or in the name of their event time."""
    for at, union in _list_unions(draft):
        branches = union_fields(union, draft.sources)
        complete = [(fields, event_time) for fields, event_time in branches if fields is not None]
        if len(complete) < len(branches) or len(branches) < 2:
            continue
        names = [dig(branch, "input") for branch in items(union, "branches")]
        types, first = union_types([fields for fields, _ in complete]), str(names[0])
        time = event_time_name(complete)
        if time is None:
            facts = f"the branch lacks {complete[0][1]!r}, the event time of {first!r}"
            yield (*at, "branches", 0), f"{facts}; select it too, in each branch under one name"
        for name, kind in types.items():
            if kind is None:
                facts = f"the type of {name!r} does not show in any branch"
                yield (*at, "branches", 0), f"{facts}; write CAST(<expression> AS <type>) in the first branch"
        for number, (fields, event_time) in enumerate(complete[1:], 1):
            loc = (*at, "branches", number)
            yield from _check_differences(loc, fields, types, first)
            own_times = event_time_names(fields, event_time)
            if time is not None and time not in own_times and time in {field.name for field in fields}:
                facts = f"{time!r} is the event time of the union, and here it is not that of {names[number]!r}"
                yield loc, f"{facts}; select that column as {time}"


def _check_differences(at: Loc, branch: Sequence[BranchField], types: Types, first: str) -> Iterator[Finding]:
    """Find columns of a branch that are not those of the union, whose names the branch `first` sets."""
    own = {field.name: field.type for field in branch}
    missing, more = sorted(types.keys() - own.keys()), sorted(own.keys() - types.keys())
    if missing or more:
        words = [f"{listed(names)} {word}" for names, word in ((missing, "missing"), (more, "more")) if names]
        facts = f"branches have the same columns: against those of {first!r}, here {listed(words)}"
        yield at, f"{facts}; name them alike with `as`, or leave them out"
    for name, kind in types.items():
        if kind is not None and own.get(name) not in {None, kind}:
            facts = f"{name!r} is {own[name]} here, and {kind} in {first!r}"
            yield at, f"{facts}; write CAST(... AS <type>) as {name} in one of them"


def _check_watermarks(draft: JobDraft) -> Iterator[Finding]:
    sources = {source.name: source for source in draft.sources}
    for at, union in _list_unions(draft):
        names = [dig(branch, "input") for branch in items(union, "branches")]
        of_union = [sources[name] for name in names if isinstance(name, str) and name in sources]
        for field in _SHARED:
            values = [dig(source.data, "watermark", field) for source in of_union]
            if len({_meaning_of_setting(field, value) for value in values}) > 1:
                texts = sorted({"none" if value is None else str(value) for value in values})
                facts = f"watermark.{field} is of the union as a whole, and its branches have {listed(texts)}"
                yield (*at, "branches"), f"{facts}; write the same into each of these inputs"


def _meaning_of_setting(field: str, written: object) -> object:
    """Return what a setting of a watermark says, with the default in place of None; a wrong one says what it is."""
    try:
        watermark = Watermark.model_validate({} if written is None else {field: written})
    except ValidationError:
        return str(written)
    return watermark.model_dump(by_alias=True)[field]


RULES: tuple[Callable[[JobDraft], Iterator[Finding]], ...] = (
    _check_names,
    _check_inputs,
    _check_steps,
    _check_columns,
    _check_alike,
    _check_watermarks,
)
