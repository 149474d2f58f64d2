"""Hypothesis strategies: random jobs of every kind and random histories, small enough that hundreds run in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from joinery_devkit.oracle import Oracle, Predicates, Row
from joinery_runtime.job import StreamJoin

START = 1_700_000_000_000
STARTS = (START, START, 6)  # event times are one of these and a few milliseconds; some are before 1970
NAN = float("nan")
INPUTS = ("o", "d", "r", "x")
KINDS = ("interval", "broadcast", "chain", "fixed", "session", "asof")
TYPES = ("inner", "left", "right", "full")

# Per kind of key: the column types that may meet, and values of which some are equal only by the rules.
KEY_TYPES: dict[str, tuple[list[str], list[Any]]] = {
    "boolean": (["boolean"], [True, False]),
    "integers": (["int32", "int64"], [-1, 0, 7]),
    "int64": (["int64"], [-(2**63), 0, 2**63 - 1]),
    "float": (["float"], [0.0, -0.0, NAN, 1.5]),
    "double": (["double"], [0.0, -0.0, NAN, float("inf"), 0.1]),
    "string": (["string"], ["", "a", "\u00e9", "e\u0301"]),
    "binary": (["binary"], [b"", b"\x00", b"\xff"]),
    "decimal(9,2)": (["decimal(9,2)"], [Decimal("0.00"), Decimal("-1.50"), Decimal(10**7 - 1)]),
    "decimal(38,0)": (["decimal(38,0)"], [Decimal(0), Decimal(10**38 - 1), Decimal(-1)]),
    "date": (["date"], [date(1969, 12, 31), date(2024, 2, 29)]),
    "timestamp": (["timestamp"], [datetime(1969, 12, 31, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)]),
}

Check = Callable[[Mapping[str, Mapping[str, Any]]], bool | None]


@dataclass(frozen=True)
class Epoch:
    """What one epoch gets. `rows` by input, in any order; `idle` partitions at its plan; `final`: these inputs get no
    row after this epoch. `crash`: it is run, not committed, and run again. `followed`: what its rows imply counts in
    epochs without rows before the next one."""

    rows: Mapping[str, Sequence[Row]]
    shards: int = 1
    idle: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    final: tuple[str, ...] = ()
    checkpoint: bool = False
    restart: bool = False
    crash: bool = False
    followed: bool = True


@dataclass(frozen=True, repr=False)
class Job:
    """`predicates` and `computed` say the job's expressions in Python; `keys` are the key columns of every input, by
    kind of key."""

    job: StreamJoin
    predicates: Mapping[int, Predicates]
    computed: Mapping[str, Check]
    keys: Mapping[str, str]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(side.name for side in self.job.spec.inputs)

    def oracle(self) -> Oracle:
        """A fresh one."""
        return Oracle.of_job(self.job, predicates=self.predicates, computed=self.computed)

    def __repr__(self) -> str:
        """What of the job a failing example is about."""
        shown = {"spec": {"joins", "select"}}
        parts = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True, include=shown)
        delays = {side.name: side.watermark.delay for side in self.job.spec.inputs}
        return f"<{parts['spec']}, delays {delays}, keys {dict(self.keys)}>"


@dataclass(frozen=True)
class Case:
    """A job and its epochs; `partitions` are known from the start, per input."""

    job: Job
    partitions: Mapping[str, tuple[int, ...]]
    epochs: tuple[Epoch, ...] = ()


# --- predicates: as the job writes them, and what they mean row by row ------------------------------------------------


def known(check: Callable[..., bool], *places: tuple[str, str]) -> Check:
    """SQL's NULL for predicates that are NULL when a value is."""

    def on(columns: Mapping[str, Mapping[str, Any]]) -> bool | None:
        values = [columns[name][column] for name, column in places]
        return None if any(value is None for value in values) else check(*values)

    return on


def one_sided(a: str) -> list[tuple[str, Check]]:
    return [
        (f"{a}.v > 0", known(lambda v: v > 0, (a, "v"))),
        (f"{a}.v IS NOT NULL", lambda columns: columns[a]["v"] is not None),
        (f"{a}.v IN (0, 2)", known(lambda v: v in (0, 2), (a, "v"))),
    ]


def two_sided(a: str, b: str) -> list[tuple[str, Check]]:
    later = timedelta(milliseconds=2)
    return [
        (f"{a}.v < {b}.v", known(lambda v, w: v < w, (a, "v"), (b, "v"))),
        (f"{a}.v + {b}.v = 3 OR {b}.v IS NULL", lambda columns: _three_or_null(columns[a]["v"], columns[b]["v"])),
        (f"NOT ({a}.v = {b}.v)", known(lambda v, w: v != w, (a, "v"), (b, "v"))),
        (f"{b}.ts >= {a}.ts + INTERVAL '2' MILLISECOND", known(lambda v, w: w >= v + later, (a, "ts"), (b, "ts"))),
    ]


def _three_or_null(v: Any, w: Any) -> bool | None:
    if w is None:
        return True
    return None if v is None else bool(v + w == 3)


def all_of(checks: Sequence[Check]) -> Check | None:
    return (lambda columns: all(check(columns) is True for check in checks)) if checks else None


@st.composite
def wheres(draw: Any, left: Sequence[str], right: str, *, versions: bool) -> tuple[str | None, Predicates]:
    """The step's `where` and the same in Python; what only a table decides must not hide its versions."""
    texts: list[str] = []
    sides: tuple[list[Check], list[Check], list[Check]] = ([], [], [])
    alone = [*[(0, choice) for name in left for choice in one_sided(name)], *[(1, c) for c in one_sided(right)]]
    if len(left) > 1:
        alone += [(0, choice) for choice in two_sided(left[0], left[1])]
    both = [(2, choice) for name in left for choice in two_sided(name, right)]
    for options, often in ((alone, 6), (both, 4)):
        if draw(st.integers(0, often)) == 0:
            side, (text, check) = draw(st.sampled_from(options))
            texts.append(f"({text})")
            sides[2 if versions and side == 1 else side].append(check)
    of_left, of_right, rest = map(all_of, sides)
    return " AND ".join(texts) or None, Predicates(of_left, of_right, rest)


# --- jobs -------------------------------------------------------------------------------------------------------------


def ms(value: int) -> str:
    return f"{value}ms"


@st.composite
def key_pairs(draw: Any, left: Sequence[str], right: str) -> dict[str, str]:
    """`k` columns are of one type in all inputs, `n` columns are integers of either width."""
    columns = draw(st.sampled_from([["k"], ["k"], ["n"], ["k", "n"], ["k", "ts"]]))
    return {f"{draw(st.sampled_from(left))}.{column}": f"{right}.{column}" for column in columns}


@st.composite
def interval_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    lower, upper = sorted((draw(st.integers(-9, 4)), draw(st.integers(-4, 9))))
    # Often one input after the other, and then the first again: bounds add up only along such a chain.
    of = draw(st.sampled_from([*left, left[1], left[1]] if len(left) == 2 else [*left, left[0]]))
    return {
        "interval": {"of": of, "lower": ms(lower), "upper": ms(upper)},
        "type": draw(st.sampled_from(TYPES)),
        "keys": draw(key_pairs(left, right)),
        "allowedLateness": ms(draw(st.sampled_from([0, 0, 1, 5]))),
        "lateData": draw(st.sampled_from(["drop", "drop", "reopen"])),
    }


@st.composite
def broadcast_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    """J9: the broadcast side is not preserved."""
    side = draw(st.sampled_from([*left[-1:], right]))
    types = ("inner", "left") if side == right else ("inner", "right")
    step = draw(interval_steps(left, right))
    return {**step, "keys": {}, "broadcast": side, "type": draw(st.sampled_from(types))}


@st.composite
def fixed_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    size = draw(st.integers(1, 8))
    slide = draw(st.integers(1, size))
    return {
        "window": draw(st.sampled_from([{"tumbling": ms(size)}, {"hopping": {"size": ms(size), "slide": ms(slide)}}])),
        "type": draw(st.sampled_from(TYPES)),
        "keys": draw(key_pairs(left, right)),
        "allowedLateness": ms(draw(st.sampled_from([0, 0, 1, 5]))),
    }


@st.composite
def session_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    return {**draw(fixed_steps(left, right)), "window": {"session": {"gap": ms(draw(st.integers(1, 5)))}}}


@st.composite
def asof_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    retention = draw(st.integers(1, 12))
    columns = draw(st.sampled_from([["k"], ["n"], ["k", "n"]]))
    return {
        "asOf": {"historyRetention": ms(retention), "grace": ms(draw(st.integers(0, retention - 1)))},
        "type": draw(st.sampled_from(["inner", "left"])),
        "keys": {f"{left[0]}.{column}": f"{right}.{column}" for column in columns},
    }


STEPS: dict[str, Callable[..., Any]] = {
    "interval": interval_steps,
    "broadcast": broadcast_steps,
    "chain": interval_steps,
    "fixed": fixed_steps,
    "session": session_steps,
    "asof": asof_steps,
}


@st.composite
def jobs(draw: Any, kind: str) -> Job:
    names = INPUTS[: draw(st.sampled_from([3, 4])) if kind == "chain" else 2]
    key = draw(st.sampled_from(sorted(KEY_TYPES)))
    steps, predicates = [], {}
    for number, right in enumerate(names[1:]):
        left = names[: number + 1]
        where, predicates[number] = draw(wheres(left, right, versions=kind == "asof"))
        steps.append({"right": right, **draw(STEPS[kind](left, right)), **({"where": where} if where else {})})
    inputs = [draw(an_input(name, key)) for name in names]
    if kind == "asof":
        inputs[1]["table"] = {"key": [text.partition(".")[2] for text in steps[0]["keys"].values()]}
    select, computed = draw(selects(names))
    spec = {"inputs": inputs, "joins": steps, **select, "output": {"file": {"path": "out.jsonl"}, "format": "json"}}
    job = StreamJoin.model_validate({"metadata": {"name": "random"}, "spec": spec})
    return Job(job, predicates, computed, {"k": key, "n": "integers"})


@st.composite
def an_input(draw: Any, name: str, key: str) -> dict[str, Any]:
    types = {
        "k": draw(st.sampled_from(KEY_TYPES[key][0])),
        "n": draw(st.sampled_from(KEY_TYPES["integers"][0])),
        "v": "int64",
        "ts": "timestamp",
    }
    return {
        "name": name,
        "file": {"path": f"{name}.jsonl"},
        "format": "json",
        "schema": [{"name": column, "type": kind} for column, kind in types.items()],
        "eventTime": "ts",
        "watermark": {"delay": ms(draw(st.sampled_from([0, 0, 3])))},
    }


@st.composite
def selects(draw: Any, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Check]]:
    """Every column, or a few with an expression that a padded row has to make something of."""
    if draw(st.integers(0, 3)):
        return {}, {}
    first, last = names[0], names[-1]
    chosen = [
        {"column": f"{first}.v", "as": "v"},
        {"column": f"{last}.ts"},
        {"expression": f"{last}.v IS NULL", "as": "unknown"},
    ]
    return {"select": chosen}, {"unknown": lambda columns: columns[last]["v"] is None}


# --- histories --------------------------------------------------------------------------------------------------------


@st.composite
def rows(draw: Any, job: Job, name: str, place: tuple[int, int], ts: int) -> Row:
    # The first values are the likeliest: matches must not be rare.
    values: dict[str, Any] = {}
    for column, kind in job.keys.items():
        known_values = KEY_TYPES[kind][1]
        values[column] = draw(st.sampled_from(known_values[:2] * 4 + known_values + [None]))
    values["v"] = draw(st.sampled_from([0, 1, 2, 3, None]))
    values["ts"] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts)
    if _is_table(job, name) and draw(st.integers(0, 3)) == 0:
        keys = {column: values[column] for column in values if column in (*_table_key(job, name), "ts")}
        return Row(*place, ts, {**dict.fromkeys(values), **keys}, deleted=True)
    return Row(*place, ts, values)


def _is_table(job: Job, name: str) -> bool:
    return job.job.input(name).table is not None


def _table_key(job: Job, name: str) -> tuple[str, ...]:
    table = job.job.input(name).table
    return table.key if table is not None else ()


@st.composite
def some_partitions(draw: Any, job: Job) -> dict[str, tuple[int, ...]]:
    """A table's versions are ordered by offset, so those of one key are in one partition."""
    return {n: (0,) if _is_table(job, n) else tuple(range(draw(st.sampled_from([1, 1, 2])))) for n in job.inputs}


@st.composite
def cases(draw: Any, kind: str, longest: int = 6) -> Case:
    """Anything goes: disorder, late rows, idle partitions, inputs that end early, restarts, other shard counts; up to
    `longest` epochs with rows."""
    job = draw(jobs(kind))
    partitions = draw(some_partitions(job))
    offsets = dict.fromkeys([(name, p) for name, known in partitions.items() for p in known], 0)
    epochs: list[Epoch] = []
    final: tuple[str, ...] = ()
    start = draw(st.sampled_from(STARTS))
    for number in range(draw(st.integers(2, longest))):
        arrivals: dict[str, list[Row]] = {}
        for name in job.inputs:
            arrivals[name] = []
            for _ in range(0 if name in final else draw(st.integers(0, 12 // len(job.inputs)))):
                partition = draw(st.sampled_from(partitions[name]))
                # Time goes on by 4 an epoch on average, with rows far ahead and far behind.
                ts = start + 4 * number + draw(st.sampled_from([-12, -7, *range(-4, 5), *range(-4, 5), 8]))
                arrivals[name].append(draw(rows(job, name, (partition, offsets[name, partition]), ts)))
                offsets[name, partition] += 1
        final = draw(st.sampled_from([()] * 8 + [(name,) for name in job.inputs]))
        epochs.append(
            Epoch(
                rows=arrivals,
                shards=draw(st.sampled_from([1, 1, 1, 2, 3, 8])),
                idle={name: draw(idle_partitions(known)) for name, known in partitions.items()},
                final=final,
                checkpoint=draw(st.booleans()),
                restart=draw(st.booleans()),
                crash=draw(st.integers(0, 4)) == 0,
                followed=draw(st.booleans()),
            )
        )
        final = tuple({name for epoch in epochs for name in epoch.final})
    epochs.append(Epoch({}, final=job.inputs))
    return Case(job, partitions, tuple(epochs))


def idle_partitions(known: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sampled_from([(), (), (), (), known[:1], known])


@st.composite
def punctual(draw: Any, kind: str) -> tuple[Case, list[tuple[str, Row]]]:
    """A history in which no row is late however it is cut (T2): (a case without epochs, its rows in arrival order). A
    table's rows all come first (A4), and are kept."""
    job = draw(jobs(kind).map(_remembering))
    partitions = draw(some_partitions(job))
    history: list[tuple[str, Row]] = []
    highest: dict[tuple[str, int], int] = {}
    offsets: dict[tuple[str, int], int] = {}
    start = draw(st.sampled_from(STARTS))
    for _ in range(draw(st.integers(2, 6 * len(job.inputs)))):
        name = draw(st.sampled_from(job.inputs))
        place = (name, draw(st.sampled_from(partitions[name])))
        before = highest.get(place, start)
        ts = before + draw(st.integers(-job.job.input(name).watermark.delay, 4))
        highest[place] = max(before, ts)
        row = draw(rows(job, name, (place[1], offsets.get(place, 0)), ts))
        offsets[place] = row.offset + 1
        history.append((name, row))
    return Case(job, partitions), history


def _remembering(job: Job) -> Job:
    """With a retention that outlives every history."""
    (step, *_) = job.job.joins
    if step.as_of is None:
        return job
    document = job.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["spec"]["joins"][0]["asOf"]["historyRetention"] = "1h"
    return replace(job, job=StreamJoin.model_validate(document))


@st.composite
def cuts(draw: Any, job: Job, history: list[tuple[str, Row]]) -> tuple[Epoch, ...]:
    """One way to cut a history into epochs, each input at its own pace, with shards and restarts of its own."""
    streams = {name: [row for side, row in history if side == name] for name in job.inputs}
    epochs = []
    tables = {name: streams[name] for name in job.inputs if _is_table(job, name)}
    if tables:
        epochs.append(Epoch(tables))
        streams = {name: listed for name, listed in streams.items() if name not in tables}
    for _ in range(4):
        taken = {}
        for name, waiting in streams.items():
            count = draw(st.integers(0, len(waiting)))
            taken[name], streams[name] = waiting[:count], waiting[count:]
        epochs.append(
            Epoch(
                taken,
                draw(st.sampled_from([1, 2, 3])),
                checkpoint=draw(st.booleans()),
                restart=draw(st.booleans()),
                followed=draw(st.booleans()),
            )
        )
    return (*epochs, Epoch(streams), Epoch({}, final=job.inputs))
