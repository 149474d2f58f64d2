"""Records of one key in a topic against rule J2, for joins that emit rows without a match: which shard writes a record,
in which order, and whether a warning tells of keys without an order. Straight, and restarted and rescaled in turn."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from budget import rest_in_search
from joinery_runtime.connectors.kafka.ordered_rows import OrderedRows
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.connectors.sink import Attempt, AttemptRows, Receipt
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.sides import LEFT
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.output_limit import CHUNK_BYTES
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.tasks import LocalHost
from joinery_runtime.engine.worker import RowBlock, Worker, WorkerParts
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.trace_environment import LocalCapture, StepInputs, sort_rows
from joinery_runtime.inspect.trace_steps import Step, StepLog
from joinery_runtime.job import Job, parse_job
from joinery_runtime.job.key_order import order_warnings
from joinery_runtime.state.memory import MemoryStore
from traces.corpus import resource

SCHEMA = {"id": "int64", "k": "string", "g": "int64", "n": "int64", "ts": "timestamp"}
Rows = list[dict[str, Any]]
Written = dict[tuple[int, str], dict[int, Rows]]
"""The rows of each epoch and key, by the shard that has written them."""


class Topic(LocalCapture):
    """A topic whose shards' writers sort their rows as those of Kafka do."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        (self._target,) = Outputs.of(job).targets
        self.written: Written = defaultdict(lambda: defaultdict(list))
        self.made: dict[int, list[pa.Table]] = defaultdict(list)

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        topic, table = self._target.topic(), pa.Table.from_batches(rows.to_batches())
        self.made[attempt.id.epoch].append(table)
        ordered = OrderedRows(table, topic.order or ORDER_COLUMNS, topic.key) if topic.order else table
        for row in [row for batch in ordered.to_batches() for row in batch.to_pylist()]:
            record = {name: value for name, value in row.items() if name not in ORDER_COLUMNS}
            self.written[attempt.id.epoch, key_of(record, topic.key)][attempt.id.shard].append(record)
        return super().write(attempt, rows)

    def expected(self) -> dict[tuple[int, str], Rows]:
        """The rows of each epoch and key in the defined order."""
        rows: dict[tuple[int, str], Rows] = defaultdict(list)
        for epoch, tables in self.made.items():
            for row in sort_rows(tables).to_pylist():
                rows[epoch, key_of(row, self._target.topic().key)].append(row)
        return rows


def key_of(row: Mapping[str, Any], key: Sequence[str]) -> str:
    return json.dumps([row[name] for name in key])


class Environment:
    """Runs a trace's tasks with the routing of a topic."""

    def __init__(self, store: MemoryStore, job: Job, cache: Path) -> None:
        self.output, self.dead_letters = Topic(job), LocalCapture()
        self._store, self._cache = store, cache

    def host(self, job: Job, pipeline: Pipeline, logs: Mapping[str, StepLog]) -> LocalHost:
        return LocalHost(self.worker(job, pipeline, logs))

    def worker(self, job: Job, pipeline: Pipeline, logs: Mapping[str, StepLog]) -> Worker:
        parts = WorkerParts(
            job.name,
            pipeline,
            StepInputs(job, logs),
            self._store,
            self.output,
            None,
            self._cache,
            ordered=True,
            routing=Outputs.of(job).routing,
        )
        return Worker(parts)


def load(joins: Sequence[Mapping[str, Any]], key: Sequence[str], inputs: Sequence[str], *, key_order: bool) -> Job:
    spec = {
        "inputs": [{"name": name, "schema": SCHEMA} for name in inputs],
        "joins": [step if "window" in step else {"interval": {"lower": -10, "upper": 10}, **step} for step in joins],
        "select": [{"column": f"{name}.{column}", "as": f"{name}{column}"} for name in inputs for column in SCHEMA],
        "output": {"kafka": {"bootstrapServers": "k:9", "topic": "t", "key": key, "keyOrder": key_order}},
    }
    if joins[-1]["type"] in ("semi", "anti"):
        spec["select"] = [item for item in spec["select"] if not item["column"].startswith(f"{inputs[-1]}.")]
    return parse_job(json.dumps(resource(spec, "ordered")), "job.yaml", plain_numbers=True)


def steps_of(inputs: Sequence[str]) -> list[Step]:
    """Rows of each input in turn, with few keys, of which some have NULLs, and in no order of time."""
    numbers, steps = random.Random(83), list[Step]()
    for turn in range(6):
        rows = [
            {
                "id": 100 * turn + at,
                "k": numbers.choice(["a", "b", "c", None]),
                "g": numbers.choice([1, 2, None]),
                "n": numbers.randrange(10),
                "ts": 20 * turn + numbers.randrange(20),
            }
            for at in range(12)
        ]
        steps.append({"input": inputs[turn % len(inputs)], "rows": rows})
    return [*steps, {"end": True}]


RUNS: Mapping[str, Sequence[Sequence[Step]]] = {
    "straight": [()],
    "disturbed": [[{"restart": True}], [{"rescale": 3}, {"restart": True}], [{"rescale": 8}]],
}
"""What happens after the steps, in turn."""


def run(job: Job, steps: Sequence[Step], cache: Path) -> Topic:
    store = MemoryStore()
    environment = Environment(store, job, cache)
    for _ in run_trace(job, steps, store, 8, environment):
        """Only what the topic gets is wanted."""
    return environment.output


NO_KEY = "[null]"
K, KG = {"l.k": "r.k"}, {"l.k": "r.k", "l.g": "r.g"}
OWN = "l.n > 5"
CHAIN = [{"right": "r", "type": "full"}, {"right": "s", "type": "left", "keys": {"r.k": "s.k"}}]


@pytest.mark.parametrize("between", rest_in_search(RUNS, ("straight",)))
@pytest.mark.parametrize(
    ("joins", "key", "unordered"),
    [
        ([{"type": "inner", "keys": K, "where": OWN}], ["lk"], ""),
        ([{"type": "semi", "keys": K, "where": OWN}], ["lk"], ""),
        ([{"type": "left", "keys": K}], ["lk"], ""),
        ([{"type": "left", "keys": K, "where": OWN}], ["lk"], "rows of l also if l.n > 5 is not true"),
        ([{"type": "left", "keys": K, "where": "r.n > 5"}], ["lk"], ""),
        ([{"type": "left", "keys": K, "where": "l.n > r.n"}], ["lk"], ""),
        ([{"type": "right", "keys": K, "where": OWN}], ["rk"], ""),
        ([{"type": "right", "keys": K, "where": "r.n > 5 AND r.id > 0"}], ["rk"], "if r.n > 5 AND r.id > 0 is not"),
        ([{"type": "full", "keys": K, "where": OWN}], ["lk", "rk"], "rows of l also if l.n > 5"),
        ([{"type": "anti", "keys": K, "where": OWN}], ["lk"], "rows of l also if l.n > 5"),
        ([{"type": "left", "keys": KG}], ["lk", "lg"], ""),
        ([{"type": "left", "keys": KG}], ["lk", "rg"], "the key does not have l.g"),
        ([{"type": "full", "keys": K}], ["lk", "lg"], "of r without a match, and the key does not have r.k"),
        ([{"type": "full", "keys": K}], ["lk"], ""),
        ([{"type": "left", "keys": {"NULLIF(l.k, 'a')": "r.k"}}], ["lk"], ""),
        ([{"type": "left", "keys": K, "window": {"tumbling": 10}, "where": OWN}], ["lk"], OWN),
        (CHAIN, ["rk", "rg"], "a join before pads r.k and l.ts with NULL"),
        (CHAIN, ["rk"], "a join before pads l.ts with NULL"),
    ],
)  # fmt: skip
def test_records_of_a_key_are_in_order_or_a_warning_tells_that_they_are_not(
    joins: list[dict[str, Any]], key: list[str], unordered: str, between: str, tmp_path: Path
) -> None:
    inputs = ["l", "r", "s"][: len(joins) + 1]
    plain, ordered = (load(joins, key, inputs, key_order=key_order) for key_order in (False, True))
    warnings = list(order_warnings(plain))
    assert [unordered in words for words in warnings] == [True] * (unordered != "")
    assert list(order_warnings(ordered)) == []
    several = 0
    events = cycle(RUNS[between])
    steps = [step for rows in steps_of(inputs) for step in (rows, *next(events))]
    topic = run(ordered, steps, tmp_path / "ordered")
    for epoch_and_key, rows in topic.expected().items():
        if epoch_and_key[1] != NO_KEY:
            assert list(topic.written[epoch_and_key].values()) == [rows]
    topic = run(plain, steps, tmp_path / "plain")
    for epoch_and_key, rows in topic.expected().items():
        by_shard = topic.written[epoch_and_key].values()
        if epoch_and_key[1] == NO_KEY:
            continue
        if unordered:
            several += len(by_shard) > 1
            continue
        with_key = [row for row in rows if not has_null_in_join_key(joins[-1]["keys"], row)]
        in_order = [written for of_shard in by_shard if (written := [row for row in of_shard if row in with_key])]
        assert in_order == ([with_key] if with_key else [])
    assert (several > 0) == (unordered != "")


def has_null_in_join_key(keys: Mapping[str, str], row: Mapping[str, Any]) -> bool:
    """Say whether the join key of the row is NULL in a column, on the side that the row comes from."""
    sides = keys if row["lid"] is not None else keys.values()
    return any(
        row["lk"] in (None, "a") if text.startswith("NULLIF") else row[text.replace(".", "")] is None for text in sides
    )


class TextAddresses(LocalCapture):
    """A sink that notes where in memory the texts of `lk` are, one for each batch."""

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        self.addresses = [batch.column("lk").buffers()[2].address for batch in rows.to_batches()]
        return super().write(attempt, rows)


def test_rows_of_a_shard_are_not_put_into_one_batch(tmp_path: Path) -> None:
    """A column of text in one batch has at most 2 GiB, and the rows of a shard may have more."""
    job = load([{"type": "left", "keys": K}], ["lg"], ["l", "r"], key_order=True)
    environment = Environment(MemoryStore(), job, tmp_path)
    environment.output = sink = TextAddresses()
    pipeline = compile_job(job)
    fields = [*pipeline.output_schema(), *(pa.field(name, pa.int64()) for name in ORDER_COLUMNS)]
    batches = [
        pa.record_batch(
            [pa.array([text if f.name == "lk" else None], f.type) for f in fields], schema=pa.schema(fields)
        )
        for text in ("x" * CHUNK_BYTES, "y" * CHUNK_BYTES)
    ]
    work = EpochWork(1, EpochPlan(epoch=1, shards=4, ranges=(), watermarks={}), ())
    blocks = [RowBlock(1, LEFT, batch, read=False) for batch in batches]
    ((_, summary),) = environment.worker(job, pipeline, {}).step(work, 1, 0, blocks, "first")
    assert summary.rows_out == len(batches)
    assert sink.addresses == [batch.column("lk").buffers()[2].address for batch in batches]
