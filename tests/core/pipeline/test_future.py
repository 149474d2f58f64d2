"""Rule T11: rows whose event time is too far ahead, judged by the plan's clock and by Kafka timestamps. The rule of
plans without a clock stays as it was."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joinery_devkit.oracle import too_far_ahead
from joinery_runtime.core.pipeline.lateness import FormerFutureRows, FutureCheck, FutureRows
from joinery_runtime.core.pipeline.watermark import END_OF_TIME

MOST = 100


def find(check: FutureCheck, times: Sequence[int], stamps: Sequence[int] | None = None) -> dict[int, int]:
    stamps_at = None if stamps is None else np.array(stamps, dtype=np.int64).__getitem__
    return check.find(np.array(times, dtype=np.int64), stamps_at)


def test_a_row_without_a_timestamp_is_compared_with_the_clock() -> None:
    assert find(FutureRows(MOST, 1_000), [1_100, 1_101, -9_999, 0, 9_999]) == {1: 1_000, 4: 1_000}
    assert find(FutureRows(MOST, 1_000), [1_100, 1_101], [-1, -1]) == {1: 1_000}


def test_a_row_is_compared_with_its_own_timestamp() -> None:
    """However old it is: the topic may be read years after it was written."""
    assert find(FutureRows(MOST, 5_000), [1_100, 1_101, 9_999, 50], [1_000] * 4) == {1: 1_000, 2: 1_000}


def test_a_timestamp_is_not_believed_beyond_the_clock() -> None:
    """Many producers give the record its event time as its timestamp, so a wrong one would vouch for itself."""
    assert find(FutureRows(MOST, 1_000), [9_999, 1_100, 1_101], [9_999, 9_999, 1_000]) == {0: 1_000, 2: 1_000}


def test_without_clock_and_timestamp_nothing_is_known() -> None:
    assert find(FutureRows(MOST, None), [0, 10_000, -10_000, 253_402_300_799_999]) == {}
    assert find(FutureRows(MOST, None), [0, 1_101, 10_000], [-1, 1_000, -1]) == {1: 1_000}


def test_the_reason_names_what_the_row_is_ahead_of() -> None:
    check = FutureRows(MOST, 2_000)
    assert check.reason("ts", 3_000, 2_000) == (
        "future: event time 'ts' is 1970-01-01T00:00:03.000Z, more than watermark.maxFuture (100ms) ahead of "
        "the driver's clock, 1970-01-01T00:00:02.000Z"
    )
    assert check.reason("ts", 3_000, 1_000).endswith("ahead of its record's Kafka timestamp, 1970-01-01T00:00:01.000Z")


def test_a_clock_that_runs_away_by_less_than_a_day_at_a_time_drags_nothing_along() -> None:
    """A device gains 20 hours with every record. What is more than a day ahead of the driver's clock is rejected,
    however near its predecessor is; records of other devices, from before and after, are not."""
    hour, now = 3_600_000, 1_700_000_000_000
    device = [now + 20 * hour * n for n in range(6)]
    other_times = [now - 50 * 24 * hour, now, now + 24 * hour]
    times = [*device[:3], *other_times, *device[3:], *other_times]
    rejected = find(FutureRows(24 * hour, now), times)
    assert {times[at] for at in rejected} == set(device[2:])
    assert set(rejected.values()) == {now}


ROWS = st.lists(st.tuples(st.integers(0, 400), st.integers(-1, 400)), max_size=12)


@given(ROWS, st.none() | st.integers(0, 300), st.booleans(), st.randoms(use_true_random=False))
def test_neither_the_order_of_rows_nor_the_cuts_of_ranges_change_what_is_found(
    rows: list[tuple[int, int]], clock: int | None, stamped: bool, random: Random
) -> None:
    """T9. Each batch gets a check of its own, as each range of an epoch does."""
    stamps = [stamp if stamped else -1 for _, stamp in rows]
    expected = too_far_ahead([ts for ts, _ in rows], stamps, MOST, clock)
    order = random.sample(range(len(rows)), len(rows))
    while order:
        count = random.randint(1, len(order))
        batch, order = order[:count], order[count:]
        check = FutureRows(MOST, clock)
        rejected = find(check, [rows[at][0] for at in batch], [rows[at][1] for at in batch] if stamped else None)
        assert {batch[at] for at in rejected} == expected & set(batch)


# --- plans of earlier releases ----------------------------------------------------------------------------------------


def test_formerly_a_row_was_compared_with_its_own_timestamp() -> None:
    assert find(FormerFutureRows(MOST, None), [1_100, 1_101, 9_999, 50], [1_000] * 4) == {1: 1_000, 2: 1_000}


def test_formerly_the_watermark_played_no_part_where_there_were_timestamps() -> None:
    """Records that were read long after they were written; and a watermark that a corrupt record has moved."""
    assert find(FormerFutureRows(MOST, 0), [5_000], [5_000]) == {}
    assert find(FormerFutureRows(MOST, END_OF_TIME), [5_200], [5_000]) == {0: 5_000}


def test_formerly_the_first_usable_row_vouched_for_others() -> None:
    requested: list[list[int]] = []

    def timestamps(at: np.ndarray) -> np.ndarray:
        requested.append(at.tolist())
        return np.full(len(at), 1_000)

    check = FormerFutureRows(MOST, None)
    assert check.find(np.array([1_000, 1_050, 2_000, 1_100]), timestamps) == {2: 1_000}
    assert check.find(np.array([1_000, 1_050]), timestamps) == {}
    assert requested == [[0], [2]]


def test_formerly_a_row_without_timestamp_was_compared_with_the_watermark_and_what_came_before() -> None:
    check = FormerFutureRows(MOST, 1_000)
    assert find(check, [1_100, 1_201, 1_200, 1_301, 1_300, 500]) == {1: 1_100, 3: 1_200}
    assert find(check, [1_401, 1_400], [-1, -1]) == {0: 1_300}, "the range goes on"


def test_formerly_an_earlier_row_did_not_take_back_what_was_reached() -> None:
    """The third one is ahead of the watermark by more than is allowed, and behind the second."""
    rows = [1_000 + MOST, 1_000 + 2 * MOST, 1_000 + MOST + 1, 1_000 + 3 * MOST]
    assert find(FormerFutureRows(MOST, 1_000), rows) == {}


def test_formerly_nothing_was_known_without_timestamps_and_watermark() -> None:
    assert find(FormerFutureRows(MOST, None), [0, 10_000, -10_000]) == {}


def test_formerly_an_input_that_had_ended_judged_nobody() -> None:
    assert find(FormerFutureRows(MOST, END_OF_TIME), [10_000]) == {}


@given(ROWS, st.none() | st.integers(0, 300), st.booleans(), st.data())
def test_formerly_however_a_range_was_cut_into_batches_the_same_rows_were_found(
    rows: list[tuple[int, int]], watermark: int | None, stamped: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    check, rejected = FormerFutureRows(MOST, watermark), set()
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        times, stamps = [ts for ts, _ in rows[start:stop]], [stamp for _, stamp in rows[start:stop]]
        rejected |= {start + at for at in find(check, times, stamps if stamped else None)}
    assert rejected == row_by_row(rows, watermark, stamped)


def row_by_row(rows: Sequence[tuple[int, int]], watermark: int | None, stamped: bool) -> set[int]:
    rejected: set[int] = set()
    first, reached = rows[0][1] if rows and stamped else -1, watermark
    for at, (ts, stamp) in enumerate(rows):
        reference = max(first, stamp) if first >= 0 else reached
        if reference is not None and ts > reference + MOST:
            rejected.add(at)
        elif reached is not None:
            reached = max(reached, ts)
    return rejected
