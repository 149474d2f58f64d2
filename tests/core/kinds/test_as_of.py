"""The as-of join by hand: rules A1-A4, with the seed's example (seed 002)."""

from __future__ import annotations

from itertools import permutations

import pytest

from core.kinds.as_of_shard import Rate, Shard, Trade, all_the_same, asof_step, rows_of
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.core.pipeline.spec import InputSpec, Pipeline
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS, Horizon
from joinery_runtime.core.pipeline.times import horizons
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputTime

EUR_AT_1_2_3 = [Rate("E", ts, ts * 10, offset=ts) for ts in (1, 2, 3)]


def test_a_row_takes_the_version_that_is_valid_at_its_time():
    shard = Shard(asof_step())
    result = shard.epoch([Trade("E", ts, offset=ts) for ts in (0, 1, 2, 9)], EUR_AT_1_2_3)
    assert rows_of(result) == [("E", 0, 10, 1), ("E", 0, 20, 2), ("E", 0, 30, 3)]  # nothing is valid at 0
    assert (result.lookups, result.matches) == ((4, 0), 3)


def test_a_left_join_pads_the_row_that_comes_before_every_version():
    shard = Shard(asof_step(left=True))
    result = shard.epoch([Trade("E", 1, 5), Trade("E", 0, 6, offset=1), Trade("X", 9, 7, offset=2)], EUR_AT_1_2_3)
    assert rows_of(result) == [("E", 5, 10, 1), ("E", 6, None, None), ("X", 7, None, None)]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_with_grace_the_seeds_example_joins_the_same_in_any_order_of_arrival(order):
    """Seed 002: versions at 1, 2, 3, a stream row at 2, retention 10; it waits, so it always finds the one at 2."""
    shard = Shard(asof_step(grace=5))
    steps = [*(((), [rate]) for rate in EUR_AT_1_2_3), ([Trade("E", 2, 7)], ())]
    for number in order:
        trades, rates = steps[number]
        assert shard.epoch(trades, rates, now=-5).output == []
    assert rows_of(shard.epoch(now=2)) == [("E", 7, 20, 2)]
    assert shard.epoch(now=9).output == []


def test_without_grace_the_seeds_example_joins_what_is_there():
    shard = Shard(asof_step())
    assert rows_of(shard.epoch([Trade("E", 2, 7)], EUR_AT_1_2_3[:1])) == [("E", 7, 10, 1)]
    assert rows_of(shard.epoch([Trade("E", 2, 8)], EUR_AT_1_2_3[1:])) == [("E", 8, 20, 2)]
    assert shard.kept_rows(LEFT) == 0


def test_of_two_versions_with_one_time_the_higher_offset_counts_whichever_came_first():
    shard = Shard(asof_step())
    shard.epoch(rates=[Rate("E", 1, 13, offset=3), Rate("E", 1, 12, offset=2)])
    assert rows_of(shard.epoch([Trade("E", 1)], [Rate("E", 1, 11, offset=1)])) == [("E", 0, 13, 1)]
    assert rows_of(shard.epoch([Trade("E", 1)], [Rate("E", 1, 14, offset=4)])) == [("E", 0, 14, 1)]


def test_a_deletion_is_a_version():
    shard = Shard(asof_step(left=True))
    shard.epoch(rates=[Rate("E", 1, 10, offset=1), Rate("E", 3, None, offset=2), Rate("E", 5, 50, offset=3)])
    result = shard.epoch([Trade("E", ts, ts, offset=ts) for ts in range(1, 7)])
    assert [(amount, rate) for _, amount, rate, _ in rows_of(result)] == [
        *((1, 10), (2, 10), (3, None), (4, None), (5, 50), (6, 50))
    ]
    assert result.matches == 4


def test_rows_that_wait_go_out_by_time_and_older_arrivals_after_them_at_once():
    shard = Shard(asof_step(grace=4))
    shard.epoch([Trade("E", 5, 1, offset=1), Trade("E", 4, 2, offset=2)], EUR_AT_1_2_3, now=0)
    shard.epoch([Trade("E", 3, 3, offset=3), Trade("E", 8, 4, offset=4)], now=0)
    result = shard.epoch([Trade("E", 6, 5, offset=5), Trade("E", 2, 6, offset=6), Trade("E", 7, 7, offset=7)], now=6)
    assert [amount for _, amount, _, _ in rows_of(result)] == [3, 2, 1, 5, 6]
    assert [amount for _, amount, _, _ in rows_of(shard.epoch(now=8))] == [7, 4]


def test_the_end_releases_everything_that_waits():
    shard = Shard(asof_step(grace=4))
    assert shard.epoch([Trade("E", 2, 1), Trade("E", 10**12, 2, offset=1)], EUR_AT_1_2_3).output == []
    assert rows_of(shard.epoch(now=END_OF_TIME)) == [("E", 1, 20, 2), ("E", 2, 30, 3)]


def test_a_row_that_cannot_match_is_padded_at_once_even_with_grace():
    shard = Shard(asof_step(grace=4, left=True))
    result = shard.epoch([Trade("E", 5, 1), Trade("E", 6, 2, offset=1, joinable=False)], EUR_AT_1_2_3, now=0)
    assert rows_of(result) == [("E", 2, None, None)]
    assert (result.lookups, shard.kept_rows(LEFT)) == ((0, 0), 1)


def test_the_version_valid_at_the_horizon_stays_and_older_ones_are_gone():
    shard = Shard(asof_step(left=True))
    shard.epoch(rates=EUR_AT_1_2_3)
    times = (1, 2, 3, 9)
    result = shard.epoch([Trade("E", ts, offset=ts) for ts in times], history=2)
    assert [rate for _, _, rate, _ in rows_of(result)] == [None, 20, 30, 30]
    result = shard.epoch([Trade("E", ts, offset=ts) for ts in times], history=100)
    assert [rate for _, _, rate, _ in rows_of(result)] == [None, None, 30, 30]


def test_a_version_superseded_beyond_the_horizon_on_arrival_is_dropped_and_counted():
    shard = Shard(asof_step())
    shard.epoch(rates=[Rate("E", 5, 50, offset=1)])
    late = [
        Rate("E", 4, 40, offset=2),
        Rate("E", 5, 51, offset=3),
        Rate("E", 5, 49, offset=0),
        Rate("X", 4, 1, offset=4),
    ]
    result = shard.epoch([Trade("E", 5), Trade("X", 5, offset=1)], late, history=5)
    assert result.dropped == ({}, {"expired": 2})  # X is its key's only version, and 51 has the higher offset
    assert rows_of(result) == [("E", 0, 51, 5), ("X", 0, 1, 4)]
    assert shard.kept_rows(RIGHT) == 3


def test_what_arrived_before_it_in_the_epoch_supersedes_a_version_and_what_comes_after_does_not_count():
    shard = Shard(asof_step())
    in_disorder = [Rate("E", 5, 50, offset=1), Rate("E", 4, 40, offset=2), Rate("E", 6, 60, offset=3)]
    assert shard.epoch(rates=in_disorder, history=5).dropped == ({}, {"expired": 1})
    in_order = [Rate("X", 4, 40, offset=4), Rate("X", 5, 50, offset=5)]
    assert shard.epoch([Trade("X", 4)], in_order).dropped == ({}, {})
    assert rows_of(shard.epoch([Trade("X", 4), Trade("X", 5, offset=1)])) == [("X", 0, 50, 5)]


def test_a_predicate_on_the_table_hides_the_match_never_the_version():
    shard = Shard(asof_step(where="rates.rate > 15"))
    shard.epoch(rates=[Rate("E", 1, 20, offset=1), Rate("E", 2, 10, offset=2)])
    result = shard.epoch([Trade("E", 1), Trade("E", 2, offset=1)])
    assert rows_of(result) == [("E", 0, 20, 1)]
    assert result.matches == 1


def test_keys_with_one_hash_are_told_apart_in_every_run():
    shard = Shard(asof_step(left=True), all_the_same)
    shard.epoch(rates=[Rate("A", 1, 1, offset=1), Rate("B", 2, 2, offset=2), Rate("C", 3, 3, offset=3)])
    shard.epoch(rates=[Rate("B", 4, 4, offset=4), Rate("C", 5, 5, offset=5)])
    result = shard.epoch([Trade(key, 9, offset=n) for n, key in enumerate("ABCD")])
    assert [rate for _, _, rate, _ in rows_of(result)] == [1, 4, 5, None]


def test_compaction_keeps_what_is_valid_at_the_horizon_and_what_comes_after_it():
    shard = Shard(asof_step())
    shard.epoch(rates=EUR_AT_1_2_3[::2])
    shard.epoch(rates=EUR_AT_1_2_3[1:2])
    shard.epoch(history=2)
    shard.compact(RIGHT, [True, True])
    assert [run.run.ts.tolist() for run in shard.runs[RIGHT]] == [[2, 3]]


def test_a_deletion_that_is_valid_at_the_horizon_stays_lest_the_past_come_back():
    shard = Shard(asof_step())
    shard.epoch(rates=[Rate("E", 1, 10, offset=1), Rate("E", 2, None, offset=2)])
    shard.epoch(history=50)
    shard.compact(RIGHT, [True])
    assert shard.kept_rows(RIGHT) == 1
    result = shard.epoch([Trade("E", 60)], [Rate("E", 1, 11, offset=3)])
    assert (result.output, result.dropped) == ([], ({}, {"expired": 1}))


def test_compaction_drops_the_rows_that_no_longer_wait():
    shard = Shard(asof_step(grace=4))
    shard.epoch([Trade("E", ts, offset=ts) for ts in (3, 4, 5)], now=0)
    shard.epoch(now=4)
    shard.compact(LEFT, [True])
    assert [run.run.ts.tolist() for run in shard.runs[LEFT]] == [[5]]


def test_before_anything_is_known_nothing_is_dropped_and_nothing_goes_out():
    shard = Shard(asof_step(grace=4))
    shard.epoch([Trade("E", 3)], EUR_AT_1_2_3)
    for side in (LEFT, RIGHT):
        assert shard.horizons[side] == Horizon()
        shard.compact(side, [True])
    assert (shard.kept_rows(LEFT), shard.kept_rows(RIGHT)) == (1, 3)


def test_traces_get_the_places_of_rows_and_versions():
    shard = Shard(asof_step(grace=4, left=True), ordered=True)
    shard.epoch([Trade("E", 3, partition=1, offset=7)], EUR_AT_1_2_3, now=0)
    [batch] = shard.epoch(now=3).output
    assert batch.select(ORDER_COLUMNS).to_pylist() == [dict(zip(ORDER_COLUMNS, (0, 3, 0, 1, 7, 0, 3, 0), strict=True))]
    [batch] = shard.epoch([Trade("E", 3, offset=8), Trade("X", 3, offset=9)]).output
    assert [tuple(row.values()) for row in batch.select(ORDER_COLUMNS).to_pylist()] == [
        *((1, 0, 0, 0, 8, 0, 3, 0), (1, 0, 0, 0, 9, -1, -1, 0))
    ]


def test_the_end_of_both_inputs_releases_what_waits_and_forgets_no_version():
    step = asof_step(grace=4)
    pipeline = Pipeline((InputSpec("trades", 0, LEFT), InputSpec("rates", 0, RIGHT)), (step,))
    ended = {"trades": InputTime(END_OF_TIME, 20), "rates": InputTime(END_OF_TIME, 30)}
    assert horizons(pipeline, ended, {}) == {"left": Horizon(None, END_OF_TIME), "right": Horizon(None, 20)}
