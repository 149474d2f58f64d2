"""Rule T4: read to its end, and there for `idleTimeout` of the job's running time."""

from __future__ import annotations

from joinery_runtime.engine.idleness import IdleClock
from joinery_runtime.sources.base import Bounds, PartitionRef

P, Q = PartitionRef("orders", "t", 0), PartitionRef("orders", "t", 1)
R = PartitionRef("payments", "u", 0)


def at_end(*refs: PartitionRef) -> list[Bounds]:
    return [Bounds(ref, 10, 10) for ref in refs]


def unread(ref: PartitionRef) -> list[Bounds]:
    return [Bounds(ref, 10, 11)]


def clock(**timeouts: int) -> IdleClock:
    return IdleClock({"orders": 1_000, "payments": 1_000} | timeouts)


def test_a_partition_is_idle_after_the_timeout_at_its_end() -> None:
    idleness = clock()
    idleness.observe(at_end(P), 5_000)
    assert idleness.idle(5_999) == {}
    assert idleness.idle(6_000) == {"orders": ("t/0",)}


def test_seeing_it_at_the_end_again_does_not_start_anew() -> None:
    idleness = clock()
    for now in (0, 500, 999):
        idleness.observe(at_end(P), now)
    assert idleness.idle(1_000) == {"orders": ("t/0",)}


def test_unread_records_never_make_it_idle_and_start_the_time_anew() -> None:
    idleness = clock()
    idleness.observe(at_end(P), 0)
    idleness.observe(unread(P), 900)
    assert idleness.idle(10_000) == {}
    idleness.observe(at_end(P), 10_000)
    assert idleness.idle(10_999) == {}
    assert idleness.idle(11_000) == {"orders": ("t/0",)}


def test_a_restart_forgets_how_long_it_was_quiet() -> None:
    before = clock()
    before.observe(at_end(P), 0)
    after = clock()
    after.observe(at_end(P), 60_000)
    assert after.idle(60_500) == {}


def test_partitions_and_inputs_are_idle_one_by_one_with_timeouts_of_their_own() -> None:
    idleness = clock(payments=3_000)
    idleness.observe(at_end(Q, P, R), 0)
    assert idleness.idle(1_000) == {"orders": ("t/0", "t/1")}
    assert idleness.idle(3_000) == {"orders": ("t/0", "t/1"), "payments": ("u/0",)}


def test_a_timeout_of_zero_switches_idleness_off() -> None:
    idleness = clock(orders=0)
    idleness.observe(at_end(P, R), 0)
    assert idleness.idle(10**9) == {"payments": ("u/0",)}


def test_how_long_all_inputs_have_been_idle() -> None:
    idleness = clock()
    assert idleness.idle_for_ms(False, 100) == 0
    assert idleness.idle_for_ms(True, 200) == 0
    assert idleness.idle_for_ms(True, 450) == 250
    assert idleness.idle_for_ms(False, 500) == 0
    assert idleness.idle_for_ms(True, 600) == 0
