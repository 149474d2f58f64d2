"""What both kinds of job have in common: the fields around what they do, and the views that the engine asks for."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AliasPath,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from joinery_runtime.job.model.base import (
    Bool,
    ByteCount,
    ColumnType,
    Int,
    Length,
    Limits,
    Model,
    PositiveDuration,
    Text,
    TypeField,
)
from joinery_runtime.job.model.draft import Finding, Loc, no_key, path_text
from joinery_runtime.job.model.function_calls import NAME, cannot_declare, declaring
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.outputs import DeadLetter, DeadLetterKafka, NamedOutput, Output, StoreSpec
from joinery_runtime.job.model.owner import REPLACES_OWNER
from joinery_runtime.job.model.pods import Autoscale, SparkSpec
from joinery_runtime.job.model.references import POSTGRES_NAME_BYTES, Reference
from joinery_runtime.job.model.wording import listed

API_VERSION: Literal["joinery.dev/v1alpha1"] = "joinery.dev/v1alpha1"
MOST_SHARDS = 4096
PYTHON_FUNCTION = f"{NAME}([.]{NAME})*:{NAME}"
"""The pattern of `package.module:function`."""
RULES_BROKEN = "rules_broken"  # type of the one pydantic error that carries all cross-field findings

Name = Annotated[
    str, StringConstraints(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
]


class Metadata(Model):
    # Kubernetes owns this part and adds fields of its own (uid, managedFields, ...): they are none of our business.
    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="ignore")

    name: Name
    namespace: Name | None = None
    replaces_owner: str = Field(default="", validation_alias=AliasPath("annotations", REPLACES_OWNER), exclude=True)


PROCESS_RECORDS = 500_000
PROCESS_BYTES = 64 * 2**20
"""What an epoch may read for each process that shares its rows, where the trigger names no other limit."""


class Trigger(Model):
    """When epochs begin, and what one reads at most. The memory of a task is a multiple of the bytes
    (docs/operations.md, "Memory")."""

    interval: PositiveDuration = Field(default=0, examples=["10s"])
    """Minimum time between the starts of two epochs, a duration: fewer files, commits and transactions, but rows are
    emitted later. With 0, and when as many records wait as one epoch may read, the next epoch starts at once."""
    max_records_per_epoch: Annotated[Int, Field(ge=1)] | None = Field(default=None, examples=[2_000_000])
    """Maximum number of records that an epoch reads, all inputs together. If absent, 500,000 for each executor, or for
    each 8 cores of a larger one, as far as the keys spread rows over them."""
    max_bytes_per_epoch: ByteCount | None = Field(default=None, examples=["256Mi"])
    """Maximum number of bytes that an epoch reads, all inputs together, as a number or as 64Mi. If absent, 64Mi for
    each executor, in the same way."""


class ShadowComparison(Model):
    """What `upgrade.mode: shadow` compares before the edited job takes over."""

    epochs: Annotated[Int, Field(ge=1, le=1000)] = Field(default=10, examples=[100])
    """Number of the running job's committed epochs to compute under the edited job too."""
    within: Length = Field(default=300_000, examples=["8m"])
    """How long to wait for them: what was committed by then is compared. Less than `progressDeadline`."""


class Upgrade(Model):
    """How another image or a changed job takes over: with the state, or from the beginning without it."""

    mode: Literal["stateful", "shadow", "stateless"] = "stateful"
    """`stateful` continues with the state, `stateless` leaves it behind. `shadow` continues with the state once the
    edited job has given the same rows as the running one, epoch by epoch; a difference rejects the edit."""
    shadow: ShadowComparison = ShadowComparison()
    """How much is compared in mode `shadow`."""
    rollback: Literal["automatic", "manual", "disabled"] = "automatic"
    """What happens when the new driver does not start: `automatic` returns to the savepoint and the last revision that
    ran, `manual` does so once the resource asks for another job, `disabled` never."""
    progress_deadline: Length = Field(default=600_000, examples=["30m"])
    """How long a rollout or a pod may make no progress (a node, an image, a migrated segment, a task of the first
    epoch, readiness), a duration."""


class PythonFunction(Model):
    """A function of the job's own, which expressions call by its name (docs/how-to/python-functions.md)."""

    name: Text = Field(examples=["risk_score"])
    """How expressions and SQL call it, in upper or lower case."""
    python: Text = Field(examples=["shop.risk:score"])
    """The module and the function in it: `package.module:function`. On Kubernetes the image has the module; elsewhere
    also `joinery run --py-files` and spark-submit bring it. It takes one Arrow array for each argument, all of one
    length, and returns an array of that length, each value from its own row alone."""
    returns: TypeField = Field(examples=["double"])
    """The type of what it returns, as of a column."""


class JobSpec(Model):
    """Where rows and state go, and how a job runs."""

    output: Output | None = None
    """Where rows go: exactly one of `kafka`, `postgres`, `file`, `iceberg`, `delta` and `console`."""
    outputs: Annotated[tuple[NamedOutput, ...], Field(min_length=1)] | None = None
    """Several outputs instead of `output`, each with some of the rows and columns, all in the same commit."""
    functions: tuple[PythonFunction, ...] = ()
    """Python functions that the job's expressions call, beside those of docs/functions.md."""
    dead_letter: DeadLetter | None = None
    """Where records go that cannot be used: exactly one of `kafka` and `file`. If absent, such a record stops the
    job."""
    state_store: StoreSpec = StoreSpec()
    """Where state and offsets are kept: at most one of `postgres` and `memory`. With neither, an embedded Postgres,
    which is for a laptop."""
    delivery: Literal["exactlyOnce", "atLeastOnce"] = "exactlyOnce"
    """`exactlyOnce`, or `atLeastOnce`: Kafka output may repeat rows after a crash."""
    trigger: Trigger = Trigger()
    """When epochs begin, and how much one reads."""
    shards: Annotated[Int, Field(ge=1, le=MOST_SHARDS)] = Field(default=8, examples=[32])
    """The most shards (ranges of the key's hash) of an epoch, and so the most cores that join at once. An epoch has two
    for each core, or up to twice as many if that divides this number; with `coPartitioned`, always this number. May
    change while the job runs: nothing restarts. With `autoscale`, the most grows with the executors."""
    autoscale: Autoscale | None = None
    """Lets the driver choose the number of executors, within bounds and by targets. Starts with
    `spark.executor.instances`."""
    upgrade: Upgrade = Upgrade()
    """How another image or an edited job takes over."""
    suspend: Bool = False
    """Stops the driver after its epoch, and keeps the state."""
    cleanup: Literal["retainState", "deleteState"] = "retainState"
    """What happens to the state when the resource is deleted."""
    spark: SparkSpec = SparkSpec()
    """The pods, and Spark's settings."""


@dataclass(frozen=True, slots=True)
class OutputField:
    """`source` is the input's column, `expression` an SQL expression over `input.column`s, or over what an aggregate
    makes (G11), whose type the core works out (`type` is None). `step_column` is what the step makes itself, by the
    name that it has there: a window's times, and every column of a session."""

    name: str
    source: Reference | None = None
    expression: str | None = None
    type: ColumnType | None = None
    step_column: str | None = None


@dataclass(frozen=True, slots=True)
class PlacedExpression:
    """An SQL expression and its place in the resource. `inputs` are those whose columns it may read; columns of `own`
    need no input's name before them."""

    path: str
    text: str
    inputs: tuple[str, ...]
    own: str = ""


class Job(Model):
    """A valid resource. Constructing one in Python applies the same rules as loading a file. `no_fields` says of fields
    that `spec` has not, but might be thought to have, why not."""

    no_fields: ClassVar[Mapping[str, str]] = {}
    row_fields: ClassVar[frozenset[str]]
    """The fields of `spec` that decide which rows an epoch makes."""

    api_version: Literal["joinery.dev/v1alpha1"] = API_VERSION
    kind: str
    metadata: Metadata
    spec: JobSpec
    # What `kubectl get -o yaml` prints can be fed back as it is; the status is no part of the job.
    status: Annotated[None, BeforeValidator(lambda _: None), Field(exclude=True, repr=False)] = None
    # No field: it comes from the modules of the functions, which only the driver and its workers have.
    _function_sources: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    @abstractmethod
    def broken_rules(cls, data: dict[str, Any]) -> list[Finding]:
        """Return the cross-field rules that a resource with these YAML field names breaks."""

    def unwise_settings(self) -> Iterator[Finding]:
        """Yield settings that are rejected where a person writes a job, and that a stored job may have."""
        lasting = self.lasting_columns
        if lasting is None or self.retracted is not None:  # a retraction has the key of the row that it takes back
            return
        for output_at, output in zip(self.output_places, self.outputs, strict=True):
            columns = {column.name: column.step_column for column in self.columns_of(output)}
            usable = listed(name for name, column in columns.items() if column in lasting)
            todo = f"name some of {usable}" if usable else "select groups and columns of the window for it"
            for target, field, key in _output_keys(output):
                for i, name in enumerate(key):
                    if columns[name] not in lasting:
                        yield (
                            ("spec", *output_at, target, field, i),
                            f"{name!r} may differ between an earlier and a later result of one window, so the later "
                            f"row would not replace the earlier one (rule G9); {todo}, or drop {field}",
                        )

    @property
    @abstractmethod
    def inputs(self) -> tuple[Input, ...]:
        """In the job's order, with a union in the place of its branches."""

    @property
    def declared_inputs(self) -> tuple[Input, ...]:
        """The inputs that `spec` has, in its order: without those that `sql` reads again."""
        return self.inputs

    @property
    def read_inputs(self) -> tuple[Input, ...]:
        """The inputs that are read: `inputs`, with the branches of a union in its place."""
        return tuple(part for side in self.inputs for part in side.parts)

    @property
    def repeats(self) -> Mapping[str, str]:
        """The declared inputs that `sql` reads again, by the names that they have then."""
        return {}

    @property
    def input_filters(self) -> Mapping[str, str]:
        """By input, the SQL condition without which no row of it counts."""
        return {side.name: side.where for side in self.inputs if side.where is not None}

    @property
    @abstractmethod
    def without_sql(self) -> dict[str, Any]:
        """The fields in whose place `sql` may stand, as they or the SQL say them."""

    @property
    @abstractmethod
    def output_columns(self) -> tuple[OutputField, ...]:
        """What is emitted, in order."""

    @property
    def column_naming(self) -> str | None:
        """How the output columns get their names, where the job does not name them."""
        return None

    @property
    def outputs(self) -> tuple[NamedOutput, ...]:
        """Where rows go, at least one output."""
        if self.spec.outputs is not None:
            return self.spec.outputs
        assert self.spec.output is not None, "the rules see to it"
        return (NamedOutput.only(self.spec.output),)

    @property
    def window_times(self) -> ColumnType:
        """The type of `window_start` and `window_end`, which all outputs agree on."""
        return ColumnType(self.outputs[0].window_times)

    def columns_of(self, output: NamedOutput) -> tuple[OutputField, ...]:
        """Return what an output has of each row, in order."""
        if output.select is None:
            return self.output_columns
        by_name = {column.name: column for column in self.output_columns}
        return tuple(replace(by_name[item.column], name=item.as_ or item.column) for item in output.select)

    def nested_columns(self, output: NamedOutput) -> frozenset[str]:
        """Return an output's columns that are JSON inside of JSON, and jsonb in Postgres."""
        if output.format != "json":
            return frozenset()
        return frozenset(
            column.name for column in self.columns_of(output) if column.type is not None and column.type.name == "json"
        )

    @property
    @abstractmethod
    def unread_expressions(self) -> tuple[PlacedExpression, ...]:
        """The SQL expressions that no rule of the models reads."""

    @property
    @abstractmethod
    def has_expressions(self) -> bool:
        """Whether SQL expressions say what matches or is emitted, which only the core can check."""

    @abstractmethod
    def upsert_key(self, output: NamedOutput) -> tuple[str, ...]:
        """Return the columns of an output whose row a Postgres table holds once; empty: every row is inserted."""

    @property
    @abstractmethod
    def limits(self) -> Mapping[tuple[str, ...], Limits]:
        """What each step's state may hold, by the parts that it keeps, in the order of the steps."""

    @property
    @abstractmethod
    def inputs_without_lateness(self) -> frozenset[str]:
        """The inputs whose rows may be late, and for which no `allowedLateness` says how much they may be."""

    @property
    def retracted(self) -> str | None:
        """The output's column that says whether a row takes back the one with its key; None: there is none."""
        return None

    @property
    def changelog_key(self) -> tuple[str, ...] | None:
        """The step columns by which a row of the job replaces an earlier one; None: rows are only appended."""
        return None

    @property
    def lasting_columns(self) -> Collection[str] | None:
        """The step columns that all rows of one window have in common, if newer rows replace earlier ones; None: rows
        are only appended."""
        return None

    @property
    def co_partitioned(self) -> bool:
        """Whether a step reads topics that are partitioned by its key, without an exchange."""
        return False

    @property
    def output_places(self) -> tuple[Loc, ...]:
        """Where in `spec` each output is."""
        if self.spec.outputs is None:
            return (("output",),)
        return tuple(("outputs", i) for i in range(len(self.spec.outputs)))

    @property
    @abstractmethod
    def input_places(self) -> tuple[Loc, ...]:
        """Where in `spec` each of the declared inputs is."""

    @abstractmethod
    def with_inputs(self, inputs: Sequence[Input]) -> dict[str, Any]:
        """Return the fields of `spec` with these inputs in the place of the declared ones."""

    @model_validator(mode="after")
    def _check_rules(self, info: ValidationInfo) -> Self:
        with declaring(self.function_names):
            mistakes = self.broken_rules(self.model_dump(mode="json", by_alias=True, exclude_unset=True))
        mistakes = [*self._check_functions(), *mistakes]
        mistakes = mistakes or list(self._check_json_keys())
        mistakes = mistakes or ([] if (info.context or {}).get("as_stored") else list(self._check_postgres_names()))
        if mistakes:
            text = "\n".join(f"{path_text(at)}: {message}" for at, message in mistakes)
            raise PydanticCustomError(RULES_BROKEN, "{text}", {"text": text, "found": mistakes})
        return self

    @property
    def function_names(self) -> tuple[str, ...]:
        return tuple(function.name for function in self.spec.functions)

    @property
    def function_types(self) -> Mapping[str, ColumnType]:
        """What the job's functions return, by their names as calls: `SCORE()`."""
        return {f"{function.name.upper()}()": function.returns for function in self.spec.functions}

    @property
    def function_sources(self) -> Mapping[str, str]:
        """A hash of the source of each function's module, by the function's name, once the modules were read."""
        return self._function_sources

    def with_function_sources(self, sources: Mapping[str, str]) -> Self:
        job = self.model_copy()
        job._function_sources = dict(sources)
        return job

    def _check_functions(self) -> Iterator[Finding]:
        """Find functions without a place to import from, or with a name that means something else already (rule V4)."""
        columns = {name.upper(): side.name for side in self.declared_inputs for name in side.types}
        names: set[str] = set()
        for i, function in enumerate(self.spec.functions):
            at: Loc = ("spec", "functions", i)
            upper = function.name.upper()
            if problem := cannot_declare(function.name):
                yield (*at, "name"), problem
            elif upper in names:
                yield (*at, "name"), f"two functions are called {function.name!r}; case does not count, rename one"
            elif upper in columns:
                yield (*at, "name"), f"{function.name!r} is a column of {columns[upper]!r} already; choose another name"
            names.add(upper)
            if re.fullmatch(PYTHON_FUNCTION, function.python) is None:
                yield (*at, "python"), f"{function.python!r} names no function; write package.module:function"
            if function.returns.name == "json":
                yield (*at, "returns"), "json is a type of columns that are read; write string"

    def _check_json_keys(self) -> Iterator[Finding]:
        """Find keys of outputs that are JSON: Postgres takes texts for equal that the job takes for different."""
        for output_at, output in zip(self.output_places, self.outputs, strict=True):
            named = _output_keys(output)
            if any(key for *_, key in named):
                types = {column.name: column.type for column in self.columns_of(output)}
                for target, at, key in named:
                    for i, name in enumerate(key):
                        if text := no_key(name, types):
                            yield ("spec", *output_at, target, at, i), text

    def _check_postgres_names(self) -> Iterator[Finding]:
        store = self.spec.state_store.postgres
        names: list[tuple[Loc, str]] = []
        for output_at, output in zip(self.output_places, self.outputs, strict=True):
            if output.postgres is None:
                continue
            at = ("spec", *output_at, "postgres")
            columns, written = self.columns_of(output), self.without_sql.get("select") or ()
            in_select = len(written) == len(columns) and "select" in self.spec.model_fields_set
            listed_at: Loc = ("spec", *output_at, "select") if output.select is not None else ("spec", "select")
            by_item = output.select is not None or in_select
            names += [((*at, "table"), part) for part in output.postgres.table.split(".", 1)]
            names += [((*listed_at, i) if by_item else at, column.name) for i, column in enumerate(columns)]
        if store is not None:
            names.append((("spec", "stateStore", "postgres", "schema"), store.schema_name))
        for at, name in names:
            if (size := len(name.encode())) > POSTGRES_NAME_BYTES:
                facts = f"the name {name!r} has {size} bytes, and Postgres cuts names after {POSTGRES_NAME_BYTES}"
                rename = ", with `as` in select or AS in sql" if at[-1] not in ("schema", "table") else ""
                yield at, f"{facts}; write a shorter one{rename}"

    @property
    def name(self) -> str:
        """The job's name in the state store: `namespace/name`, or `name` where no namespace is given."""
        return self.name_beside(self.metadata.name)

    def name_beside(self, other: str) -> str:
        """Return the name in the state store of another job of this namespace."""
        return f"{self.metadata.namespace}/{other}" if self.metadata.namespace else other

    def input(self, name: str) -> Input:
        """Return the input of that name. Raises KeyError for a name that no input has."""
        return {side.name: side for side in self.inputs}[name]

    @property
    def dead_letter_kafka(self) -> DeadLetterKafka | None:
        """The dead-letter topic with its address and settings filled in, if dead letters go to Kafka."""
        target = self.spec.dead_letter.kafka if self.spec.dead_letter else None
        if target is None:
            return None
        clusters = (*(output.kafka for output in self.outputs), *(source.kafka for source in self.read_inputs))
        same_cluster = next(
            (at for at in clusters if at and target.bootstrap_servers in {None, at.bootstrap_servers}), None
        )
        filled = {
            "bootstrap_servers": target.bootstrap_servers or (same_cluster.bootstrap_servers if same_cluster else None),
            "properties": target.properties
            if target.properties is not None
            else same_cluster.properties
            if same_cluster
            else {},
        }
        return target.model_copy(update=filled)


def _output_keys(output: NamedOutput) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the fields of an output that name keys, each as target, field and columns."""
    kafka, postgres = output.kafka, output.postgres
    return [
        ("kafka", "key", kafka.key if kafka else ()),
        ("postgres", "upsertKey", postgres.upsert_key if postgres else ()),
    ]
