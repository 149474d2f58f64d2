"""Resolves names in the SQL to inputs and columns. Names are case-sensitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from joinery_runtime.job.model.draft import InputDraft
from joinery_runtime.job.model.wording import listed, suggestion
from joinery_runtime.job.sql.report import Report, place_of
from joinery_runtime.job.sql.shape import Source


@dataclass(frozen=True, slots=True)
class SqlInput:
    """An input of the job: its columns in order; `integer_time` says that event time is a number of milliseconds."""

    name: str
    columns: tuple[str, ...]
    event_time: str
    integer_time: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """A table and its name in the SQL."""

    table: SqlInput
    source: Source


class Names:
    """The tables of one SQL text by their aliases. The alias of a refused source counts as already reported."""

    def __init__(self, sources: Sequence[Source], tables: Sequence[SqlInput], report: Report) -> None:
        self._report = report
        self.named: dict[str, Named] = {}
        self._wrong: set[str] = set()
        self._sources = len(sources)
        by_name = {table.name: table for table in tables}
        for source in sources:
            table = by_name.get(source.name)
            problem = self._problem(source, table, by_name) if source.name else ""
            if problem:
                report.add(source.at, problem)
            if problem or not source.name:
                self._wrong.add(source.alias)
            elif table is not None:
                self.named[source.alias] = Named(table, source)

    def _problem(self, source: Source, table: SqlInput | None, inputs_by_name: dict[str, SqlInput]) -> str:
        if table is None:
            hint = suggestion(source.name, inputs_by_name)
            return f"{source.name!r} is not an input of the job{hint}; inputs are {listed(inputs_by_name)}"
        if source.alias in self.named:
            return f"two inputs are called {source.alias!r}; give each its own alias"
        if any(named.table is table for named in self.named.values()):
            return f"{source.name!r} is joined with itself; declare a second input that reads the same and join that"
        return ""

    @property
    def complete(self) -> bool:
        """Whether all sources are known, at least two."""
        return len(self.named) == self._sources > 1

    def by_input(self, name: str) -> Named | None:
        """The table with this alias or, without one, with this name of its own."""
        return self.named.get(name) or next((n for n in self.named.values() if n.table.name == name), None)

    def has_column(self, name: str) -> bool:
        return any(name in named.table.columns for named in self.named.values())

    def find(self, column: exp.Column) -> tuple[Named, str] | None:
        """The table and column that a name means; None if the name is wrong, which the report then says."""
        qualifier, name = column.table, column.name
        if column.args.get("db") is not None:
            self._report.add(place_of(column), "a column is written <alias>.<column>")
            return None
        if not qualifier:
            return self._unqualified(column)
        named = self.named.get(qualifier)
        if named is None:
            if qualifier not in self._wrong:
                hint = suggestion(qualifier, self.named)
                text = f"{qualifier!r} is not an alias here{hint}; aliases are {listed(self.named)}"
                self._report.add(place_of(column), text)
            return None
        if name not in named.table.columns:
            columns_text = f"its columns are {listed(named.table.columns)}"
            hint = suggestion(name, named.table.columns)
            self._report.add(place_of(column), f"{named.table.name!r} has no column {name!r}{hint}; {columns_text}")
            return None
        return named, name

    def _unqualified(self, column: exp.Column) -> tuple[Named, str] | None:
        owners = [named for named in self.named.values() if column.name in named.table.columns]
        if len(owners) == 1 and not self._wrong:
            return owners[0], column.name
        if len(owners) > 1:
            choices = " or ".join(f"{named.source.alias}.{column.name}" for named in owners)
            self._report.add(place_of(column), f"is ambiguous, several inputs have it; write {choices}")
        elif not self._wrong:
            every = [name for named in self.named.values() for name in named.table.columns]
            hint = suggestion(column.name, every)
            self._report.add(place_of(column), f"no input has a column {column.name!r}{hint}")
        return None

    def qualify(self, condition: exp.Expr) -> bool:
        """Qualifies all columns of the condition with the inputs' own names. Returns False if a name is wrong."""
        good = True
        for column in list(condition.find_all(exp.Column)):
            resolved = self.find(column)
            good = good and resolved is not None
            if resolved is not None:
                named = resolved[0]
                column.set("table", exp.to_identifier(named.table.name, quoted=named.source.quoted))
        return good


def table_of(source: InputDraft) -> SqlInput | None:
    """The input for SQL; None unless everything that SQL may name is known."""
    time = source.data.get("eventTime")
    kind = source.types.get(time) if source.types is not None and isinstance(time, str) else None
    if source.name is None or source.types is None or not isinstance(time, str) or kind is None:
        return None
    return SqlInput(source.name, tuple(source.types), time, integer_time=kind.name == "int64")
