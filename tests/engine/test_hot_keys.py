"""The hottest keys, against counting every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from job.resources import job
from joinery_runtime.core.compile.jobs import compile_join
from joinery_runtime.core.pipeline.prepare import DecodedRecords, prepare
from joinery_runtime.core.pipeline.sides import Intake
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import StateRun
from joinery_runtime.core.table.keyhash import shard_range
from joinery_runtime.core.table.segment import Run
from joinery_runtime.engine import hot_keys
from joinery_runtime.engine.hot_keys import (
    LONGEST_RUNS,
    LONGEST_VALUE,
    TOP,
    HotKeyTracker,
    KeyCounter,
    KeyRows,
    longest_runs,
)

(STEP,) = compile_join(job()).steps
(COMPOSITE,) = compile_join(job(("keys: {orders", "keys: {orders.country: payments.country, orders"))).steps


def run_of(keys: Sequence[str], side: int = 0, step: StepSpec = STEP) -> Run:
    """A row per key, the country is the key's length."""
    described = step.sides[side].intake
    values = {
        "order_id": keys,
        "country": [len(key) for key in keys],
        "amount": [None] * len(keys),
        "ts": [5] * len(keys),
    }
    columns = {field.name: pa.array(values[field.name], field.type) for field in described.schema}
    rows = pa.record_batch(columns, schema=described.schema)
    return Run.sort(prepare(described, DecodedRecords(rows, 0, np.arange(len(keys)))).rows)


def counted(segments: Sequence[Sequence[str]]) -> dict[str, int]:
    parts = [part(f"s{i}", run_of(keys, i % 2), i % 2) for i, keys in enumerate(segments)]
    return {hot_key.key: hot_key.rows for hot_key in KeyCounter(STEP).count(parts)}


def part(segment: str, run: Run, side: int = 0) -> tuple[int, StateRun]:
    return side, StateRun(segment, run)


keys = st.text("abc", min_size=1, max_size=2)
segments = st.lists(st.lists(keys, min_size=0, max_size=40), max_size=5)


@given(segments=segments)
def test_a_few_keys_are_counted_exactly_over_both_sides(segments: list[list[str]]) -> None:
    every = Counter(key for segment in segments for key in segment)
    counts = counted(segments)
    assert counts == {name: every[name.removeprefix("order_id=")] for name in counts}
    assert sorted(counts.values(), reverse=True) == sorted(every.values(), reverse=True)[:TOP]


def test_the_hottest_of_many_keys_are_found() -> None:
    numbers = range(5_000)
    hot = {f"hot{n}": 50 + n for n in range(TOP)}
    segments = [[f"k{n}" for n in numbers] + [key for key, rows in hot.items() for _ in range(rows)] for _ in range(3)]
    assert counted(segments) == {f"order_id={key}": 3 * rows for key, rows in hot.items()}


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3 * LONGEST_RUNS))
def test_the_longest_runs_are_as_long_as_any_other(lengths: list[int]) -> None:
    hashes = np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)
    values, counts = longest_runs(hashes)
    assert sorted(counts, reverse=True) == sorted(lengths, reverse=True)[:LONGEST_RUNS]
    assert [lengths[int(value)] for value in values] == list(counts)
    assert len(set(values.tolist())) == len(values)


def test_a_segment_is_looked_through_once_and_per_shard_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of([f"k{n}" for n in range(100)] + ["hot"] * 9)
    looked: list[int] = []
    monkeypatch.setattr(hot_keys, "longest_runs", lambda hashes: looked.append(len(hashes)) or longest_runs(hashes))
    counter = KeyCounter(STEP)
    halves = [run.within(shard_range(shard, 2)) for shard in range(2)]
    counts = [counter.count([part("s", half)]) for half in halves for _ in range(2)]
    assert looked == [len(half) for half in halves]
    assert counts[0] == counts[1] != counts[2] == counts[3]
    assert max(key.rows for keys in counts for key in keys) == 9
    counter.retain({"s"})
    counter.count([part("s", halves[0])])
    assert len(looked) == 2
    counter.retain(set())
    counter.count([part("s", halves[0])])
    assert len(looked) == 3


def test_a_part_of_a_segment_and_all_of_it_are_not_confused() -> None:
    """After an epoch with more shards the first shard had the beginning of the segment only."""
    run = run_of([f"k{n}" for n in range(200)] + ["hot"] * 9)
    half = next(
        half for half in (run.within(shard_range(shard, 2)) for shard in range(2)) if half.hash[0] == run.hash[0]
    )
    counter = KeyCounter(STEP)
    counter.count([part("s", half)])
    assert counter.count([part("s", run)]) == KeyCounter(STEP).count([part("s", run)])


def test_a_composite_key_names_its_columns_and_a_long_value_is_cut() -> None:
    counter = KeyCounter(COMPOSITE)
    (short,) = counter.count([part("s", run_of(["ab"], 1, COMPOSITE), 1)])
    assert short == KeyRows("country=2, order_id=ab", 1)
    (long,) = counter.count([part("t", run_of(["x" * 500], 0, COMPOSITE))])
    assert long.key == f"country=500, order_id={'x' * (LONGEST_VALUE - 1)}…"


def test_an_event_time_that_is_a_key_and_bytes_are_shown() -> None:
    by_time = replace(STEP, sides=tuple(replace(side, intake=_by_time(side.intake)) for side in STEP.sides))
    (key_rows,) = KeyCounter(by_time).count([part("s", run_of(["a"], 0, by_time))])
    assert key_rows == KeyRows("ts=1970-01-01 00:00:00.005000+00:00", 1)
    assert hot_keys._format_value(pa.scalar(b"\x00\xff")) == "00ff"


def _by_time(intake: Intake) -> Intake:
    return replace(intake, keys=("ts",))


def test_no_state_has_no_hottest_key() -> None:
    assert KeyCounter(STEP).count([]) == ()


# --- the job's --------------------------------------------------------------------------------------------------------


def test_shards_are_put_together_by_what_each_told_last() -> None:
    hottest = HotKeyTracker({})
    learned = hottest.learn(2, {(0, 0): (KeyRows("a", 5), KeyRows("b", 1)), (0, 1): (KeyRows("c", 3),)})
    assert learned.hottest == (KeyRows("a", 5), KeyRows("c", 3), KeyRows("b", 1))
    learned = hottest.learn(2, {(0, 0): None, (0, 1): (KeyRows("d", 9),)})
    assert learned.hottest == (KeyRows("d", 9), KeyRows("a", 5), KeyRows("b", 1))
    learned = hottest.learn(3, {(0, shard): None for shard in range(3)})
    assert learned.hottest == (), "other shards own other keys"


def test_steps_have_keys_of_their_own() -> None:
    learned = HotKeyTracker({}).learn(1, {(0, 0): (KeyRows("a", 5),), (1, 0): (KeyRows("a", 7, 1),)})
    assert learned.hottest == (KeyRows("a", 7, 1), KeyRows("a", 5, 0))


def test_only_the_top_is_told() -> None:
    keys = {(0, shard): tuple(KeyRows(f"{shard}-{n}", n) for n in range(TOP)) for shard in range(2)}
    assert [key.rows for key in HotKeyTracker({}).learn(2, keys).hottest] == [9, 9, 8, 8, 7, 7, 6, 6, 5, 5]


def test_a_key_is_warned_about_once_until_it_has_fallen() -> None:
    keys = HotKeyTracker({0: 10, 1: 100})
    at = [(0, 0), (1, 0)]

    def learn(rows: int) -> list[str]:
        heat = keys.learn(
            1, dict(zip(at, [(KeyRows("a", rows), KeyRows("b", 10)), (KeyRows("a", 99, 1),)], strict=True))
        )
        assert [key.rows for key in heat.too_hot] == [rows] * (rows > 10)
        return list(heat.warnings)

    (warning,) = learn(11)
    assert warning.startswith("Hot key a of step 1: 11 rows in the state, hotKeyWarning is 10.")
    assert learn(12) == []
    assert learn(10) == []
    assert len(learn(11)) == 1
    assert keys.learn(1, dict.fromkeys(at)).warnings == (), "not counted anew"
    assert keys.learn(2, {(0, 0): (KeyRows("a", 11),), (0, 1): None, (1, 0): None, (1, 1): None}).warnings == ()
