"""Hypothesis strategies: random jobs and random histories, small enough that thousands run in a minute."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from core.harness import Case, Epoch, join_spec
from joinery_devkit.oracle import Oracle, Row

START = 1_700_000_000_000  # event times are START + a few milliseconds
NAN = float("nan")
TWO_MS = timedelta(milliseconds=2)

# Per key type: the Arrow types of the left and the right side, and values of which some are equal only by the rules.
KEY_TYPES: dict[str, tuple[pa.DataType, pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), pa.bool_(), [True, False]),
    "int32": (pa.int32(), pa.int32(), [-1, 0, 7]),
    "int64": (pa.int64(), pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "int32 = int64": (pa.int32(), pa.int64(), [-1, 0, 7]),
    "int64 = int32": (pa.int64(), pa.int32(), [-(2**31), 0, 7]),
    "float": (pa.float32(), pa.float32(), [0.0, -0.0, NAN, 1.5]),
    "double": (pa.float64(), pa.float64(), [0.0, -0.0, NAN, float("inf"), 0.1]),
    "string": (pa.string(), pa.string(), ["", "a", "\u00e9", "e\u0301"]),
    "binary": (pa.binary(), pa.binary(), [b"", b"\x00", b"\xff"]),
    "decimal(9,2)": (pa.decimal128(9, 2), pa.decimal128(9, 2), [Decimal("0.00"), Decimal("-1.50"), Decimal(10**7 - 1)]),
    "decimal(38,0)": (pa.decimal128(38, 0), pa.decimal128(38, 0), [Decimal(0), Decimal(10**38 - 1), Decimal(-1)]),
    "date": (pa.date32(), pa.date32(), [date(1969, 12, 31), date(2024, 2, 29)]),
    "timestamp": (pa.timestamp("ms", "UTC"), pa.timestamp("ms", "UTC"), [datetime(1969, 12, 31, tzinfo=UTC),
                                                                         datetime(2024, 1, 1, tzinfo=UTC)]),
}  # fmt: skip


def known(check: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool | None]:
    """SQL's NULL for predicates that are NULL when either value is."""
    return lambda left, right: None if left is None or right is None else check(left, right)


def _sum_is_three_or_no_b(left: Any, right: Any) -> bool | None:
    if right["b"] is None:
        return True
    return None if left["a"] is None else bool(left["a"] + right["b"] == 3)


# Residual predicates as the job writes them, and what they mean row by row.
RESIDUALS: list[tuple[str, Callable[[Any, Any], bool | None]]] = [
    ("left.a < right.b", lambda left, right: known(lambda a, b: a < b)(left["a"], right["b"])),
    ("left.a + right.b = 3 OR right.b IS NULL", _sum_is_three_or_no_b),
    ("NOT (left.a = right.b)", lambda left, right: known(lambda a, b: a != b)(left["a"], right["b"])),
    ("right.ts >= left.ts + INTERVAL '2' MILLISECOND", lambda left, right: right["ts"] - left["ts"] >= TWO_MS),
    ("1 = 1", lambda left, right: True),
    ("NULL", lambda left, right: None),
]  # fmt: skip
FILTERS: list[tuple[str, str, Callable[[Any], bool | None]]] = [
    ("left", "left.a > 0", lambda row: None if row["a"] is None else row["a"] > 0),
    ("left", "left.a IS NOT NULL", lambda row: row["a"] is not None),
    ("right", "right.b IN (0, 2)", lambda row: None if row["b"] is None else row["b"] in (0, 2)),
]


@st.composite
def jobs(draw: Any) -> tuple[Any, dict[str, Any], tuple[pa.Schema, pa.Schema], list[str]]:
    """(join_spec arguments..., as a dict), what the oracle gets, both schemas, and the key types."""
    kinds = draw(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=1, max_size=draw(st.sampled_from([1, 1, 2]))))
    schemas = tuple(
        pa.schema(
            [(f"k{i}", KEY_TYPES[kind][side]) for i, kind in enumerate(kinds)]
            + [(("a", "b")[side], pa.int64()), ("ts", pa.timestamp("ms", "UTC"))]
        )
        for side in (0, 1)
    )
    keys = [(f"k{i}", f"k{i}") for i in range(len(kinds))]
    if draw(st.integers(0, 9)) == 0:
        keys.append(("ts", "ts"))  # the event time itself as a key
    interval = tuple(sorted((draw(st.integers(-9, 4)), draw(st.integers(-4, 9)))))
    residual = draw(st.sampled_from([None] * len(RESIDUALS) + RESIDUALS))
    filters = draw(st.sampled_from([[], [], [], [FILTERS[0], FILTERS[2]], [FILTERS[1]], [FILTERS[2]]]))
    common = {
        "interval": interval,
        "allowed_lateness": draw(st.sampled_from([0, 0, 1, 5])),
        "reopen": draw(st.booleans()),
    }
    spec = join_spec(
        schemas, keys, residual=residual and residual[0], filters={side: text for side, text, _ in filters}, **common
    )
    oracle = partial(
        Oracle,
        keys=keys,
        residual=residual and residual[1],
        filters={side: check for side, _, check in filters},
        **common,
    )
    return spec, oracle, schemas, kinds


@st.composite
def rows(draw: Any, side: int, kinds: list[str], partition: int, ts: int, offset: int) -> Row:
    # The first values are the likeliest: matches must not be rare.
    values: dict[str, Any] = {
        f"k{i}": draw(st.sampled_from(KEY_TYPES[kind][2][:2] * 4 + KEY_TYPES[kind][2] + [None]))
        for i, kind in enumerate(kinds)
    }
    values["ab"[side]] = draw(st.sampled_from([0, 1, 2, 3, None]))
    values["ts"] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts)
    return Row(partition, offset, ts, values)


@st.composite
def cases(draw: Any) -> Case:
    """Anything goes: disorder, late rows, idle partitions, inputs that end early, restarts, other shard counts."""
    spec, oracle, _, kinds = draw(jobs())
    partitions = {name: tuple(range(draw(st.sampled_from([1, 1, 2])))) for name in ("left", "right")}
    delays = {name: draw(st.sampled_from([0, 0, 3])) for name in partitions}
    offsets = dict.fromkeys([(name, p) for name, known in partitions.items() for p in known], 0)
    epochs = []
    for number in range(draw(st.integers(2, 6))):
        arrivals: dict[str, list[Row]] = {"left": [], "right": []}
        for side, name in enumerate(arrivals):
            for _ in range(draw(st.integers(0, 6))):
                partition = draw(st.sampled_from(partitions[name]))
                # Time goes on by 4 an epoch on average, with rows far ahead and far behind.
                ts = START + 4 * number + draw(st.sampled_from([-12, -7, *range(-4, 5), *range(-4, 5), 8]))
                arrivals[name].append(draw(rows(side, kinds, partition, ts, offsets[name, partition])))
                offsets[name, partition] += 1
        idle = {
            name: tuple(map(str, draw(st.sampled_from([(), (), (), known[:1], known]))))
            for name, known in partitions.items()
        }
        epochs.append(
            Epoch(
                rows=arrivals,
                shards=draw(st.sampled_from([1, 1, 2, 3, 8])),
                idle=idle,
                ended=draw(st.sampled_from([()] * 8 + [("left",), ("right",)])),
                checkpoint=draw(st.booleans()),
                restart=draw(st.booleans()),
            )
        )
    return Case(spec, oracle, delays, partitions, tuple(epochs))


def idle_partitions(known: tuple[int, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    none: tuple[str, ...] = ()
    everything = tuple(map(str, known))
    return st.sampled_from([none, none, none, none, everything[:1], everything])


@st.composite
def punctual(draw: Any) -> tuple[Case, list[tuple[str, Row]]]:
    """A history in which no row is late however it is cut (T2): (a case without epochs, its rows in arrival order)."""
    spec, oracle, _, kinds = draw(jobs())
    partitions = {name: tuple(range(draw(st.sampled_from([1, 2])))) for name in ("left", "right")}
    delays = {name: draw(st.sampled_from([0, 3, 6])) for name in partitions}
    history: list[tuple[str, Row]] = []
    highest: dict[tuple[str, int], int] = {}
    offsets: dict[tuple[str, int], int] = {}
    for _ in range(draw(st.integers(2, 14))):
        side = draw(st.sampled_from([0, 1]))
        name = ("left", "right")[side]
        place = (name, draw(st.sampled_from(partitions[name])))
        before = highest.get(place, START)
        ts = before + draw(st.integers(-delays[name], 4))
        highest[place] = max(before, ts)
        row = draw(rows(side, kinds, place[1], ts, offsets.get(place, 0)))
        offsets[place] = row.offset + 1
        history.append((name, row))
    return Case(spec, oracle, delays, partitions, ()), history


@st.composite
def cuts(draw: Any, history: list[tuple[str, Row]]) -> tuple[Epoch, ...]:
    """One way to cut a history into epochs, each input at its own pace, with shards and restarts of its own."""
    streams = {name: [row for side, row in history if side == name] for name in ("left", "right")}
    epochs = []
    while any(streams.values()):
        taken = {}
        for name, waiting in streams.items():
            count = draw(st.integers(0, len(waiting)))
            taken[name], streams[name] = waiting[:count], waiting[count:]
        epochs.append(
            Epoch(taken, draw(st.sampled_from([1, 2, 3])), checkpoint=draw(st.booleans()), restart=draw(st.booleans()))
        )
        if len(epochs) == 5:
            epochs.append(Epoch({name: tuple(waiting) for name, waiting in streams.items()}))
            break
    return tuple(epochs)
