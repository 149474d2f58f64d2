"""The inputs and steps of a StreamJoin, as `spec` writes them or as `spec.sql` says them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from pydantic import PrivateAttr
from sqlglot import exp

from joinery_runtime.job.join.rules import words_of
from joinery_runtime.job.join.spec import StreamJoinSpec
from joinery_runtime.job.join.steps import JoinStep, SelectItem, part_names
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.aggregate.windows import AlignedWindow
from joinery_runtime.job.kinds.base import part_behind
from joinery_runtime.job.kinds.ranking import NO_LATE_ROW, Deduplication, RankingKind, TopN, ranking_beside_sql
from joinery_runtime.job.model.base import PLAIN_NUMBERS, ColumnType, Limits
from joinery_runtime.job.model.draft import Finding, Loc
from joinery_runtime.job.model.expression_tree import parse_tree
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.references import STAR_NAMINGS, ComputedKey, KeyPair, Naming, key_pairs
from joinery_runtime.job.model.resource import Job, PlacedExpression
from joinery_runtime.job.model.unions import InputUnion, united
from joinery_runtime.job.sql import SqlInput, SqlUnion, Translation, fitting_stars, translate, unions_of

_ANY_RANKING = TypeVar("_ANY_RANKING", bound=RankingKind)
_T = TypeVar("_T")


@dataclasses.dataclass(slots=True)
class _Readings:
    """What was read off the `spec` of a job, by name, for one naming of stars. It makes no difference to whether two
    jobs are equal."""

    spec: StreamJoinSpec | None = dataclasses.field(default=None, compare=False)
    stars: Naming | None = dataclasses.field(default=None, compare=False)
    values: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)


class JoinPipeline(Job):
    """What a StreamJoin reads, and what its steps do, in their order. `StreamJoin` adds the columns of the rows."""

    no_fields: ClassVar[Mapping[str, str]] = {
        "aggregate.where": "write `filter` into the last step, or without steps `where` into the input; a condition on "
        "groups and aggregates is `having`",
        **dict.fromkeys(
            (f"{window}.timeZone" for window in ("aggregate.window", "aggregate.then.window", "topN.window")),
            "write it beside size, as in tumbling: {size: 24h, timeZone: Europe/Zurich}",
        ),
        **dict.fromkeys(
            (f"joins.window.hopping.{name}" for name in ("offset", "timeZone")),
            "write it beside hopping, as in window: {hopping: {size: 48h, slide: 24h}, timeZone: Europe/Zurich}",
        ),
    }
    row_fields: ClassVar[frozenset[str]] = frozenset(
        {"inputs", "unions", "joins", "aggregate", "deduplicate", "top_n", "select", "prefixes"}
    )

    spec: StreamJoinSpec
    # No field, as the names of `StreamJoin`: it comes from the state store, and a resource cannot say it.
    _stored_stars: Naming | None = PrivateAttr(default=None)
    # Reading `sql` for each column would be slow.
    _readings: _Readings = PrivateAttr(default_factory=_Readings)

    def _remember(self, name: str, read: Callable[[], _T]) -> _T:
        """Return what `read` returns, computed once for this `spec`. A copy may have another one."""
        if self._readings.spec is not self.spec or self._readings.stars != self._stored_stars:
            self._readings = _Readings(self.spec, self._stored_stars)
        if name not in self._readings.values:
            self._readings.values[name] = read()
        value: _T = self._readings.values[name]
        return value

    def unwise_settings(self) -> Iterator[Finding]:
        aggregation = self.aggregation
        if aggregation is None or not self.rankings:
            yield from super().unwise_settings()
            return
        without_effect = {
            "lateData": aggregation.late_data == "reopen",
            "allowedLateness": aggregation.allowed_lateness > 0,
        }
        for field in (field for field, is_set in without_effect.items() if is_set):
            at: Loc = ("spec", "sql") if self.spec.sql is not None else ("spec", "aggregate", field)
            yield at, f"{field} of the aggregate has no effect: {NO_LATE_ROW}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Those of `spec`, with each union in the place of its first branch, then those that `spec.sql` reads again
        under further aliases."""
        if self.spec.sql is None and not self.spec.unions:
            return self.spec.inputs

        def list_inputs() -> tuple[Input, ...]:
            by_name = {side.name: side for side in self._read_once}
            repeats = self._translation("whenNeeded").repeats if self.spec.sql is not None else {}
            repeated = (_read_again(by_name[name], alias) for alias, name in repeats.items() if name in by_name)
            return (*self._read_once, *repeated)

        return self._remember("inputs", list_inputs)

    @property
    def _read_once(self) -> tuple[Input, ...]:
        def unite_inputs() -> tuple[Input, ...]:
            by_name = {source.name: source for source in self.spec.inputs}
            repeated = (_read_again(by_name[name], alias) for alias, name in self._repeated_branches.items())
            return united((*self.spec.inputs, *repeated), self.unions)

        return self._remember("read once", unite_inputs)

    @property
    def _repeated_branches(self) -> Mapping[str, str]:
        """The inputs that branches of unions in `spec.sql` read again, by alias."""
        return {alias: name for union in self._sql_unions for alias, name in union.repeats.items()}

    @property
    def branch_aliases(self) -> Mapping[str, Mapping[str, str]]:
        """By declared input and alias, the input as which a SELECT of a union in `spec.sql` reads it. A SELECT without
        an alias is not listed: it reads the declared input itself."""
        aliases: dict[str, dict[str, str]] = {}
        for union in self._sql_unions:
            for read in union.reads:
                if read.alias != read.source:
                    aliases.setdefault(read.source, {})[read.alias] = read.name
        return aliases

    @property
    def _sql_unions(self) -> tuple[SqlUnion, ...]:
        columns = tuple((source.name, tuple(source.types)) for source in self.spec.inputs)
        return unions_of(self.spec.sql, columns) if self.spec.sql is not None else ()

    @property
    def declared_inputs(self) -> tuple[Input, ...]:
        return self.spec.inputs

    @property
    def repeats(self) -> Mapping[str, str]:
        if self.spec.sql is None:
            return {}
        return {**self._repeated_branches, **self._translation("whenNeeded").repeats}

    @property
    def unions(self) -> tuple[InputUnion, ...]:
        """`spec.unions`, and those that `spec.sql` says."""
        return (*self.spec.unions, *(InputUnion.model_validate(union.entry) for union in self._sql_unions))

    def left_inputs(self, step_index: int) -> tuple[str, ...]:
        """Return the inputs whose rows the left side of a step holds: the first one, then what the steps before joined
        and emit (E1)."""
        return (self.inputs[0].name, *(step.right for step in self.joins[:step_index] if step.emits_right))

    def keys_of(self, step: JoinStep) -> tuple[KeyPair, ...]:
        """Return the step's equalities in order; none for a join on time only (J9)."""
        return key_pairs(step.keys, {side.name: side.types for side in self.inputs})

    @property
    def computed_keys(self) -> tuple[ComputedKey, ...]:
        """The keys that are expressions, each once (J12)."""
        sides = (ref for step in self.joins for pair in self.keys_of(step) for ref in (pair.left, pair.right))
        return tuple(dict.fromkeys(ref for ref in sides if isinstance(ref, ComputedKey)))

    @property
    def joins(self) -> tuple[JoinStep, ...]:
        """`spec.joins`, or what `spec.sql` says in its place."""
        sql = self._from_sql
        if sql is None:
            return self.spec.joins
        return self._remember(
            "joins", lambda: tuple(JoinStep.model_validate(step, context=PLAIN_NUMBERS) for step in sql.steps)
        )

    @property
    def aggregation(self) -> Aggregation | None:
        """`spec.aggregate`, or what `spec.sql` says in its place."""
        sql = self._from_sql
        if sql is None:
            return self.spec.aggregate
        if sql.aggregate is None:
            return None
        return self._remember("aggregation", lambda: Aggregation.model_validate(sql.aggregate, context=PLAIN_NUMBERS))

    @property
    def aggregations(self) -> tuple[Aggregation, ...]:
        """`aggregate` and its `then`, in the order of their steps."""
        following = self.aggregation.next if self.aggregation is not None else None
        return tuple(aggregation for aggregation in (self.aggregation, following) if aggregation is not None)

    @property
    def last_aggregation(self) -> Aggregation | None:
        """What makes the rows that are emitted, or those that `topN` ranks: `aggregate.then`, else `aggregate`."""
        return self.aggregations[-1] if self.aggregations else None

    @property
    def rankings(self) -> tuple[RankingKind, ...]:
        """The steps that emit some of the rows which the joins make, in their order (R7)."""
        top = self._ranking_of(TopN) if self.aggregation is None else None
        return tuple(step for step in (self._ranking_of(Deduplication), top) if step is not None)

    @property
    def top_of_windows(self) -> TopN | None:
        """The step that emits some of the rows which the aggregates make (R6). Where its order names an expression of
        `select`, the expression stands there (G11)."""
        top, last = self._ranking_of(TopN), self.last_aggregation
        if top is None or last is None:
            return None
        selected = {
            item.as_: last.over_rows(item.expression)
            for item in self.select or ()
            if item.expression is not None and item.as_ is not None and item.as_ not in last.columns_by_name
        }
        return top.ordered_by(selected)

    def _ranking_of(self, kind: type[_ANY_RANKING]) -> _ANY_RANKING | None:
        """Return the ranking of this kind; ROW_NUMBER in `spec.sql` may say some of its fields or all."""
        written = next((field for field in (self.spec.deduplicate, self.spec.top_n) if isinstance(field, kind)), None)
        sql = self._from_sql
        if sql is None or sql.ranking is None or sql.ranking.field != kind.field:
            return written
        beside = written.model_dump(by_alias=True, exclude_unset=True) if written is not None else {}
        return kind.model_validate({**beside, **sql.ranking.entries}, context=PLAIN_NUMBERS)

    @property
    def behind_joins(self) -> Mapping[str, RankingKind | Aggregation]:
        """The steps behind the joins in their order, by the parts of the state that hold their rows."""
        steps: list[RankingKind | Aggregation] = [*self.rankings, *self.aggregations]
        steps += [top] if (top := self.top_of_windows) is not None else []
        return {part_behind(step.field, number): step for number, step in enumerate(steps, start=len(self.joins))}

    @property
    def joined(self) -> tuple[str, ...]:
        """The inputs whose columns the rows behind the last step have."""
        return self.left_inputs(len(self.joins))

    @property
    def only_step(self) -> bool:
        """Whether the job is one join and nothing else."""
        return len(self.joins) == 1 and not self.behind_joins

    @property
    def aggregated_time(self) -> str:
        """The input whose event time counts for the windows of `aggregate`."""
        counted_from = self.aggregation.counted_from if self.aggregation is not None else None
        return counted_from or self.inputs[0].name

    def ranked_time(self, ranking: RankingKind) -> str:
        """Return the input whose event time counts for one of the rankings."""
        return ranking.of or self.inputs[0].name

    def ranks_in_windows(self, ranking: RankingKind) -> bool:
        """Whether rows are ranked in the windows in which they were joined (R8)."""
        return ranking.in_windows_of_rows and self.aggregation is None

    @property
    def windows_of_joins(self) -> AlignedWindow | None:
        """The windows in which the steps join, if they end together."""
        every = (step.matching.aligned for step in self.joins)
        return next((windows for windows in every if isinstance(windows, AlignedWindow)), None)

    @property
    def aggregated_types(self) -> Mapping[str, ColumnType]:
        """The columns that are aggregated, with their types, as `aggregate` names them, and as the state does: that of
        an only input has its columns' own names."""
        types = {f"{name}.{column}": kind for name in self.joined for column, kind in self.input(name).types.items()}
        return types if self.joins else {**self.inputs[0].types, **types}

    @property
    def has_default_names(self) -> bool:
        """Whether the job leaves it to Joinery how output columns are named."""
        return not self.select and self.aggregation is None

    @property
    def select(self) -> tuple[SelectItem, ...] | None:
        """`spec.select`, or what `spec.sql` says in its place."""
        sql = self._from_sql
        return self.spec.select if sql is None else tuple(SelectItem.model_validate(item) for item in sql.select)

    @property
    def without_sql(self) -> dict[str, Any]:
        parts = {part.name: part for part in self.read_inputs}
        filters = {**{name: part.where for name, part in parts.items()}, **self.input_filters}
        return {
            "joins": self.joins,
            "select": self.select,
            "inputs": tuple(part.model_copy(update={"where": filters[name]}) for name, part in parts.items()),
            "unions": tuple(union.model_copy(update={"where": filters.get(union.name)}) for union in self.unions),
            "aggregate": self.aggregation,
            "deduplicate": self._ranking_of(Deduplication),
            "top_n": self._ranking_of(TopN),
        }

    @property
    def input_filters(self) -> Mapping[str, str]:
        sql = self._from_sql
        filters = dict(super().input_filters)
        for name, text in sql.filters.items() if sql is not None else ():
            filters[name] = f"({filters[name]}) AND ({text})" if name in filters else text
        return filters

    @property
    def _from_sql(self) -> Translation | None:
        sql = self.spec.sql
        if sql is None:
            return None

        def translate_sql() -> Translation:
            if self._stored_stars is not None:
                return self._translation(self._stored_stars)
            in_postgres = any(output.postgres is not None for output in self.outputs)
            conditions = (output.when for output in self.outputs if output.when is not None)
            mentioned = {*self.named_columns, *words_of(conditions)}
            return self._translation(fitting_stars(sql, self._translation, mentioned, in_postgres=in_postgres))

        return self._remember("sql", translate_sql)

    def _translation(self, stars: Naming) -> Translation:
        assert self.spec.sql is not None, "asked of SQL alone"
        tables = (
            SqlInput(
                side.name,
                tuple(side.types),
                side.event_time,
                side.types[side.event_time].name == "int64",
                side.table is not None,
            )
            for side in self._read_once
        )
        beside = ranking_beside_sql(self.spec.deduplicate, self.spec.top_n)
        return translate(self.spec.sql, tuple(tables), self.function_names, beside, stars)

    @property
    def windowed(self) -> bool:
        """Whether output rows can carry their window's start and end (W4)."""
        return any(step.matching.windowed for step in self.joins)

    @property
    def co_partitioned(self) -> bool:
        return any(step.co_partitioned for step in self.joins)

    @property
    def unread_expressions(self) -> tuple[PlacedExpression, ...]:
        named = [
            (f"spec.inputs[{number}].where", source.name, source.where)
            for number, source in enumerate(self.spec.inputs)
        ]
        named += [(f"spec.unions[{number}].where", union.name, union.where) for number, union in enumerate(self.unions)]
        filters = tuple(PlacedExpression(at, text, (name,), name) for at, name, text in named if text is not None)
        conditions = tuple(
            PlacedExpression(f"spec.joins[{number}].where", step.where, (*self.left_inputs(number), step.right))
            for number, step in enumerate(self.joins)
            if step.where is not None
        )
        conditions += tuple(
            PlacedExpression(f"spec.joins[{number}].filter", step.filter, self.left_inputs(number + 1))
            for number, step in enumerate(self.joins)
            if step.filter is not None
        )
        computed = tuple(
            PlacedExpression(f"spec.aggregate.compute[{number}].expression", column.expression, self.joined)
            for number, column in enumerate(self.aggregation.compute if self.aggregation is not None else ())
        )
        filtered = tuple(
            PlacedExpression(f"spec.aggregate.aggregates[{number}].where", aggregate.where, self.joined)
            for number, aggregate in enumerate(self.aggregation.aggregates if self.aggregation is not None else ())
            if aggregate.where is not None
        )
        ranked = tuple(
            PlacedExpression(f"spec.{ranking.field}.{path}", text, self.joined)
            for ranking in self.rankings
            for path, text in ranking.expressions.items()
        )
        return filters + conditions + computed + filtered + ranked

    @property
    def has_expressions(self) -> bool:
        conditions = bool(self.input_filters) or any(step.where or step.filter for step in self.joins)
        aggregates = self.aggregation.aggregates if self.aggregation is not None else ()
        computed = self.aggregation is not None and bool(self.aggregation.compute)
        computed = computed or any(aggregate.where is not None for aggregate in aggregates) or bool(self.computed_keys)
        computed = computed or any(
            step.expressions for step in self.behind_joins.values() if isinstance(step, RankingKind)
        )
        return conditions or computed or any(item.expression for item in self.select or ())

    @property
    def limits(self) -> Mapping[tuple[str, ...], Limits]:
        limits: dict[tuple[str, ...], Limits] = {
            part_names(number): step.limits or Limits() for number, step in enumerate(self.joins)
        }
        return {**limits, **{(part,): step.limits or Limits() for part, step in self.behind_joins.items()}}

    @property
    def inputs_without_lateness(self) -> frozenset[str]:
        only = next(iter(self.behind_joins.values()), None) if not self.joins else None
        if only is not None:
            return frozenset() if only.allowed_lateness else frozenset({self.inputs[0].name})
        return frozenset(
            name
            for number, step in enumerate(self.joins)
            if step.matching.adds_lateness and not step.allowed_lateness
            for name in (step.right, *([self.inputs[0].name] if number == 0 else []))
        )

    @property
    def input_places(self) -> tuple[Loc, ...]:
        return tuple(("inputs", i) for i in range(len(self.spec.inputs)))

    def with_inputs(self, inputs: Sequence[Input]) -> dict[str, Any]:
        return {"inputs": tuple(inputs)}

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The columns of the job's rows that outputs name."""
        names: list[str] = []
        for output in self.outputs:
            if output.select is not None:
                names += [item.column for item in output.select]
                continue
            kafka, postgres = output.kafka, output.postgres
            names += (*kafka.key, *kafka.headers.values()) if kafka is not None else ()
            names += postgres.upsert_key if postgres is not None else ()
        return tuple(names)

    def with_stored_stars(self, names: Collection[str]) -> Self:
        """Return the job with the names that the columns of its stars have among these `names` of the stored ones, if
        they have any there."""
        if self.spec.sql is None:
            return self
        by_input, by_side = ({*self._translation(stars).names} for stars in STAR_NAMINGS)
        stored = {*names}
        if not stored & (by_input ^ by_side):
            return self
        named = self.model_copy()
        named._stored_stars = "sidesWhenNeeded" if stored & (by_side - by_input) else "whenNeeded"
        return named


def _read_again(source: Input, alias: str) -> Input:
    """Return the input under another name, which is also that of the columns in its `where`."""
    condition = parse_tree(source.where) if source.where is not None else None
    own = [column for column in condition.find_all(exp.Column) if column.table == source.name] if condition else []
    for column in own:
        column.set("table", exp.to_identifier(alias))
    where = condition.sql(comments=False) if condition is not None and own else source.where
    return source.model_copy(update={"name": alias, "where": where})
