"""Resolves names in a SELECT to relations and columns. Names are case-sensitive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from joinery_runtime.job.model.draft import InputDraft, items
from joinery_runtime.job.model.references import WINDOW_COLUMNS
from joinery_runtime.job.model.wording import either, listed, suggestion
from joinery_runtime.job.sql.query import Source
from joinery_runtime.job.sql.report import Report, node_position
from joinery_runtime.job.sql.select_tree import OF_WINDOW, OUTER_NAME, REJECTED
from joinery_runtime.job.sql.unions import alias_problem


@dataclass(frozen=True, slots=True)
class SqlInput:
    """An input of the job: its columns in order; `integer_time` says that event time is a number of milliseconds,
    `table` that records are versions of rows. `branches` are the inputs that it unites, if it is a union."""

    name: str
    columns: tuple[str, ...]
    event_time: str
    integer_time: bool = False
    table: bool = False
    branches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """A table and its name in the SQL."""

    table: SqlInput
    source: Source


def find_repeats(sources: Sequence[Source], tables: Sequence[SqlInput], report: Report) -> Mapping[str, str]:
    """Return by alias the inputs that a source reads again. Of the sources that name one input, the one without another
    alias reads the input itself, or else the first one; each further alias is an input of its own."""
    repeats: dict[str, str] = {}
    inputs = [table.name for table in tables]
    branches = {name for table in tables for name in table.branches}
    for name in inputs:
        by_alias = {source.alias: source for source in sources if source.name == name}
        own = name if name in by_alias else next(iter(by_alias), name)
        for alias, source in by_alias.items():
            if alias == own:
                continue
            if problem := alias_problem(name, alias, inputs, branches):
                report.add(source.at, problem)
            else:
                repeats[alias] = name
    return repeats


class Scope:
    """The relations of one SELECT by their aliases. The alias of a rejected source counts as already reported.
    `qualified`: the job writes a column as `<input>.<column>`. `windowed`: the joined rows are in windows.
    `keeps_groups`: a group that is a column has the column's name, whatever the select list calls it."""

    def __init__(
        self,
        sources: Sequence[Source],
        tables: Sequence[SqlInput],
        report: Report,
        *,
        qualified: bool = True,
        windowed: bool = False,
        keeps_groups: bool = True,
    ) -> None:
        self.report, self.qualified, self.windowed = report, qualified, windowed
        self.keeps_groups = keeps_groups
        self.relations: dict[str, Relation] = {}
        self._rejected_aliases: set[str] = set()
        self._sources = len(sources)
        by_name = {table.name: table for table in tables}
        for source in sources:
            table = by_name.get(source.name)
            union = next((table.name for table in tables if source.name in table.branches), None)
            if table is not None and source.alias not in self.relations:
                self.relations[source.alias] = Relation(table, source)
                continue
            self._rejected_aliases.add(source.alias)
            if table is not None:
                report.add(source.at, f"two inputs are called {source.alias!r}; give each its own alias")
            elif source.name and union is not None:
                facts = f"{source.name!r} is a branch of the union {union!r}, and each record counts once (rule U3)"
                report.add(source.at, f"{facts}; read {union!r}, or declare a second input that reads the same")
            elif source.name:
                hint = suggestion(source.name, by_name)
                facts = f"{source.name!r} is not an input of the job{hint}"
                report.add(source.at, f"{facts}; inputs are {listed(by_name)}")

    @property
    def is_complete(self) -> bool:
        """Say whether all sources are known, at least one."""
        return len(self.relations) == self._sources > 0

    def by_input(self, name: str) -> Relation | None:
        """Return the relation with this alias or, without one, with this name of its own."""
        return self.relations.get(name) or next(
            (relation for relation in self.relations.values() if relation.table.name == name), None
        )

    @property
    def visible(self) -> dict[str, Relation]:
        """The relations that the select list and WHERE can name: without the right sides of semi and anti joins."""
        return {alias: relation for alias, relation in self.relations.items() if not relation.source.hidden}

    def has_column(self, name: str) -> bool:
        return any(name in relation.table.columns for relation in self.visible.values())

    def is_window_column(self, column: exp.Expr) -> bool:
        """Say whether this names a time of the joined row's window (rule W4)."""
        is_plain = isinstance(column, exp.Column) and not column.table and column.name in WINDOW_COLUMNS
        return self.windowed and is_plain and (OF_WINDOW in column.meta or not self.has_column(column.name))

    def resolve(self, column: exp.Column, tested: Source | None = None) -> tuple[Relation, str] | None:
        """Return the relation and column that a name means; None if the name is wrong, which the report then says.
        `tested` is the source whose matches the condition with the name decides, if only such conditions see it."""
        qualifier, name = column.table, column.name
        if column.meta.get(REJECTED):
            return None
        if column.args.get("db") is not None:
            self.report.add(node_position(column), "a column is written <alias>.<column>")
            return None
        if not qualifier:
            return self._resolve_unqualified(column, tested)
        relation = self.relations.get(qualifier)
        if relation is not None and relation.source.hidden and relation.source is not tested:
            facts = f"{qualifier!r} is only tested for a match, so none of its columns is there (rule E1)"
            self.report.add(node_position(column), f"{facts}; leave it out, or JOIN it")
            return None
        if relation is None:
            if qualifier not in self._rejected_aliases:
                hint = suggestion(qualifier, self.relations)
                text = f"{qualifier!r} is not an alias here{hint}; aliases are {listed(self.relations)}"
                self.report.add(node_position(column), text)
            return None
        if name not in relation.table.columns:
            columns_text = f"its columns are {listed(relation.table.columns)}"
            hint = suggestion(name, relation.table.columns)
            self.report.add(
                node_position(column), f"{relation.table.name!r} has no column {name!r}{hint}; {columns_text}"
            )
            return None
        return relation, name

    def _resolve_unqualified(self, column: exp.Column, tested: Source | None) -> tuple[Relation, str] | None:
        relations = [relation for relation in self.relations.values() if relation.source is tested]
        relations += self.visible.values()
        owners = [relation for relation in relations if column.name in relation.table.columns]
        if tested is not None and tested.nested and OUTER_NAME in column.meta:
            owners = [relation for relation in owners if relation.source is not tested]
        elif tested is not None and tested.nested and owners[:1] and owners[0].source is tested:
            owners = owners[:1]  # the names of a sub-query mean its own input first
        if len(owners) == 1 and not self._rejected_aliases:
            return owners[0], column.name
        if len(owners) > 1:
            choices = " or ".join(f"{relation.source.alias}.{column.name}" for relation in owners)
            self.report.add(node_position(column), f"is ambiguous, several inputs have it; write {choices}")
        elif self.is_window_column(column):
            facts = "is a column of the rows that the joins make"
            self.report.add(node_position(column), f"{facts}; write it into WHERE or the select list")
        elif not self._rejected_aliases:
            every = [name for relation in relations for name in relation.table.columns]
            hint = suggestion(column.name, every)
            if column.name.upper() == "ROWTIME":
                times = [f"{relation.source.alias}.{relation.table.event_time}" for relation in relations]
                hint = f"; the event time, which ksqlDB calls so, is {either(times)}"
            self.report.add(node_position(column), f"no input has a column {column.name!r}{hint}")
        return None

    def qualify(self, condition: exp.Expr, tested: Source | None = None, *, behind_joins: bool = False) -> bool:
        """Qualify all columns of the condition with the inputs' own names. Returns False if a name is wrong. `tested`
        as in `resolve`. `behind_joins`: it may name the times of windows, which have no input."""
        good = True
        for column in list(condition.find_all(exp.Column)):
            if behind_joins and self.is_window_column(column):
                continue
            resolved = self.resolve(column, tested)
            good = good and resolved is not None
            if resolved is not None:
                relation = resolved[0]
                column.set("table", exp.to_identifier(relation.table.name, quoted=relation.source.quoted))
        return good


def table_of(source: InputDraft) -> SqlInput | None:
    """Return the input for SQL; None unless everything that SQL may name is known."""
    time = source.data.get("eventTime")
    kind = source.types.get(time) if source.types is not None and isinstance(time, str) else None
    if source.name is None or source.types is None or not isinstance(time, str) or kind is None:
        return None
    return SqlInput(
        source.name,
        tuple(source.types),
        time,
        integer_time=kind.name == "int64",
        table=source.data.get("table") is not None,
        branches=tuple(items(source.data, "branches")),
    )
