"""Finds the join keys with the most rows in the state, at a bounded cost.

The processes that cache the segments look for them: at checkpoints, and once earlier, after the first epoch in which a
process has all segments of a shard in its cache. A segment is sorted by key hash, so a key's rows are one run of equal
hashes. A process finds each segment's longest runs once, since segments are immutable, and then counts their keys in
all segments of the shard. The search misses a key that has none of the longest runs of any segment, even if the key is
in many segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.rows import Selection, gather
from joinery_runtime.core.pipeline.sides import LEFT
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import StateRun
from joinery_runtime.job.model.wording import counted

TOP = 10
LONGEST_RUNS = 64  # per segment, and per shard once those of its segments are combined
LONGEST_VALUE = 100  # characters


@dataclass(frozen=True, slots=True)
class KeyRows:
    """A join key of a step (0 is the first) as text (`column=value, ...`, with the left side's names), and the number
    of its rows in the state, both sides together."""

    key: str
    rows: int
    step: int = 0


SideRun = tuple[int, StateRun]  # a side and rows of that side


class KeyCounter:
    """Counts the keys of one step in one process. Remembers the longest runs of each segment."""

    def __init__(self, step: StepSpec) -> None:
        self._step = step
        # By segment, first hash and number of rows: each shard holds a part of a segment that spans shards.
        self._longest: dict[tuple[str, int, int], tuple[np.ndarray, np.ndarray]] = {}

    def count(self, state_runs: Sequence[SideRun]) -> tuple[KeyRows, ...]:
        """Return the TOP keys of these runs, most rows first; none for a join on time only, which has no keys."""
        filled = [(side, stored) for side, stored in state_runs if len(stored.run)]
        if not filled or self._step.broadcast:
            return ()
        longest = list[tuple[np.ndarray, np.ndarray]]()
        for _, stored in filled:
            key = (stored.segment, int(stored.run.hash[0]), len(stored.run))
            if key not in self._longest:
                self._longest[key] = longest_runs(stored.run.hash)
            longest.append(self._longest[key])
        candidates, inverse = np.unique(np.concatenate([h for h, _ in longest]), return_inverse=True)
        rows = np.bincount(inverse, weights=np.concatenate([n for _, n in longest]))
        hashes = candidates[np.argsort(-rows, kind="stable")[:LONGEST_RUNS]]
        counts = np.zeros(len(hashes), dtype=np.int64)
        for _, stored in filled:
            first, stop = (np.searchsorted(stored.run.hash, hashes, side=side) for side in ("left", "right"))
            counts += stop - first
        order = np.argsort(-counts, kind="stable")[:TOP]
        return tuple(
            KeyRows(self._key_text(filled, hashes[i]), int(counts[i]), self._step.number) for i in order if counts[i]
        )

    def retain(self, segments: Collection[str]) -> None:
        self._longest = {key: longest for key, longest in self._longest.items() if key[0] in segments}

    def _key_text(self, state_runs: Iterable[SideRun], key_hash: np.uint64) -> str:
        for side, stored in state_runs:
            at = int(np.searchsorted(stored.run.hash, key_hash))
            if at < len(stored.run) and stored.run.hash[at] == key_hash:
                spec, names = self._step.sides[side], self._step.sides[LEFT].intake.keys
                selection = Selection(stored.run.batch, np.array([at]))
                values = [_format_value(gather(spec, selection, key)[0]) for key in spec.intake.keys]
                return ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
        raise AssertionError("a key that was counted is there")


def longest_runs(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values that occur most often (at most LONGEST_RUNS) in sorted uint64[n], n > 0, and how often."""
    starts = np.concatenate(([0], np.flatnonzero(hashes[1:] != hashes[:-1]) + 1))
    lengths = np.diff(starts, append=len(hashes))
    if len(lengths) > LONGEST_RUNS:
        # A counting sort: `np.partition` on so many equal lengths takes twenty times as long.
        at_least = np.cumsum(np.bincount(lengths)[::-1])[::-1]
        shortest = int(np.flatnonzero(at_least >= LONGEST_RUNS)[-1])
        longer, as_long = np.flatnonzero(lengths > shortest), np.flatnonzero(lengths == shortest)
        chosen = np.concatenate((longer, as_long))[:LONGEST_RUNS]
        starts, lengths = starts[chosen], lengths[chosen]
    return hashes[starts], lengths


def _format_value(value: pa.Scalar) -> str:
    plain = value.as_py()
    text = plain.hex() if isinstance(plain, bytes) else str(plain)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


@dataclass(frozen=True, slots=True)
class HotKeys:
    """The hot keys after an epoch: `hottest` have the most rows, `too_hot` have more rows than the job's warning level,
    `warnings` name keys that have just become too hot."""

    hottest: tuple[KeyRows, ...] = ()
    too_hot: tuple[KeyRows, ...] = ()
    warnings: tuple[str, ...] = ()


class HotKeyTracker:
    """Keeps the job's hottest keys, from the newest count of each step and shard: no key is in two shards of a step.
    `warn_above` is a number of rows, by step."""

    def __init__(self, warn_above: Mapping[int, int]) -> None:
        self._warn_above = warn_above
        self._shards = 0
        self._by_shard: dict[tuple[int, int], tuple[KeyRows, ...]] = {}
        self._warned: set[tuple[int, str]] = set()

    def learn(self, shards: int, counts: Mapping[tuple[int, int], tuple[KeyRows, ...] | None]) -> HotKeys:
        """Take the counts of an epoch with `shards` shards, by step and shard (None: not counted this time). Warns
        about a key once, and again only after it fell below the level."""
        if shards != self._shards:
            self._shards, self._by_shard = shards, {}
        self._by_shard.update({shard: keys for shard, keys in counts.items() if keys is not None})
        every = [key for keys in self._by_shard.values() for key in keys]
        every.sort(key=lambda key: (-key.rows, key.step, key.key))
        too_hot = [key for key in every if key.rows > self._warn_above.get(key.step, key.rows)]
        new = [key for key in too_hot if (key.step, key.key) not in self._warned]
        if self._by_shard.keys() == counts.keys():  # else some shard has yet to count after a rescale
            self._warned.clear()
        self._warned |= {(key.step, key.key) for key in too_hot}
        warnings = tuple(
            f"Hot key {key.key} of step {key.step + 1}: {counted(key.rows, 'row')} in the state, hotKeyWarning is "
            f"{self._warn_above[key.step]:,}. Each of its rows is compared with those of the other side that are near "
            "enough in time: a narrower bound, a further key column, or a `where` that keeps such rows out helps"
            for key in new
        )
        return HotKeys(tuple(every[:TOP]), tuple(too_hot[:TOP]), warnings)
