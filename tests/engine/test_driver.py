"""The driver's steps one by one, on the simulated world with no faults but those that a test makes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.sim_jobs import INNER
from engine.sim_sink import SimSink
from engine.simulation import World
from joinery_runtime.cli.ending import failed_ending
from joinery_runtime.connectors.sink import BufferedSink, Receipt
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.table.segment import STATE_VERSION
from joinery_runtime.engine import driver as driver_module
from joinery_runtime.engine.driver import REJOINS_OF_A_DUPLICATE, Driver
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ReadSummary
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.planner import REJOINS_MS
from joinery_runtime.engine.protocol import Action, CommitResult, choose_attempts, next_action, resolve_commit
from joinery_runtime.engine.read_report import ReadReport, StepDeadLetters
from joinery_runtime.engine.report import EpochReport
from joinery_runtime.engine.worker import Worker
from joinery_runtime.errors import (
    DataLoss,
    DuplicateJobName,
    Fenced,
    IncompatibleState,
    MisreadInput,
    PartitionsLost,
    RecordError,
    SinkError,
    SourceError,
    StateError,
    StoreUnavailable,
)
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import EpochCommit, JobRecord

pytestmark = pytest.mark.usefixtures("simulated_topics")


def fill(world: World, count: int, *, first: int = 0) -> None:
    """`count` orders and payments in turn, 2 ms apart, that match the ones near them."""
    for number in range(first, first + count):
        name = "orders" if number % 2 == 0 else "payments"
        world.append(name, 0, "a", 1_000 + 2 * number, identifier=number)


def started(world: World, **settings: Any) -> Driver:
    driver = world.new_driver(**settings)
    driver.recover()
    return driver


def epoch(driver: Driver) -> EpochReport:
    plan = driver.plan()
    assert plan is not None
    return driver.commit(plan, driver.run(plan))


def checkpoint(driver: Driver) -> None:
    plan = driver.plan()
    assert plan is not None
    assert plan.checkpoint
    driver.commit(plan, driver.run(plan))


def record(world: World) -> JobRecord:
    job_record = world.store.record(world.job.name)
    assert job_record is not None
    return job_record


def with_step(world: World, **changes: Any) -> dict[str, Any]:
    """The job's signature with another join."""
    signature = world.identity.signature
    (step,) = signature["steps"]
    return {**signature, "steps": [{**step, **changes}]}


# --- decisions --------------------------------------------------------------------------------------------------------

RECORD = JobRecord(
    "job", generation=4, epoch=7, signature=None, definition=None, plan=None, planned_for_ms=0, offsets={}, segments=(),
    incarnation="life",
)  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "action"),
    [(None, Action.PLAN), ({"epoch": 8}, Action.REPLAY), ({"epoch": 7}, Action.PLAN)],
)
def test_a_plan_for_the_next_epoch_is_replayed(plan: dict[str, int] | None, action: Action) -> None:
    assert next_action(replace(RECORD, plan=plan)) is action


@pytest.mark.parametrize(
    ("observed", "outcome"),
    [
        (RECORD, CommitResult.COMMITTED),
        (replace(RECORD, epoch=6), CommitResult.NOT_COMMITTED),
        (replace(RECORD, generation=5), CommitResult.FENCED),
        (replace(RECORD, generation=5, epoch=6), CommitResult.FENCED),
        (None, CommitResult.FENCED),
    ],
)
def test_a_commit_without_an_answer_is_resolved_by_what_is_there(
    observed: JobRecord | None, outcome: CommitResult
) -> None:
    assert resolve_commit(observed, generation=4, epoch=7) is outcome


def test_one_summary_counts_for_every_step_and_shard() -> None:
    summaries = {(0, 0): "a", (0, 1): "b", (1, 0): "c", (1, 1): "d"}
    assert choose_attempts(reversed(summaries.items()), 2, 2) == summaries
    with pytest.raises(StateError, match="two results for step 2, shard 0"):
        choose_attempts([*summaries.items(), ((1, 0), "again")], 2, 2)
    with pytest.raises(StateError, match="no result for step 1, shard 1, step 2, shard 0"):
        choose_attempts([((0, 0), "a"), ((1, 1), "d")], 2, 2)


# --- recovery ---------------------------------------------------------------------------------------------------------


def test_recovery_replays_the_pending_plan_as_it_stands(world: World) -> None:
    fill(world, 4)
    first = started(world, shards=2)
    epoch(first)
    fill(world, 4, first=4)
    pending = first.plan()
    fill(world, 4, first=8)

    second = started(world, shards=3)

    assert second.pending
    assert second.plan() == pending
    assert pending is not None
    assert pending.shards == 2
    assert sum(r.end_exclusive - r.start for r in pending.ranges) == 4
    epoch(second)
    following = second.plan()
    assert following is not None
    assert (following.epoch, following.shards) == (3, 3)


def test_a_plan_of_which_two_drivers_have_died_is_read_with_care(world: World) -> None:
    """The records that ended their processes are looked for (T8). The plan after it is read as any."""
    fill(world, 2)
    driver, careful = started(world), []
    plan = driver.plan()
    assert plan is not None
    for _ in range(3):
        careful.append(driver._epoch_work(plan).careful)
        driver = started(world)
        plan = driver.plan()
        assert plan is not None
    assert careful == [False, False, True]
    driver.commit(plan, driver.run(plan))
    fill(world, 2, first=2)
    after = driver.plan()
    assert after is not None
    assert not driver._epoch_work(after).careful


def test_drivers_that_a_process_makes_after_an_error_are_no_deaths(world: World) -> None:
    """An input that is away for an hour makes many drivers, and is no reason to suspect a record."""
    fill(world, 2)
    driver = started(world)
    plan = driver.plan()
    assert plan is not None
    first = driver.generation
    for _ in range(5):
        previous = driver.generation
        driver = world.new_driver()
        driver.recover(previous, first)
        assert driver.plan() == plan
        assert not driver._epoch_work(plan).careful


def test_recovery_goes_on_where_the_newest_epoch_ended(world: World) -> None:
    fill(world, 4)
    epoch(started(world))
    second = started(world)
    assert (second.generation, second.epoch, second.pending) == (2, 1, False)
    assert second.plan() is None
    fill(world, 2, first=4)
    epoch(second)
    assert [entry.generation for entry in world.store.epochs(world.job.name)] == [1, 2]


def test_recovery_publishes_what_a_crash_left_unpublished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, 4)
    first = started(world)
    with monkeypatch.context() as patch:
        patch.setattr(world.output, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            epoch(first)
    assert (record(world).epoch, world.output.files) == (1, {})
    started(world)
    assert [row for rows in world.output.files.values() for row in rows] == world.output.table != []


class BufferingSink(SimSink, BufferedSink):
    """Says of itself what a test sets, and notes the calls of `seal`."""

    buffered_rows = 0
    due_now = due_at_last = False

    def __init__(self, name: str, spawn: Callable[[str, Callable[[], None]], None]) -> None:
        super().__init__(name, spawn)
        self.sealed: list[tuple[int, int, int, bool]] = []

    def due(self, *, last: bool) -> bool:
        return self.due_at_last if last else self.due_now

    def seal(self, generation: int, epoch: int, receipts: Sequence[Receipt], *, last: bool) -> list[Receipt]:
        self.sealed.append((generation, epoch, len(receipts), last))
        return []


@pytest.fixture
def buffering(tmp_path: Path) -> Iterator[World]:
    world = type("BufferingWorld", (World,), {"sink_type": BufferingSink})(tmp_path)
    yield world
    world.close()


def test_an_idle_driver_makes_an_epoch_without_rows_for_those_that_are_buffered(
    buffering: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(buffering, 4)
    driver = started(buffering)
    epoch(driver)
    assert driver.plan() is None
    monkeypatch.setattr(buffering.output, "due_now", True)
    monkeypatch.setattr(BufferingSink, "buffered_rows", 5)
    plan = driver.plan()
    assert plan is not None
    assert plan.ranges == ()
    assert driver.commit(plan, driver.run(plan), last=True).unpublished_rows == 10, "output and dead letters"
    assert isinstance(buffering.output, BufferingSink)
    assert buffering.output.sealed == [(1, 1, 1, False), (1, 2, 0, True)]


def test_the_epoch_that_shows_what_is_buffered_reads_nothing_more(
    buffering: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop comes while records wait: it is not to take as long as an epoch of them."""
    fill(buffering, 4)
    driver = started(buffering)
    epoch(driver)
    fill(buffering, 4, first=4)
    assert driver.plan(reads=False) is None, "nothing is buffered"
    monkeypatch.setattr(buffering.output, "due_at_last", True)
    plan = driver.plan(reads=False)
    assert plan is not None
    assert plan.ranges == ()
    assert epoch(driver).rows_in == {"orders": 0, "payments": 0}
    assert epoch(driver).rows_in == {"orders": 2, "payments": 2}


def test_a_driver_that_slept_is_told_that_it_was_replaced_and_not_that_files_are_gone(
    buffering: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_seal(*_: object, **__: object) -> list[Receipt]:
        raise SinkError("held files are gone")

    slept, plan = planned(buffering)
    outcome = slept.run(plan)
    monkeypatch.setattr(buffering.output, "seal", fail_to_seal)
    with pytest.raises(SinkError):
        slept.commit(plan, outcome)
    started(buffering)
    with pytest.raises(Fenced):
        slept.commit(plan, outcome)


def test_a_driver_that_slept_is_told_that_it_was_replaced_and_not_that_a_task_cannot_write(world: World) -> None:
    """A newer driver's transactions end those of the older one's tasks, which say that rows were purged."""
    slept, plan = planned(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slept._parts.host, "run", fail_to_write, raising=False)
        with pytest.raises(SinkError, match="were purged"):
            slept.run(plan)
        started(world)
        with pytest.raises(Fenced):
            slept.run(plan)


def fail_to_write(_: object) -> EpochOutcome:
    raise SinkError("the rows were purged")


def test_state_that_does_not_fit_the_job_is_refused_with_the_difference(world: World) -> None:
    fill(world, 2)
    epoch(started(world))
    changed = with_step(world, keys=[["orders.k", "payments.id", "string"]])
    driver = world.new_driver(who=replace(world.identity, signature=changed))
    with pytest.raises(IncompatibleState, match=r"the keys were orders\.k = payments\.k .* they are now") as caught:
        driver.recover()
    assert "another name" in str(caught.value)
    assert "upgrade.mode: stateless" in str(caught.value)


def test_rows_that_were_read_and_did_not_arrive_are_never_committed(world: World) -> None:
    """A read task that Spark ran again for one shard only may have found other records."""
    driver, plan = planned(world)
    with pytest.MonkeyPatch.context() as patch:
        run = driver._parts.host.run
        patch.setattr(driver._parts.host, "run", lambda work: _without_a_row(run(work)), raising=False)
        with pytest.raises(SourceError, match="had different records when it was read again"):
            driver.run(plan)
    assert record(world).epoch == 0


def _without_a_row(outcome: EpochOutcome) -> EpochOutcome:
    shard, summary = next((t, s) for t, s in outcome.shards.items() if s.rows_in)
    return replace(outcome, shards={**outcome.shards, shard: replace(summary, rows_in=summary.rows_in - 1)})


def test_a_job_that_does_not_fit_leaves_the_running_driver_alone(world: World) -> None:
    fill(world, 2)
    running = started(world)
    epoch(running)
    changed = with_step(world, keys=[["orders.k", "payments.id", "string"]])
    misfit = world.new_driver(who=replace(world.identity, signature=changed))
    with pytest.raises(IncompatibleState):
        misfit.recover()
    fill(world, 2, first=2)
    assert epoch(running).epoch == 2


def test_a_change_that_loses_nothing_but_old_matches_is_a_warning(world: World) -> None:
    fill(world, 2)
    epoch(started(world))
    heard: list[str] = []
    wider = with_step(world, upper=60_000)
    started(world, who=replace(world.identity, signature=wider, warn=heard.append))
    assert len(heard) == 1
    assert "upper bound went from 80ms to 1m" in heard[0]


def test_older_segments_are_migrated_before_anything_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, 4)
    epoch(started(world))
    assert {segment.state_version for segment in record(world).segments} == {STATE_VERSION}
    monkeypatch.setattr(driver_module, "STATE_VERSION", STATE_VERSION + 1)
    with pytest.raises(IncompatibleState):
        started(world)
    monkeypatch.setattr(driver_module, "MIGRATIONS", {STATE_VERSION: lambda blob: blob})
    driver = started(world)
    assert {segment.state_version for segment in record(world).segments} == {STATE_VERSION + 1}
    fill(world, 2, first=4)
    assert epoch(driver).rows_out > 0


# --- plan and run -----------------------------------------------------------------------------------------------------


def test_a_plan_is_in_the_store_before_anything_runs(world: World) -> None:
    fill(world, 2)
    plan = started(world).plan()
    assert plan is not None
    assert record(world).plan == plan.to_json()


def test_the_same_plan_is_returned_until_it_is_committed(world: World) -> None:
    fill(world, 2)
    driver = started(world)
    plan = driver.plan()
    fill(world, 2, first=2)
    assert driver.plan() is plan


def test_not_all_partitions_are_looked_at_to_find_what_is_new(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input may have thousands, and a driver looks in each epoch."""
    for name, partition in (("orders", 0), ("orders", 1), ("payments", 0)):
        world.append(name, partition, "a", 1_000, identifier=partition)
    driver = started(world)
    epoch(driver)
    fill(world, 2)
    plan, topics_looked_at = driver.plan(), list[str]()
    assert plan is not None
    known_times = [
        at for state in driver.state.inputs.values() for at in state.progress.highest.values() if at is not None
    ]
    assert len(known_times) == 3

    def noted(pipeline: Pipeline, name: str, topic: str) -> str:
        topics_looked_at.append(topic)
        return name

    monkeypatch.setattr(Pipeline, "source", noted)
    assert not driver._epoch_work(plan).keys_to_check
    assert len(topics_looked_at) == 2, "one partition of each input that has rows"


def test_a_bad_record_without_dead_letters_commits_nothing(world: World) -> None:
    fill(world, 2)
    world.topics["orders"].append(0, b"not JSON")
    driver = started(world, dead_letters=False)
    plan = driver.plan()
    assert plan is not None
    with pytest.raises(RecordError, match=r"input orders .*orders/0 offset 1: not JSON \(1 in this epoch\)"):
        driver.run(plan)
    assert (record(world).epoch, world.output.table, record(world).segments) == (0, [], ())
    assert record(world).plan == plan.to_json(), "the plan must be replayed once the record is repaired"


def test_where_no_dead_letters_are_written_none_leaves_its_reader(world: World, monkeypatch: Any) -> None:
    """Peers that exchange nothing would run the epoch once more to collect them."""
    fill(world, 2)
    world.topics["orders"].append(0, b"not JSON")
    collect, letters = Worker.collect, list[bytes | None]()

    def noted(
        worker: Worker, work: EpochWork, reports: Iterable[ReadReport | StepDeadLetters], attempt: str
    ) -> ReadSummary:
        listed = list(reports)
        letters.extend(report.dead for report in listed)
        return collect(worker, work, listed, attempt)

    monkeypatch.setattr(Worker, "collect", noted)
    driver = started(world, dead_letters=False)
    plan = driver.plan()
    assert plan is not None
    with pytest.raises(RecordError, match="not JSON"):
        driver.run(plan)
    assert letters
    assert set(letters) == {None}


@pytest.mark.parametrize(
    ("output", "as_stored"),
    [
        pytest.param("output", lambda limits: (limits["output"], None), id="output"),
        pytest.param("large", lambda limits: (None, limits), id="several outputs"),
    ],
)
def test_a_plan_has_the_limit_of_its_topic_and_gets_the_present_one_while_nothing_is_visible(
    world: World, monkeypatch: Any, output: str, as_stored: Callable[[Mapping[str, int]], tuple[object, object]]
) -> None:
    """A row that the topic does not take any more would end each start; a row that is out must not be dead as well."""

    def recovered(limits: Mapping[str, int]) -> Driver:
        driver = world.new_driver()
        driver._parts = replace(driver._parts, row_limits=limits)
        driver.recover()
        return driver

    world.append("orders", 0, "a", 1_000, identifier=1)
    plan = recovered({}).plan()
    assert plan is not None
    assert not {"row_limit", "row_limits"} & plan.to_json().keys()
    for limit in (900, 800, None):
        planned = {output: limit or 800}
        assert recovered({} if limit is None else {output: limit}).state.pending == replace(plan, row_limits=planned)
        stored = record(world).plan or {}
        assert EpochPlan.from_json(stored).row_limits == planned
        assert (stored.get("row_limit"), stored.get("row_limits")) == as_stored(planned)
    monkeypatch.setattr(Driver, "_recover_sinks", lambda *_: True)
    assert recovered({output: 700}).state.pending == replace(plan, row_limits={output: 800})


def test_after_null_keys_the_next_driver_plans_what_has_come_since(world: World) -> None:
    for number in range(120):
        world.append("orders", 0, None, 1_000 + number, identifier=number)
    for generation in (1, 3):
        driver = started(world, max_records=1_000)
        plan = driver.plan()
        assert plan is not None
        with pytest.raises(MisreadInput, match="Input orders: the key has no value in any of the 120 records"):
            driver.run(plan)
        after = record(world)
        assert (after.plan, after.generation, world.output.table) == (None, generation + 1, [])
        with pytest.raises(Fenced):
            driver.run(plan)
    world.append("orders", 0, "a", 1_200, identifier=120)
    report = epoch(started(world, max_records=1_000))
    assert (report.rows_in, report.dropped) == ({"orders": 121, "payments": 0}, {"orders": {"null_key": 120}})


def test_keyless_records_before_others_are_read_again_up_to_one_epoch(world: World) -> None:
    """A start keeps nothing of them, and reads no more than `maxRecordsPerEpoch`; a larger one reaches the keys."""
    for number in range(300):
        world.append("orders", 0, None if number < 250 else "a", 1_000 + number, identifier=number)
    for _ in range(2):
        driver = started(world, max_records=200)
        plan = driver.plan()
        assert plan is not None
        assert sum(planned.end_exclusive - planned.start for planned in plan.ranges) <= 200
        with pytest.raises(MisreadInput, match=r"200 records .* with a larger trigger.maxRecordsPerEpoch"):
            driver.run(plan)
        assert record(world).plan is None
    assert epoch(started(world, max_records=300)).dropped == {"orders": {"null_key": 250}}


def test_a_plan_of_which_rows_are_visible_is_ended_whatever_its_keys_are(world: World, monkeypatch: Any) -> None:
    """An earlier release may have begun it. Without it, its rows would come twice."""
    for number in range(120):
        world.append("orders", 0, None, 1_000 + number, identifier=number)
    plan = started(world, max_records=1_000).plan()
    monkeypatch.setattr(world.sink_type, "recover", lambda _, recovery: recovery.pending is not None)
    driver = started(world, max_records=1_000)
    assert driver.plan() == plan
    assert epoch(driver).dropped == {"orders": {"null_key": 120}}


def test_no_part_of_an_epoch_judges_the_keys_alone(world: World) -> None:
    """Each range is read by a task of its own."""
    for number in range(150):
        world.append("orders", 0, None, 1_000 + number, identifier=number)
    world.append("orders", 1, "a", 1_000, identifier=150)
    assert epoch(started(world, max_records=1_000)).dropped == {"orders": {"null_key": 150}}


def test_bad_records_go_out_with_the_epoch_where_there_are_dead_letters(world: World) -> None:
    fill(world, 2)
    world.topics["orders"].append(0, b"not JSON")
    report = epoch(started(world))
    assert report.dead == {"orders": 1, "payments": 0}
    assert world.dead.table == [("orders", "orders", 0, 1, "not JSON", b"not JSON", "not JSON")]
    assert world.output.table == [(0, 1)]


# --- commit -----------------------------------------------------------------------------------------------------------


def test_the_next_plan_is_stored_within_the_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, 20)
    driver = started(world)
    first = driver.plan()
    assert first is not None
    monkeypatch.setattr(world.store, "write_plan", lambda *_: pytest.fail("the plan is there already"))
    driver.commit(first, driver.run(first))
    following = driver.plan()
    assert following is not None
    assert following.epoch == 2
    assert record(world).plan == following.to_json()


def test_a_source_that_fails_while_the_next_epoch_is_planned_does_not_lose_this_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, 20)
    driver = started(world)
    plan = driver.plan()
    assert plan is not None
    outcome = driver.run(plan)

    def fails(_: object) -> Any:
        raise SourceError("the broker is away")

    with monkeypatch.context() as patch:
        patch.setattr(type(world.topics["orders"]), "bounds", lambda self, positions: fails(positions))
        assert driver.commit(plan, outcome).epoch == 1
        assert (record(world).epoch, record(world).plan) == (1, None)
        with pytest.raises(SourceError, match="the broker is away"):
            driver.plan()
    assert epoch(driver).epoch == 2


def test_segments_that_are_past_their_deadline_are_dropped_unread(world: World) -> None:
    fill(world, 4)
    driver = started(world, shards=1)
    epoch(driver)
    old = {segment.key for segment in record(world).segments}
    for name, partition in (("orders", 0), ("orders", 1), ("payments", 0)):
        world.append(name, partition, "z", 9_000, identifier=100)
    epoch(driver)
    world.append("orders", 0, "z", 9_001, identifier=101)
    plan = driver.plan()
    assert plan is not None
    work: list[Any] = []
    host = driver._parts.host
    run = host.run
    host.run = lambda epoch_work: work.append(epoch_work) or run(epoch_work)  # type: ignore
    driver.commit(plan, driver.run(plan))
    assert old
    assert old.isdisjoint(segment.key for segment in work[0].segments)
    assert old.isdisjoint(segment.key for segment in record(world).segments)


def test_a_checkpoint_merges_segments_and_sweeps_what_it_replaced(world: World) -> None:
    driver = started(world, shards=1)
    for number in range(5):
        world.append("orders", 0, "a", 1_000, identifier=number)
        epoch(driver)
    before = [segment.key for segment in record(world).segments]
    world.now_ms += world.job.spec.state_store.checkpoint_interval
    report = epoch(driver)
    assert (len(before), report.segments, report.state_rows) == (5, 1, 5)
    journal = world.store.journal
    assert len(journal.staged) - journal.swept == report.segments


def test_a_failing_sweep_at_a_checkpoint_waits_for_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, 4)
    driver = started(world)
    epoch(driver)
    world.now_ms += world.job.spec.state_store.checkpoint_interval

    def fail_to_sweep(*_: object) -> int:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(world.store, "sweep", fail_to_sweep)
    assert epoch(driver).epoch == record(world).epoch == 2


class Network:
    """What happens to the store's commits from now on."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world, self._patch = world, monkeypatch

    def fails(self, *, committed: bool, taken_over: bool = False) -> None:
        store = self._world.store

        def commit(job: str, generation: int, commit: EpochCommit) -> None:
            if committed:
                store.transact(job, generation, commit, False)
            if taken_over:
                MemoryStore.acquire(store, job)
            raise StoreUnavailable("the connection broke")

        self._patch.setattr(store, "commit", commit)

    def works(self) -> None:
        self._patch.undo()


@pytest.fixture
def network(world: World, monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(world, monkeypatch)


def planned(world: World) -> tuple[Driver, EpochPlan]:
    fill(world, 4)
    driver = started(world)
    plan = driver.plan()
    assert plan is not None
    return driver, plan


def test_a_commit_whose_answer_was_lost_counts(world: World, network: Network) -> None:
    driver, plan = planned(world)
    network.fails(committed=True)
    assert driver.commit(plan, driver.run(plan)).epoch == 1
    assert driver.epoch == 1
    assert len(world.output.files) == 1, "and its output is published"
    network.works()
    fill(world, 2, first=4)
    assert epoch(driver).epoch == 2


def test_a_commit_that_did_not_arrive_is_an_error(world: World, network: Network) -> None:
    driver, plan = planned(world)
    network.fails(committed=False)
    with pytest.raises(StoreUnavailable):
        driver.commit(plan, driver.run(plan))
    network.works()
    assert (driver.epoch, world.output.table) == (0, [])
    assert epoch(started(world)).epoch == 1


@pytest.mark.parametrize("committed", [False, True])
def test_a_commit_without_answer_by_a_driver_that_was_replaced_is_fenced(
    world: World, network: Network, committed: bool
) -> None:
    driver, plan = planned(world)
    network.fails(committed=committed, taken_over=True)
    with pytest.raises(Fenced, match="another driver has taken over job simulated"):
        driver.commit(plan, driver.run(plan))
    assert world.output.files == {}, "publishing is the new driver's business"


def test_a_driver_that_was_replaced_commits_nothing(world: World) -> None:
    driver, plan = planned(world)
    outcome = driver.run(plan)
    started(world)
    with pytest.raises(Fenced, match="generation is 1, the store's is 2"):
        driver.commit(plan, outcome)
    assert (record(world).epoch, world.output.table) == (0, [])


def test_the_report_counts_the_epoch(world: World) -> None:
    fill(world, 4)
    world.append("payments", 0, None, 1_002, identifier=50)
    report = epoch(started(world))
    assert report.rows_in == {"orders": 2, "payments": 3}
    assert report.rows_out == len(world.output.table) == 4
    assert report.dropped == {"payments": {"null_key": 1}}
    assert report.backlog == {"orders": 0, "payments": 0}
    assert (report.state_rows, report.segments) == (4, len(record(world).segments))


# --- partitions that are shared out -----------------------------------------------------------------------------------


class Group:
    """Stands between the driver and a topic's partitions: others may take them, and the topic may be recreated."""

    def __init__(self, world: World, name: str) -> None:
        self.reassigned = self.lost = False
        self.recreated: set[PartitionRef] = set()
        self.released: list[Mapping[PartitionRef, int]] = []
        self.refuses = False
        topic: Any = world.topics[name]
        topic.pin, topic.is_pinned, topic.unpin = self.pin, self.is_pinned, self.unpin
        topic.find_replaced_partitions = self.find_replaced_partitions

    def pin(self, partitions: Collection[PartitionRef]) -> bool:
        return not partitions or not self.reassigned

    def is_pinned(self) -> bool:
        return not self.lost

    def unpin(self, committed: Mapping[PartitionRef, int]) -> None:
        self.released.append(committed)

    def find_replaced_partitions(
        self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]
    ) -> set[PartitionRef]:
        if self.recreated and self.refuses:
            raise DataLoss("the topic was recreated")
        return self.recreated & set(partitions)


def test_records_that_no_plan_may_read_leave_nothing_planned(world: World) -> None:
    """Whether the job is ready rests on it."""
    fill(world, 4)
    driver = started(world)
    topic: Any = world.topics["orders"]
    read = topic.bounds
    topic.bounds = lambda stored_offsets: [replace(bound, is_assigned=False) for bound in read(stored_offsets)]
    assert driver.plan() is None
    assert (driver.planned, driver.backlog) == (False, {"orders": 2, "payments": 2})
    topic.bounds = read
    assert driver.plan() is not None
    assert driver.planned


def test_a_plan_waits_until_its_partitions_are_ours(world: World) -> None:
    group = Group(world, "orders")
    fill(world, 4)
    driver = started(world)
    group.reassigned = True
    assert driver.plan() is None
    assert driver.pending
    assert driver.waiting
    pending = record(world).plan
    group.reassigned = False
    epoch(driver)
    assert world.store.epochs(world.job.name)[0].plan == pending
    assert not driver.pending
    assert not driver.waiting
    assert group.released[-1] == {
        ref: offset for ref, offset in driver.state.inputs["orders"].positions.items() if ref.input == "orders"
    }


def test_an_epoch_whose_partitions_were_lost_is_not_committed_and_run_again(world: World) -> None:
    group = Group(world, "orders")
    driver, plan = planned(world)
    outcome = driver.run(plan)
    group.lost = True
    with pytest.raises(PartitionsLost, match="Epoch 1 has lost partitions"):
        driver.commit(plan, outcome)
    assert record(world).epoch == 0
    assert group.released[-1] == {}
    group.lost = False
    epoch(driver)
    assert record(world).epoch == 1
    assert world.store.epochs(world.job.name)[0].plan == plan.to_json()


def test_a_topic_that_was_recreated_since_its_plan_is_not_read_in_silence(world: World) -> None:
    group = Group(world, "orders")
    driver, plan = planned(world)
    outcome = driver.run(plan)
    orders = PartitionRef("orders", "orders", 0)
    group.recreated, group.refuses = {orders}, True
    with pytest.raises(DataLoss, match="recreated"):
        driver.commit(plan, outcome)
    group.refuses = False
    with pytest.raises(PartitionsLost):
        driver.commit(plan, outcome)
    report = epoch(driver)
    assert report.rows_in == {"orders": 0, "payments": 2}
    assert report.lost == {"orders/0": 2}
    assert world.store.epochs(world.job.name)[0].result["lost"] == {"orders/0": 2}
    assert driver.state.inputs["orders"].positions[orders] == 2


# --- taking over ------------------------------------------------------------------------------------------------------


def test_a_driver_that_was_away_does_not_take_the_job_back(world: World) -> None:
    older = started(world)
    newer = started(world)
    again = world.new_driver()
    with pytest.raises(Fenced, match=r"another driver has taken over .*Another job needs another metadata\.name"):
        again.recover(older.generation)
    assert record(world).generation == newer.generation
    again.recover(newer.generation)
    assert again.generation == newer.generation + 1


def test_a_driver_that_was_away_does_not_bring_a_deleted_job_back(world: World) -> None:
    fill(world, 2)
    older = started(world)
    epoch(older)
    world.store.delete_job(world.job.name)
    again = world.new_driver()
    with pytest.raises(Fenced, match="or it was deleted"):
        again.recover(older.generation)
    assert world.store.record(world.job.name) is None
    started(world)  # another one may start it anew


def test_a_plan_is_not_replayed_under_another_definition(world: World) -> None:
    fill(world, 4)
    started(world).plan()
    edited = world.new_driver(who=replace(world.identity, definition={"edited": True}))
    with pytest.raises(StateError, match="was planned by a job that says something else") as caught:
        edited.recover()
    assert failed_ending(caught.value).retry  # the next start settles the plan under the definition that made it


def test_without_a_plan_an_edited_job_goes_on_and_leaves_what_was_published_alone(world: World) -> None:
    fill(world, 4)
    epoch(started(world))
    published = dict(world.output.files)
    world.output.publish = lambda epoch, receipts: pytest.fail("it was published by the definition that wrote it")  # type: ignore[method-assign]
    started(world, who=replace(world.identity, definition={"edited": True}))
    assert world.output.files == published
    assert record(world).definition == world.identity.definition


def test_the_last_epoch_before_a_stop_leaves_no_plan(world: World) -> None:
    driver, plan = planned(world)
    fill(world, 4, first=4)
    driver.commit(plan, driver.run(plan), last=True)
    assert record(world).plan is None


def test_where_a_bounded_input_stops_and_which_topic_it_was_survive_a_restart(world: World) -> None:
    topic: Any = world.topics["orders"]
    plain = topic.bounds
    topic.bounds = lambda stored_offsets: [replace(b, stop=7, topic_id="id-1") for b in plain(stored_offsets)]
    fill(world, 4)
    epoch(started(world))
    state = started(world).state.inputs["orders"]
    assert state.stops == {PartitionRef("orders", "orders", p): 7 for p in range(2)}
    assert state.topic_ids == {"orders": "id-1"}


def test_an_older_driver_that_joins_the_group_does_not_drive_the_newest_one_out(world: World) -> None:
    group = Group(world, "orders")
    topic: Any = world.topics["orders"]
    rejoined: list[str] = []
    topic.rejoin = lambda: rejoined.append("orders")

    def fenced() -> bool:
        raise Fenced("another member has the name")

    driver, plan = planned(world)
    topic.is_pinned = fenced
    with pytest.raises(PartitionsLost, match="An older driver of job simulated has joined its consumer group"):
        driver.commit(plan, driver.run(plan))
    assert rejoined == ["orders"]
    topic.is_pinned = group.is_pinned
    assert epoch(driver).epoch == 1


def test_savepoints_are_made_from_time_to_time_and_the_newest_are_kept(tmp_path: Path) -> None:
    text = INNER.replace('"checkpointInterval"', '"savepoints": {"every": "150ms", "keep": 2}, "checkpointInterval"')
    world = type("SavingWorld", (World,), {"job_text": text})(tmp_path)
    world.store._clock = lambda: world.now_ms
    driver, pins = started(world), []
    world.store.create_savepoint(world.job.name, "by-hand")
    for number in range(7):
        fill(world, 2, first=2 * number)
        epoch(driver)
        world.now_ms += 70
        checkpoint(driver)
        pins.append([pin.name for pin in world.store.savepoints(world.job.name)])
    world.close()
    assert pins[0] == pins[2] == ["by-hand", "periodic-2"]
    assert pins[3] == pins[5] == ["by-hand", "periodic-2", "periodic-8"]
    assert pins[6] == ["by-hand", "periodic-14", "periodic-8"]


def test_a_clock_that_is_set_back_delays_no_savepoint_and_loses_none(tmp_path: Path) -> None:
    text = INNER.replace('"checkpointInterval"', '"savepoints": {"every": "150ms", "keep": 2}, "checkpointInterval"')
    world = type("SavingWorld", (World,), {"job_text": text})(tmp_path)
    ahead, pins = 3_600_000, []
    world.store._clock = lambda: world.now_ms + ahead
    driver = started(world)
    for number in range(4):
        fill(world, 2, first=2 * number)
        epoch(driver)
        world.now_ms += 200
        checkpoint(driver)
        pins.append([pin.name for pin in world.store.savepoints(world.job.name)])
        ahead = 0
    world.close()
    assert pins[:2] == [["periodic-2"], ["periodic-2", "periodic-4"]]
    assert pins[2:] == [["periodic-4", "periodic-6"], ["periodic-6", "periodic-8"]]


THERE = StoreIdentity("there", "host b, database s")


def test_a_job_of_the_same_name_with_another_store_is_named_instead_of_fenced_for_ever(world: World) -> None:
    fill(world, 4)
    driver = started(world)
    topic: Any = world.topics["orders"]

    def fenced(_: Any) -> bool:
        raise Fenced("another member has the name")

    topic.bounds = fenced
    for _ in range(REJOINS_OF_A_DUPLICATE - 1):
        world.now_ms += 1_000
        with pytest.raises(PartitionsLost, match="An older driver of job simulated"):
            driver.plan()
    world.now_ms += REJOINS_MS  # those were too long ago: drivers that slept, one after the other
    for _ in range(REJOINS_OF_A_DUPLICATE - 1):
        with pytest.raises(PartitionsLost):
            driver.plan()
    topic.committed_by = lambda: THERE
    with pytest.raises(DuplicateJobName, match=r"Two jobs have the name simulated on one Kafka.*Rename one") as caught:
        driver.plan()
    assert caught.value.facts.startswith(
        f"this one's store is {world.store.identity()}, the other one's is host b, database s (store there)"
    )


def test_the_other_store_is_not_made_up(world: World) -> None:
    """The group was told of its offsets by this job last, or by a release that does not say."""
    driver = started(world)
    topic: Any = world.topics["orders"]

    def fenced(_: Any) -> bool:
        raise Fenced("another member has the name")

    topic.bounds, topic.committed_by = fenced, world.store.identity
    for _ in range(REJOINS_OF_A_DUPLICATE - 1):
        with pytest.raises(PartitionsLost):
            driver.plan()
    with pytest.raises(
        DuplicateJobName, match="the other one has not told its own; the other one took this one's place"
    ):
        driver.plan()


def test_a_job_of_the_same_name_that_writes_to_the_same_output_is_named_at_a_checkpoint(world: World) -> None:
    """Where the two read other topics, they do not meet in a consumer group."""
    fill(world, 4)
    driver = started(world)
    epoch(driver)
    world.output.other = THERE
    fill(world, 4)
    epoch(driver)
    world.now_ms += 70
    checkpoint(driver)
    with pytest.raises(DuplicateJobName, match=r"host b, database s \(store there\); the other one began to write"):
        driver.plan()
    again = started(world)  # signs anew
    assert again.plan() is None or again.pending


def test_an_older_driver_that_finds_its_successors_signature_is_fenced(world: World) -> None:
    fill(world, 4)
    driver = started(world)
    epoch(driver)
    world.now_ms += 70
    checkpoint(driver)
    world.output.other = THERE
    started(world)
    with pytest.raises(Fenced, match="another driver has taken over"):
        driver.plan()


def test_a_driver_that_was_replaced_ends_when_the_newer_one_joins_the_group(world: World) -> None:
    fill(world, 4)
    driver = started(world)
    started(world)
    topic: Any = world.topics["orders"]

    def fenced(_: Any) -> bool:
        raise Fenced("another member has the name")

    topic.bounds = fenced
    with pytest.raises(Fenced, match="another driver has taken over job simulated"):
        driver.plan()


def test_a_plan_without_ranges_is_pending_too(world: World) -> None:
    """A checkpoint's, say: who settles what is planned must not overlook it."""
    fill(world, 4)
    driver = started(world)
    epoch(driver)
    world.now_ms += 70
    plan = driver.plan()
    assert plan is not None
    assert plan.checkpoint
    assert plan.ranges == ()
    again = started(world)
    assert again.pending
    assert again.waiting == ()
