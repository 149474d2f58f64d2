"""`spec.unions[]`: inputs of any cluster, format and names of columns whose rows are those of one side (rule U3).

A union takes the place of its branches among the job's inputs (`united`), so that steps, rules and the engine see one
input with several parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field, StringConstraints

from joinery_runtime.job.model.base import Model, Text
from joinery_runtime.job.model.inputs import Column, Input
from joinery_runtime.job.model.union_columns import branch_fields, event_time_name, union_types
from joinery_runtime.job.model.wording import listed


class BranchColumn(Model):
    """One column of a union, as a branch has it: exactly one of `column` and `expression`."""

    column: Text | None = Field(default=None, examples=["total"])
    """A column of the branch's input."""
    expression: Text | None = Field(default=None, examples=["'eu'"])
    """An SQL expression over columns of the branch's input, in place of `column`."""
    as_: Annotated[str | None, Field(alias="as", min_length=1)] = Field(default=None, examples=["amount"])
    """The column's name in the union; if absent, its own."""


class Branch(Model):
    """One input of a union."""

    input: Text = Field(examples=["orders_eu"])
    """The input whose rows these are. Steps name the union in its place."""
    select: Annotated[tuple[BranchColumn, ...], Field(min_length=1)] | None = Field(
        default=None, examples=[[{"column": "total", "as": "amount"}, {"column": "created", "as": "ts"}]]
    )
    """The columns of the union, by the names and with the types that all branches have. Among them is the event time of
    the input. If absent, every column of the input."""
    where: Text | None = Field(default=None, examples=["total > 0"])
    """An SQL condition over columns of the input, beside that of the input itself: other rows are dropped when they are
    read, and counted as `filtered`."""


class InputUnion(Model):
    """Inputs whose rows are those of one side, as in UNION ALL."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(examples=["orders"])
    """What the rest of the job calls the union, as it calls an input."""
    branches: Annotated[tuple[Branch, ...], Field(min_length=2)] = Field(
        examples=[[{"input": "orders_eu"}, {"input": "orders_us"}]]
    )
    """The inputs, each once in a job, in the order in which rows of equal place count."""
    where: Text | None = Field(default=None, examples=["amount > 0"])
    """An SQL condition over columns of the union, as `where` of an input."""


@dataclass(frozen=True, slots=True)
class UnitedInput:
    """A branch of a union as the engine reads it: the input, the condition of the branch beside that of the input, and
    the branch's columns in the order of the union, as expressions."""

    source: Input
    where: str | None
    columns: tuple[tuple[str, str], ...]


class UnionInput(Input):
    """A union as the rest of the job sees it: an input with the union's name and columns, which nothing but its
    branches says how to read. Where a setting belongs to the input as a whole, its branches agree."""

    branches: tuple[UnitedInput, ...]

    @property
    def parts(self) -> tuple[Input, ...]:
        return tuple(branch.source for branch in self.branches)

    def with_parts(self, parts: Iterable[Input]) -> UnionInput:
        """Return the union with other inputs of the same names and columns."""
        branches = (replace(branch, source=part) for branch, part in zip(self.branches, parts, strict=True))
        return self.model_copy(update={"branches": tuple(branches)})

    @property
    def source_name(self) -> str:
        return listed(f"{part.source_name} ({part.name})" for part in self.parts)

    @property
    def bounded(self) -> bool:
        return all(part.bounded for part in self.parts)

    @property
    def change_events(self) -> bool:
        return False

    @property
    def lacks_delay(self) -> bool:
        return any(part.lacks_delay for part in self.parts)


def united(inputs: Sequence[Input], unions: Sequence[InputUnion]) -> tuple[Input, ...]:
    """Return the inputs of a job with each union in the place of the first of its branches. Unions that break a rule
    are left out, and their branches stay."""
    by_name = {source.name: source for source in inputs}
    sides = [side for union in unions if (side := _unite(union, by_name)) is not None]
    union_of = {part.name: side for side in sides for part in side.parts}
    in_place = [union_of.get(source.name, source) for source in inputs]
    return tuple({side.name: side for side in in_place}.values()) if sides else tuple(inputs)


def _unite(union: InputUnion, inputs: Mapping[str, Input]) -> UnionInput | None:
    sources = [inputs[branch.input] for branch in union.branches if branch.input in inputs]
    written = [branch.model_dump(by_alias=True, exclude_none=True) for branch in union.branches]
    if len(sources) != len(written):
        return None
    listed_fields = [branch_fields(branch, source.types) for branch, source in zip(written, sources, strict=True)]
    branches = [fields for fields in listed_fields if fields is not None]
    first = sources[0]
    times = [source.event_time for source in sources]
    event_time = event_time_name([*zip(branches, times, strict=True)]) if len(branches) == len(sources) else None
    types = {name: kind for name, kind in union_types(branches).items() if kind is not None}
    if event_time is None or len(types) < len(branches[0]):
        return None
    by_name = [{field.name: field.expression for field in fields} for fields in branches]
    if any(types.keys() != expressions.keys() for expressions in by_name):
        return None
    return UnionInput.model_construct(
        name=union.name,
        format=first.format,
        columns=tuple(Column.model_construct(name=name, type=kind) for name, kind in types.items()),
        event_time=event_time,
        watermark=first.watermark.model_copy(update={"delay": max(source.watermark.delay for source in sources)}),
        where=union.where,
        branches=tuple(
            UnitedInput(source, branch.where, tuple((name, expressions[name]) for name in types))
            for source, branch, expressions in zip(sources, union.branches, by_name, strict=True)
        ),
    )
