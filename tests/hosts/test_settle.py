"""What is said when an edited job cannot end what was planned before the edit."""

from __future__ import annotations

import re
from contextlib import ExitStack, nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from hosts.visits import JOB
from joinery_runtime.connectors.files.sink import FileSink
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.connectors.sink import RecoveryContext
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.engine.assembly import identity
from joinery_runtime.engine.loop import JobListener, Outages
from joinery_runtime.errors import (
    AggregateError,
    ExpressionError,
    IncompatibleState,
    JoineryError,
    RecordError,
    SinkError,
)
from joinery_runtime.hosts.edits import EarlierDefinition, input_change_warnings
from joinery_runtime.hosts.placement import EpochPlacement
from joinery_runtime.hosts.run import _Caller, _JobRun
from joinery_runtime.hosts.run_spark import RunSpark
from joinery_runtime.hosts.stores import OpenStore, PostgresStoreAddress
from joinery_runtime.hosts.wiring import Wiring
from joinery_runtime.inspect.admin.reset import drop_plan_command
from joinery_runtime.job import Job, parse_job
from joinery_runtime.job.definition import definition
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import EpochCommit, OwnershipToken


@pytest.mark.parametrize("kind", [AggregateError, ExpressionError, RecordError])
def test_it_names_the_way_out_and_whether_trying_again_helps(kind: type[JoineryError]) -> None:
    class Failing(_JobRun):
        def run_epochs(self, wiring: Wiring, *, settle: bool) -> None:
            assert settle
            raise kind("An aggregate of a session has no value", facts="sum(amount)")

    store = MemoryStore()
    generation = store.acquire("visits").generation
    store.write_plan("visits", generation, {"epoch": 1}, {})
    store.claim("visits", OwnershipToken(generation, 0, 1), "0", "an attempt", None)
    record = store.record("visits")
    assert record is not None
    listener, stop = JobListener(print, print, print), Event()
    caller = _Caller(listener, stop, Outages(listener, stop), print, None)
    run = Failing(OpenStore(store, None), ExitStack(), None, caller)
    with pytest.raises(JoineryError) as caught:
        run.settle(EarlierDefinition(parse_job(JOB, "visits.yaml"), record, store, None, print))
    assert "sum(amount)" in caught.value.facts
    assert "--drop-planned" in caught.value.todo
    assert type(caught.value) is (kind if kind is not RecordError else JoineryError)


@pytest.mark.parametrize("settle", [True, False])
def test_a_host_of_an_earlier_definition_tries_no_task(monkeypatch: pytest.MonkeyPatch, settle: bool) -> None:
    """Its workers would show nothing of the job's own."""
    trials = list[Any]()

    host = SimpleNamespace(try_task=print, close=lambda: None)
    monkeypatch.setattr("joinery_runtime.hosts.spark.SparkHost", lambda *_, **__: host)
    master, context = "spark://there:7077", cast(Any, SimpleNamespace(master="spark://there:7077"))
    wiring = Wiring.of(parse_job(JOB, "visits.yaml"), print)
    with ExitStack() as stack:
        opened = OpenStore(MemoryStore(), PostgresStoreAddress("dbname=state", "joinery"))
        spark = RunSpark(opened, stack, master, Event(), print, None, context)
        spark._watch = cast(Any, SimpleNamespace(begin_trial=trials.append))
        assert spark.open_host(wiring, EpochPlacement.of({}, master), stack, settle=settle) is host
    assert trials == [None if settle else print]


def _edited(store: MemoryStore, warnings: list[str]) -> tuple[_JobRun, list[bool]]:
    went: list[bool] = []

    class Going(_JobRun):
        def run_epochs(self, wiring: Wiring, *, settle: bool) -> None:
            went.append(settle)

    listener, stop = JobListener(print, print, print), Event()
    caller = _Caller(listener, stop, Outages(listener, stop), warnings.append, None)
    return Going(OpenStore(store, None), ExitStack(), None, caller), went


def test_a_first_plan_is_made_anew_when_the_job_is_edited() -> None:
    """What failed at the first start fails in its plan, whatever is edited."""
    store, warnings = MemoryStore(), list[str]()
    planned = store.acquire("visits").generation
    before = definition(parse_job(JOB.replace("gap: 30s", "gap: 1m"), "visits.yaml"))
    store.write_plan("visits", planned, {"epoch": 1}, before)
    run, went = _edited(store, warnings)
    run.start(parse_job(JOB, "visits.yaml"))
    record = store.record("visits")
    assert record is not None
    assert record.plan is None
    assert record.generation > planned
    assert went == [False]
    assert warnings == ["Job visits was edited before it has committed anything: its first epoch is planned again"]


def test_a_first_plan_with_claims_stays_when_rows_go_without_transactions_by_now() -> None:
    """Nothing would fence who has claimed a part: its rows, of a plan that is gone, could still come."""
    into_kafka = re.sub("output: .*", "output: {kafka: {bootstrapServers: 'kafka:9092', topic: visits}}", JOB)
    store, warnings = MemoryStore(), list[str]()
    generation = store.acquire("visits").generation
    before = definition(parse_job(into_kafka.replace("gap: 30s", "gap: 1m"), "visits.yaml"))
    store.write_plan("visits", generation, {"epoch": 1, "shards": 2}, before)
    store.claim("visits", OwnershipToken(generation, 0, 1), "visits-0", "an attempt", None)
    run, went = _edited(store, warnings)
    run.start(parse_job(f"{into_kafka.rstrip()}\n  delivery: atLeastOnce\n", "visits.yaml"))
    assert went == [True, False]
    assert warnings == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "path: clicks.jsonl",
            "path: views.jsonl",
            "Input clicks reads file views.jsonl from now on, and read file clicks.jsonl",
        ),
        (
            "{name: user, type: string}",
            "{name: user, type: string, path: user.id}",
            "reads 1 column in another way from now on: user.",
        ),
        ("gap: 30s", "gap: 30s\n  where: user <> 'bot'", ""),
    ],
    ids=["place", "path", "neither"],
)
def test_an_edit_of_what_is_read_is_said_to_count_from_now_on(old: str, new: str, says: str) -> None:
    """Whoever corrects a topic or a path may expect that all is read again."""
    store, warnings = MemoryStore(), list[str]()
    before = parse_job(JOB, "visits.yaml")
    who, record = identity(before, compile_job(before), print), store.acquire("visits")
    commit = EpochCommit(1, {"epoch": 1}, {}, (), (), {"clicks": b"{}"}, dict(who.signature), dict(who.definition))
    store.commit("visits", record.generation, commit)
    run, went = _edited(store, warnings)
    run.start(parse_job(JOB.replace(old, new), "visits.yaml"))
    assert went == [False]
    assert [says in text and "docs/data.md#read-again-after-a-mistake" in text for text in warnings] == [True] * bool(
        says
    )


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ("topic: a", "topics: [c, a, b]", ["Input clicks also reads b and c from now on, from the earliest record"]),
        ("topics: [a, b]", "topics: [b, a]", []),
        ("topics: [a, b]", "topic: b", ["Input clicks reads topic b from now on, and read topics a and b before"]),
        ("topic: a", "topics: [a]", []),
        ("topicPattern: a", "topics: [a]", ["Input clicks reads topic a from now on, and read topics like 'a'"]),
    ],
)
def test_an_edit_of_the_topics_of_an_input(before: str, now: str, words: list[str]) -> None:
    """U1: what is added is read from its beginning, and the order of the names has no meaning."""
    jobs = [
        parse_job(JOB.replace("file: {path: clicks.jsonl}", f"kafka: {{bootstrapServers: unused, {topics}}}"), "job")
        for topics in (before, now)
    ]
    warnings = list(input_change_warnings(*jobs))
    assert [text[: len(start)] for text, start in zip(warnings, words, strict=True)] == words


@pytest.mark.parametrize(
    ("actual", "plan_stays"),
    [(False, False), (True, True), (SinkError("Its marker may have expired"), True)],
    ids=["not visible", "visible", "nobody knows"],
)
def test_a_first_plan_stays_when_rows_of_an_attempt_may_be_visible(
    monkeypatch: pytest.MonkeyPatch, actual: bool | SinkError, plan_stays: bool
) -> None:
    """The output is asked, once its claims' owners are fenced there."""
    recoveries: list[RecoveryContext] = []

    def recover(recovery: RecoveryContext) -> bool:
        recoveries.append(recovery)
        if isinstance(actual, SinkError):
            raise actual
        return actual

    sink = SimpleNamespace(recover=recover, close=lambda: None)
    monkeypatch.setattr(Outputs, "sink", lambda *_: sink)
    store, warnings = MemoryStore(), list[str]()
    generation = store.acquire("visits").generation
    before = definition(parse_job(JOB.replace("gap: 30s", "gap: 1m"), "visits.yaml"))
    store.write_plan("visits", generation, {"epoch": 1, "shards": 2}, before)
    store.claim("visits", OwnershipToken(generation, 0, 1), "0", "an attempt", None)
    run, went = _edited(store, warnings)
    run.start(parse_job(JOB, "visits.yaml"))
    record, (recovery,) = store.record("visits"), recoveries
    assert record is not None
    assert (recovery.claims, recovery.pending, recovery.pending_shards) == (
        {"0": "an attempt"},
        1,
        2,
    )
    assert recovery.generation > generation
    assert (record.plan is not None, went, len(warnings)) == (
        (True, [True, False], 0) if plan_stays else (False, [False], 1)
    )


def test_a_first_plan_of_which_one_shard_is_visible_is_given_up_by_the_command_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other shard fails, whatever is edited; that rows of the first one repeat is for somebody to choose."""
    went: list[bool] = []

    class Failing(_JobRun):
        def run_epochs(self, wiring: Wiring, *, settle: bool) -> None:
            went.append(settle)
            if settle:
                raise RecordError("A record cannot be used")

    sink = SimpleNamespace(recover=lambda _: True, close=lambda: None)
    monkeypatch.setattr(Outputs, "sink", lambda *_: sink)
    store = MemoryStore()
    generation = store.acquire("visits").generation
    before = definition(parse_job(JOB.replace("gap: 30s", "gap: 1m"), "visits.yaml"))
    store.write_plan("visits", generation, {"epoch": 1, "shards": 2}, before)
    for shard in ("0", "1"):
        store.claim("visits", OwnershipToken(generation, 0, 1), shard, "an attempt", None)
    listener, stop = JobListener(print, print, print), Event()
    caller = _Caller(listener, stop, Outages(listener, stop), print, None)
    run, job = Failing(OpenStore(store, None), ExitStack(), None, caller), parse_job(JOB, "visits.yaml")
    with pytest.raises(JoineryError, match=r"run: joinery state reset JOB\.yaml --drop-planned"):
        run.start(job)
    opened = SimpleNamespace(store=store)
    monkeypatch.setattr("joinery_runtime.inspect.admin.reset.open_store", lambda *_: nullcontext(opened))
    monkeypatch.setattr("joinery_runtime.inspect.admin.reset.durable", lambda job: job)
    drop_plan_command(job, dry_run=False, say=print)
    run.start(job)
    assert went == [True, False]


@pytest.mark.parametrize(
    ("missing", "output", "committed", "warned"),
    [(True, "out", 3, True), (False, "out", 3, False), (True, "another", 3, False), (True, "out", 0, False)],
    ids=["gone", "there", "another one was named", "nothing was written yet"],
)
def test_an_output_that_is_gone_is_said_at_the_start(
    tmp_path: Path, missing: bool, output: str, committed: int, warned: bool
) -> None:
    """Its rows are not written again, and somebody has the choice."""
    run, warnings = parse_job(JOB.replace("path: out", f"path: {tmp_path / 'out'}"), "visits.yaml"), list[str]()
    job = parse_job(JOB.replace("path: out", f"path: {tmp_path / output}"), "visits.yaml")
    if not missing:
        (tmp_path / output).mkdir()
    store: Any = SimpleNamespace(
        record=lambda _: SimpleNamespace(epoch=3, committed=committed, definition=definition(run))
    )
    listener, stop = JobListener(print, print, print), Event()
    caller = _Caller(listener, stop, Outages(listener, stop), warnings.append, None)
    with ExitStack() as stack:
        sink = FileSink(str(tmp_path / output))
        _JobRun(OpenStore(store, None), stack, None, caller)._prepare_sink(stack, job, "output", sink, pa.schema([]))
    assert bool(warnings) is warned
    assert all(f"the folder {tmp_path / 'out'}" in text and "joinery state delete" in text for text in warnings)


def _with_savepoint() -> tuple[MemoryStore, _JobRun, Job]:
    """A job `visits` that has a savepoint, and one that begins with it."""
    store = MemoryStore()
    first = parse_job(JOB, "visits.yaml")
    pipeline = compile_job(first)
    who, record = identity(first, pipeline, print), store.acquire("visits")
    commit = EpochCommit(1, {"epoch": 1}, {}, (), (), {"clicks": b"{}"}, dict(who.signature), dict(who.definition))
    store.commit("visits", record.generation, commit)
    store.create_savepoint("visits", "noon")
    run, _ = _edited(store, [])
    text = JOB.replace("name: visits", "name: again")
    return store, run, parse_job(f"{text}  stateStore: {{startFrom: {{job: visits, savepoint: noon}}}}\n", "again.yaml")


def test_a_job_without_state_begins_with_another_ones_savepoint_once() -> None:
    store, run, job = _with_savepoint()
    for _ in range(2):
        run.start(job)
        record = store.record("again")
        assert record is not None
        assert (record.committed, record.generation, record.offsets) == (1, 1, {"clicks": b"{}"})


def test_a_savepoint_that_does_not_fit_the_job_leaves_no_state_behind() -> None:
    store, run, job = _with_savepoint()
    other = parse_job(
        JOB.replace("name: visits", "name: again").replace("groupBy: [user]", "groupBy: [ts]")
        + "  stateStore: {startFrom: {job: visits, savepoint: noon}}\n",
        "again.yaml",
    )
    with pytest.raises(IncompatibleState):
        run.start(other)
    assert store.record("again") is None
    run.start(job)
    assert store.record("again") is not None
