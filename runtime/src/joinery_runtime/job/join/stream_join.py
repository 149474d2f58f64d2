"""`StreamJoin`: the resource, with the columns of the rows that it emits and their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

from pydantic import PrivateAttr

from joinery_runtime.job.join.pipeline import JoinPipeline
from joinery_runtime.job.join.rules import broken_rules
from joinery_runtime.job.join.steps import SelectItem
from joinery_runtime.job.kinds.session.sessions import KEEPS_TYPE
from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.draft import Finding
from joinery_runtime.job.model.outputs import NamedOutput
from joinery_runtime.job.model.references import (
    POSTGRES_NAME_BYTES,
    RANK_COLUMNS,
    RETRACTED,
    ROW_NUMBER,
    STAR_NAMINGS,
    WINDOW_COLUMNS,
    WINDOW_TIME,
    ComputedKey,
    Naming,
    Reference,
    default_names,
    fitting_naming,
    naming_prefixes,
    parse_reference,
)
from joinery_runtime.job.model.resource import OutputField
from joinery_runtime.job.model.wording import listed


class StoredNames(NamedTuple):
    """How a job's columns were named when its state was stored, and the names that `naming` alone would not give."""

    naming: Naming
    names_by_column: Mapping[Reference, str]


class StreamJoin(JoinPipeline):
    """A valid chain of joins. Constructing one in Python applies the same rules as loading a file."""

    kind: Literal["StreamJoin"] = "StreamJoin"
    # No field: it comes from the state store (see `job.definition`), and a resource cannot say it.
    _stored_names: StoredNames | None = PrivateAttr(default=None)

    @classmethod
    def broken_rules(cls, data: dict[str, Any]) -> list[Finding]:
        return broken_rules(data)

    def upsert_key(self, output: NamedOutput) -> tuple[str, ...]:
        """Return `postgres.upsertKey`, else of an aggregate the groups and what tells the windows apart (rule S6)."""
        target, aggregation = output.postgres, self.last_aggregation
        if target is None or target.upsert_key or aggregation is None:
            return target.upsert_key if target is not None else ()
        names = {column.step_column: column.name for column in reversed(self.columns_of(output))}
        return tuple(names[column] for column in (*aggregation.group_by, *aggregation.form.identity))

    @property
    def retracted(self) -> str | None:
        return RETRACTED if self.aggregation is not None and self.aggregation.emit_retractions else None

    @property
    def changelog_key(self) -> tuple[str, ...] | None:
        return self.aggregation.changelog_key if self.aggregation is not None else None

    @property
    def lasting_columns(self) -> Collection[str] | None:
        return self.aggregation.lasting_columns if self.aggregation is not None else None

    @property
    def output_columns(self) -> tuple[OutputField, ...]:
        """What is emitted, in order: the select list, else every column (rule J10), then the start and end of a window
        (rule W4)."""
        chosen = self.select
        if self.aggregations:
            return self._aggregated
        if not chosen:
            stored_names = self._stored_names.names_by_column if self._stored_names is not None else {}
            every_column = default_names(self._columns_by_input, self.naming, self._times, stored_names)
            columns = [self._column(name, Reference(side, column)) for name, side, column in every_column]
            return (*columns, *(self._window_column(name, name) for name in self._times))
        fields = []
        for item in chosen:
            source = parse_reference(item.column) if item.column is not None else None
            if item.column in RANK_COLUMNS:
                fields.append(self._window_column(item.as_ or item.column, item.column))
            elif source is None:
                fields.append(OutputField(item.as_ or "", expression=item.expression))
            else:
                fields.append(self._column(item.as_ or source.column, source))
        return tuple(fields)

    @property
    def _aggregated(self) -> tuple[OutputField, ...]:
        """The columns of what is aggregated last: with ROW_NUMBER last if `topN` ranks it (rule R6), with RETRACTED if
        retractions are on (rule S6)."""
        columns = {
            f"{name}.{column}": OutputField(column, Reference(name, column), type=kind)
            for name in self.joined
            for column, kind in self.input(name).types.items()
        }
        fields: dict[str, OutputField] = {}
        for aggregation in self.aggregations:
            fields = {}
            for name in aggregation.group_by:
                column = columns.get(name, OutputField(name))
                fields[name] = OutputField(column.name, column.source, type=column.type, step_column=name)
            for name in aggregation.form.columns:
                fields[name] = OutputField(name, step_column=name)
            for aggregate in aggregation.aggregates:
                kind = ColumnType("json") if aggregate.function == "array_agg" else None
                if aggregate.function in KEEPS_TYPE and aggregate.column is not None and aggregate.column in columns:
                    kind = columns[aggregate.column].type
                fields[aggregate.as_] = OutputField(aggregate.as_, type=kind, step_column=aggregate.as_)
            columns = {field.name: field for field in fields.values()}
        if self.top_of_windows is not None:
            fields[ROW_NUMBER] = self._window_column(ROW_NUMBER, ROW_NUMBER)
            for total in self.top_of_windows.totals or ():
                kind = columns[total.column].type if total.is_of_another_row and total.column in columns else None
                fields[total.as_] = OutputField(total.as_, type=kind, step_column=total.as_)
        chosen = [
            replace(fields[item.column], name=item.as_ or fields[item.column].name)
            if item.column is not None
            else OutputField(item.as_ or "", expression=item.expression)
            for item in self.select or [SelectItem(column=column) for column in fields]
        ]
        last = [OutputField(self.retracted, step_column=RETRACTED)] if self.retracted is not None else []
        return (*chosen, *last)

    @property
    def column_naming(self) -> str | None:
        if not self.has_default_names:
            return None
        naming, names = self.naming, list(self._columns_by_input)
        prefixes = listed(f"{prefix}_" for prefix in naming_prefixes(naming, names))
        named = f"prefixes: {'always' if naming == 'always' else 'whenNeeded'}, with {prefixes}"
        if self._stored_names is not None:
            return f"{named}, as stored with the state"
        if self.spec.prefixes is None and naming != "whenNeeded":
            return (
                f"{named}, because with whenNeeded the output's keys or headers would name other columns, or a name "
                "would come twice or be too long"
            )
        if self.spec.prefixes is None:
            return f"{named}, which a job without state has; one with state keeps its names"
        more = "; with a third input left_ and right_ become the inputs' names, unless `select` names the columns"
        return named + (more if naming == "always" and len(names) == 2 else "")

    @property
    def star_naming(self) -> str | None:
        """How columns are named that the stars of two inputs in `sql` select. None: no column is named by that."""
        if self.spec.sql is None:
            return None
        by_input, by_side = (self._translation(stars).names for stars in STAR_NAMINGS)
        if by_input == by_side:
            return None
        stars = STAR_NAMINGS[[column.name for column in self.output_columns] == by_side]
        prefixes = listed(f"{prefix}_" for prefix in naming_prefixes(stars, [side.name for side in self.inputs]))
        if self._stored_stars is not None:
            return f"the stars of sql, with {prefixes}, as stored with the state"
        if stars == "whenNeeded":
            return f"the stars of sql, with {prefixes}, which a job without state has; one with state keeps its names"
        return (
            f"the stars of sql, with {prefixes}, because an output mentions such a name, or with the inputs' names one "
            "would come twice or be too long"
        )

    @property
    def naming(self) -> Naming:
        """How columns are named if there is no `select`."""
        if self._stored_names is not None:
            return self._stored_names.naming
        return fitting_naming(
            self.spec.prefixes,
            self._columns_by_input,
            self._times,
            self.named_columns,
            most_bytes=POSTGRES_NAME_BYTES if any(output.postgres for output in self.outputs) else None,
        )

    @property
    def kept_names(self) -> dict[str, str]:
        """By `input.column`, the names that stored state keeps and that `naming` would not give."""
        if self._stored_names is None:
            return {}
        columns, naming, times = self._columns_by_input, self.naming, self._times
        both = zip(
            default_names(columns, naming, times, self._stored_names.names_by_column),
            default_names(columns, naming, times),
            strict=True,
        )
        return {f"{side}.{column}": name for (name, side, column), (by_rule, *_) in both if name != by_rule}

    def with_stored_names(self, names: StoredNames) -> Self:
        """Return the job with the names of its columns that were stored with its state."""
        named = self.model_copy()
        named._stored_names = names
        return named

    @property
    def _columns_by_input(self) -> Mapping[str, tuple[str, ...]]:
        return {side.name: tuple(side.types) for side in self.inputs if side.name in self.joined}

    @property
    def _times(self) -> tuple[str, ...]:
        if self.rankings:
            return self.rankings[-1].adds
        return WINDOW_COLUMNS if self.windowed else ()

    def _column(self, name: str, source: Reference) -> OutputField:
        return OutputField(name, source, type=self.input(source.input).types[source.column])

    def _window_column(self, name: str, step_column: str) -> OutputField:
        kind = self.window_times if step_column in WINDOW_COLUMNS else ColumnType("int64")
        return OutputField(name, type=kind, step_column=step_column)


def stored_type(job: StreamJoin, step_index: int, side: str, name: str) -> ColumnType | ComputedKey:
    """Return the type of a stored column, or the key that it holds; on the left side of a later step its name carries
    its input's, or is that of a window's time (W5)."""
    if side == "left" and step_index > 0:
        if name in {*WINDOW_COLUMNS, WINDOW_TIME}:
            return ColumnType("int64")
        ref = parse_reference(name)
        assert ref is not None, f"{name!r} of a chained part names its input"
    else:
        ref = Reference(job.left_inputs(0)[0] if side == "left" else job.joins[step_index].right, name)
    declared = job.input(ref.input).types.get(ref.column)
    if declared is not None:
        return declared
    return next(key for key in job.computed_keys if (key.input, key.column) == (ref.input, ref.column))
