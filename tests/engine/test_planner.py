"""What a plan holds: ranges, watermarks, idle and ended inputs, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets, UnsharedSource
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME, InputClock, InputProgress
from joinery_runtime.engine.epoch_budget import Budget
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.messages import EpochOutcome, PartitionRead, ReadSummary, ShardSummary
from joinery_runtime.engine.next_plan import PlanSettings, shards_for_cores
from joinery_runtime.engine.plan import EpochPlan, InputState
from joinery_runtime.engine.planner import Planner, RunCalls, run_in_turn
from joinery_runtime.engine.source_snapshot import IdleClock, SourceStatus
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import PartitionRef

IDLE_MS, CHECKPOINT_MS = 1_000, 60_000
ORDERS = [PartitionRef("orders", "orders", p) for p in range(2)]
PAYMENTS = [PartitionRef("payments", "payments", 0)]


@dataclass
class Source(UnsharedSource):
    """Partitions by their start and end offsets; a stored position replaces the start."""

    ends: dict[PartitionRef, tuple[int, int]]
    final: bool = False
    lost: int = 0
    unreachable: bool = False
    waiting: frozenset[PartitionRef] = frozenset()
    topic_id: str = ""
    files: bool = False

    def bounds(self, stored_offsets: StoredOffsets) -> list[Bounds]:
        if self.unreachable:
            raise SourceError("the broker is away")
        return [
            Bounds(
                *(ref, stored_offsets.offsets.get(ref, start), end, self.final, self.lost),
                topic_id=self.topic_id,
                waits=ref in self.waiting,
            )
            for ref, (start, end) in self.ends.items()
        ]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return Range(bounds.partition, bounds.start, bounds.start + max_records)

    def reads_file(self, partition: PartitionRef) -> bool:
        return self.files

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Job:
    """A planner and the inputs' state; `epoch` plans one and goes on as if it had been run and committed."""

    orders: Source = field(default_factory=lambda: Source(dict.fromkeys(ORDERS, (0, 0))))
    payments: Source = field(default_factory=lambda: Source(dict.fromkeys(PAYMENTS, (0, 0))))
    max_records: int = 1_000
    max_bytes: int = 64 << 20
    tables: frozenset[str] = frozenset()
    once: bool = False
    interval_ms: int = 0
    co_partitioned: bool = False
    co_partitions: int = 0  # that are stored
    run_calls: RunCalls = run_in_turn
    inputs: dict[str, InputState] = field(default_factory=lambda: {"orders": InputState(), "payments": InputState()})
    number: int = 0
    status: SourceStatus = field(default_factory=SourceStatus)  # of the newest call of `plan`

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.planner = self.new_planner(Budget(self.max_records, self.max_bytes))

    def new_planner(self, budget: Budget) -> Planner:
        return Planner(
            PlanSettings(
                *(4, budget, CHECKPOINT_MS, "f"),
                tables=self.tables,
                delays={"orders": 5, "payments": 3},
                interval_ms=self.interval_ms,
                co_partitioned=self.co_partitioned,
            ),
            {"orders": self.orders, "payments": self.payments},
            {"orders": InputClock(delay_ms=5), "payments": InputClock(delay_ms=3)},
            IdleClock({"orders": IDLE_MS, "payments": IDLE_MS}),
            once=self.once,
            run_calls=self.run_calls,
        )

    @property
    def state(self) -> JobState:
        """Without segments: what plans say of kept rows is in test_follow_ups.py."""
        return JobState(Pipeline((), ()), self.inputs, epoch=self.number, co_partitions=self.co_partitions)

    def plan(self, now_ms: int = 0, *, always: bool = False, reads: bool = True) -> EpochPlan | None:
        result = self.planner.plan(self.state, now_ms, always=always, reads=reads)
        self.status = result.status
        return result.plan

    def epoch(
        self, highest: Mapping[PartitionRef, int], now_ms: int = 0, *, always: bool = False, reads: bool = True
    ) -> EpochPlan:
        """`highest` are the event times that the epoch's records reach."""
        plan = self.plan(now_ms, always=always, reads=reads)
        assert plan is not None
        for name, state in self.inputs.items():
            seen = {f"{ref.topic}/{ref.partition}": ts for ref, ts in highest.items() if ref.input == name}
            self.inputs[name] = state.after(plan, name, seen, self.planner.clocks[name])
        self.number += 1
        return plan


def with_records(orders: int = 10, payments: int = 10) -> Job:
    return Job(Source(dict.fromkeys(ORDERS, (0, orders))), Source(dict.fromkeys(PAYMENTS, (0, payments))))


def ranges(plan: EpochPlan) -> dict[PartitionRef, tuple[int, int]]:
    return {r.partition: (r.start, r.end_exclusive) for r in plan.ranges}


# --- ranges -----------------------------------------------------------------------------------------------------------


def test_a_plan_takes_what_can_be_read() -> None:
    job = with_records(orders=10, payments=7)
    plan = job.epoch({})
    assert ranges(plan) == {ORDERS[0]: (0, 10), ORDERS[1]: (0, 10), PAYMENTS[0]: (0, 7)}
    assert (plan.epoch, plan.shards, plan.fingerprint, plan.checkpoint) == (1, 4, "f", False)
    assert plan.watermarks == {"orders": None, "payments": None}
    assert job.status.backlog == {"orders": 20, "payments": 7}


def test_the_inputs_are_asked_together() -> None:
    """Each waits for the answers of its brokers."""
    asked: list[int] = []

    def run_and_count(calls: Sequence[Callable[[], Any]]) -> list[Any]:
        asked.append(len(calls))
        return run_in_turn(calls)

    job = Job(run_calls=run_and_count)
    plan = job.epoch({})
    assert asked == [2]
    job.planner.replaced_partitions(plan, job.inputs)
    job.planner.check_sources(job.inputs)
    assert asked == [2, 2, 2]


def test_the_first_plan_fixes_where_partitions_start_also_without_records() -> None:
    """`startFrom: latest`: what comes after the first plan must be read, whenever the first record is read."""
    job = Job(Source({ORDERS[0]: (50, 50), ORDERS[1]: (60, 60)}), Source({PAYMENTS[0]: (70, 70)}))
    plan = job.epoch({})
    assert ranges(plan) == {ORDERS[0]: (50, 50), ORDERS[1]: (60, 60), PAYMENTS[0]: (70, 70)}
    assert all(r.start == r.end_exclusive for r in plan.ranges)
    assert job.plan() is None, "once is enough"
    job.orders.ends = {ORDERS[0]: (52, 52), ORDERS[1]: (60, 60)}
    assert ranges(job.epoch({})) == {ORDERS[0]: (50, 52)}


def test_a_plan_that_reads_of_a_file_is_not_small() -> None:
    """Each process that opens a packed file unpacks all of it."""
    job = with_records(orders=10, payments=10)
    assert job.planner.is_small(job.epoch({}))
    job = with_records(orders=10, payments=10)
    job.orders.files = True
    assert not job.planner.is_small(job.epoch({}))
    job = with_records(orders=0, payments=10)
    job.orders.files = True
    assert job.planner.is_small(job.epoch({})), "nothing is read of the files"


def test_a_plan_goes_on_where_the_last_one_ended() -> None:
    job = with_records(orders=10)
    job.epoch({})
    job.orders.ends[ORDERS[1]] = (0, 13)
    assert ranges(job.epoch({})) == {ORDERS[1]: (10, 13)}


def test_a_plan_keeps_to_the_records_that_an_epoch_may_have() -> None:
    job = Job(Source(dict.fromkeys(ORDERS, (0, 1_000))), Source(dict.fromkeys(PAYMENTS, (0, 1_000))), max_records=90)
    plan = job.epoch({})
    assert ranges(plan) == {ORDERS[0]: (0, 30), ORDERS[1]: (0, 30), PAYMENTS[0]: (0, 30)}


def test_a_plan_keeps_to_the_bytes_that_an_epoch_may_have() -> None:
    """Nothing is known at first; then what was read, of other partitions of the input too."""
    job = Job(Source(dict.fromkeys(ORDERS, (0, 1_000))), Source(dict.fromkeys(PAYMENTS, (0, 0))), max_bytes=300 << 10)
    plan = job.epoch({})
    assert ranges(plan)[ORDERS[0]] == ranges(plan)[ORDERS[1]] == (0, 150)
    read = ReadSummary((PartitionRead(ORDERS[0], records=150, bytes=150 * 10_240),))
    job.planner.learn(plan, EpochOutcome(read, {}), job.inputs)
    assert [r.end_exclusive - r.start for r in job.epoch({}).ranges] == [15, 15]


@pytest.mark.parametrize(
    ("rows_by_shard", "processes", "records"),
    [
        ((100, 100, 100, 100), 1, 90),
        ((100, 100, 100, 100), 2, 180),
        ((100, 100, 100, 100), 4, 360),
        ((200, 100, 50, 50), 4, 180),  # one process has half of the rows
        ((400, 400, 400, 400), 4, 90),  # of a join on time alone each shard has all rows
        ((100, 100, 100, 100), None, 90),  # nothing is known of the rows: the driver has just started
    ],
)
def test_a_budget_without_a_limit_is_for_each_process_that_rows_fill(
    rows_by_shard: tuple[int, ...], processes: int | None, records: int
) -> None:
    job = Job(Source(dict.fromkeys(ORDERS, (0, 9_000))), Source(dict.fromkeys(PAYMENTS, (0, 9_000))), max_records=90)
    for per_process in (True, False):
        job.planner = job.new_planner(Budget(90, 64 << 20, records_per_process=per_process))
        plan = job.epoch({})
        if processes is not None:
            shards = {(0, shard): ShardSummary(0, shard, rows_in=rows) for shard, rows in enumerate(rows_by_shard)}
            read = ReadSummary((PartitionRead(ORDERS[0], records=400, rows=400),))
            job.planner.learn(plan, EpochOutcome(read, shards), job.inputs)
        larger = job.planner.plan(job.state, 0, processes=processes or 4).plan
        assert larger is not None
        assert sum(r.end_exclusive - r.start for r in larger.ranges) == (records if per_process else 90)


def test_epochs_keep_the_interval_unless_one_is_full() -> None:
    job = Job(max_records=20, interval_ms=500)
    job.orders.ends = dict.fromkeys(ORDERS, (0, 5))
    job.epoch({}, 10_000)
    job.orders.ends = dict.fromkeys(ORDERS, (0, 9))
    assert job.plan(10_499) is None
    assert job.status.backlog == {"orders": 8, "payments": 0}
    assert ranges(job.epoch({}, 10_500)) == dict.fromkeys(ORDERS, (5, 9))
    job.orders.ends = dict.fromkeys(ORDERS, (0, 19))
    job.epoch({}, 10_501)
    job.restart()
    job.orders.ends = dict.fromkeys(ORDERS, (0, 20))
    job.epoch({}, 10_502)


@pytest.mark.parametrize("settings", [{"once": True}, {"max_bytes": 100}], ids=["a run that ends", "bytes"])
def test_no_interval_is_kept_where_waiting_gains_nothing(settings: dict[str, Any]) -> None:
    job = Job(interval_ms=10_000, **settings)
    job.orders.ends = dict.fromkeys(ORDERS, (0, 5))
    job.epoch({}, 10_000)
    if not job.once:
        job.orders.ends = dict.fromkeys(ORDERS, (0, 9))
        job.epoch({}, 10_001)
    job = bounded(10, 10, interval_ms=10_000, max_records=15)
    job.epoch({}, 10_000)
    job.epoch({}, 10_001)


def test_a_pending_plan_over_the_limits_gives_a_smaller_one() -> None:
    job = Job(Source(dict.fromkeys(ORDERS, (0, 400))), Source(dict.fromkeys(PAYMENTS, (0, 100))))
    plan = job.plan()
    assert plan is not None
    assert job.planner.shrunk_plan(plan) is None
    job.max_records = 90
    job.restart()
    smaller = job.planner.shrunk_plan(plan)
    assert smaller is not None
    assert ranges(smaller) == {ORDERS[0]: (0, 40), ORDERS[1]: (0, 40), PAYMENTS[0]: (0, 10)}
    assert replace(smaller, ranges=plan.ranges) == plan


def bounded(orders: int, payments: int, **settings: Any) -> Job:
    sources = dict.fromkeys(ORDERS, (0, orders)), dict.fromkeys(PAYMENTS, (0, payments))
    return Job(*(Source(ends, final=True) for ends in sources), **settings)


def test_bounded_inputs_that_fit_in_one_epoch_are_read_in_one() -> None:
    """Unsorted files: the first epoch has no watermark, so nothing of it is late. A probe would make one."""
    job = bounded(15_000, 20_000, max_records=50_000)
    assert ranges(job.epoch({})) == {ORDERS[0]: (0, 15_000), ORDERS[1]: (0, 15_000), PAYMENTS[0]: (0, 20_000)}


@pytest.mark.parametrize(
    "job",
    [
        bounded(15_000, 20_001, max_records=50_000),
        bounded(30_000, 30_000, max_records=500_000),
        Job(
            Source(dict.fromkeys(ORDERS, (0, 15_000))),
            Source(dict.fromkeys(PAYMENTS, (0, 20_000)), final=True),
            max_records=50_000,
        ),
    ],
    ids=["too many records", "too many bytes, as far as is known", "one has no end"],
)
def test_other_inputs_are_probed(job: Job) -> None:
    assert sum(end - start for start, end in ranges(job.epoch({})).values()) <= 20_000


def test_densities_that_were_learnt_align_the_inputs() -> None:
    """Orders hold ten times as many records per second of event time as payments."""
    job = Job(Source(dict.fromkeys(ORDERS, (0, 5_000))), Source(dict.fromkeys(PAYMENTS, (0, 5_000))), max_records=210)
    before = dict(job.inputs)
    plan = job.epoch({ORDERS[0]: 700, ORDERS[1]: 700, PAYMENTS[0]: 7_000})
    reads = [
        PartitionRead(ref, records=end - start, lowest=0, highest=7_000 if ref in PAYMENTS else 700)
        for ref, (start, end) in ranges(plan).items()
    ]
    summary = ReadSummary(tuple(reads))
    job.planner.learn(plan, EpochOutcome(summary, {}), before)
    following = ranges(job.epoch({}))
    assert PAYMENTS[0] not in following, "payments are ahead in event time and wait"
    assert sum(end - start for start, end in following.values()) == pytest.approx(210, abs=2)


def test_a_new_partition_makes_a_plan_and_holds_the_watermark_back() -> None:
    job = with_records()
    job.epoch({ORDERS[0]: 100, ORDERS[1]: 90, PAYMENTS[0]: 100})
    new = PartitionRef("orders", "orders", 2)
    job.orders.ends[new] = (0, 0)
    plan = job.epoch({})
    assert ranges(plan) == {new: (0, 0)}
    assert plan.watermarks == {"orders": 85, "payments": 97}, "it does not take back what was implied (T1)"
    job.orders.ends = dict.fromkeys(job.orders.ends, (0, 20))
    job.epoch({ORDERS[0]: 200, ORDERS[1]: 190, new: 120})
    assert job.epoch({}, always=True).watermarks == {"orders": 115, "payments": 97}


def test_nothing_to_read_makes_no_plan_unless_it_is_asked_for() -> None:
    job = with_records()
    job.epoch({})
    assert job.plan() is None
    assert ranges(job.epoch({}, always=True)) == {}


def test_a_source_that_is_away_is_an_error() -> None:
    job = with_records()
    job.payments.unreachable = True
    with pytest.raises(SourceError, match="the broker is away"):
        job.plan()


def test_records_that_the_broker_lost_are_told() -> None:
    job = with_records()
    job.orders.lost = 3
    plan = job.plan()
    assert plan is not None
    assert plan.lost == {"orders/0": 3, "orders/1": 3}


def test_rescaling_counts_from_the_next_plan_on() -> None:
    job = with_records()
    job.planner.rescale(9)
    assert job.epoch({}).shards == 9


# --- tables ---------------------------------------------------------------------------------------------------------


def with_table(orders: int = 10, payments: int = 10, **settings: Any) -> Job:
    """Orders are a stream, payments a table."""
    tables = frozenset({"payments"})
    ends = ((ORDERS, orders), (PAYMENTS, payments))
    return Job(*(Source(dict.fromkeys(refs, (0, end))) for refs, end in ends), tables=tables, **settings)


def records(plan: EpochPlan) -> dict[PartitionRef, tuple[int, int]]:
    return {ref: offsets for ref, offsets in ranges(plan).items() if offsets[0] < offsets[1]}


def test_at_the_very_first_start_a_table_is_read_to_its_end_before_its_stream() -> None:
    """A4, over as many epochs as it takes and across a restart."""
    job = with_table(orders=10, payments=150, max_records=100)
    assert records(job.epoch({PAYMENTS[0]: 50})) == {PAYMENTS[0]: (0, 100)}
    job.restart()
    assert records(job.epoch({PAYMENTS[0]: 70})) == {PAYMENTS[0]: (100, 150)}
    assert records(job.epoch({ORDERS[0]: 10})) == {ORDERS[0]: (0, 10), ORDERS[1]: (0, 10)}


@pytest.mark.parametrize("size", [5, 0])
def test_a_table_s_partitions_that_wait_for_others_belong_to_its_first_read(size: int) -> None:
    first, then = PartitionRef("payments", "before", 0), PAYMENTS[0]
    job = with_table()
    job.payments = Source({first: (0, size), then: (0, 3)}, waiting=frozenset({then}))
    job.restart()
    assert records(job.epoch({})) == ({first: (0, size)} if size else {})
    del job.payments.ends[first]
    job.payments.waiting = frozenset()
    assert records(job.epoch({then: 60})) == {then: (0, 3)}
    assert records(job.epoch({})).keys() == set(ORDERS)


def test_a_table_that_grows_all_the_time_does_not_keep_its_stream_out() -> None:
    job = with_table(payments=100, max_records=100)
    assert records(job.epoch({PAYMENTS[0]: 50})) == {PAYMENTS[0]: (0, 100)}
    job.payments.ends[PAYMENTS[0]] = (0, 130)
    assert records(job.epoch({PAYMENTS[0]: 60, ORDERS[0]: 60})).keys() == {*ORDERS, *PAYMENTS}


# --- a stream and its table after the first start ---------------------------------------------------------------------


def caught_up(**settings: Any) -> Job:
    """A job that has read its table up to 100, and its stream up to 90, and then was stopped."""
    job = with_table(orders=10, payments=10, **settings)
    for highest in ({PAYMENTS[0]: 100}, {ORDERS[0]: 90, ORDERS[1]: 80}):
        job.epoch(highest)
    job.restart()
    return job


def test_a_stream_is_not_read_while_it_is_ahead_of_what_its_table_has_reached() -> None:
    """A4, after a restart with a backlog: nothing is known of how dense the inputs are."""
    job = caught_up(max_records=60)
    job.inputs["orders"] = replace(job.inputs["orders"], progress=InputProgress({"orders/0": 90, "orders/1": 98}))
    job.payments.ends[PAYMENTS[0]], job.orders.ends = (0, 100), dict.fromkeys(ORDERS, (0, 40))
    plan = job.epoch({PAYMENTS[0]: 110})
    assert records(plan) == {PAYMENTS[0]: (10, 70)}, "the table has surely reached 96 only: its delay is 3"
    assert (plan.reached, plan.unread) == ({"payments": 96}, ("orders",))
    plan = job.epoch({PAYMENTS[0]: 120, ORDERS[0]: 115, ORDERS[1]: 115})
    assert records(plan) == {PAYMENTS[0]: (70, 100), ORDERS[0]: (10, 25), ORDERS[1]: (10, 25)}
    assert plan.reached == {"orders": 84}, "the epoch before has left records of it"
    job.restart()
    assert job.epoch({}).reached == {"orders": 109}


def test_a_plan_says_how_far_a_table_was_read_that_it_does_not_read_to_its_end() -> None:
    job = caught_up(max_records=60)
    job.payments.ends[PAYMENTS[0]], job.orders.ends = (0, 1_000), dict.fromkeys(ORDERS, (0, 40))
    plan = job.epoch({})
    assert records(plan) == {PAYMENTS[0]: (10, 30), ORDERS[0]: (10, 30), ORDERS[1]: (10, 30)}
    assert plan.reached == {"payments": 96}
    assert plan.times["payments"].reached == 96
    assert EpochPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_what_has_arrived_since_the_stream_was_read_to_its_end_is_no_backlog() -> None:
    job = caught_up()
    job.orders.ends = dict.fromkeys(ORDERS, (0, 40))
    plan = job.epoch({})
    assert (plan.reached, plan.unread) == ({}, ())


def test_a_smaller_plan_that_reads_less_of_a_table_joins_nothing() -> None:
    job = caught_up()
    job.payments.ends[PAYMENTS[0]], job.orders.ends = (0, 110), dict.fromkeys(ORDERS, (0, 60))
    plan = job.plan()
    assert plan is not None
    plan = replace(plan, horizons={"left": Horizon(80, 90)})
    job.max_records = 100
    job.restart()
    smaller = job.planner.shrunk_plan(plan)
    assert smaller is not None
    assert records(smaller) == {PAYMENTS[0]: (10, 60)}
    assert smaller.horizons == {"left": Horizon(80, 80)}
    assert (smaller.reached, smaller.unread) == ({"payments": BEGIN_OF_TIME}, ("orders",))


def test_a_partition_of_a_table_that_was_never_read_keeps_the_stream_out() -> None:
    job = caught_up(max_records=60)
    job.payments.ends[PartitionRef("payments", "payments", 1)] = (0, 500)
    job.orders.ends = dict.fromkeys(ORDERS, (0, 40))
    assert {ref.input for ref in records(job.epoch({}))} == {"payments"}


def test_the_first_plan_fixes_where_a_stream_starts_that_waits_for_its_table() -> None:
    """`startFrom: latest`: what comes while the table is read must be joined."""
    job = with_table(payments=100)
    job.orders.ends = {ORDERS[0]: (50, 50), ORDERS[1]: (60, 60)}
    assert ranges(job.epoch({})) == {ORDERS[0]: (50, 50), ORDERS[1]: (60, 60), PAYMENTS[0]: (0, 100)}
    job.orders.ends = {ORDERS[0]: (52, 52), ORDERS[1]: (60, 60)}
    assert records(job.epoch({})) == {ORDERS[0]: (50, 52)}


def test_a_stream_that_has_begun_does_not_wait_for_its_table_any_more() -> None:
    job = with_table(payments=5)
    job.epoch({PAYMENTS[0]: 50})
    job.epoch({ORDERS[0]: 10, ORDERS[1]: 10})
    job.restart()
    job.payments.ends[PAYMENTS[0]] = (0, 8)
    job.orders.ends[ORDERS[0]] = (0, 12)
    assert records(job.epoch({})) == {ORDERS[0]: (10, 12), PAYMENTS[0]: (5, 8)}


# --- watermarks -------------------------------------------------------------------------------------------------------


def test_watermarks_are_what_earlier_epochs_imply() -> None:
    job = with_records()
    assert job.epoch({ORDERS[0]: 100, ORDERS[1]: 90, PAYMENTS[0]: 80}).watermarks == {"orders": None, "payments": None}
    assert job.epoch({}, always=True).watermarks == {"orders": 85, "payments": 77}


def test_watermarks_do_not_go_back_after_a_restart() -> None:
    job = with_records()
    job.inputs["orders"] = InputState(progress=InputProgress({"orders/0": 50, "orders/1": 50}, watermark=70))
    job.restart()
    assert job.epoch({}).watermarks["orders"] == 70


def idle_after(job: Job, now_ms: int) -> EpochPlan:
    """The plan at `now_ms` of a job that has found nothing to read since time 0."""
    job.plan(0)
    return job.epoch({}, now_ms, always=True)


def test_an_idle_partition_does_not_hold_its_input_back() -> None:
    job = with_records()
    job.epoch({ORDERS[0]: 100, ORDERS[1]: 10, PAYMENTS[0]: 80})
    job.plan(0)
    job.orders.ends[ORDERS[0]] = (0, 20)
    plan = job.epoch({}, IDLE_MS, always=True)
    assert plan.idle == {"orders": ("orders/1",), "payments": ("payments/0",)}
    assert plan.watermarks["orders"] == 95


def test_a_partition_is_not_idle_before_its_time_or_with_unread_records() -> None:
    job = with_records()
    job.epoch({ORDERS[0]: 100, ORDERS[1]: 10, PAYMENTS[0]: 80})
    assert idle_after(job, IDLE_MS - 1).idle == {}
    job.orders.ends = dict.fromkeys(ORDERS, (0, 20))
    assert job.epoch({}, IDLE_MS, always=True).idle == {"payments": ("payments/0",)}


def test_a_restart_is_no_idleness() -> None:
    job = with_records()
    job.epoch({})
    job.plan(0)
    job.restart()
    assert job.epoch({}, 10 * IDLE_MS, always=True).idle == {}


def test_an_idle_input_takes_the_watermark_of_the_others() -> None:
    job = with_records()
    job.epoch({ORDERS[0]: 1_000, ORDERS[1]: 1_000, PAYMENTS[0]: 80})
    job.plan(0)
    job.orders.ends = dict.fromkeys(ORDERS, (0, 20))
    plan = job.epoch({ORDERS[0]: 2_000, ORDERS[1]: 2_000}, IDLE_MS)
    assert plan.idle == {"payments": ("payments/0",)}
    assert plan.watermarks == {"orders": 995, "payments": 995}
    job.payments.ends = dict.fromkeys(PAYMENTS, (0, 20))
    again = job.epoch({PAYMENTS[0]: 900}, IDLE_MS)
    assert again.idle == {"orders": ("orders/0", "orders/1")} or again.idle == {}
    assert again.watermarks["payments"] == 995, "it is judged against what it was given"


def test_when_all_inputs_are_idle_nothing_moves() -> None:
    job = with_records()
    job.epoch({ORDERS[0]: 1_000, ORDERS[1]: 900, PAYMENTS[0]: 80})
    plan = idle_after(job, 5 * IDLE_MS)
    assert set(plan.idle) == {"orders", "payments"}
    assert plan.watermarks == {"orders": 895, "payments": 77}


def test_an_input_that_has_been_read_to_its_final_end_is_over() -> None:
    job = with_records()
    job.payments.final = True
    first = job.epoch({ORDERS[0]: 100, ORDERS[1]: 100, PAYMENTS[0]: 80})
    assert first.ended == ()
    assert not job.status.finished
    second = job.epoch({}, always=True)
    assert second.ended == ("payments",)
    assert second.watermarks == {"orders": 95, "payments": END_OF_TIME}
    assert not job.status.finished


def test_a_job_is_finished_when_all_its_inputs_are() -> None:
    job = with_records()
    job.orders.final = job.payments.final = True
    job.epoch({})
    assert not job.status.finished
    ends = job.epoch({})
    assert (ends.ended, ends.ranges) == (("orders", "payments"), ())
    assert job.plan() is None
    assert job.status.finished


def test_the_end_of_an_input_is_committed_and_what_is_added_later_is_never_read() -> None:
    """Whether a later epoch runs, which would commit it too, depends on the kind of join and on other inputs."""
    job = with_records()
    job.orders.final = True
    job.epoch({})
    assert job.epoch({}).ended == ("orders",)
    assert job.inputs["orders"].progress.ended
    assert job.plan() is None
    assert not job.status.beyond_end
    job.orders.ends |= {ORDERS[0]: (0, 12)}
    job.restart()
    assert job.plan() is None
    assert job.status.backlog == {"orders": 0, "payments": 0}
    assert list(job.status.beyond_end) == ["orders"]
    assert "more was added since: to orders. It is not read" in job.status.beyond_end["orders"]


def test_what_an_earlier_release_did_not_commit_is_committed_at_the_next_start() -> None:
    job = with_records()
    job.orders.final = job.payments.final = True
    job.epoch({})
    job.restart()
    assert job.epoch({}).ended == ("orders", "payments")
    assert job.plan() is None


def test_a_run_once_ends_no_input() -> None:
    job = with_records()
    job.once, job.orders.final = True, True
    job.restart()
    job.epoch({})
    assert job.plan() is None
    assert not job.inputs["orders"].progress.ended


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_due_after_its_interval_also_without_records() -> None:
    job = with_records()
    job.epoch({}, 0)
    assert job.plan(CHECKPOINT_MS - 1) is None
    plan = job.epoch({}, CHECKPOINT_MS)
    assert (plan.checkpoint, plan.ranges) == (True, ())


def test_a_checkpoint_that_would_find_nothing_new_is_not_made() -> None:
    job = with_records()
    job.epoch({}, 0)
    job.epoch({}, CHECKPOINT_MS)
    assert job.plan(10 * CHECKPOINT_MS) is None
    job.orders.ends[ORDERS[0]] = (0, 11)
    assert job.epoch({}, 10 * CHECKPOINT_MS).checkpoint is False
    assert job.epoch({}, 11 * CHECKPOINT_MS).checkpoint is True


def test_a_checkpoint_goes_with_an_epoch_that_has_records() -> None:
    job = with_records()
    job.epoch({}, 0)
    job.orders.ends[ORDERS[0]] = (0, 11)
    plan = job.epoch({}, CHECKPOINT_MS)
    assert plan.checkpoint
    assert any(r.start < r.end_exclusive for r in plan.ranges)


def test_an_input_that_has_ended_stays_ended() -> None:
    """What is added to a bounded input after its end was committed would meet a watermark of +infinity."""
    job = Job()
    job.orders.final = True
    job.orders.ends = dict.fromkeys(ORDERS, (0, 5))
    job.payments.ends = dict.fromkeys(PAYMENTS, (0, 5))
    job.epoch({ORDERS[0]: 100, ORDERS[1]: 100, PAYMENTS[0]: 100})
    job.payments.ends = dict.fromkeys(PAYMENTS, (0, 9))
    assert job.epoch({PAYMENTS[0]: 200}).watermarks["orders"] == END_OF_TIME
    job.orders.ends = dict.fromkeys(ORDERS, (0, 50))
    job.payments.ends = dict.fromkeys(PAYMENTS, (0, 12))
    assert {r.partition.input for r in job.epoch({}).ranges} == {"payments"}


def test_a_partition_that_is_no_more_does_not_hold_the_watermark_back() -> None:
    job = Job()
    job.orders.ends = dict.fromkeys(ORDERS, (0, 5))
    job.epoch({ORDERS[0]: 100, ORDERS[1]: 1_000})
    job.orders.ends = {ORDERS[1]: (0, 9)}
    assert job.epoch({ORDERS[1]: 2_000}).watermarks["orders"] == 1_000 - 5


def test_watermarks_go_on_with_the_clock_while_nothing_is_planned() -> None:
    """T6: `onIdle: advance`; an idle job makes no plans, and the next one is to know how long it was idle."""
    job = Job()
    job.planner.clocks = {name: replace(c, advance_on_idle=True) for name, c in job.planner.clocks.items()}
    job.orders.ends = dict.fromkeys(ORDERS, (0, 5))
    job.payments.ends = dict.fromkeys(PAYMENTS, (0, 5))
    job.epoch({ORDERS[0]: 100, ORDERS[1]: 100, PAYMENTS[0]: 100})
    for now in range(0, 11_001, 1_000):
        assert job.plan(now) is None
    plan = job.plan(12_000, always=True)
    assert plan is not None
    assert plan.watermarks == {"orders": 95 + 11_000, "payments": 97 + 11_000}


# --- partitions that are shared out -----------------------------------------------------------------------------------


def reassign(job: Job, *refs: PartitionRef) -> None:
    """Another member of the group has these partitions."""
    for source in (job.orders, job.payments):
        plain = type(source).bounds
        source.bounds = lambda stored_offsets, s=source, p=plain: [  # type: ignore[method-assign]
            replace(bound, is_assigned=bound.partition not in refs) for bound in p(s, stored_offsets)
        ]


def test_only_partitions_that_are_ours_are_read() -> None:
    job = Job(Source(dict.fromkeys(ORDERS, (0, 10))), Source(dict.fromkeys(PAYMENTS, (0, 10))))
    reassign(job, ORDERS[1])
    plan = job.plan()
    assert plan is not None
    assert {r.partition for r in plan.ranges} == {ORDERS[0], *PAYMENTS}
    assert job.status.backlog == {"orders": 20, "payments": 10}


def test_a_partition_of_another_member_holds_the_watermark_back_and_never_gets_idle() -> None:
    job = Job(Source(dict.fromkeys(ORDERS, (0, 10))), Source(dict.fromkeys(PAYMENTS, (0, 10))))
    job.epoch({ORDERS[0]: 1_000, ORDERS[1]: 500, PAYMENTS[0]: 1_000})
    reassign(job, ORDERS[1])
    for now_ms in (0, 800, 1_600, 2_400):
        plan = job.plan(now_ms, always=True)
    assert plan is not None
    assert plan.idle == {"orders": ("orders/0",), "payments": ("payments/0",)}
    assert plan.watermarks["orders"] == 495


@pytest.mark.parametrize("already_known", [True, False], ids=["added", "first-start"])
def test_a_partition_that_the_group_has_not_given_to_us_yet_holds_the_watermark_back(already_known: bool) -> None:
    """T1: its records would be late when they come. The group gives an added partition out after seconds."""
    job = Job(
        Source(dict.fromkeys(ORDERS[: 1 if already_known else 2], (0, 10))), Source(dict.fromkeys(PAYMENTS, (0, 10)))
    )
    if already_known:
        job.epoch({ORDERS[0]: 1_000, PAYMENTS[0]: 1_000})
    before = job.inputs["orders"].progress.watermark
    plain = job.orders.bounds
    reassign(job, ORDERS[1])
    job.orders.ends = dict.fromkeys(ORDERS, (0, 20))
    job.epoch({ORDERS[0]: 90_000})
    assert job.inputs["orders"].progress.watermark == before
    job.orders.bounds = plain  # type: ignore[method-assign]
    assert job.epoch({ORDERS[1]: 2_000}).watermarks["orders"] == before
    assert job.epoch({}, always=True).watermarks["orders"] == 2_000 - 5


def test_where_a_partition_of_another_member_starts_is_stored_with_the_first_plan() -> None:
    """`startFrom: latest` may mean another offset at the next start, and a partition without a stored one would be read
    from its earliest record, because the job has others."""
    job = Job(Source(dict.fromkeys(ORDERS, (5, 5))), Source(dict.fromkeys(PAYMENTS, (7, 7))))
    reassign(job, ORDERS[1], *PAYMENTS)
    plan = job.epoch({})
    assert EpochPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert (ranges(plan), plan.starts) == ({ORDERS[0]: (5, 5)}, {ORDERS[1]: 5, PAYMENTS[0]: 7})
    assert job.inputs["orders"].positions == dict.fromkeys(ORDERS, 5)
    assert job.inputs["payments"].positions == dict.fromkeys(PAYMENTS, 7)
    assert job.plan() is None
    job.orders, job.payments = (Source(dict.fromkeys(refs, (0, 9))) for refs in (ORDERS, PAYMENTS))
    job.restart()
    assert ranges(job.epoch({})) == {**dict.fromkeys(ORDERS, (5, 9)), PAYMENTS[0]: (7, 9)}


def test_starts_are_stored_also_while_all_unread_records_are_another_member_s() -> None:
    job = Job(Source({ORDERS[0]: (5, 5), ORDERS[1]: (5, 9)}), Source(dict.fromkeys(PAYMENTS, (7, 7))))
    reassign(job, ORDERS[1])
    plan = job.epoch({})
    assert (plan.ranges, plan.starts) == ((), {**dict.fromkeys(ORDERS, 5), PAYMENTS[0]: 7})
    assert job.plan() is None


def test_a_group_that_has_given_nothing_yet_makes_no_epoch() -> None:
    job = Job(Source(dict.fromkeys(ORDERS, (5, 5))), Source(dict.fromkeys(PAYMENTS, (7, 7))))
    reassign(job, *ORDERS, *PAYMENTS)
    assert job.plan() is None


def test_a_bounded_input_is_not_finished_while_another_member_has_its_records() -> None:
    job = Job(Source(dict.fromkeys(ORDERS, (0, 10)), final=True), Source(dict.fromkeys(PAYMENTS, (0, 0)), final=True))
    reassign(job, *ORDERS)
    assert job.epoch({}).ended == ("payments",)
    assert job.plan() is None
    assert not job.status.finished


def test_the_inputs_wait_for_one_whose_records_are_all_another_member_s() -> None:
    job = Job(Source(dict.fromkeys(ORDERS, (0, 10))), Source(dict.fromkeys(PAYMENTS, (0, 10))))
    reassign(job, *PAYMENTS)
    assert job.plan() is None
    assert job.status.unassigned_partitions == tuple(PAYMENTS)


def test_checking_the_sources_meets_what_is_missing() -> None:
    job = Job()
    job.payments.unreachable = True
    with pytest.raises(SourceError, match="the broker is away"):
        job.planner.check_sources(job.inputs)


def test_a_deleted_topic_is_forgotten_with_a_plan_of_its_own_and_holds_nothing_back() -> None:
    job = Job(Source(dict.fromkeys(ORDERS, (0, 10))), Source(dict.fromkeys(PAYMENTS, (0, 10))))
    job.epoch({ORDERS[0]: 1_000, ORDERS[1]: 500, PAYMENTS[0]: 1_000})
    was = PartitionRef("orders", "was", 0)
    state = job.inputs["orders"]
    job.inputs["orders"] = replace(state, positions={**state.positions, was: 3}, topic_ids={"was": "id-w"})
    plain = job.orders.bounds
    job.orders.bounds = lambda stored_offsets: [  # type: ignore[method-assign]
        *plain(stored_offsets),
        *[
            Bounds(was, 3, 3, final=True, is_assigned=False, deleted=True)
            for ref in stored_offsets.offsets
            if ref == was
        ],
    ]
    plan = job.epoch({})
    assert plan.topic_ids == {"orders": {"was": ""}}
    assert plan.ranges == ()
    assert plan.watermarks["orders"] == 495
    assert was not in job.inputs["orders"].positions
    assert job.plan() is None


def test_a_bounded_run_waits_for_an_input_that_has_no_topic_yet() -> None:
    job = Job(Source({}), Source(dict.fromkeys(PAYMENTS, (0, 0)), final=True))
    job.epoch({}, always=True)
    assert job.plan() is None
    assert not job.status.finished


# --- once -------------------------------------------------------------------------------------------------------------


def run_once(job: Job) -> list[EpochPlan]:
    """A new process that reads to the ends of now."""
    job.restart()
    plans: list[EpochPlan] = []
    while job.plan() is not None:
        plans.append(job.epoch({}))
    assert job.status.finished
    return plans


def test_a_run_once_reads_to_the_ends_of_its_start() -> None:
    job = Job(Source({ORDERS[0]: (0, 100)}), Source({PAYMENTS[0]: (0, 10)}), max_records=60, once=True)
    job.epoch({})
    job.orders.ends = {ORDERS[0]: (0, 150), ORDERS[1]: (0, 5)}
    while job.plan() is not None:
        job.epoch({})
    assert job.status.finished
    assert job.inputs["orders"].positions == {ORDERS[0]: 100, ORDERS[1]: 0}
    (second,) = run_once(job)
    assert ranges(second) == {ORDERS[0]: (100, 150), ORDERS[1]: (0, 5)}


def test_a_run_once_ends_no_input_not_even_a_bounded_one() -> None:
    job = with_records()
    job.once = job.orders.final = job.payments.final = True
    (plan,) = run_once(job)
    assert (plan.ended, plan.stops) == ((), {})
    assert plan.watermarks == {"orders": None, "payments": None}
    job.orders.ends[ORDERS[0]] = (0, 12)
    (second,) = run_once(job)
    assert ranges(second) == {ORDERS[0]: (10, 12)}


@pytest.mark.parametrize("once", [False, True])
def test_an_input_that_has_begun_without_a_partition_is_stored_once(once: bool) -> None:
    mark = PartitionRef("orders", "topics:begun", 0)
    job = Job(Source({mark: (0, 0)}, waiting=frozenset({mark}), topic_id="begun"), Source({}), once=once)
    assert job.plan(reads=False) is None
    plan = job.epoch({})
    assert (plan.ranges, plan.topic_ids) == ((), {"orders": {"topics:begun": "begun"}})
    assert job.plan() is None
    assert job.status.finished is once
    assert job.inputs["orders"].positions == {}


def test_a_run_once_commits_where_it_starts_before_it_is_finished() -> None:
    """`startFrom: latest` of the next run would be another offset."""
    job = Job(Source({ORDERS[0]: (50, 50)}), Source({PAYMENTS[0]: (70, 70)}), once=True)
    assert job.plan() is not None
    assert not job.status.finished
    job.epoch({})
    assert job.plan() is None
    assert job.status.finished


def test_a_run_once_leaves_an_ended_input_ended() -> None:
    job = with_records()
    job.orders.final = job.payments.final = True
    job.epoch({})
    job.epoch({}, always=True)
    assert job.inputs["orders"].progress.ended
    job.once = True
    job.orders.ends[ORDERS[0]] = (0, 12)
    assert run_once(job) == []
    assert job.inputs["orders"].progress.watermark == END_OF_TIME


# --- co-partitioned inputs --------------------------------------------------------------------------------------------


def of_partitions(orders: int, payments: int, known_partitions: int = 0) -> Job:
    sources = [
        Source({PartitionRef(name, name, p): (0, 5) for p in range(count)})
        for name, count in (("orders", orders), ("payments", payments))
    ]
    return Job(*sources, co_partitioned=True, co_partitions=known_partitions)


@pytest.mark.parametrize(
    ("orders", "payments", "known_partitions", "common"),
    [(6, 6, 0, 6), (12, 6, 0, 6), (12, 8, 0, 4), (1, 1, 0, 1), (12, 6, 6, 6), (12, 12, 6, 6), (4, 4, 1, 1)],
)
def test_a_plan_says_how_many_partitions_inputs_have_in_common(
    orders: int, payments: int, known_partitions: int, common: int
) -> None:
    plan = of_partitions(orders, payments, known_partitions).plan()
    assert plan is not None
    assert plan.co_partitions == common
    assert EpochPlan.from_json(plan.to_json()) == plan


def test_a_plan_of_other_inputs_says_nothing_of_it() -> None:
    plan = with_records().plan()
    assert plan is not None
    assert plan.co_partitions == 0
    assert "co_partitions" not in plan.to_json(), "releases before it wrote the same"


@pytest.mark.parametrize(
    ("orders", "payments", "known_partitions", "words"),
    [
        (7, 4, 0, "no divisor in common: equal keys are in no partitions that belong together: topic orders of input "),
        (
            1,
            4,
            0,
            "topic orders of input orders has 1, topic payments of input payments has 4. Give the topics the same",
        ),
        (8, 6, 6, "has changed: rows are in the state by 6 partitions"),
        (6, 3, 6, "Add partitions until each topic has a multiple of 6, or start the job with new state"),
    ],
)
def test_topics_that_are_not_partitioned_alike_are_refused_by_name(
    orders: int, payments: int, known_partitions: int, words: str
) -> None:
    job = of_partitions(orders, payments, known_partitions)
    with pytest.raises(SourceError) as raised:
        job.plan()
    assert words in str(raised.value)


def test_inputs_have_partitions_in_common_once_each_has_some() -> None:
    """One of them is a pattern that no topic has yet."""
    job = of_partitions(12, 0)
    waits = job.epoch({}, always=True)
    assert (ranges(waits), waits.co_partitions) == ({}, 0)
    job.payments.ends = {PartitionRef("payments", "payments", p): (0, 5) for p in range(6)}
    reads = job.epoch({}, 100)
    assert (len(reads.ranges), reads.co_partitions) == (18, 6)


def test_where_inputs_begin_is_stored_while_one_of_them_has_no_topic_yet() -> None:
    """`startFrom: latest` may mean another offset after a restart."""
    mark = PartitionRef("payments", "topics:begun", 0)
    waits = Source({mark: (0, 0)}, waiting=frozenset({mark}), topic_id="begun")
    job = Job(Source({ORDERS[0]: (7, 9)}, topic_id="id"), waits, co_partitioned=True)
    plan = job.epoch({})
    assert (plan.ranges, plan.starts) == ((), {ORDERS[0]: 7})
    assert plan.topic_ids == {"orders": {"orders": "id"}, "payments": {"topics:begun": "begun"}}
    assert job.plan() is None
    assert job.inputs["orders"].positions == {ORDERS[0]: 7}


# --- plans that read nothing -----------------------------------------------------------------------------------------


def test_a_table_is_not_read_by_a_plan_that_reads_nothing() -> None:
    """Of a process that has planned nothing before: held rows were due at once."""
    job = Job(Source({ORDERS[0]: (0, 7)}), Source({PAYMENTS[0]: (0, 5)}), tables=frozenset({"payments"}))
    assert job.epoch({}, always=True, reads=False).tables_read == ()
    assert ranges(job.epoch({})) == {ORDERS[0]: (0, 0), PAYMENTS[0]: (0, 5)}, "the stream waits for it (A4)"


def test_a_plan_that_reads_nothing_fixes_nothing_of_the_topics() -> None:
    """Where a topic that was made anew is read from is fixed with its id, or neither is."""
    job = Job(Source({ORDERS[0]: (0, 7)}, lost=3, topic_id="new"))
    unread = job.epoch({}, always=True, reads=False)
    assert (unread.topic_ids, unread.lost) == ({}, {})
    assert job.epoch({}).topic_ids == {"orders": {"orders": "new"}}


def test_a_plan_that_reads_nothing_delays_no_other() -> None:
    job = with_records()
    job.interval_ms = 60_000
    job.restart()
    job.epoch({}, 0)
    job.orders.ends[ORDERS[0]] = (0, 20)
    job.epoch({}, 30_000, always=True, reads=False)
    assert job.plan(59_999) is None
    assert ranges(job.epoch({}, 60_000)) == {ORDERS[0]: (10, 20)}


# --- shards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "cores", "shards"),
    [
        (512, 2, 4),
        (512, 100, 256),
        (512, 1_000, 512),
        (8, 2, 4),
        (4, 2, 4),
        (3, 2, 3),
        (12, 2, 4),
        (24, 5, 12),  # 10 does not divide 24
        (101, 2, 4),  # nothing divides 101
        (1, 8, 1),
    ],
)
def test_an_epoch_has_as_many_shards_as_its_cores_can_use(most: int, cores: int, shards: int) -> None:
    assert shards_for_cores(most, cores, 0) == shards


@pytest.mark.parametrize(
    ("newest", "cores", "shards"),
    [
        (16, 4, 16),  # an executor of two is lost: it will come back
        (16, 1, 2),  # the job became much narrower
        (16, 16, 32),  # it became wider
        (5, 4, 8),  # before, `shards` was another number
    ],
)
def test_the_number_of_shards_follows_the_cores_with_slack(newest: int, cores: int, shards: int) -> None:
    assert shards_for_cores(64, cores, newest) == shards


def test_plans_follow_the_cores_but_for_co_partitioned_inputs() -> None:
    """Rows of co-partitioned inputs live by partition, and their shards fit the partitions as the job says."""
    for co_partitioned, shards in [(False, 2), (True, 4)]:
        job = Job(*(Source({PartitionRef(name, name, p): (0, 9) for p in (0, 1)}) for name in ("orders", "payments")))
        job.co_partitioned = co_partitioned
        job.restart()
        assert job.epoch({}).shards == 4, "the cores are unknown: as the job says"
        job.restart()
        job.orders.ends = dict.fromkeys(ORDERS, (0, 20))
        plan = job.planner.plan(job.state, 0, cores=1).plan
        assert plan is not None
        assert plan.shards == shards
