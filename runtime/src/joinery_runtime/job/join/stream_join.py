"""`StreamJoin`: the whole resource, and the views that the engine needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, PrivateAttr
from sqlglot import exp

from joinery_runtime.job.join.rules import broken_rules, words_of
from joinery_runtime.job.join.steps import JoinStep, SelectItem, part_names
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.base import part_behind
from joinery_runtime.job.kinds.ranking import NO_LATE_ROW, Deduplication, RankingKind, TopN, ranking_beside_sql
from joinery_runtime.job.kinds.session.sessions import KEEPS_TYPE
from joinery_runtime.job.model.base import PLAIN_NUMBERS, ColumnType, Limits, Text
from joinery_runtime.job.model.draft import Finding, Loc
from joinery_runtime.job.model.expression_tree import parse_tree
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.outputs import NamedOutput
from joinery_runtime.job.model.references import (
    POSTGRES_NAME_BYTES,
    RANK_COLUMNS,
    RETRACTED,
    ROW_NUMBER,
    STAR_NAMINGS,
    WINDOW_COLUMNS,
    ComputedKey,
    KeyPair,
    Naming,
    Prefixes,
    Reference,
    default_names,
    fitting_naming,
    key_pairs,
    naming_prefixes,
    parse_reference,
)
from joinery_runtime.job.model.resource import Job, JobSpec, OutputField, PlacedExpression
from joinery_runtime.job.model.unions import InputUnion, united
from joinery_runtime.job.model.wording import listed
from joinery_runtime.job.sql import (
    SqlInput,
    SqlUnion,
    Translation,
    fitting_stars,
    translate,
    unions_of,
)

_ANY_RANKING = TypeVar("_ANY_RANKING", bound=RankingKind)


def _example(name: str) -> dict[str, Any]:
    """Return an input."""
    return {
        "name": name,
        "kafka": {"bootstrapServers": "kafka:9092", "topic": name},
        "format": "json",
        "schema": [{"name": "order_id", "type": "string"}, {"name": "ts", "type": "timestamp"}],
        "eventTime": "ts",
    }


class StreamJoinSpec(JobSpec):
    inputs: tuple[Input, ...] = Field(examples=[[_example("orders"), _example("payments")]])
    """What is joined, in order: the first input is the left side of the first step. Without `joins`, there is one."""
    unions: tuple[InputUnion, ...] = Field(
        default=(),
        examples=[
            [
                {
                    "name": "orders",
                    "branches": [
                        {"input": "orders_eu", "select": [{"column": "id", "as": "order_id"}, {"column": "ts"}]},
                        {"input": "orders_us", "select": [{"column": "order_id"}, {"column": "ts"}]},
                    ],
                }
            ]
        ],
    )
    """Inputs whose rows are those of one side, as in UNION ALL. The rest of the job names the union, and no branch."""
    joins: tuple[JoinStep, ...] = Field(
        default=(),
        examples=[
            [
                {
                    "right": "payments",
                    "keys": {"orders.order_id": "payments.order_id"},
                    "interval": {"of": "orders", "lower": "0s", "upper": "24h"},
                }
            ]
        ],
    )
    """The steps. Each joins one more input. Without steps and `aggregate`, each record of the only input makes a row by
    itself."""
    aggregate: Aggregation | None = Field(
        default=None,
        examples=[
            {
                "groupBy": ["orders.country"],
                "window": {"of": "orders", "session": {"gap": "30m", "maxDuration": "12h"}},
                "aggregates": [{"function": "count", "as": "paid_orders"}],
            }
        ],
    )
    """What is computed of the rows that the joins make, or of an only input: emitted are groups, not rows."""
    deduplicate: Deduplication | None = Field(
        default=None, examples=[{"by": ["orders.order_id"], "keep": "first", "within": "1h"}]
    )
    """Emits one row of each key and span of time, behind the joins or of an only input."""
    top_n: TopN | None = Field(
        default=None,
        examples=[
            {
                "by": ["orders.country"],
                "orderBy": [{"expression": "orders.amount", "direction": "desc"}],
                "rows": 10,
                "window": {"tumbling": {"size": "1h"}},
            }
        ],
    )
    """Emits of each key and window the rows that come first in an order, behind the joins or of an only input."""
    select: Annotated[tuple[SelectItem, ...], Field(min_length=1)] | None = None
    """What is emitted: exactly these columns, in this order. If absent, every column, named as `prefixes` says, or with
    `aggregate` its groups, the window's columns, and the aggregates."""
    prefixes: Prefixes | None = None
    """How columns are named without `select`: if absent, as in the job's stored state, and without state as with
    `whenNeeded`. `whenNeeded`: columns that several inputs have get the prefix `<input>_`. `always`: all get `left_`,
    `right_` or, of more than two inputs, `<input>_`."""
    sql: Text | None = Field(
        default=None,
        examples=["SELECT a.k, b.v FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' DAY"],
    )
    """A SELECT, instead of `joins`, `select` and `aggregate`."""


class StoredNames(NamedTuple):
    """How a job's columns were named when its state was stored, and the names that `naming` alone would not give."""

    naming: Naming
    names_by_column: Mapping[Reference, str]


class StreamJoin(Job):
    """A valid chain of joins. Constructing one in Python applies the same rules as loading a file."""

    no_fields: ClassVar[Mapping[str, str]] = {
        "aggregate.where": "write `filter` into the last step, or without steps `where` into the input; a condition on "
        "groups and aggregates is `having`",
        **dict.fromkeys(
            (f"{window}.timeZone" for window in ("aggregate.window", "aggregate.then.window", "topN.window")),
            "write it beside size, as in tumbling: {size: 24h, timeZone: Europe/Zurich}",
        ),
        **dict.fromkeys(
            (f"{window}.timeZone" for window in ("joins.window", "joins.window.hopping")),
            "the windows of a join begin at midnight UTC (rule W1); leave it out, or count rows by local days in an "
            "aggregate behind the join, whose windows have a timeZone",
        ),
    }
    row_fields: ClassVar[frozenset[str]] = frozenset(
        {"inputs", "unions", "joins", "aggregate", "deduplicate", "top_n", "select", "prefixes"}
    )

    kind: Literal["StreamJoin"] = "StreamJoin"
    spec: StreamJoinSpec
    # No field: it comes from the state store (see `job.definition`), and a resource cannot say it.
    _stored_names: StoredNames | None = PrivateAttr(default=None)
    _stored_stars: Naming | None = PrivateAttr(default=None)
    # The inputs, beside the `spec` of which they are: reading them off `sql` for each column would be slow.
    _inputs_of_spec: tuple[StreamJoinSpec, tuple[Input, ...]] | None = PrivateAttr(default=None)

    @classmethod
    def broken_rules(cls, data: dict[str, Any]) -> list[Finding]:
        return broken_rules(data)

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
        if self._inputs_of_spec is None or self._inputs_of_spec[0] is not self.spec:
            read_once = self._read_once
            by_name = {side.name: side for side in read_once}
            repeats = self._translation("whenNeeded").repeats if self.spec.sql is not None else {}
            repeated = (_read_again(by_name[name], alias) for alias, name in repeats.items() if name in by_name)
            self._inputs_of_spec = (self.spec, (*read_once, *repeated))
        return self._inputs_of_spec[1]

    @property
    def _read_once(self) -> tuple[Input, ...]:
        by_name = {source.name: source for source in self.spec.inputs}
        repeated = (_read_again(by_name[name], alias) for alias, name in self._repeated_branches.items())
        return united((*self.spec.inputs, *repeated), self.unions)

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
        return tuple(JoinStep.model_validate(step, context=PLAIN_NUMBERS) for step in sql.steps)

    @property
    def aggregation(self) -> Aggregation | None:
        """`spec.aggregate`, or what `spec.sql` says in its place."""
        sql = self._from_sql
        if sql is None:
            return self.spec.aggregate
        return None if sql.aggregate is None else Aggregation.model_validate(sql.aggregate, context=PLAIN_NUMBERS)

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
        if self.spec.sql is None:
            return None
        if self._stored_stars is not None:
            return self._translation(self._stored_stars)
        in_postgres = any(output.postgres is not None for output in self.outputs)
        conditions = (output.when for output in self.outputs if output.when is not None)
        mentioned = {*self.named_columns, *words_of(conditions)}
        return self._translation(fitting_stars(self.spec.sql, self._translation, mentioned, in_postgres=in_postgres))

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

    def upsert_key(self, output: NamedOutput) -> tuple[str, ...]:
        """`postgres.upsertKey`, else of an aggregate the groups and what tells the windows apart (rule S6)."""
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

    @property
    def _columns_by_input(self) -> Mapping[str, tuple[str, ...]]:
        return {side.name: tuple(side.types) for side in self.inputs if side.name in self.joined}

    @property
    def _times(self) -> tuple[str, ...]:
        if self.rankings:
            return self.rankings[-1].adds
        return WINDOW_COLUMNS if self.windowed else ()

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
        chosen = [
            replace(fields[item.column], name=item.as_ or fields[item.column].name)
            if item.column is not None
            else OutputField(item.as_ or "", expression=item.expression)
            for item in self.select or [SelectItem(column=column) for column in fields]
        ]
        last = [OutputField(self.retracted, step_column=RETRACTED)] if self.retracted is not None else []
        return (*chosen, *last)

    def _column(self, name: str, source: Reference) -> OutputField:
        return OutputField(name, source, type=self.input(source.input).types[source.column])

    def _window_column(self, name: str, step_column: str) -> OutputField:
        kind = self.window_times if step_column in WINDOW_COLUMNS else ColumnType("int64")
        return OutputField(name, type=kind, step_column=step_column)


def _read_again(source: Input, alias: str) -> Input:
    """Return the input under another name, which is also that of the columns in its `where`."""
    condition = parse_tree(source.where) if source.where is not None else None
    own = [column for column in condition.find_all(exp.Column) if column.table == source.name] if condition else []
    for column in own:
        column.set("table", exp.to_identifier(alias))
    where = condition.sql(comments=False) if condition is not None and own else source.where
    return source.model_copy(update={"name": alias, "where": where})


def stored_type(job: StreamJoin, step_index: int, side: str, name: str) -> ColumnType | ComputedKey:
    """Return the type of a stored column, or the key that it holds; on the left side of a later step its name carries
    its input's, or is that of a window's time (W5)."""
    if side == "left" and step_index > 0:
        if name in WINDOW_COLUMNS:
            return ColumnType("int64")
        ref = parse_reference(name)
        assert ref is not None, f"{name!r} of a chained part names its input"
    else:
        ref = Reference(job.left_inputs(0)[0] if side == "left" else job.joins[step_index].right, name)
    declared = job.input(ref.input).types.get(ref.column)
    if declared is not None:
        return declared
    return next(key for key in job.computed_keys if (key.input, key.column) == (ref.input, ref.column))
