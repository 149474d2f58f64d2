"""Rule T4: read to its end, and there for `idleTimeout` of the job's running time."""

from __future__ import annotations

from joinery_runtime.connectors.source import Bounds
from joinery_runtime.engine.source_snapshot import LONGEST_STEP_MS, PACE_MS, IdleClock
from joinery_runtime.formats.batch import PartitionRef

P, Q = PartitionRef("orders", "t", 0), PartitionRef("orders", "t", 1)
R = PartitionRef("payments", "u", 0)


def at_end(*refs: PartitionRef) -> list[Bounds]:
    return [Bounds(ref, 10, 10) for ref in refs]


def unread(ref: PartitionRef) -> list[Bounds]:
    return [Bounds(ref, 10, 11)]


def clock(**timeouts: int) -> IdleClock:
    return IdleClock({"orders": 1_000, "payments": 1_000} | timeouts)


def look(idleness: IdleClock, bounds: list[Bounds], first: int, last: int) -> None:
    """Looks every 500 ms, as a running driver does."""
    for now in range(first, last + 1, 500):
        idleness.observe(bounds, now)


def test_a_partition_is_idle_after_the_timeout_at_its_end() -> None:
    idleness = clock()
    idleness.observe(at_end(P), 5_000)
    idleness.observe(at_end(P), 5_999)
    assert idleness.idle() == {}
    idleness.observe(at_end(P), 6_000)
    assert idleness.idle() == {"orders": ("t/0",)}


def test_unread_records_never_make_it_idle_and_start_the_time_anew() -> None:
    idleness = clock()
    idleness.observe(at_end(P), 0)
    look(idleness, unread(P), 900, 9_900)
    assert idleness.idle() == {}
    idleness.observe(at_end(P), 10_000)
    idleness.observe(at_end(P), 10_999)
    assert idleness.idle() == {}
    idleness.observe(at_end(P), 11_000)
    assert idleness.idle() == {"orders": ("t/0",)}


def test_an_open_transaction_is_no_idle_time() -> None:
    """Its records are in the partition, and unread until it commits."""
    idleness = clock()
    look(idleness, [Bounds(P, 10, 10, undecided=3)], 0, 60_000)
    assert idleness.idle() == {}
    look(idleness, at_end(P), 60_500, 61_000)
    assert idleness.idle() == {}
    look(idleness, at_end(P), 61_500, 62_000)
    assert idleness.idle() == {"orders": ("t/0",)}


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The broker could not be reached, or the process stood still: T4."""
    idleness = clock(orders=60_000)
    idleness.observe(at_end(P), 0)
    idleness.observe(at_end(P), 3_600_000)
    assert idleness.idle() == {}
    look(idleness, at_end(P), 3_600_000, 3_600_000 + 60_000)
    assert idleness.idle() == {"orders": ("t/0",)}


def test_a_partition_that_was_taken_away_is_forgotten() -> None:
    idleness = clock()
    look(idleness, at_end(P, Q), 0, 2_000)
    idleness.observe(at_end(P), 2_500)
    assert idleness.idle() == {"orders": ("t/0",)}
    idleness.observe(at_end(P, Q), 3_000)
    assert idleness.idle() == {"orders": ("t/0",)}


def test_partitions_and_inputs_are_idle_one_by_one_with_timeouts_of_their_own() -> None:
    idleness = clock(payments=3_000)
    look(idleness, at_end(Q, P, R), 0, 1_000)
    assert idleness.idle() == {"orders": ("t/0", "t/1")}
    look(idleness, at_end(Q, P, R), 1_000, 3_000)
    assert idleness.idle() == {"orders": ("t/0", "t/1"), "payments": ("u/0",)}


def test_a_timeout_of_zero_switches_idleness_off() -> None:
    idleness = clock(orders=0)
    look(idleness, at_end(P, R), 0, 100_000)
    assert idleness.idle() == {"payments": ("u/0",)}


def test_how_long_all_inputs_have_been_idle() -> None:
    idleness = clock()
    assert idleness.idle_for_ms(False, 100, 0) == 0
    assert idleness.idle_for_ms(True, 200, 0) == 0
    assert idleness.idle_for_ms(True, 450, 0) == 0, "whole steps: watermarks do not move at every look"
    assert idleness.idle_for_ms(True, 1_350, 0) == PACE_MS
    assert idleness.idle_for_ms(True, 2_350, PACE_MS) == 2 * PACE_MS, "what was committed since is counted once"
    assert idleness.idle_for_ms(True, 3_600_000, 0) == 2 * PACE_MS + LONGEST_STEP_MS
    assert idleness.idle_for_ms(False, 3_600_500, 0) == 0
    assert idleness.idle_for_ms(True, 3_600_600, 0) == 0


def test_time_that_all_inputs_were_idle_before_a_restart() -> None:
    idleness = clock()
    assert idleness.idle_for_ms(False, 0, 7 * PACE_MS) == 0
    assert idleness.idle_for_ms(True, 500, 7 * PACE_MS) == 7 * PACE_MS
    assert idleness.idle_for_ms(True, 1_600, 7 * PACE_MS) == 8 * PACE_MS
