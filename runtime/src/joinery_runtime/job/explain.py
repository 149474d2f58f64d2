"""Explains what a job will do before it runs: the plan, how long each side is kept, and how much state to expect. Draws
it as a flowchart in Mermaid's language, whose words are those of the explanation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from joinery_runtime.job.join.explain import assumed_columns, step_plans
from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.key_order import lacks_order_of_nulls, order_warnings, routing_columns
from joinery_runtime.job.kinds.base import RATE, SidePlan, StepPlan
from joinery_runtime.job.kinds.session.explain import aggregate_warnings, session_plan
from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.model.base import format_bytes
from joinery_runtime.job.model.duration import format_duration, format_time
from joinery_runtime.job.model.inputs import AtTimestamp, Debezium, Input, KafkaInput
from joinery_runtime.job.model.outputs import DeadLetter, FileOutput, NamedOutput, Output
from joinery_runtime.job.model.resource import Job
from joinery_runtime.job.model.unions import UnionInput
from joinery_runtime.job.model.wording import counted, listed, size_text

# Seed 003: ten million keys of about 200 bytes, "~2 GB resident", is where a warning is due.
LARGE_STATE_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class InputPlan:
    name: str
    source: str
    decoding: str
    watermark: str
    branches: tuple[InputPlan, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """`title` is the output's, or that of the rows from which several outputs select."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    job: str
    inputs: tuple[InputPlan, ...]
    steps: tuple[StepPlan, ...]
    outputs: tuple[OutputPlan, ...]
    functions: tuple[str, ...]
    dead_letters: str
    store: str
    warnings: tuple[str, ...]

    @property
    def sides(self) -> tuple[SidePlan, ...]:
        return tuple(side for step in self.steps for side in step.sides)

    @property
    def state_bytes(self) -> int:
        return sum(side.bytes for side in self.sides)

    @property
    def output(self) -> str:
        """Where rows go: the text of the output, or of each of several with its title."""
        if len(self.outputs) == 1:
            return self.outputs[0].text
        return "; ".join(f"{plan.title}: {plan.text}" for plan in self.outputs)

    @property
    def title(self) -> str:
        """Which kind of join it is."""
        *joins, last = self.steps
        if not joins:
            return last.title
        if len(last.sides) > 1:
            return f"a chain of {len(self.steps)} joins"
        return f"{last.title} after {joins[0].title if len(joins) == 1 else f'a chain of {len(joins)} joins'}"

    def render(self) -> str:
        """Write plain text, one statement per line; warnings come last and in capitals, so that they do not scroll out
        of sight."""
        return "\n".join([*self._plan_lines(), *self._state_lines(), *(f"WARNING: {text}" for text in self.warnings)])

    def __str__(self) -> str:
        return self.render()

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<pre>{escape(self.render())}</pre>"

    def _plan_lines(self) -> Iterator[str]:
        chain = len(self.steps) > 1
        yield f"{self.job}: {self.title}"
        for plan in self.inputs:
            yield f"  input {plan.name}: {plan.source}"
            yield f"    {plan.decoding}"
            yield f"    {plan.watermark}"
            for branch in plan.branches:
                yield f"    branch {branch.name}: {branch.source}"
                yield f"      {branch.decoding}"
                yield f"      {branch.watermark}"
        yield from (f"  function {text}" for text in self.functions)
        for number, step in enumerate(self.steps, start=1):
            if chain:
                sides = [side.rows_of for side in step.sides]
                yield f"  step {number}: {step.title}" + (f" of {sides[0]} with {sides[1]}" if sides[1:] else "")
            yield from (f"  {'  ' if chain else ''}{name}: {text}" for name, text in step.lines)
        yield from (f"  {plan.title}: {plan.text}" for plan in self.outputs)
        yield f"  records that cannot be used: {self.dead_letters}"
        yield f"  state: {self.store}"

    def _state_lines(self) -> Iterator[str]:
        for side in self.sides:
            sessions = side.holds == "sessions"
            rows_text = f"sessions of {side.rows_of}" if sessions else f"{side.rows_of} rows"
            after = "after their last row" if sessions else "after their own"
            yield f"  {rows_text} are kept until {side.kept_until}"
            yield f"    in steady flow for {format_duration(side.kept_for_ms)} of event time {after}"
            most = "at most, each row a session of its own, " if sessions else ""
            yield (
                f"    at {RATE:,} rows/s: {most}{side.rows:,} {side.holds} of about {side.row_bytes} bytes = "
                f"{size_text(side.bytes)} before compression"
            )
        if not self.sides:
            yield "  no rows are kept: each is emitted by the epoch that reads its record"
            return
        also = " (and as many joined rows)" if len(self.steps) > 1 else ""
        yield f"  expected state at {RATE:,} rows/s per input{also}: {size_text(self.state_bytes)}"


def explain(job: Job, stored: Mapping[str, Sequence[str]] | None = None) -> Explanation:
    """Return the plan of a valid job. `stored` names, per part of the state, the columns that segments keep. Without
    it, counts every column of a join with an SQL expression, and otherwise the keys and the selected columns."""
    match job:
        case StreamJoin():
            steps = step_plans(job, stored if stored is not None else assumed_columns(job))
        case SessionWindow():
            steps = (session_plan(job),)
        case _:
            raise TypeError(f"no explanation of {job.kind}")
    return Explanation(
        job=job.name,
        inputs=tuple(
            _input_plan(side, job.input_filters.get(side.name), job.repeats.get(side.name)) for side in job.inputs
        ),
        steps=steps,
        outputs=_output_plans(job),
        functions=tuple(
            f"{function.name} = {function.python}, which returns {function.returns}" for function in job.spec.functions
        ),
        dead_letters=_dead_letters_text(job),
        store=_store_text(job),
        warnings=tuple(_list_warnings(job, steps)),
    )


def _input_plan(side: Input, where: str | None, repeated: str | None) -> InputPlan:
    """Return the plan of an input. `where` is its filter, `repeated` the input that SQL reads again as this one
    (J13)."""
    if isinstance(side, UnionInput):
        return _union_plan(side, where)
    source = f"file {side.file.path}" if side.file else ""
    if side.kafka:
        source = _kafka_text(side.kafka)
    elif side.file and side.file.watch:
        source = f"files of {side.file.path} and those that appear there, in order of their paths"
    if side.history is not None:
        history, end = side.history, format_time(side.history.until)
        first = f"first {history.format} rows of {history.path} with event times before {end}"
        source = f"{first}, then {source}, without rows from before that time"
    if repeated is not None:
        source = f"{repeated}, read again: {source}"
    decoding = f"{side.format} rows; event time is {side.event_time}; {'bounded' if side.bounded else 'unbounded'}"
    if side.table is not None:
        decoding += f"; a table: each row is a version of its {listed(side.table.key)}"
        if side.table.deleted_by is not None:
            decoding += f"; {side.table.deleted_by.path}: {side.table.deleted_by.value} deletes it"
    elif side.change_events:
        decoding += f"; each event of op {' or '.join((side.debezium or Debezium()).ops)} is a row, the row after"
    if where is not None:
        decoding += f"; only rows with {where}"
    return InputPlan(side.name, source, decoding, _watermark_text(side))


def _union_plan(side: UnionInput, where: str | None) -> InputPlan:
    branches = []
    for branch in side.branches:
        conditions = [condition for condition in (branch.source.where, branch.where) if condition is not None]
        plan = _input_plan(branch.source, " and ".join(conditions) or None, None)
        texts = {name: re.sub(r'^"([A-Za-z_]\w*)"$', r"\1", text) for name, text in branch.columns}
        selected = ", ".join(name if text == name else f"{text} as {name}" for name, text in texts.items())
        branches.append(replace(plan, decoding=f"{plan.decoding}; {selected}"))
    columns = listed(column.name for column in side.columns)
    decoding = f"rows of {columns}; event time is {side.event_time}; {'bounded' if side.bounded else 'unbounded'}"
    if where is not None:
        decoding += f"; only rows with {where}"
    watermark = "watermark: lowest of the branches that are neither idle nor ended (rule U4)"
    if side.watermark.explicit:
        watermark = _watermark_text(side)
    source = f"union of {listed(plan.name for plan in branches)}"
    return InputPlan(side.name, source, decoding, watermark, tuple(branches))


def _kafka_text(kafka: KafkaInput) -> str:
    start, stop = (_position_text(at) for at in (kafka.start_from, kafka.stop_at))
    ends = f", stops at {stop}" if stop else ""
    return f"Kafka {kafka.source_name} at {kafka.bootstrap_servers}, starts at {start} where no offset is stored{ends}"


def _position_text(at: object) -> str:
    if at is None or isinstance(at, str):
        return at or ""
    return f"timestamp {at.timestamp} ms" if isinstance(at, AtTimestamp) else "the given offsets"


def _watermark_text(side: Input) -> str:
    rule = side.watermark
    if rule.explicit:
        return "watermark: raised only by the steps of `joinery trace`"
    idle = f"idle after {format_duration(rule.idle_timeout)}" if rule.idle_timeout else "never idle"
    limit = "any event time is taken"
    if rule.max_future is not None:
        limit = f"at most {format_duration(rule.max_future)} ahead of the clock (maxFuture)"
    return (
        f"watermark: highest event time - {format_duration(rule.delay)}, lowest over its partitions; {idle}; "
        f"when all inputs are idle: {rule.on_idle}; {limit}"
    )


def _output_plans(job: Job) -> tuple[OutputPlan, ...]:
    stars = job.star_naming if isinstance(job, StreamJoin) else None
    named_by = job.column_naming or stars
    naming = f" (named by {named_by})" if named_by is not None else ""
    if job.spec.outputs is None:
        return (OutputPlan("output", f"{_output_text(job, job.outputs[0])}{naming}"),)
    rows = OutputPlan("rows", f"{', '.join(column.name for column in job.output_columns)}{naming}")
    return (rows, *(OutputPlan(f"output {output.name}", _output_text(job, output)) for output in job.outputs))


def _output_text(job: Job, output: NamedOutput) -> str:
    # In a table a retraction is not a row.
    hidden = {job.retracted} if output.postgres else set()
    columns = ", ".join(column.name for column in job.columns_of(output) if column.name not in hidden)
    delivery = "exactly once"
    if output.kafka:
        delivery = _into_kafka(job)
        if output.kafka.key_order and (routing := routing_columns(job)):
            delivery += f", each row by the shard of its {listed(routing)}, so in order"
        elif lacks_order_of_nulls(job, output):
            delivery += ", records of one key in order unless their join key has a NULL (rule O2)"
    elif output.file:
        delivery += _rolling_text(output.file)
    elif output.console:
        delivery = f"{output.console.rows} rows of each epoch"
    condition = "" if output.when is None else f"rows where {output.when}; "
    row_type = ""
    if job.changelog_key is not None:
        names = {column.step_column: column.name for column in reversed(job.columns_of(output))}
        key = ", ".join(names.get(column, f"{column} (left out)") for column in job.changelog_key)
        row_type = f"changelog by {key}; "
    return f"{condition}{output_place(output)}, {delivery}; {row_type}columns {columns}"


def outputs_place(job: Job) -> str:
    """Say where rows go, in words."""
    return listed(output_place(output) for output in job.outputs)


def output_place(output: Output) -> str:
    """Say where an output goes, in words."""
    if output.kafka:
        return f"Kafka topic {output.kafka.topic}"
    if output.postgres:
        return f"Postgres table {output.postgres.table}{' of another database' if output.postgres.is_external else ''}"
    if output.file:
        return f"{'Parquet' if output.format == 'parquet' else 'JSON lines'} under {output.file.path}"
    if output.iceberg:
        return f"Iceberg table {output.iceberg.table} of catalog {output.iceberg.catalog}"
    if output.delta:
        return f"Delta table {output.delta.path}"
    return "the console" if output.console else _kind_name(output)


def _rolling_text(file: FileOutput) -> str:
    if file.rolling is None:
        return ""
    size, interval = file.rolling
    return f", held back until there are {format_bytes(size)} or for {format_duration(interval)}"


def _kind_name(target: Output | DeadLetter) -> str:
    """Return the kind of an output for which there is no text here."""
    return next((name for name in target.KINDS if getattr(target, name, None) is not None), "nothing")


def _into_kafka(job: Job) -> str:
    if job.spec.delivery == "exactlyOnce":
        return "exactly once for readers with isolation.level read_committed"
    return "at least once: a crash may repeat them"


def _dead_letters_text(job: Job) -> str:
    target = job.spec.dead_letter
    if target is None:
        return "stop the job, which names them (no deadLetter is given)"
    if target.kafka:
        return f"go to Kafka topic {target.kafka.topic}, {_into_kafka(job)}"
    return f"go to {target.file.path}{_rolling_text(target.file)}" if target.file else f"go to {_kind_name(target)}"


def _store_text(job: Job) -> str:
    store = job.spec.state_store
    if store.postgres:
        where = f"Postgres, schema {store.postgres.schema_name}"
    else:
        where = {"embedded": "embedded Postgres on this machine"}.get(store.kind, store.kind)
    begins = store.start_from
    first = f"; without state of its own it begins with savepoint {begins.savepoint} of {begins.job}" if begins else ""
    shards, interval = job.spec.shards, format_duration(store.checkpoint_interval)
    return f"{where}; up to {shards} shards; compacted every {interval}{first}"


def _list_warnings(job: Job, steps: Sequence[StepPlan]) -> Iterator[str]:
    state_bytes = sum(side.bytes for step in steps for side in step.sides)
    if state_bytes > LARGE_STATE_BYTES:
        todo = listed(dict.fromkeys(step.shorter for step in steps))
        fewer = ", or select fewer columns" if isinstance(job, StreamJoin) else ""
        yield (
            f"LARGE STATE: about {size_text(state_bytes)} at {RATE:,} rows/s per input, "
            f"over {size_text(LARGE_STATE_BYTES)}. "
            f"To have less, {todo}, shorten allowedLateness or the watermark delays{fewer}"
        )
    if job.spec.state_store.memory is not None:
        yield (
            "MEMORY STORE: state and offsets are LOST when the job stops, and the next start reads again from "
            "startFrom. Use it for tests only; name stateStore.postgres to keep them"
        )
    aggregation = job.aggregation if isinstance(job, StreamJoin | SessionWindow) else None
    if aggregation is not None:
        yield from aggregate_warnings(job, aggregation)
    if any(step.sides for step in steps):  # otherwise nothing waits for a watermark
        for side in job.read_inputs:
            if side.watermark.explicit:
                yield (
                    f"EXPLICIT WATERMARK on {side.name}: outside `joinery trace` nothing raises it, so state only "
                    "grows. Remove `explicit` to run the job"
                )
            elif side.kafka is not None and side.watermark.idle_timeout == 0:
                yield (
                    f"IDLENESS IS OFF on {side.name}: one partition without new records holds the watermark back, and "
                    "state grows until it speaks. Set watermark.idleTimeout, for example 1m"
                )
    yield from update_warnings(job)
    yield from delay_warnings(job)
    yield from order_warnings(job)
    yield from connection_warnings(job)


# `max_connections` of a Postgres that nobody has configured, without those for superusers.
_DEFAULT_CONNECTIONS = 100 - 3


def connection_warnings(job: Job) -> Iterator[str]:
    """Warn of a job whose executors may open more connections to Postgres than it takes by default."""
    spec, executor = job.spec, job.spec.spark.executor
    instances = executor.max_instances or executor.instances
    if spec.autoscale is not None:
        instances = spec.autoscale.max_instances
    tables = [output.postgres for output in job.outputs if output.postgres is not None]
    uses = 2 if any(not table.is_external for table in tables) else 1
    # As docs/state.md, "Connections", counts them.
    connections = uses * (1 + instances * executor.cores)
    if spec.state_store.postgres is not None and connections > _DEFAULT_CONNECTIONS:
        yield (
            f"MANY CONNECTIONS: {counted(instances, 'executor')} of {counted(executor.cores, 'core')} open up to "
            f"{connections} connections to the state's Postgres, and a rollout up to twice as many. By default a "
            f"Postgres takes {_DEFAULT_CONNECTIONS} (max_connections = 100, 3 of them for superusers). Raise "
            "max_connections, or put a pooler in between (docs/state.md#connections)"
        )


def update_warnings(job: Job) -> Iterator[str]:
    """Warn of streams of change events in which each update of a row is a row more, and no word of the user says that
    this is meant."""
    for side in job.read_inputs:
        if side.change_events and side.table is None and side.debezium is None:
            yield (
                f"UPDATES ARE ROWS of {side.name}: each update of a row in the database is one row more, so sums and "
                "counts have the row as often as it was changed. Write debezium: {ops: [c, r]} to count each row once, "
                "as it was created, or {ops: [c, r, u]} if every change is meant"
            )


def delay_warnings(job: Job) -> Iterator[str]:
    """Warn of inputs from Kafka whose records may be late, and that do not say how much these may be out of order."""
    parts = [(side.name, part) for side in job.inputs for part in side.parts]
    for name, part in parts:
        if part.lacks_delay and name in job.inputs_without_lateness:
            yield (
                f"NO DELAY on {part.name}: without watermark.delay (0s), a record that is older than what earlier "
                "epochs have read counts as late once it is out of reach, and is dropped. Name how far records may be "
                "out of order, for example watermark: {delay: 10s}, or delay: 0s if they never are. `joinery explain "
                "JOB.yaml --sample` proposes a delay from the records"
            )


_CONDITIONS = ("filter", "having")
# What a picture leaves to the text of `joinery explain`.
_NOT_DRAWN = {
    *_CONDITIONS,
    *("late rows", "limits", "unmatched", "event time", "emitted", "rows"),
    *("a window", "kept as", "cap", "inside a capped session"),
}
_DEAD_LETTERS_NODE = "dead_letters"


def flowchart(job: Job) -> str:
    """Return the flowchart of a valid job, without a line break at its end."""
    return "\n".join(["flowchart LR", *(f"  {line}" for line in _flowchart_lines(job))])


def _flowchart_lines(job: Job) -> Iterator[str]:
    plan = explain(job)
    rights = {step.right for step in plan.steps}
    ends: dict[str, str] = {}  # of the nodes of each input: the last
    for source in plan.inputs:
        ends[source.name] = node = f"input_{source.name}"
        yield f"{node}[/{_node_label(source.name, source.source)}/]"
        for branch in source.branches:
            yield f"branch_{branch.name}[/{_node_label(branch.name, branch.source)}/]"
            yield f"branch_{branch.name} --> {node}"
        if (where := job.input_filters.get(source.name)) is not None:
            ends[source.name] = f"where_{source.name}"
            yield from _condition_node(node, f"where_{source.name}", where)
    left = [node for name, node in ends.items() if name not in rights]
    for number, step in enumerate(plan.steps, start=1):
        node, right = f"step_{number}", () if step.right is None else (ends[step.right],)
        drawn = (f"{name}: {text}" for name, text in step.lines if name not in _NOT_DRAWN)
        yield f"{node}[{_node_label(step.title, *drawn)}]"
        yield from (f"{before} --> {node}" for before in (*left, *right))
        left = [node]
        for name, text in step.lines:
            if name in _CONDITIONS:
                condition = f"{name}_{number}"
                yield from _condition_node(node, condition, text.rpartition("; ")[0])
                left = [condition]
    for number, output in enumerate(job.outputs, start=1):
        node = f"output_{number}"
        title = () if job.spec.outputs is None else (output.name,)
        yield f"{node}[/{_node_label(*title, output_place(output))}/]"
        when = "" if output.when is None else f"|{_node_label(f'where {output.when}')}|"
        yield from (f"{before} -->{when} {node}" for before in left)
    if job.spec.dead_letter is not None:
        yield f"{_DEAD_LETTERS_NODE}[/{_node_label('dead letters', plan.dead_letters.removeprefix('go to '))}/]"
        yield from (f"input_{source.name} -.-> {_DEAD_LETTERS_NODE}" for source in plan.inputs)
        for number, step in enumerate(plan.steps, start=1):
            if "dead letters" in dict(step.lines).get("late rows", ""):
                yield f"step_{number} -.->|{_node_label('late rows')}| {_DEAD_LETTERS_NODE}"


def _condition_node(before: str, node: str, text: str) -> Iterator[str]:
    yield f"{node}{{{{{_node_label(text)}}}}}"
    yield f"{before} --> {node}"


def _node_label(*lines: str) -> str:
    """Quote a text for Mermaid, which takes `#quot;` and `#lt;` for characters that end a text or begin a tag."""
    codes = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;"}
    texts = ("".join(codes.get(character, character) for character in " ".join(line.split())) for line in lines)
    return f'"{"<br>".join(texts)}"'
