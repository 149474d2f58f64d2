"""A resource before it is valid, as cross-field rules read it: each piece is present as far as it parses.

Rules run on raw data, not on models, so that a mistake in one place does not hide mistakes elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.model.base import ColumnType, EpochMs, TypeField
from joinery_runtime.job.model.expression_tree import parse_tree, shown
from joinery_runtime.job.model.function_calls import wrong_calls
from joinery_runtime.job.model.references import EXISTENCE, Reference, parse_reference
from joinery_runtime.job.model.union_columns import BranchField, branch_fields, event_time_name, union_types
from joinery_runtime.job.model.wording import listed, suggestion

Loc = tuple[str | int, ...]
Finding = tuple[Loc, str]

_Value = TypeVar("_Value")

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE: TypeAdapter[ColumnType] = TypeAdapter(TypeField)
_TIME: TypeAdapter[int] = TypeAdapter(EpochMs)


@dataclass(frozen=True, slots=True)
class InputDraft:
    """`types` is None unless every column has a name; a column whose type does not parse has the type None."""

    at: Loc
    data: Mapping[str, Any]
    name: str | None
    types: Mapping[str, ColumnType | None] | None


@dataclass(frozen=True, slots=True)
class AbsentInput:
    """An input whose columns no later step and no output has, because step `number` (from 0) joins it with `type`."""

    source: InputDraft
    number: int
    type: str

    @property
    def reason(self) -> str:
        return f"step {self.number + 1} is a join of type {self.type}, which emits no column of {self.source.name!r}"


@dataclass(frozen=True, slots=True)
class StepDraft:
    """One join step. `left` are the inputs that were joined before it, without those of which semi and anti joins
    emit nothing (`absent`); empty if an earlier mistake hides them. `right` is None unless it names an input that no
    other step joins."""

    at: Loc
    number: int
    data: Mapping[str, Any]
    left: tuple[InputDraft, ...]
    right: InputDraft | None
    absent: tuple[AbsentInput, ...] = ()

    @property
    def sides_known(self) -> bool:
        return bool(self.left) and self.right is not None

    @property
    def left_names(self) -> list[str]:
        return [source.name or "" for source in self.left]

    def side_of(self, input_name: str) -> InputDraft | None:
        """Return the input of that name, if this step joins it."""
        joined = [*self.left, *([self.right] if self.right is not None else [])]
        return next((source for source in joined if source.name == input_name), None)


@dataclass(frozen=True, slots=True)
class JobDraft:
    """`inputs` are what steps join: inputs of the job, and each union in the place of its first branch. `sources` are
    the inputs that the job declares, branches among them."""

    data: Mapping[str, Any]
    inputs: tuple[InputDraft, ...]
    steps: tuple[StepDraft, ...]
    sources: tuple[InputDraft, ...] = ()

    @property
    def absent(self) -> Mapping[str, AbsentInput]:
        """By name, the inputs of which the steps emit nothing (E1)."""
        last = self.steps[-1:]
        own = [absent for step in last if (absent := _absent_after(step)) is not None]
        return {absent.source.name or "": absent for absent in (*(a for step in last for a in step.absent), *own)}

    @property
    def by_name(self) -> dict[str, InputDraft]:
        return {source.name: source for source in self.inputs if source.name is not None}

    def declared(self, name: object) -> InputDraft | None:
        """Return the declared input of that name; the first one, while a mistake gives it to several."""
        return next((source for source in self.sources if source.name == name), None)

    @property
    def all_named(self) -> bool:
        """Whether there are as many inputs as a job needs, each with a unique name, as rules on outputs need."""
        return len(self.inputs) == len(self.by_name) >= (2 if self.steps else 1)


def path_text(at: Loc) -> str:
    """Return a path as text: `spec.inputs[0].schema[2].type`; a key that is not a plain word is quoted:
    `keys["orders.id"]`."""
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{step}" if _PLAIN.fullmatch(step) else f'["{step}"]' for step in at
    )
    return "".join(steps).removeprefix(".") or "(file)"


def dig(data: object, *steps: str | int) -> Any:
    """Return the value at a path of keys and list positions; None if there is none."""
    for step in steps:
        if isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(data, list | tuple) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def items(data: object, *steps: str | int) -> Sequence[Any]:
    """Return the list at a path; empty if there is none."""
    value = dig(data, *steps)
    return value if isinstance(value, list | tuple) else ()


def read_draft(data: Mapping[str, Any]) -> JobDraft:
    sources = tuple(input_draft(("spec", "inputs", i), raw) for i, raw in enumerate(items(data, "spec", "inputs")))
    union_of: dict[str, InputDraft] = {}
    for number, union in enumerate(items(data, "spec", "unions")):
        side = _read_union(("spec", "unions", number), union, sources)
        names = [dig(branch, "input") for branch in items(union, "branches")]
        union_of |= {name: side for name in names if isinstance(name, str)}
    # Each union takes the place of the first of its branches.
    in_place = [union_of.get(source.name or "", source) for source in sources]
    inputs = tuple({side.at: side for side in in_place}.values())
    return JobDraft(data, inputs, tuple(_read_steps(inputs, items(data, "spec", "joins"))), sources)


def _read_union(at: Loc, union: object, sources: Sequence[InputDraft]) -> InputDraft:
    """Return a union as an input of its name; while a mistake hides a column, the columns are not known."""
    name, branches = dig(union, "name"), union_fields(union, sources)
    readable = [(fields, time) for fields, time in branches if fields is not None]
    columns = union_types([fields for fields, _ in readable])
    names = [dig(branch, "input") for branch in items(union, "branches")]
    event_time = event_time_name(readable) if readable else None
    data = {
        "name": name,
        "branches": [source.name for source in sources if source.name in names],
        **({"eventTime": event_time} if event_time is not None else {}),
    }
    types = columns if columns and len(readable) == len(branches) and event_time is not None else None
    return InputDraft(at, data, name if isinstance(name, str) else None, types)


def union_fields(union: object, sources: Sequence[InputDraft]) -> list[tuple[list[BranchField] | None, object]]:
    """Return the columns of each branch, None while a mistake hides one, and the event time of its input."""
    branches = []
    for branch in items(union, "branches"):
        own = next((source for source in sources if source.name == dig(branch, "input")), None)
        types, event_time = (None, None) if own is None else (own.types, own.data.get("eventTime"))
        fields = branch_fields(branch, types) if isinstance(branch, Mapping) and types is not None else None
        branches.append((fields, event_time))
    return branches


def _read_steps(inputs: tuple[InputDraft, ...], steps: Sequence[object]) -> Iterator[StepDraft]:
    by_name = {source.name: source for source in inputs if source.name is not None}
    left = inputs[:1] if len(by_name) == len(inputs) >= 2 else ()
    absent: tuple[AbsentInput, ...] = ()
    for number, raw in enumerate(steps):
        data = raw if isinstance(raw, Mapping) else {}
        name = data.get("right")
        right = by_name.get(name) if isinstance(name, str) and left else None
        joined = (*left, *(earlier.source for earlier in absent))
        step = StepDraft(("spec", "joins", number), number, data, left, None if right in joined else right, absent)
        yield step
        if (own := _absent_after(step)) is not None:
            absent = (*absent, own)
        else:
            left = (*left, step.right) if left and step.right is not None else ()


def padded_inputs(steps: Sequence[StepDraft]) -> dict[str, str]:
    """Return the inputs that are null in some rows behind these steps, each with the reason."""
    padded: dict[str, str] = {}
    for step in steps:
        kind, right = step.data.get("type"), step.right.name if step.right is not None else None
        reason = f"step {step.number + 1} is a {kind} join"
        if kind in {"left", "full"} and right is not None:
            padded.setdefault(right, reason)
        if kind in {"right", "full"}:
            padded |= {name: reason for name in step.left_names if name not in padded}
    return padded


def _absent_after(step: StepDraft) -> AbsentInput | None:
    kind = step.data.get("type")
    return AbsentInput(step.right, step.number, kind) if step.right is not None and kind in EXISTENCE else None


def reference(text: object) -> Reference | None:
    return parse_reference(text) if isinstance(text, str) else None


def input_draft(at: Loc, raw: object) -> InputDraft:
    data = raw if isinstance(raw, Mapping) else {}
    name, columns = data.get("name"), items(data, "schema")
    names = [dig(column, "name") for column in columns]
    types = None
    if names and all(isinstance(column_name, str) for column_name in names):
        types = {
            column_name: _valid_or_none(_TYPE, dig(column, "type"))
            for column_name, column in zip(names, columns, strict=True)
        }
    return InputDraft(at, data, name if isinstance(name, str) else None, types)


def moment(raw: object) -> int | None:
    """Return a time in milliseconds; None if the value is not a time."""
    return _valid_or_none(_TIME, raw)


def _valid_or_none(kind: TypeAdapter[_Value], raw: object) -> _Value | None:
    try:
        return kind.validate_python(raw)
    except ValidationError:
        return None


def repeats(names: Sequence[object]) -> list[tuple[int, str]]:
    """Return the positions after the first of every name that occurs more than once."""
    seen: set[str] = set()
    repeats = []
    for i, name in enumerate(names):
        if isinstance(name, str):
            if name in seen:
                repeats.append((i, name))
            seen.add(name)
    return repeats


def exactly_one(data: object, at: Loc, options: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding at `at` unless the mapping there names exactly one of the options."""
    named = [option for option in options if dig(data, option) is not None]
    if isinstance(data, Mapping) and len(named) != 1:
        facts = f"{listed(named)} are named" if named else "none of them is named"
        yield at, f"needs exactly one of {listed(options)}: {facts}"


def unknown_column(name: str, side: InputDraft) -> str:
    columns = side.types or {}
    return f"{side.name!r} has no column {name!r}{suggestion(name, columns)}; its columns are {listed(columns)}"


def no_key(column: str, types: Mapping[str, ColumnType | None]) -> str | None:
    """Say why the column cannot be a key; None if it can."""
    kind = types.get(column)
    if kind is None or kind.name != "json":
        return None
    return f"column {column!r} is json: equal values may have different texts. Take a part of it, by its path"


def checked_tree(at: Loc, text: str, kind: str) -> Generator[Finding, None, exp.Expr | None]:
    """Parse an SQL `kind` (condition or expression), and find calls that are wrong; None if it is not SQL."""
    try:
        tree = parse_tree(text)
    except SqlglotError as error:
        yield at, f"{shown(text)} is not an SQL {kind}: {str(error).strip().splitlines()[0]}"
        return None
    for call, reason in wrong_calls(tree):
        yield at, f"{call.sql()!r}: {reason}"
    return tree
