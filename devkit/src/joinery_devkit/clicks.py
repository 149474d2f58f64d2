"""Generates clicks of visitors to a web site, in bursts, from which sessions are made.

`make` returns the demo's records, some of them damaged or delayed, in sending order. `draw` returns any number of
clicks as arrays, millions within seconds, and `records` returns them as JSON. The same seed gives the same clicks.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl

from joinery_devkit.datagen import Changes, GeneratedRecord, Kind, encoded
from joinery_runtime.job import parse_duration

TOPIC = "clicks"
FIRST_CLICK_MS = int(datetime(2026, 3, 2, 9, tzinfo=UTC).timestamp() * 1000)

# The values in examples/session-window.yaml, for which the clicks are made.
GAP_MS = parse_duration("30s")
DELAY_MS = parse_duration("10s")
LATENESS_MS = parse_duration("1m")

CLICKS_PER_VISIT = 6
BETWEEN_CLICKS_MS = 5_000  # on average; nearly always less than GAP_MS
PAGES = 500


# --- any number, as arrays ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClickLoad:
    """`clicks` of `users`, `per_second` of event time, each reaching its topic up to `disorder_ms` late."""

    clicks: int = 3_000_000
    users: int = 100_000
    partitions: int = 2
    seed: int = 1
    per_second: int = 1_000
    disorder_ms: int = 2_000

    @property
    def span_ms(self) -> int:
        return self.clicks * 1000 // self.per_second


@dataclass(frozen=True, slots=True)
class Clicks:
    """Clicks in sending order, as int64 arrays of one length. `ts` are event times in milliseconds; `user` and `page`
    are numbers that represent names (`u000042`, `/p7`)."""

    user: np.ndarray
    page: np.ndarray
    ts: np.ndarray

    def __len__(self) -> int:
        return len(self.ts)

    def where(self, chosen: np.ndarray) -> Clicks:
        return Clicks(self.user[chosen], self.page[chosen], self.ts[chosen])


def draw(load: ClickLoad) -> Clicks:
    """Draw clicks. Visits begin at any time; a visitor's clicks are about BETWEEN_CLICKS_MS apart, so that each visit
    is a session, except where visits meet or pause."""
    chance = np.random.default_rng(load.seed)
    visits = -(-load.clicks // CLICKS_PER_VISIT)
    sizes = chance.geometric(1 / CLICKS_PER_VISIT, visits)
    visit = np.repeat(np.arange(visits), sizes)[: load.clicks]
    while len(visit) < load.clicks:  # the sizes fell short: gives the last visits one more click
        visit = np.concatenate([visit, np.arange(visits)[-(load.clicks - len(visit)) :]])
    begins = chance.integers(0, load.span_ms, visits)
    # From the beginning of its visit to each click; clicks of a visit are neighbours.
    waits = chance.exponential(BETWEEN_CLICKS_MS, len(visit)).astype(np.int64)
    is_first = np.diff(visit, prepend=-1) != 0
    waits[is_first] = 0
    waited, starts = np.cumsum(waits), np.flatnonzero(is_first)
    since_begin = waited - np.repeat(waited[starts], np.diff(starts, append=len(visit)))
    ts = FIRST_CLICK_MS + begins[visit] + since_begin
    users = chance.integers(0, load.users, visits)[visit]
    # Most clicks are on few pages.
    pages = np.minimum(chance.zipf(1.3, load.clicks), PAGES)
    order = np.argsort(ts + chance.integers(0, load.disorder_ms + 1, load.clicks), kind="stable")
    return Clicks(users, pages, ts).where(order)


def records(clicks: Clicks) -> list[bytes]:
    """Return the clicks as JSON objects with `user_id`, `page` and `ts` (milliseconds)."""
    names = {
        "user_id": pl.lit("u") + pl.col("user").cast(pl.String).str.zfill(6),
        "page": pl.lit("/p") + pl.col("page").cast(pl.String),
        "ts": pl.col("ts"),
    }
    frame = pl.DataFrame({"user": clicks.user, "page": clicks.page, "ts": clicks.ts}).select(**names)
    return frame.write_ndjson().encode().split(b"\n")[:-1]


def by_partition(clicks: Clicks, partitions: int) -> list[Clicks]:
    """Return the clicks of each partition. A user's clicks are all in one, as in a topic that is keyed by user."""
    return [clicks.where(clicks.user % partitions == number) for number in range(partitions)]


# --- the demo's records -----------------------------------------------------------------------------------------------

_MALFORMED: Sequence[Kind] = ("cut_off", "no_object", "null_time", "no_time", "unreadable_time", "no_value")
_ACCIDENTS: Sequence[Kind] = ("usual", "slow", "null_key", *_MALFORMED)
_SHARES = (0.0, 0.02, 0.0005, *(0.0002 for _ in _MALFORMED))
_LATE_SHARE = 0.003


def make(seed: int, clicks: int, partitions: int) -> list[GeneratedRecord]:
    """`clicks` clicks over an hour, in sending order, each with its partition; `kind` says what happened to it.

    `slow` clicks arrive after the watermark, but in time (S5): in sessions that were already emitted, between two of
    them, or before one. `late` clicks arrive too late, from visitors who have no other clicks.
    """
    load = ClickLoad(clicks, max(1, clicks // 40), partitions, seed, max(1, clicks // 3600), disorder_ms=0)
    drawn, chance = draw(load), random.Random(seed)
    shares = (1 - sum(_SHARES), *_SHARES[1:])
    kinds = chance.choices(_ACCIDENTS, shares, k=len(drawn))
    rows = zip(drawn.user.tolist(), drawn.page.tolist(), drawn.ts.tolist(), kinds, strict=True)
    in_time = [_make_record(chance, f"u{user:06d}", page, ts, kind, partitions) for user, page, ts, kind in rows]
    # Late clicks happen in the first half of the hour, so that they arrive in the second one.
    late_times = chance.sample(drawn.ts[: len(drawn) // 2].tolist(), int(_LATE_SHARE * len(drawn)))
    late = [_make_record(chance, f"late{n}", 1, ts, "late", partitions) for n, ts in enumerate(late_times)]
    return sorted([*in_time, *late], key=lambda record: record.arrival_ms)


def _make_record(chance: random.Random, user: str, page: int, ts: int, kind: Kind, partitions: int) -> GeneratedRecord:
    row = {"user_id": user, "page": f"/p{page}", "ts": ts}
    # From the event to the topic. Other records are at most DELAY_MS ahead of the watermark, so slow ones have
    # LATENESS_MS.
    if kind == "late":
        delivery_ms = GAP_MS + LATENESS_MS + DELAY_MS + chance.randrange(600_000, 1_200_000)
    elif kind == "slow":
        delivery_ms = chance.randrange(DELAY_MS, LATENESS_MS)
    else:
        delivery_ms = min(int(chance.expovariate(1 / 800)), DELAY_MS - 1)
    key, value = user.encode(), encoded(row, kind, _CHANGES)
    return GeneratedRecord(TOPIC, key, value, kind, ts + delivery_ms, zlib.crc32(key) % partitions)


_CHANGES: Changes = {
    "null_key": {"user_id": None},
    "null_time": {"ts": None},
    "unreadable_time": {"ts": "yesterday"},
}
