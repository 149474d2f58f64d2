"""Makes the sinks that a job needs, from what the job says of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import pyarrow as pa

from joinery_runtime.connectors.console import ConsoleSink
from joinery_runtime.connectors.files.rolling import Rolling, held_names, held_parts
from joinery_runtime.connectors.files.sink import FileSink
from joinery_runtime.connectors.kafka.producers import PRODUCERS
from joinery_runtime.connectors.kafka.sink import CLIENTS, KafkaSink
from joinery_runtime.connectors.kafka.target import DeadLetterTarget, KafkaTarget, RecordLimit
from joinery_runtime.connectors.kafka.transactions import KafkaTransactionsSink, PartNames
from joinery_runtime.connectors.lake.sink import LakeSink, LakeTable
from joinery_runtime.connectors.postgres.external import ExternalPostgresSink, drop_marks, published_epoch
from joinery_runtime.connectors.postgres.sink import PostgresSink, Staging, connections, drop_staging, staging_apart
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.connectors.several_outputs import OutputPart, SeveralLimits, SeveralOutputs
from joinery_runtime.connectors.sink import RowLimit, RowRouting, Sink, short_incarnation
from joinery_runtime.core.compile.jobs import RowSelection, compile_job, row_selections
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS, RETRACTIONS_FIRST
from joinery_runtime.errors import EnvironmentProblem, SinkError
from joinery_runtime.formats.json.encode import JsonStyle
from joinery_runtime.formats.registry.output import SchemaOutput
from joinery_runtime.job import Job
from joinery_runtime.job.key_order import key_columns, orders_keys, routing_columns
from joinery_runtime.job.model.outputs import (
    ONLY_OUTPUT,
    ConsoleOutput,
    DeadLetter,
    DeadLetterKafka,
    DeltaOutput,
    FileOutput,
    IcebergOutput,
    KafkaOutput,
    NamedOutput,
    Output,
    PostgresOutput,
)
from joinery_runtime.job.model.wording import counted

if TYPE_CHECKING:
    from joinery_runtime.connectors.content import Content


class StoreDatabase(Protocol):
    """A state store in Postgres, as tasks also reach it: libpq's DSN and the schema of Joinery's tables."""

    @property
    def dsn(self) -> str: ...
    @property
    def schema(self) -> str: ...


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """Where one output of the job named `job` writes, and how. `selection` says which of the job's rows and columns it
    has, and `schema` is that of its rows. A table holds one row per `upsert_key`; `retracted` is the column that says
    whether a row takes one back. `dead_letters`: rows that do not fit have dead letters to go to. `orders_keys`: one
    shard writes all records of a key, in order."""

    job: str
    output: NamedOutput
    selection: RowSelection
    exactly_once: bool
    schema: pa.Schema
    style: JsonStyle
    upsert_key: tuple[str, ...]
    retracted: str | None
    dead_letters: bool
    orders_keys: bool = False

    @property
    def name(self) -> str:
        return self.output.name

    def sink(self, store: StoreDatabase | None, incarnation: str = "") -> Sink:
        """Return the sink of the output. `store` None: the state is not in Postgres. `incarnation` lets `buffered_rows`
        answer before `recover`, which sets it."""
        match self.output:
            case Output(kafka=KafkaOutput()):
                output = None if self.name == ONLY_OUTPUT else self.name
                return _kafka_sink(self.topic(), PartNames(self.job, output=output), exactly_once=self.exactly_once)
            case Output(postgres=PostgresOutput() as postgres):
                if store is None:
                    raise SinkError(
                        f"The output table {postgres.table} needs the state in Postgres too",
                        facts="a job that has lost its state would write rows again",
                        todo="Set stateStore.postgres, or remove stateStore for the embedded Postgres",
                    )
                table = self._target_table(postgres)
                if postgres.dsn is None or postgres.dsn == store.dsn:
                    return PostgresSink(store.dsn, table, Staging.of(store.schema, self.job, table.name))
                staging = Staging.of(store.schema, self.job, table.name, external=True)
                return ExternalPostgresSink(postgres.dsn, table, staging, self.schema)
            case Output(file=FileOutput() as file):
                assert self.output.format in ("json", "parquet"), "the job's validation sees to it"
                options = (self.output.format, self.style, _rolling_policy(file))
                return FileSink(file.path, *options, incarnation=short_incarnation(incarnation))
            case Output(iceberg=IcebergOutput()) | Output(delta=DeltaOutput()):
                return LakeSink(lake_table(self.output), self.job, self.schema)
            case Output(console=ConsoleOutput() as console):
                return ConsoleSink(console.rows, self.style)
            case unknown:
                raise _no_sink("output", unknown)

    def topic(self) -> KafkaTarget:
        """Return the topic of an output that goes to Kafka."""
        kafka = self.output.kafka
        assert kafka is not None, "the output is a topic"
        connection = (kafka.topic, kafka.bootstrap_servers, kafka.key, kafka.properties, kafka.headers)
        order = RETRACTIONS_FIRST if self.retracted is not None else ORDER_COLUMNS
        return KafkaTarget(*connection, self.style, self._schema_output(kafka), order if self.orders_keys else ())

    def _schema_output(self, kafka: KafkaOutput) -> SchemaOutput | None:
        kind: type[SchemaOutput]
        match self.output.format:
            case "avro":
                from joinery_runtime.formats.avro.encode import AvroOutput as kind  # noqa: PLC0415, N813
            case "protobuf":
                from joinery_runtime.formats.protobuf.encode import ProtobufOutput as kind  # noqa: PLC0415, N813
            case _:
                return None
        registry = self.output.schema_registry
        assert registry is not None, "the job's validation sees to it"
        return kind(kafka.topic, self.schema, registry.url, registry.properties)

    def _target_table(self, output: PostgresOutput) -> TargetTable:
        allowed = output.table_owner, output.allow_triggers
        nested = self.style.nested
        return TargetTable(output.table, self.upsert_key, self.retracted, nested, *allowed, ordered=self.replaces_rows)

    @property
    def needs_order(self) -> bool:
        """Whether the writer needs the rows' order."""
        return self.replaces_rows or self.orders_keys

    @property
    def replaces_rows(self) -> bool:
        """Whether the output has one row per key, for which the writer needs the rows' order. Sessions have a key of
        their own, which one shard has, and so have rows that take each other back."""
        postgres = self.output.postgres
        return postgres is not None and bool(postgres.upsert_key) and self.retracted is None

    def row_limit(self) -> RowLimit | None:
        """Say how large a row of the output may be. None: of any size."""
        return None if self.output.kafka is None else RecordLimit(self.topic(), self.name)

    def topic_row_limit(self) -> int | None:
        """Ask how large a row the output's topic takes now, if that is less than the client takes. None too where rows
        have no dead letters to go to, are compressed, or where this user may not read the topic's settings."""
        if self.output.kafka is None or not self.dead_letters:
            return None
        target = self.topic()
        limit = None if target.compresses else target.topic_limit()
        return limit if limit is not None and limit < target.client_limit else None

    def content(
        self, store: StoreDatabase | None, incarnation: str, committed: Callable[[], int], certain: int
    ) -> Content | None:
        """Return the present content of the output. None for files, which say to which epoch a row belongs. `committed`
        gives the last epoch that the state store has committed; rows up to `certain` have been published. Raises
        SinkError or Unavailable."""
        # Imported here: no worker needs these, and imports delay its start.
        from joinery_runtime.connectors.content import KafkaContent  # noqa: PLC0415
        from joinery_runtime.connectors.table_content import LakeContent, PostgresContent  # noqa: PLC0415

        output = self.output
        if output.kafka is not None:
            return KafkaContent(self.topic(), committed())
        if output.postgres is not None:
            assert store is not None, "the job's validation sees to it"
            table = self._target_table(output.postgres)
            if output.postgres.dsn in (None, store.dsn):
                return PostgresContent(store.dsn, table, self.schema, committed, None)
            assert output.postgres.dsn is not None, "the line above"
            target = (store.schema, self.job, incarnation, table.name)
            return PostgresContent(
                output.postgres.dsn,
                table,
                self.schema,
                committed,
                lambda snapshot: max(published_epoch(snapshot, *target), certain),
            )
        if output.iceberg is not None or output.delta is not None:
            return LakeContent(lake_table(output), self.job, incarnation, self.schema, certain)
        return None


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the rows and the dead letters of the job named `job` go. `schema` is that of the job's rows. `routing` says
    which shard writes a row; None: the one that makes it."""

    job: str
    schema: pa.Schema
    targets: tuple[OutputTarget, ...]
    dead_letter: DeadLetter | None
    dead_letter_kafka: DeadLetterKafka | None
    exactly_once: bool
    routing: RowRouting | None = None

    @classmethod
    def of(cls, job: Job, schema: pa.Schema | None = None) -> Self:
        """Return the outputs of a job whose secrets are filled in. Without the `schema`, compiles the job."""
        schema = compile_job(job).output_schema() if schema is None else schema
        exactly_once = job.spec.delivery == "exactlyOnce"
        targets = (
            OutputTarget(
                job=job.name,
                output=output,
                selection=selection,
                exactly_once=exactly_once,
                schema=selection.schema(schema),
                style=JsonStyle.of(job, output),
                upsert_key=job.upsert_key(output),
                retracted=job.retracted,
                dead_letters=job.spec.dead_letter is not None,
                orders_keys=orders_keys(job, output),
            )
            for output, selection in zip(job.outputs, row_selections(job, schema), strict=True)
        )
        routing = _row_routing(job, schema)
        return cls(job.name, schema, tuple(targets), job.spec.dead_letter, job.dead_letter_kafka, exactly_once, routing)

    def sink(self, store: StoreDatabase | None, incarnation: str = "") -> Sink:
        """Return one sink for all outputs. `store` and `incarnation` as for `OutputTarget.sink`."""
        if self._only_target is not None:
            return self._only_target.sink(store, incarnation)
        sinks = {target.name: target.sink(store, incarnation) for target in self.targets}
        parts = {target.name: OutputPart(target.selection, target.needs_order) for target in self.targets}
        return SeveralOutputs(sinks, parts)

    @property
    def _only_target(self) -> OutputTarget | None:
        """The output of a job that has `output`, and not `outputs`."""
        return self.targets[0] if self.targets[0].name == ONLY_OUTPUT else None

    def dead_letter_sink(self, incarnation: str = "") -> Sink | None:
        """Return the sink of the dead letters, whose rows have `DEAD_LETTER_SCHEMA`. None if the job names none."""
        match self.dead_letter:
            case None:
                return None
            case DeadLetter(kafka=DeadLetterKafka()):
                names = PartNames(self.job, dead_letters=True)
                return _kafka_sink(self._dead_letter_topic(), names, exactly_once=self.exactly_once)
            case DeadLetter(file=FileOutput() as file):
                return FileSink(file.path, rolling=_rolling_policy(file), incarnation=short_incarnation(incarnation))
            case unknown:
                raise _no_sink("deadLetter", unknown)

    def _dead_letter_topic(self) -> DeadLetterTarget:
        kafka = self.dead_letter_kafka
        assert kafka is not None, "the dead letters name Kafka"
        assert kafka.bootstrap_servers is not None, "the job's validation sees to it"
        return DeadLetterTarget.of(kafka.topic, kafka.bootstrap_servers, kafka.properties or {})

    # --- what tasks need to know of them ----------------------------------------------------------------------------

    @property
    def need_order(self) -> bool:
        """Whether the writer of an output needs the rows' order."""
        return self.routing is not None or any(target.needs_order for target in self.targets)

    def row_limit(self) -> RowLimit | None:
        """Say how large a row may be for each output that has it. None: of any size."""
        if self._only_target is not None:
            return self._only_target.row_limit()
        limits = [(target.selection, limit) for target in self.targets if (limit := target.row_limit()) is not None]
        return SeveralLimits(tuple(limits)) if limits else None

    def topic_row_limits(self) -> Mapping[str, int]:
        """Ask how large a row the topic of each output takes now, by output (`OutputTarget.topic_row_limit`)."""
        return {target.name: limit for target in self.targets if (limit := target.topic_row_limit()) is not None}

    # --- what is in them --------------------------------------------------------------------------------------------

    def dead_letter_content(self, committed: Callable[[], int]) -> Content | None:
        """Return the present content of the dead letters. None if they go to files or nowhere."""
        from joinery_runtime.connectors.content import DeadLetterContent  # noqa: PLC0415

        return None if self.dead_letter_kafka is None else DeadLetterContent(self._dead_letter_topic(), committed())


def close_idle_clients() -> None:
    """Close what writers keep open from one write to the next: the transactional producers of this process, and the
    other producers and the connections to Postgres of this thread. Those of another thread end with that thread."""
    PRODUCERS.close_idle()
    CLIENTS.close_all()
    connections.close_all()


def lake_table(output: Output) -> LakeTable:
    """Return the Iceberg or Delta table of an output. Raises EnvironmentProblem if its library is not installed."""
    try:
        if output.iceberg is not None:
            from joinery_runtime.connectors.lake.iceberg import IcebergTable  # noqa: PLC0415 - an extra

            return IcebergTable(output.iceberg.catalog, output.iceberg.table, output.iceberg.properties)
        from joinery_runtime.connectors.lake.delta import DeltaLakeTable  # noqa: PLC0415 - an extra

        assert output.delta is not None, "the caller has looked"
        return DeltaLakeTable(output.delta.path, output.delta.properties)
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"The output {'iceberg' if output.iceberg is not None else 'delta'} needs the package {error.name}",
            facts="it is not installed",
            todo="pip install 'joinery-runtime[engine,lakehouse]' on the driver's machine and on each worker's",
        ) from error


def forget_output(
    job: str, outputs: Sequence[Output], dead: DeadLetter | None, store: StoreDatabase, incarnation: str | None
) -> str | None:
    """Drop the staged output, and its marks, of a job whose state has been deleted. Returns in words what remains:
    rows in files that nobody has seen yet, of this incarnation of the job (None: it had no state), and what could
    not be dropped, because an unavailable database must not prevent the deletion of a job. In another database than the
    state's, drops nothing for a job that had no state: if its state is elsewhere, it stages rows
    under the same names. Raises SinkError and StoreUnavailable for the state's own database."""
    drop_staging(store.dsn, store.schema, job)
    remaining = []
    for file in (*(output.file for output in outputs), dead.file if dead is not None else None):
        if (
            file is not None
            and incarnation is not None
            and (parts := held_parts(Path(file.path), short_incarnation(incarnation)))
        ):
            rows, names = (
                sum(part.rows for part in parts),
                held_names(Path(file.path), [short_incarnation(incarnation)]),
            )
            remaining.append(f"{counted(rows, 'row', 'are')} left that nobody has seen yet: remove {names}")
    databases = dict.fromkeys(output.postgres.dsn for output in outputs if output.postgres is not None)
    for dsn in databases:
        if dsn is not None and dsn != store.dsn and (words := _forget_tables((dsn, store.schema, job), incarnation)):
            remaining.append(words)
    return "; ".join(remaining) or None


def _forget_tables(database: tuple[str, str, str], incarnation: str | None) -> str | None:
    """Drop the staged output in another database than the state's: its dsn, schema, and the job. Return what
    remains."""
    *_, job = database
    try:
        if incarnation is not None:
            drop_staging(*database, external=True)
            drop_marks(*database)
        elif tables := staging_apart(*database):
            return (
                f"Staging tables of job {job} are left in the database of output.postgres: no state of the "
                "job was here, and it may continue elsewhere (joinery state move). If it does not, run there: "
                f"DROP TABLE {', '.join(tables)}"
            )
    except SinkError as error:
        return f"Staging tables of job {job} are left in the database of output.postgres: {error}"
    return None


def _row_routing(job: Job, schema: pa.Schema) -> RowRouting | None:
    columns = routing_columns(job)
    if not columns:
        return None
    # A key of one text column is the text itself, so a row without it has no key.
    only_key = len(columns) == 1 and len(job.outputs) == 1 and key_columns(job.outputs[0]) == columns
    return RowRouting(columns, spreads_nulls=only_key and pa.types.is_string(schema.field(columns[0]).type))


def _kafka_sink(target: KafkaTarget, names: PartNames, *, exactly_once: bool) -> Sink:
    return KafkaTransactionsSink(target, names) if exactly_once else KafkaSink(target)


def _rolling_policy(file: FileOutput) -> Rolling | None:
    return Rolling(*file.rolling) if file.rolling is not None else None


def _no_sink(field: str, target: Output | DeadLetter) -> SinkError:
    """Return the error for a kind of output that the models know but no sink writes to."""
    named = sorted(target.model_fields_set - {"format"})
    return SinkError(
        f"No sink writes to {field}: {', '.join(named) or 'nothing is named'}",
        todo=f"Name one of {', '.join(target.KINDS)}",
    )
