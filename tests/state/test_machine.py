"""Any sequence of calls, made on both stores side by side: same answers, or the same kind of error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from budget import examples
from joinery_runtime.errors import StateError
from joinery_runtime.state import decisions
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import EpochRecord, JobRecord, OwnershipToken, StateStore, StoredSavepoint
from state.values import commit_of, segment

NAMES = ("sp1", "sp2")
OFFSETS = st.dictionaries(st.sampled_from(["orders", "rates"]), st.binary(max_size=4))
VERSIONS = st.sampled_from([1, 1, 1, 2])
_lives = count(1)


class EffectError(Exception):
    pass


def fail(connection: object) -> None:
    raise EffectError


def without_clock(answer: Any) -> Any:
    """The two stores read different clocks."""
    if isinstance(answer, list):
        return [without_clock(item) for item in answer]
    if isinstance(answer, EpochRecord):
        return replace(answer, committed_at=0)
    if isinstance(answer, StoredSavepoint):
        return replace(answer, created_at=0, incarnation="")
    if isinstance(answer, JobRecord):
        return replace(answer, incarnation="")  # each store makes its own
    return answer


def outcome(call: Callable[[StateStore], Any], store: StateStore) -> Any:
    try:
        return without_clock(call(store))
    except (StateError, EffectError) as error:
        return type(error), str(error)


class BothStores(RuleBasedStateMachine):
    postgres: PostgresStore

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryStore()
        self.job = f"machine-{next(_lives)}"
        self.keys: list[str] = []
        self.incarnations: set[tuple[str, str]] = set()
        self.past: set[tuple[str, str]] = set()
        self.step = 0

    def both(self, call: Callable[[StateStore], Any]) -> Any:
        in_memory, in_postgres = outcome(call, self.memory), outcome(call, self.postgres)
        assert in_postgres == in_memory
        return in_memory

    @property
    def generation(self) -> int:
        record = self.memory.record(self.job)
        return 0 if record is None else record.generation

    @property
    def epoch(self) -> int:
        record = self.memory.record(self.job)
        return 0 if record is None else record.epoch

    @initialize()
    def first_driver(self) -> None:
        self.acquire()

    @rule()
    def acquire(self) -> None:
        self.both(lambda store: store.acquire(self.job))

    @rule(count=st.integers(0, 3), lag=st.sampled_from([0, 0, 1]), version=st.sampled_from([1, 1, 2]))
    def stage(self, count: int, lag: int, version: int) -> None:
        self.step += 1
        new = [f"k{self.step}-{number}" for number in range(count)]
        segments = [segment(key, epoch=max(1, self.epoch + 1 - lag), version=version) for key in new]
        self.both(lambda store: store.stage(self.job, segments))
        self.keys += new

    @rule(data=st.data(), blob=st.sampled_from([None, b"other"]))
    def stage_again(self, data: st.DataObject, blob: bytes | None) -> None:
        key = data.draw(st.sampled_from(self.keys or ["k"]))
        self.both(lambda store: store.stage(self.job, [segment(key, blob=blob)]))

    @rule(
        ahead=st.sampled_from([1, 1, 1, 0, 2]),
        stale=st.sampled_from([0, 0, 0, 1]),
        text=st.text(max_size=3),
        version=VERSIONS,
    )
    def write_plan(self, ahead: int, stale: int, text: str, version: int) -> None:
        plan, definition = {"epoch": self.epoch + ahead, "text": text}, {"version": version}
        self.both(lambda store: store.write_plan(self.job, self.generation - stale, plan, definition))

    @rule(
        data=st.data(),
        ahead=st.sampled_from([1, 1, 1, 1, 0, 2]),
        stale=st.sampled_from([0, 0, 0, 0, 1]),
        next_plan=st.booleans(),
        effects=st.sampled_from([[], [], [], [fail]]),
        offsets=OFFSETS,
        definition=st.builds(dict, version=VERSIONS),
    )
    def commit(self, data: st.DataObject, ahead: int, stale: int, next_plan: bool, **rest: Any) -> None:
        record = self.memory.record(self.job)
        live = [meta.key for meta in record.segments] if record else []
        newest = [key for key in self.keys[-4:] if key not in live]
        upserts = data.draw(st.lists(st.sampled_from(newest), unique=True)) if newest else []
        deletes = data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []
        if data.draw(st.integers(0, 9)) == 0:
            deletes = [*deletes, data.draw(st.sampled_from(self.keys or ["k"]))]
        epoch, generation = self.epoch + ahead, self.generation - stale
        value = commit_of(epoch, upserts, deletes, next_plan={"epoch": epoch + 1} if next_plan else None, **rest)
        self.both(lambda store: store.commit(self.job, generation, value))

    @rule(stale=st.sampled_from([0, 0, 0, 1]))
    def sweep(self, stale: int) -> None:
        self.both(lambda store: store.sweep(self.job, self.generation - stale))

    @rule(name=st.sampled_from(NAMES))
    def create_savepoint(self, name: str) -> None:
        self.both(lambda store: store.create_savepoint(self.job, name))

    @rule(name=st.sampled_from(NAMES))
    def restore_savepoint(self, name: str) -> None:
        self.both(lambda store: store.restore_savepoint(self.job, name))

    @rule(name=st.sampled_from(NAMES))
    def roll_back(self, name: str) -> None:
        self.both(lambda store: store.roll_back(self.job, name))

    @rule(name=st.sampled_from(NAMES))
    def start_anew(self, name: str) -> None:
        self.both(lambda store: store.start_anew(self.job, name))

    @rule(offsets=OFFSETS, drop_plan=st.booleans(), looks=st.booleans(), stale=st.sampled_from([0, 0, 1]))
    def reset_offsets(self, offsets: dict[str, bytes], drop_plan: bool, looks: bool, stale: int) -> None:
        expected = self.memory.ownership(self.job) if looks else None
        if expected is not None:
            expected = replace(expected, epoch=expected.epoch - stale)
        self.both(lambda store: store.reset_offsets(self.job, offsets, expected=expected, drop_plan=drop_plan))

    @rule(name=st.sampled_from(NAMES))
    def delete_savepoint(self, name: str) -> None:
        self.both(lambda store: store.delete_savepoint(self.job, name))

    @rule(to=st.sampled_from([2, 2, 3, 1]), complete=st.sampled_from([True, True, False]))
    def migrate(self, to: int, complete: bool) -> None:
        chain = {1: lambda blob: blob + b"2"} | ({2: lambda blob: blob + b"3"} if complete else {})
        self.both(lambda store: store.migrate(self.job, self.generation, chain, to))

    @rule(often=st.integers(0, 4))
    def delete_job(self, often: int) -> None:
        if often == 0:
            self.both(lambda store: store.delete_job(self.job))
            self.past |= self.incarnations
            self.incarnations = set()

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from(self.keys or ["k"]), max_size=3))
        self.both(lambda store: store.read_segments(self.job, keys))

    @rule(back=st.integers(0, 5), limit=st.integers(0, 4))
    def epochs(self, back: int, limit: int) -> None:
        self.both(lambda store: store.epochs(self.job, after=self.epoch - back, limit=limit))

    @invariant()
    def same_record(self) -> None:
        record = self.both(lambda store: store.record(self.job))
        if record is not None:
            live = [meta.key for meta in record.segments]
            self.both(lambda store: store.read_segments(self.job, live))
        self.both(lambda store: store.savepoints(self.job))
        self.both(lambda store: store.newest_epoch(self.job))

    @invariant()
    def one_lineage_a_life(self) -> None:
        # A savepoint from before `start_anew` brings its own incarnation back; nothing does so after `delete_job`.
        records = self.memory.record(self.job), self.postgres.record(self.job)
        if records[0] is not None and records[1] is not None:
            self.incarnations.add((records[0].incarnation, records[1].incarnation))
            assert len({mine for mine, _ in self.incarnations}) == len({other for _, other in self.incarnations})
            assert len({mine for mine, _ in self.incarnations}) == len(self.incarnations)
            assert self.incarnations.isdisjoint(self.past)

    @invariant()
    def standing_says_what_the_record_says(self) -> None:
        record, ownership = self.memory.record(self.job), self.both(lambda store: store.ownership(self.job))
        planned = None if record is None or record.plan is None else record.plan["epoch"]
        assert ownership == (None if record is None else OwnershipToken(record.generation, record.epoch, planned))


def test_both_stores_give_the_same_answers(postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "EPOCH_LOG_LENGTH", 4)
    postgres.acquire("machine")  # creates the schema
    monkeypatch.setattr(BothStores, "postgres", postgres, raising=False)
    run_state_machine_as_test(
        BothStores,
        settings=settings(
            max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
