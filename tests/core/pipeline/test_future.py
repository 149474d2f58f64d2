"""Rule T11: rows whose event time is too far ahead, judged by Kafka timestamps or by what the input has reached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.core.pipeline.future import FutureRows
from joinery_runtime.core.pipeline.watermark import END_OF_TIME

MOST = 100


def find(judge: FutureRows, times: Sequence[int], stamps: Sequence[int] | None = None) -> dict[int, int]:
    known = None if stamps is None else np.array(stamps, dtype=np.int64).__getitem__
    return judge.find(np.array(times, dtype=np.int64), known)


def test_a_row_is_compared_with_its_own_timestamp() -> None:
    assert find(FutureRows(MOST, None), [1_100, 1_101, 9_999, 50], [1_000] * 4) == {1: 1_000, 2: 1_000}


def test_with_timestamps_the_watermark_plays_no_part() -> None:
    """Records that were read long after they were written; and a watermark that a corrupt record has moved."""
    assert find(FutureRows(MOST, 0), [5_000], [5_000]) == {}
    assert find(FutureRows(MOST, END_OF_TIME), [5_200], [5_000]) == {0: 5_000}


def test_only_rows_that_are_ahead_of_the_first_one_s_timestamp_are_asked_for_theirs() -> None:
    asked: list[list[int]] = []

    def timestamps(at: np.ndarray) -> np.ndarray:
        asked.append(at.tolist())
        return np.full(len(at), 1_000)

    judge = FutureRows(MOST, None)
    assert judge.find(np.array([1_000, 1_050, 2_000, 1_100]), timestamps) == {2: 1_000}
    assert judge.find(np.array([1_000, 1_050]), timestamps) == {}
    assert asked == [[0], [2]]


def test_without_timestamps_a_row_is_compared_with_the_watermark_and_what_came_before() -> None:
    judge = FutureRows(MOST, 1_000)
    assert find(judge, [1_100, 1_201, 1_200, 1_301, 1_300, 500]) == {1: 1_100, 3: 1_200}
    assert find(judge, [1_401, 1_400], [-1, -1]) == {0: 1_300}, "the range goes on"


def test_an_earlier_row_does_not_take_back_what_was_reached() -> None:
    """The third one is ahead of the watermark by more than is allowed, and behind the second."""
    rows = [1_000 + MOST, 1_000 + 2 * MOST, 1_000 + MOST + 1, 1_000 + 3 * MOST]
    assert find(FutureRows(MOST, 1_000), rows) == {}


def test_without_timestamps_and_watermark_nothing_is_known() -> None:
    """T3: how far the rows of a first epoch lie apart says nothing."""
    assert find(FutureRows(MOST, None), [0, 10_000, -10_000]) == {}


def test_an_input_that_has_ended_judges_nobody() -> None:
    assert find(FutureRows(MOST, END_OF_TIME), [10_000]) == {}


RANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(-1, 400)), max_size=12)


@given(RANGES, st.none() | st.integers(0, 300), st.booleans(), st.data())
def test_however_a_range_is_cut_into_batches_the_same_rows_are_found(
    rows: list[tuple[int, int]], watermark: int | None, stamped: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    judge, found = FutureRows(MOST, watermark), set()
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        times, stamps = [ts for ts, _ in rows[start:stop]], [stamp for _, stamp in rows[start:stop]]
        found |= {start + at for at in find(judge, times, stamps if stamped else None)}
    assert found == row_by_row(rows, watermark, stamped)


def row_by_row(rows: Sequence[tuple[int, int]], watermark: int | None, stamped: bool) -> set[int]:
    found: set[int] = set()
    first, reached = rows[0][1] if rows and stamped else -1, watermark
    for at, (ts, stamp) in enumerate(rows):
        reference = max(first, stamp) if first >= 0 else reached
        if reference is not None and ts > reference + MOST:
            found.add(at)
        elif reached is not None:
            reached = max(reached, ts)
    return found
