"""Hypothesis strategies: random SessionWindows with what their expressions mean in Python, and random histories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from core.cases import STAMP, STARTS, Case, Epoch, clock, idle_partitions, stamps
from core.random_jobs import A_DAY, FUTURES, KEY_TYPES, NAN, ms
from core.table.reference_keyhash import reference_hash
from joinery_devkit.oracle import Row, SessionOracle, SessionShape
from joinery_runtime.core.aggregates import Groups, accumulator
from joinery_runtime.core.aggregates.base import AggregateCall
from joinery_runtime.core.table.columns import arrow_type
from joinery_runtime.job import SessionWindow, StreamJoin, parse_type

Values = Mapping[str, Any]

INPUT = "c"
NO_CAP = 10_000  # longer than any history

# What is aggregated, by type. Sums of floats are exact in any order, but for those that are no numbers.
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int32": [-(2**31), 0, 7],
    "int64": [-(2**40), 0, 1, 7],
    "float": [0.0, -0.0, NAN, 1.5],
    "double": [0.0, -0.0, NAN, float("inf"), float("-inf"), 0.25],
    "string": ["", "a", "\u00e9", "e\u0301", "\U0001f600"],
    "binary": [b"", b"\x00", b"\xff"],
    "decimal(9,2)": [Decimal("0.00"), Decimal("-1.50"), Decimal("0.01")],
    "decimal(38,0)": [Decimal(0), Decimal(10**33 - 1), Decimal(-1)],
    "date": [date(1969, 12, 31), date(2024, 2, 29)],
    "timestamp": [datetime(1969, 12, 31, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)],
}
MOST, MOST_DIGITS = 2**63 - 1, 10**38 - 1
LARGE: dict[str, list[Any]] = {"v": [MOST - 1, -MOST - 1, 1], "w": [*map(Decimal, (MOST_DIGITS, -MOST_DIGITS, 1))]}
"""Values whose sums do not fit their types, by column: of int64, and of decimal(38,0)."""
LARGE_AGGREGATES: list[dict[str, Any]] = [
    {"function": "count", "as": "rows"},
    {"function": "sum", "column": "v", "as": "total"},
    {"function": "sum", "column": "w", "as": "wide"},
    {"function": "avg", "column": "w", "as": "mean"},
    {"function": "avg", "column": "v", "as": "mean_of_v"},
    {"function": "count_distinct", "column": "v", "limit": 1, "as": "distinct"},
    {"function": "array_agg", "column": "v", "limit": 2, "as": "list"},
    {"function": "median", "column": "v", "limit": 2, "as": "middle"},
]
LARGE_SELECTED: dict[str, Callable[[Values], Any]] = {
    "total IS NULL": lambda row: row["total"] is None,
    "wide IS NULL": lambda row: row["wide"] is None,
    "JSON_VALUE(list, '$[0]') IS NULL": lambda row: row["list"] is None,
    "rows * 6000000000000000000": lambda row: _as_int64(row["rows"] * 6_000_000_000_000_000_000),
}
NUMBERS = {"int32", "int64", "float", "double", "decimal(9,2)", "decimal(38,0)"}
OF_NUMBERS = ("sum", "avg", "var_pop", "var_samp", "stddev_pop", "stddev_samp", "median")
OF_ORDERED = ("min", "max")
OF_ANY = ("count_col", "first", "last", "count_distinct", "array_agg")
OF_CONDITIONS = ("bool_and", "bool_or", "count_if")
SHARED = ("percentile_cont", "percentile_disc", "approx_percentile")


@dataclass(frozen=True, repr=False)
class SessionJob:
    """`types` are the types of the columns of which rows have random values; `busy`: all rows are of one group, so that
    sessions meet each other."""

    job: SessionWindow
    types: Mapping[str, str]
    where: Callable[[Values], bool | None] | None = None
    computed: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    busy: bool = False
    large: bool = False

    @property
    def shape(self) -> SessionShape:
        having = {**HAVING, **LARGE_HAVING}.get(self.job.spec.having or "")
        selection = selection_in_python(selected_of(self.job))
        return SessionShape(
            self.job, reference_hash, self.where, self.computed, self._sketched, dict(CONDITIONS), having, selection
        )

    def oracle(self) -> SessionOracle:
        """A fresh one."""
        return SessionOracle(self.shape)

    def edit(self, oracle: SessionOracle, before: SessionJob) -> None:
        oracle.edit(self.job)

    def edited(self, **spec: Any) -> SessionJob:
        """The job with other fields in its spec, by their YAML names."""
        document = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
        document["spec"] |= spec
        return replace(self, job=SessionWindow.model_validate(document))

    def _sketched(self, values: Sequence[Any]) -> int:
        """The estimate of one sketch that sees all values."""
        return estimate(values, self.types["w"])

    def __repr__(self) -> str:
        """What of the job a failing example is about."""
        shown = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
        parts = {name: value for name, value in shown.items() if name not in ("input", "output")}
        return f"<{parts}, delay {self.job.spec.input.watermark.delay}, {dict(self.types)}>"


def estimate(values: Sequence[Any], kind: str) -> int:
    if not values:
        return 0
    of_type = arrow_type(parse_type(kind))
    sketch = accumulator(AggregateCall("count_distinct", "n", "w", of_type))
    one = Groups(np.zeros(1, dtype=np.int64), len(values))
    states = sketch.fold(pa.array(values, of_type), np.zeros(len(values), dtype=np.int64), one)
    return int(sketch.result(states)[0].as_py())


# --- jobs -------------------------------------------------------------------------------------------------------------

CONDITIONS: list[tuple[str, Callable[[Values], bool | None]]] = [
    ("v > 0", lambda row: None if row["v"] is None else row["v"] > 0),
    ("v IS NOT NULL", lambda row: row["v"] is not None),
    ("NOT (v = 2)", lambda row: None if row["v"] is None else row["v"] != 2),
]
HAVING: dict[str, Callable[[Values], bool | None]] = {
    "rows > 1": lambda row: row["rows"] > 1,
    "rows % 2 = 1": lambda row: row["rows"] % 2 == 1,
    "rows < 3 AND window_start % 3 <> 0": lambda row: row["rows"] < 3 and row["window_start"] % 3 != 0,
}
LARGE_HAVING: dict[str, Callable[[Values], bool | None]] = {
    "total > 0": lambda row: None if row["total"] is None else row["total"] > 0,
    "wide > 0 AND rows > 1": lambda row: None if row["wide"] is None else row["wide"] > 0 and row["rows"] > 1,
    "rows > 1": lambda row: row["rows"] > 1,
}
"""Conditions on groups with a count of rows as `rows` (G7)."""
SELECTED: dict[str, Callable[[Values], Any]] = {
    "rows * 10 + 1": lambda row: row["rows"] * 10 + 1,
    "window_end - window_start": lambda row: row["window_end"] - row["window_start"],
    "CASE WHEN rows > 1 THEN window_start END": lambda row: row["window_start"] if row["rows"] > 1 else None,
    "CAST(rows AS STRING) || 'x'": lambda row: f"{row['rows']}x",
    "rows * 6000000000000000000": lambda row: _as_int64(row["rows"] * 6_000_000_000_000_000_000),
    "-rows - 9223372036854775806": lambda row: _as_int64(-row["rows"] - 9_223_372_036_854_775_806),
}
"""Expressions over groups with a count of rows as `rows` (G11); the last ones fail for more than one row, or two."""
EVERY = [1, 2, 5, 5, 11]
"""How often there are early results (G8)."""
COMPUTED = "v + 1"
GROUPS = (["k"], ["k"], ["k"], ["k", "n"], ["n"], ["p"], ["p", "k"])


def selected_of(job: SessionWindow | StreamJoin) -> list[dict[str, str]] | None:
    """The entries of `select` as in YAML; None: there are none."""
    items = job.spec.select
    return None if items is None else [item.model_dump(by_alias=True, exclude_unset=True) for item in items]


def _as_int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise OverflowError
    return value


@st.composite
def selections(draw: Any, texts_of: Mapping[str, object] = SELECTED) -> dict[str, str]:
    """Expressions over groups with a count of rows as `rows`, by their names in the output."""
    texts = draw(st.lists(st.sampled_from(sorted(texts_of)), min_size=1, max_size=4, unique=True))
    return {f"s{number}": text for number, text in enumerate(texts)}


def selected_items(selection: Mapping[str, str], columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """The entries of `select`."""
    own = [{"column": name} for name in columns]
    return [*own, *({"expression": text, "as": name} for name, text in selection.items())]


def selection_in_python(
    items: Sequence[Mapping[str, str]] | None, expressions: Mapping[str, Callable[[Values], Any]] | None = None
) -> dict[str, Callable[[Values], Any]] | None:
    """What the entries of `select` mean; None: nothing is selected."""
    if items is None:
        return None
    expressions = {**SELECTED, **LARGE_SELECTED} if expressions is None else expressions
    return {
        item.get("as") or item["column"].rpartition(".")[2]: expressions[item["expression"]]
        if "expression" in item
        else itemgetter(item["column"].rpartition(".")[2])
        for item in items
    }


def plus_one(row: Values) -> Any:
    return None if row["v"] is None else row["v"] + 1


@st.composite
def aggregates(draw: Any, kind: str) -> list[dict[str, Any]]:
    """Of `w`, which is of this type, of the computed column `p`, of the event time, and of rows."""
    ordered = kind not in ("boolean", "binary")
    of_w = [*OF_ANY, *(OF_NUMBERS if kind in NUMBERS else ()), *(OF_ORDERED if ordered else ())]
    choices = [
        *[{"function": "count"}] * 4,
        *({"function": function, "column": "w"} for function in of_w),
        *({"function": function, "column": "w", "where": draw(st.sampled_from(CONDITIONS))[0]} for function in of_w),
        *(
            {"function": function, "column": "w", "percentile": draw(st.sampled_from([0, 0.1, 0.5, 0.99, 1]))}
            for function in SHARED
            if kind in NUMBERS
        ),
        *({"function": function, "column": "w"} for function in OF_CONDITIONS if kind == "boolean"),
        *({"function": "string_agg", "column": "w", "separator": "; "} for _ in range(1) if kind == "string"),
        *({"function": function, "column": "w", "by": "p"} for function in ("min_by", "max_by")),
        *({"function": function, "column": "v", "by": "w"} for function in ("min_by", "max_by") if ordered),
        {"function": "count", "where": "v > 0"},
        {"function": "count_distinct", "column": "w", "method": "hll"},
        {"function": "sum", "column": "p"},
        {"function": "avg", "column": "p"},
        {"function": "last", "column": "ts"},
        {"function": "first", "column": "v"},
    ]
    chosen = draw(st.lists(st.sampled_from(choices), max_size=4))
    return [{**call, "as": f"a{number}"} for number, call in enumerate(chosen)]


def input_of(types: Mapping[str, str]) -> dict[str, Any]:
    """The only input of a job, with columns of these types and an event time."""
    schema = [{"name": name, "type": kind} for name, kind in {**types, "ts": "timestamp"}.items()]
    return {"name": INPUT, "file": {"path": "c.jsonl"}, "format": "json", "schema": schema, "eventTime": "ts"}


def watermark_of(draw: Any, futures: Sequence[int] = FUTURES, unit: int = 1) -> dict[str, str]:
    delay = draw(st.sampled_from([0, 0, 3, 8])) * unit
    return {"delay": ms(delay), "maxFuture": ms(draw(st.sampled_from(futures)))}


@st.composite
def session_jobs(
    draw: Any,
    *,
    capped: bool = True,
    futures: Sequence[int] = FUTURES,
    having: bool = False,
    early: bool = False,
    computing: bool = False,
    large: bool = False,
) -> SessionJob:
    value_types = ["decimal(38,0)"] if large else sorted(VALUES)
    kinds = {"k": draw(st.sampled_from(sorted(KEY_TYPES))), "w": draw(st.sampled_from(value_types))}
    busy = draw(st.booleans())
    types = {"k": KEY_TYPES[kinds["k"]][0][0], "n": "int32", "v": "int64", "w": kinds["w"]}
    where = None if busy else draw(st.sampled_from([None, None, None, *CONDITIONS]))
    spec = {
        "input": {**input_of(types), "watermark": watermark_of(draw, futures)},
        "groupBy": draw(st.sampled_from(GROUPS)),
        "gap": ms(draw(st.sampled_from([1, 2, 3, 4, 5]))),
        "maxDuration": ms(draw(st.sampled_from([*range(2, 13), *[NO_CAP] * 5])) if capped else NO_CAP),
        "compute": [{"expression": COMPUTED, "as": "p"}],
        "aggregates": draw(large_aggregates() if large else aggregates(kinds["w"])),
        "lateData": draw(st.sampled_from(["drop", *["reopen"] * (9 if busy else 1)])),
        "allowedLateness": ms(draw(st.sampled_from([5, 25, 40] if busy else [0, 1, 5, 12]))),
        "emitRetractions": draw(st.sampled_from([True, True, False])),
        "output": {"file": {"path": "out.jsonl"}, "format": "json"},
        **({"where": where[0]} if where else {}),
    }
    if (having or computing) and not large:
        spec["aggregates"].append({"function": "count", "as": "rows"})
    if computing:
        items = draw(selections(LARGE_SELECTED if large else SELECTED))
        spec["select"] = selected_items(items, ["session_id", *spec["groupBy"]])
    if having:
        condition = draw(st.sampled_from(sorted(LARGE_HAVING if large else HAVING)))
        spec |= {"having": condition, "emitRetractions": True}
    if early:
        spec["emit"] = {"every": ms(draw(st.sampled_from(EVERY)))}
    job = SessionWindow.model_validate({"metadata": {"name": "random"}, "spec": spec})
    return SessionJob(job, types, where[1] if where else None, {"p": plus_one}, busy, large)


@st.composite
def large_aggregates(draw: Any) -> list[dict[str, Any]]:
    """LARGE_AGGREGATES, some of them with no limit that a history reaches."""
    limited = draw(st.booleans())
    return [{**call, "limit": 1_000} if "limit" in call and not limited else dict(call) for call in LARGE_AGGREGATES]


# --- rows -------------------------------------------------------------------------------------------------------------


@st.composite
def session_rows(draw: Any, job: SessionJob, position: tuple[int, int], ts: int) -> Row:
    large = getattr(job, "large", False)  # not every kind of job that has such rows has such sums
    key_values = KEY_TYPES["integers" if job.types["k"] == "int32" else job.types["k"]][1]
    values = {
        "k": draw(st.sampled_from(key_values[:1] if job.busy else [*key_values[:1] * 8, *key_values, None])),
        "n": draw(st.sampled_from([0] if job.busy else [0, 0, 0, 0, 1, None])),
        "v": draw(st.sampled_from(LARGE["v"] if large else [1] if job.busy else [1, 1, 1, 1, 2, 0, None])),
        "w": draw(st.sampled_from([*(LARGE["w"] if large else VALUES[job.types["w"]]), None])),
        "ts": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts),
    }
    values[STAMP] = draw(stamps(job.job.inputs[0], ts))
    return Row(*position, ts, values)


JITTER = [-30, *range(-20, 6), *range(-3, 4), 9, 40]


@st.composite
def session_cases(draw: Any, longest: int = 6, **chosen: bool) -> Case:
    """Anything goes: disorder, late rows, idle partitions, an early end, restarts, other shard counts. `chosen` are
    options of `session_jobs`."""
    return draw(histories(draw(session_jobs(**chosen)), longest))


@st.composite
def histories(draw: Any, job: Any, longest: int) -> Case:
    """A history of rows of `session_rows` for a job of one input."""
    partitions = tuple(range(draw(st.sampled_from([1, 1, 2]))))
    offsets = dict.fromkeys(partitions, 0)
    epochs: list[Epoch] = []
    unit, start = getattr(job, "unit", 1), getattr(job, "start", None)
    start = draw(st.sampled_from(STARTS)) if start is None else start
    pace = draw(st.sampled_from([4, 7, 10])) * unit
    for number in range(draw(st.integers(2, longest))):
        arrivals: list[Row] = []
        for _ in range(draw(st.integers(0, 12))):
            partition = draw(st.sampled_from(partitions))
            ts = start + pace * number + draw(st.sampled_from(JITTER)) * unit
            arrivals.append(draw(session_rows(job, (partition, offsets[partition]), ts)))
            offsets[partition] += 1
        epochs.append(
            Epoch(
                rows={INPUT: arrivals},
                shards=draw(st.sampled_from([1, 1, 1, 2, 3, 8])),
                idle={INPUT: draw(idle_partitions(partitions))},
                checkpoint=draw(st.booleans()),
                restart=draw(st.booleans()),
                crash=draw(st.integers(0, 4)) == 0,
                followed=draw(st.booleans()),
                clock=clock(number, start + pace * number),
            )
        )
    epochs.append(Epoch({}, final=(INPUT,)))
    return Case(job, {INPUT: partitions}, tuple(epochs))


@st.composite
def punctual_sessions(draw: Any) -> tuple[Case, list[Row]]:
    """A history in which no row is late however it is cut (T2), and no session reaches the cap: (a case without epochs,
    its rows in arrival order). Of one partition: of rows with one time, the first is the one that comes first."""
    job = draw(session_jobs(capped=False, futures=(A_DAY,)))
    history: list[Row] = []
    highest = draw(st.sampled_from(STARTS))
    for offset in range(draw(st.integers(2, 14))):
        ts = highest + draw(st.integers(-job.job.spec.input.watermark.delay, 6))
        highest = max(highest, ts)
        history.append(draw(session_rows(job, (0, offset), ts)))
    return Case(job, {INPUT: (0,)}), history


@st.composite
def session_cuts(draw: Any, history: Sequence[Row]) -> tuple[Epoch, ...]:
    """One way to cut a history into epochs, with shards and restarts of its own."""
    edges = sorted(draw(st.lists(st.integers(0, len(history)), max_size=4)))
    pieces = [history[first:last] for first, last in pairwise([0, *edges, len(history)])]
    epochs = [
        Epoch(
            {INPUT: piece},
            draw(st.sampled_from([1, 2, 3])),
            checkpoint=draw(st.booleans()),
            restart=draw(st.booleans()),
            followed=draw(st.booleans()),
        )
        for piece in pieces
    ]
    return (*epochs, Epoch({}, final=(INPUT,)))
