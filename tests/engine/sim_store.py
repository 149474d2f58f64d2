"""The store of the simulated world, and a journal of what really happened to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.sim_process import CRASHES, FAILURES, IN_TASK, Fault, call
from engine.sim_sink import Transaction
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.errors import SinkError
from joinery_runtime.job.model.owner import OwnerCandidate
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import EpochCommit, EpochRecord, JobRecord, Json, OwnershipToken


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that took effect, and the job's newest generation at that moment."""

    generation: int
    newest: int
    commit: EpochCommit


@dataclass(slots=True)
class Journal:
    """What really happened to the store, whatever its callers were told."""

    generation: int = 0
    commits: list[Committed] = field(default_factory=list)
    plans: dict[int, list[Json]] = field(default_factory=lambda: defaultdict(list))
    staged: set[str] = field(default_factory=set)
    swept: int = 0
    shrunk: int = 0  # plans that a smaller one took the place of


class SimStore(MemoryStore):
    """The real in-memory store behind a network that fails, with a journal."""

    def __init__(self, spawn: Callable[[str, Callable[[], None]], None]) -> None:
        super().__init__(clock=lambda: 0)
        self._spawn = spawn
        self.journal = Journal()

    def acquire(self, job: str, candidate: OwnerCandidate | None = None) -> JobRecord:
        return call("store.acquire", FAILURES, lambda: self.do_acquire(job, candidate))

    def do_acquire(self, job: str, candidate: OwnerCandidate | None = None) -> JobRecord:
        record = super().acquire(job, candidate)
        self.journal.generation = record.generation
        return record

    def record(self, job: str) -> JobRecord | None:
        find = super().record
        return call("store.record", CRASHES | {Fault.FAIL_BEFORE}, lambda: find(job))

    def newest_epoch(self, job: str) -> EpochRecord | None:
        find = super().newest_epoch
        return call("store.newest_epoch", CRASHES | {Fault.FAIL_BEFORE}, lambda: find(job))

    def claim(
        self, job: str, expected: OwnershipToken, name: str, owner: str, replacing: str | None = None
    ) -> str | None:
        claim, holders = super().claim, []
        self._change("store.claim", IN_TASK, lambda _: holders.append(claim(job, expected, name, owner, replacing)))
        return holders[0]

    def ownership(self, job: str) -> OwnershipToken | None:
        find = super().ownership
        return call("store.standing", CRASHES | {Fault.FAIL_BEFORE}, lambda: find(job))

    def claims(self, job: str) -> dict[str, str]:
        find = super().claims
        return call("store.claims", CRASHES | {Fault.FAIL_BEFORE}, lambda: find(job))

    def release_claims(self, job: str, generation: int) -> None:
        release = super().release_claims
        self._change("store.release_claims", FAILURES, lambda _: release(job, generation))

    def write_plan(
        self, job: str, generation: int, plan: Json, definition: Json, *, replacing: Json | None = None
    ) -> None:
        def write(_: bool) -> None:
            self.do_write_plan(job, generation, plan, definition, replacing)

        self._change("store.write_plan", FAILURES, write)

    def do_write_plan(self, job: str, generation: int, plan: Json, definition: Json, replacing: Json | None) -> None:
        super().write_plan(job, generation, plan, definition, replacing=replacing)
        planned = self.journal.plans[plan["epoch"]]
        if replacing is not None and plan not in planned:
            assert all(is_part_of(plan, stored) for stored in planned), "a plan was replaced by another one"
            self.journal.shrunk += 1
            planned.clear()
        planned.append(plan)

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        self._change("store.stage", IN_TASK, lambda _: self.do_stage(job, segments))

    def do_stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        super().stage(job, segments)
        self.journal.staged |= {meta.key for meta, _ in segments}

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        find = super().read_segments
        return call("store.read_segments", IN_TASK - {Fault.FAIL_AFTER}, lambda: find(job, keys))

    def commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        self._change(
            "store.commit", FAILURES | {Fault.ABORT}, lambda abort: self.transact(job, generation, commit, abort)
        )

    def transact(self, job: str, generation: int, commit: EpochCommit, abort: bool) -> None:
        """A commit as a database does it: what the effects did is visible when all of it is, or never."""
        transaction = Transaction()
        effects = [_in(transaction, effect) for effect in commit.effects]
        self.do_commit(job, generation, replace(commit, effects=[*effects, _fail] if abort else effects))
        for action in transaction.actions:
            action()
        self.journal.commits.append(Committed(generation, self.journal.generation, commit))
        if commit.next_plan is not None:
            self.journal.plans[commit.epoch + 1].append(commit.next_plan)

    def do_commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        super().commit(job, generation, commit)

    def sweep(self, job: str, generation: int) -> int:
        self._change("store.sweep", FAILURES, lambda _: self.do_sweep(job, generation))
        return 0

    def do_sweep(self, job: str, generation: int) -> None:
        self.journal.swept += super().sweep(job, generation)

    def _change(self, at: str, faults: frozenset[Fault], change: Callable[[bool], None]) -> None:
        faulty: list[Fault] = []

        def aside(fault: Fault) -> None:
            faulty.append(fault)
            if fault is Fault.DELAYED:
                self._spawn(f"delayed {at}", lambda: change(False))

        call(at, faults | {Fault.DELAYED}, lambda: change(Fault.ABORT in faulty), aside=aside)


def is_part_of(plan: Json, planned: Json) -> bool:
    """Whether the plan is `planned` with shorter ranges, or for smaller rows. Where it reads less of a table, it closes
    nothing."""
    may_differ = ("ranges", "tables_read", "reached", "unread", "row_limit", "row_limits")
    of_ranges = {name: plan[name] for name in may_differ if name in plan}
    settled = {part: [before, before] for part, (before, _) in planned["horizons"].items()}
    same = any({**planned, **of_ranges, "horizons": closed} == plan for closed in (planned["horizons"], settled))
    pairs = zip(plan["ranges"], planned["ranges"], strict=True)
    return same and all(new[:4] == old[:4] and new[4] <= old[4] for new, old in pairs)


def _in(transaction: Transaction, effect: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda _: effect(transaction)


def _fail(_: Any) -> None:
    raise SinkError("the simulated table cannot take the rows")
