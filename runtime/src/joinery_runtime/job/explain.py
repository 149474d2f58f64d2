"""What a job will do, said before it runs: the plan, how long each side is kept, and how much state to expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from joinery_runtime.job.duration import format_duration
from joinery_runtime.job.inputs import AtTimestamp, Input, KafkaInput
from joinery_runtime.job.resource import StreamJoin
from joinery_runtime.job.types import ColumnType

RATE = 1_000  # rows per second and input that the state estimate is for

# Seed 003: ten million keys of about 200 bytes, "~2 GB resident", is where a warning is due.
LARGE_STATE_BYTES = 2 * 1024**3

# What the engine adds to a stored row: key hash, event time, partition, offset.
_ENGINE_ROW_BYTES = 8 + 8 + 4 + 8

# Arrow's width; text and binary are guesses of 16 and 32 bytes of content with a 4-byte offset.
_BYTES = {
    "boolean": 1,
    "int32": 4,
    "int64": 8,
    "float": 4,
    "double": 8,
    "string": 20,
    "binary": 36,
    "decimal": 16,
    "date": 4,
    "timestamp": 8,
}


@dataclass(frozen=True, slots=True)
class InputPlan:
    name: str
    source: str
    decoding: str
    watermark: str


@dataclass(frozen=True, slots=True)
class SidePlan:
    """How long rows of one input wait. `kept_for_ms` is event time after the row's own, in steady flow; `rows` and
    `bytes` are the state expected at RATE rows per second, uncompressed."""

    input: str
    kept_until: str
    kept_for_ms: int
    row_bytes: int

    @property
    def rows(self) -> int:
        return self.kept_for_ms * RATE // 1000

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Explanation:
    job: str
    inputs: tuple[InputPlan, ...]
    keys: tuple[str, ...]
    bound: str
    where: str | None
    late: str
    sides: tuple[SidePlan, ...]
    output: str
    dead_letters: str
    store: str
    warnings: tuple[str, ...]

    @property
    def state_bytes(self) -> int:
        return sum(side.bytes for side in self.sides)

    def render(self) -> str:
        """Plain text, one fact a line; warnings come last and in capitals, so that they are not scrolled away."""
        return "\n".join([*self._plan_lines(), *self._state_lines(), *(f"WARNING: {text}" for text in self.warnings)])

    def _plan_lines(self) -> Iterator[str]:
        yield f"{self.job}: inner interval join"
        for plan in self.inputs:
            yield f"  input {plan.name}: {plan.source}"
            yield f"    {plan.decoding}"
            yield f"    {plan.watermark}"
        yield f"  keys: {', '.join(self.keys)}"
        yield f"  bound: {self.bound}"
        if self.where is not None:
            yield f"  where: {self.where}"
        yield f"  late rows: {self.late}"
        yield f"  output: {self.output}"
        yield f"  records that cannot be used: {self.dead_letters}"
        yield f"  state: {self.store}"

    def _state_lines(self) -> Iterator[str]:
        for side in self.sides:
            yield f"  {side.input} rows are kept until {side.kept_until}"
            yield f"    in steady flow for {format_duration(side.kept_for_ms)} of event time after their own"
            yield (
                f"    at {RATE:,} rows/s: {side.rows:,} rows of about {side.row_bytes} bytes = "
                f"{_size(side.bytes)} before compression"
            )
        yield f"  expected state at {RATE:,} rows/s per input: {_size(self.state_bytes)}"


def explain(job: StreamJoin, stored: Mapping[str, Sequence[str]] | None = None) -> Explanation:
    """The plan of a valid job. `stored` names, per input, the columns that segments keep; without it every column is
    counted where the job has a `where`, else the keys and the selected columns."""
    columns = stored if stored is not None else _assumed_columns(job)
    sides = tuple(_side_plan(job, side, columns[side.name]) for side in (job.left, job.right))
    return Explanation(
        job=job.name,
        inputs=tuple(_input_plan(side) for side in (job.left, job.right)),
        keys=tuple(f"{job.left.name}.{p.left} = {job.right.name}.{p.right}" for p in job.key_pairs),
        bound=_bound(job),
        where=job.step.where,
        late=_late(job),
        sides=sides,
        output=_output(job),
        dead_letters=_dead_letters(job),
        store=_store(job),
        warnings=tuple(_warnings(job, sides)),
    )


def _assumed_columns(job: StreamJoin) -> dict[str, list[str]]:
    used = {(c.source.input, c.source.column) for c in job.output_columns if c.source is not None}
    used |= {(job.left.name, pair.left) for pair in job.key_pairs}
    used |= {(job.right.name, pair.right) for pair in job.key_pairs}
    every = job.step.where is not None
    return {
        side.name: [c for c in side.types if c != side.event_time and (every or (side.name, c) in used)]
        for side in job.spec.inputs
    }


def _side_plan(job: StreamJoin, side: Input, columns: Sequence[str]) -> SidePlan:
    """Rule J3, with the other input's delay: its watermark trails the times that come in together with this row."""
    is_left = side.name == job.left.name
    other = job.right if is_left else job.left
    reach, lateness = job.interval.upper if is_left else -job.interval.lower, job.step.allowed_lateness
    bound = "upper" if is_left else "-lower"
    text = f"wm({other.name}) > ts {_plus(reach)} [{bound}] + {format_duration(lateness)} [allowedLateness]"
    width = _ENGINE_ROW_BYTES + sum(_width(side.types[column]) for column in columns)
    return SidePlan(side.name, text, max(0, reach + lateness + other.watermark.delay), width)


def _width(kind: ColumnType) -> int:
    return _BYTES[kind.name]


def _input_plan(side: Input) -> InputPlan:
    source = _kafka(side.kafka) if side.kafka else f"file {side.file.path}" if side.file else ""
    decoding = f"{side.format} rows; event time is {side.event_time}; {'bounded' if side.bounded else 'unbounded'}"
    return InputPlan(side.name, source, decoding, _watermark(side))


def _kafka(kafka: KafkaInput) -> str:
    start, stop = (_position(at) for at in (kafka.start_from, kafka.stop_at))
    ends = f", stops at {stop}" if stop else ""
    return f"Kafka {kafka.topics} at {kafka.bootstrap_servers}, starts at {start} where no offset is stored{ends}"


def _position(at: object) -> str:
    if at is None or isinstance(at, str):
        return at or ""
    return f"timestamp {at.timestamp} ms" if isinstance(at, AtTimestamp) else "the given offsets"


def _watermark(side: Input) -> str:
    mark = side.watermark
    if mark.explicit:
        return "watermark: raised only by the steps of `joinery trace`"
    idle = f"idle after {format_duration(mark.idle_timeout)}" if mark.idle_timeout else "never idle"
    return (
        f"watermark: highest event time - {format_duration(mark.delay)}, lowest over its partitions; {idle}; "
        f"when all inputs are idle: {mark.on_idle}"
    )


def _bound(job: StreamJoin) -> str:
    left, right = (f"{side.name}.{side.event_time}" for side in (job.left, job.right))
    return f"{right} in [{left} {_plus(job.interval.lower)}, {left} {_plus(job.interval.upper)}], both ends included"


def _late(job: StreamJoin) -> str:
    """Rules J6 and J7."""
    reach, lateness = max(job.interval.upper, -job.interval.lower), job.step.allowed_lateness
    names = f"wm({job.left.name}), wm({job.right.name})"
    if job.step.late_data == "reopen":
        return "joined with what is still kept, and never dropped (lateData: reopen)"
    return (
        f"dropped and counted when ts {_plus(reach)} [the wider bound] + {format_duration(lateness)} [allowedLateness] "
        f"< min({names})"
    )


def _plus(ms: int) -> str:
    return f"{'-' if ms < 0 else '+'} {format_duration(abs(ms))}"


def _output(job: StreamJoin) -> str:
    output = job.spec.output
    columns = ", ".join(column.name for column in job.output_columns)
    if output.kafka:
        return f"Kafka topic {output.kafka.topic}, {_into_kafka(job)}; columns {columns}"
    if output.postgres:
        return f"Postgres table {output.postgres.table}, exactly once; columns {columns}"
    return f"JSON lines under {output.file.path if output.file else ''}, exactly once; columns {columns}"


def _into_kafka(job: StreamJoin) -> str:
    if job.spec.delivery == "exactlyOnce":
        return "exactly once for readers with isolation.level read_committed"
    return "at least once: a crash may repeat them"


def _dead_letters(job: StreamJoin) -> str:
    target = job.spec.dead_letter
    if target is None:
        return "stop the job, which names them (no deadLetter is given)"
    if target.kafka:
        return f"go to Kafka topic {target.kafka.topic}, {_into_kafka(job)}"
    return f"go to {target.file.path if target.file else ''}"


def _store(job: StreamJoin) -> str:
    store = job.spec.state_store
    if store.postgres:
        where = f"Postgres, schema {store.postgres.schema_name}"
    else:
        where = "memory" if store.memory else "embedded Postgres on this machine"
    return f"{where}; {job.spec.shards} shards; compacted every {format_duration(store.checkpoint_interval)}"


def _warnings(job: StreamJoin, sides: Sequence[SidePlan]) -> Iterator[str]:
    total = sum(side.bytes for side in sides)
    if total > LARGE_STATE_BYTES:
        yield (
            f"LARGE STATE: about {_size(total)} at {RATE:,} rows/s per input, over {_size(LARGE_STATE_BYTES)}. Narrow "
            "the interval, shorten allowedLateness or the watermark delays, or select fewer columns"
        )
    if job.spec.state_store.memory is not None:
        yield (
            "MEMORY STORE: state and offsets are LOST when the job stops, and the next start reads again from "
            "startFrom. Use it for tests only; name stateStore.postgres to keep them"
        )
    for side in (job.left, job.right):
        yield from _watermark_warnings(side)


def _watermark_warnings(side: Input) -> Iterator[str]:
    if side.watermark.explicit:
        yield (
            f"EXPLICIT WATERMARK on {side.name}: outside `joinery trace` nothing raises it, so state only grows. "
            "Remove `explicit` to run the job"
        )
    elif side.kafka is not None and side.watermark.idle_timeout == 0:
        yield (
            f"IDLENESS IS OFF on {side.name}: one partition without new records holds the watermark back, and state "
            "grows until it speaks. Set watermark.idleTimeout, for example 1m"
        )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
