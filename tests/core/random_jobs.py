"""Hypothesis strategies: random jobs of every kind, with what their predicates mean in Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from joinery_devkit.oracle import Oracle, Predicates
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.job import StreamJoin
from joinery_runtime.job.model.references import EXISTENCE

NAN = float("nan")
A_DAY = 24 * 3_600_000
FUTURES = (A_DAY, A_DAY, 5, 12)  # `watermark.maxFuture`; no row of a history is a day ahead of another one
INPUTS = ("o", "d", "r", "x")
KINDS = ("interval", "broadcast", "chain", "fixed", "session", "asof", "mixed", "computed", "windows", "any")
TYPES = ("inner", "left", "right", "full", "semi", "anti")
NARROWER = {"full": ("left", "right", "inner"), "left": ("inner",), "right": ("inner",)}
"""By type, the types to which a job with state may be edited (M2)."""

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


@dataclass(frozen=True, repr=False)
class Job:
    """`predicates`, `computed`, `keeps` (the filters of steps) and `key_values` (computed keys) say the expressions of
    the job in Python; `keys` are the key columns of every input, by kind of key."""

    job: StreamJoin
    predicates: Mapping[int, Predicates]
    computed: Mapping[str, Check]
    keys: Mapping[str, str]
    keeps: Mapping[int, Check] = field(default_factory=dict)
    key_values: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(side.name for side in self.job.spec.inputs)

    def oracle(self, *, aggregated: bool = False) -> Oracle:
        """A fresh one."""
        meaning = {"predicates": self.predicates, "keeps": self.keeps, "computed": self.computed}
        return Oracle.of_job(self.job, **meaning, key_values=self.key_values, aggregated=aggregated)

    def edit(self, oracle: Oracle, before: Job) -> None:
        oracle.edit(self.oracle(), newly_stored(before.job, self.job))

    def selecting(self, items: Sequence[Mapping[str, str]]) -> Job:
        """The job that emits these columns of its inputs."""
        document = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
        document["spec"]["select"] = list(items)
        return replace(self, job=StreamJoin.model_validate(document), computed={})

    def __repr__(self) -> str:
        """What of the job a failing example is about."""
        shown = {"spec": {"joins", "select"}}
        parts = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True, include=shown)
        delays = {side.name: side.watermark.delay for side in self.job.spec.inputs}
        return f"<{parts['spec']}, delays {delays}, keys {dict(self.keys)}>"


def newly_stored(before: StreamJoin, after: StreamJoin) -> dict[int, list[set[tuple[str, str]]]]:
    """By step and side, the columns (by input) that rows lack which were stored before the edit (M2); a row knows its
    time in any case."""
    was, now = compile_job(before).parts(), compile_job(after).steps
    return {
        step.number: [
            {
                (name, column) if dot else (side.time, name)
                for stored in set(side.stored) - {*was[side.part].stored, side.intake.event_time}
                for name, dot, column in [stored.partition(".")]
            }
            for side in step.sides
        ]
        for step in now
    }


# --- predicates: as the job writes them, and what they mean row by row ------------------------------------------------


def unless_null(check: Callable[..., bool], *references: tuple[str, str]) -> Check:
    """SQL's NULL for predicates that are NULL when a value is."""

    def on(columns: Mapping[str, Mapping[str, Any]]) -> bool | None:
        values = [columns[name][column] for name, column in references]
        return None if any(value is None for value in values) else check(*values)

    return on


def one_sided(a: str) -> list[tuple[str, Check]]:
    return [
        (f"{a}.v > 0", unless_null(lambda v: v > 0, (a, "v"))),
        (f"{a}.v IS NOT NULL", lambda columns: columns[a]["v"] is not None),
        (f"{a}.v IN (0, 2)", unless_null(lambda v: v in (0, 2), (a, "v"))),
    ]


def two_sided(a: str, b: str) -> list[tuple[str, Check]]:
    later = timedelta(milliseconds=2)
    return [
        (f"{a}.v < {b}.v", unless_null(lambda v, w: v < w, (a, "v"), (b, "v"))),
        (f"{a}.v + {b}.v = 3 OR {b}.v IS NULL", lambda columns: _three_or_null(columns[a]["v"], columns[b]["v"])),
        (f"NOT ({a}.v = {b}.v)", unless_null(lambda v, w: v != w, (a, "v"), (b, "v"))),
        (
            f"{b}.ts >= {a}.ts + INTERVAL '2' MILLISECOND",
            unless_null(lambda v, w: w >= v + later, (a, "ts"), (b, "ts")),
        ),
    ]


def _ends_behind(columns: Mapping[str, Mapping[str, Any]], name: str) -> bool | None:
    end, value = columns[""]["window_end"], columns[name]["v"]
    if end is None:
        return True
    return None if value is None else bool(end > value)


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
    reads = frozenset(name for name in left if texts and f"{name}." in texts[0]) if of_left else frozenset()
    return " AND ".join(texts) or None, Predicates(of_left, of_right, rest, reads)


@st.composite
def filters(
    draw: Any, left: Sequence[str], right: str, join_type: str, *, windowed: bool = False
) -> tuple[str, Check] | None:
    """A filter of a step that only the step itself can check, because the step pads what the filter reads, or because
    it reads the window (`windowed`: rows are in one)."""
    a, b = left[-1], right
    options = {
        "left": [*one_sided(b), *two_sided(a, b), (f"{b}.v IS NULL", lambda columns: columns[b]["v"] is None)],
        "right": [*one_sided(a), *two_sided(a, b)],
        "full": [*one_sided(a), *one_sided(b), *two_sided(a, b)],
    }.get(join_type, [])
    if windowed:
        options = [
            *options,
            ("window_start % 10 = 0", unless_null(lambda start: start % 10 == 0, ("", "window_start"))),
            (f"window_end > {a}.v OR window_start IS NULL", lambda columns: _ends_behind(columns, a)),
        ]
    return draw(st.sampled_from(options)) if options and draw(st.integers(0, 2)) == 0 else None


# --- jobs -------------------------------------------------------------------------------------------------------------


def ms(value: int) -> str:
    return f"{value}ms"


@st.composite
def key_pairs(draw: Any, left: Sequence[str], right: str) -> dict[str, str]:
    """`k` columns are of one type in all inputs, `n` columns are integers of either width."""
    columns = draw(st.sampled_from([["k"], ["k"], ["n"], ["k", "n"], ["k", "ts"]]))
    return {f"{draw(st.sampled_from(left))}.{column}": f"{right}.{column}" for column in columns}


def remainder(values: Mapping[str, Any]) -> int | None:
    """`n % 7`: -1 and 6 differ, because the sign is that of the dividend, 0 and 7 are equal."""
    return None if values["n"] is None else int(math.fmod(values["n"], 7))


@st.composite
def computed_keys(draw: Any, left: Sequence[str], right: str, *, table: bool) -> dict[str, str]:
    """A key that is an expression (J12), on one side or both. That of a table is a column."""
    first = draw(st.sampled_from(left))
    texts = [f"{name}.n % 7" for name in (first, right)]
    plain = 1 if table else draw(st.sampled_from([0, 1, 2]))
    return {texts[0] if plain != 0 else f"{first}.n": texts[1] if plain != 1 else f"{right}.n"}


@st.composite
def interval_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    lower, upper = sorted((draw(st.integers(-9, 4)), draw(st.integers(-4, 9))))
    # Often one input after the other, and then the first again: bounds add up only along such a chain.
    anchor = draw(st.sampled_from([*left, left[1], left[1]] if len(left) == 2 else [*left, left[0]]))
    return {
        "interval": {"of": anchor, "lower": ms(lower), "upper": ms(upper)},
        "type": draw(st.sampled_from(TYPES)),
        "keys": draw(key_pairs(left, right)),
        "allowedLateness": ms(draw(st.sampled_from([0, 0, 1, 5]))),
        "lateData": draw(st.sampled_from(["drop", "reopen", "dlq"])),
    }


@st.composite
def broadcast_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    """J9: the broadcast side is not preserved."""
    side = draw(st.sampled_from([*left[-1:], right]))
    types = ("inner", "left", "semi", "anti") if side == right else ("inner", "right")
    step = draw(interval_steps(left, right))
    return {**step, "keys": {}, "broadcast": side, "type": draw(st.sampled_from(types))}


@st.composite
def fixed_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    size = draw(st.integers(1, 8))
    slide = draw(st.integers(1, size))
    return {
        "window": {
            **draw(st.sampled_from([{"tumbling": ms(size)}, {"hopping": {"size": ms(size), "slide": ms(slide)}}])),
            **draw(st.sampled_from([{}, {"offset": ms(draw(st.integers(0, size - 1)))}])),
        },
        "type": draw(st.sampled_from(TYPES)),
        "keys": draw(key_pairs(left, right)),
        "allowedLateness": ms(draw(st.sampled_from([0, 0, 1, 5]))),
        "lateData": draw(st.sampled_from(["drop", "dlq"])),
    }


@st.composite
def session_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    return {**draw(fixed_steps(left, right)), "window": {"session": {"gap": ms(draw(st.integers(1, 5)))}}}


@st.composite
def asof_steps(draw: Any, left: Sequence[str], right: str) -> dict[str, Any]:
    retention = draw(st.integers(1, 12))
    columns = draw(st.sampled_from([["k"], ["n"], ["k", "n"]]))
    origin = {"of": draw(st.sampled_from(left))} if draw(st.booleans()) else {}
    return {
        "asOf": {**origin, "historyRetention": ms(retention), "grace": ms(draw(st.integers(0, retention - 1)))},
        "type": draw(st.sampled_from(["inner", "left"])),
        "keys": {f"{draw(st.sampled_from(left))}.{column}": f"{right}.{column}" for column in columns},
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
def mixed_steps(draw: Any, before: Sequence[dict[str, Any]], left: Sequence[str], right: str) -> dict[str, Any]:
    """A step of any kind that may follow these. It counts from the time of an input that is no table."""
    tables = {step["right"] for step in before if "asOf" in step}
    step = draw(draw(st.sampled_from([interval_steps, asof_steps]))(left, right))
    timed = [name for name in left if name not in tables]
    for matching in step.values():
        if isinstance(matching, dict) and matching.get("of") in tables:
            matching["of"] = draw(st.sampled_from(timed))
    return step


@st.composite
def steps_in_windows(
    draw: Any, before: Sequence[dict[str, Any]], left: Sequence[str], right: str, *, last: bool, allow_mixed: bool
) -> dict[str, Any]:
    """A window step behind these, in the windows of an earlier one if there is one; with `allow_mixed`, or where no
    window step can follow, also a step of another kind. A session step is the last one."""
    first = next((number for number, step in enumerate(before) if "window" in step), len(before))
    tables = {step["right"] for step in before if "asOf" in step}
    present = [name for name in left if name not in tables | _padded(before)]
    lost = any("window" not in step and step["type"] in {"right", "full"} for step in before[first:])
    can_follow = not lost if first < len(before) else bool(present)
    if not can_follow or (allow_mixed and draw(st.booleans())):
        return draw(mixed_steps(before, left, right))
    if first < len(before):
        return {**draw(fixed_steps(left, right)), "window": {**before[first]["window"], "of": None}}
    step = draw(st.sampled_from([fixed_steps, fixed_steps, session_steps] if last else [fixed_steps]))(left, right)
    drawn = draw(step)
    origin = {} if present[0] == left[0] and draw(st.booleans()) else {"of": draw(st.sampled_from(present))}
    return {**drawn, "window": {**drawn["window"], **origin}}


def _padded(steps: Sequence[Mapping[str, Any]]) -> set[str]:
    """The inputs that are null in some rows behind these steps."""
    padded: set[str] = set()
    joined = {INPUTS[0]}
    for step in steps:
        padded |= {step["right"]} if step["type"] in {"left", "full"} else set()
        padded |= joined if step["type"] in {"right", "full"} else set()
        joined.add(step["right"])
    return padded


@st.composite
def jobs(draw: Any, kind: str) -> Job:
    counts = {"chain": [3, 4], "mixed": [3, 4], "computed": [2, 3], "windows": [3, 4], "any": [3, 4]}.get(kind)
    names = INPUTS[: draw(st.sampled_from(counts)) if counts else 2]
    key = draw(st.sampled_from(sorted(KEY_TYPES)))
    steps, predicates, keeps = [], {}, {}
    left = names[:1]
    for number, right in enumerate(names[1:]):
        if kind in ("windows", "any"):
            last = right == names[-1]
            step = draw(steps_in_windows(steps, left, right, last=last, allow_mixed=kind == "any"))
        else:
            step = draw(_steps_of(kind, len(names), steps, left, right))
        if kind == "computed":
            step["keys"] = draw(computed_keys(left, right, table="asOf" in step))
        where, predicates[number] = draw(wheres(left, right, versions="asOf" in step))
        steps.append({"right": right, **step, **({"where": where} if where else {})})
        windowed = any("window" in earlier for earlier in steps)
        if (chosen := draw(filters(left, right, step["type"], windowed=windowed))) is not None:
            steps[-1]["filter"], keeps[number] = chosen
        left = left if step["type"] in EXISTENCE else (*left, right)
    inputs = [draw(an_input(name, key)) for name in names]
    for side, step in zip(inputs[1:], steps, strict=True):
        if "asOf" in step:
            side["table"] = {"key": [text.partition(".")[2] for text in step["keys"].values()]}
    select, computed = draw(selects(left, windowed=any("window" in step for step in steps)))
    spec = {"inputs": inputs, "joins": steps, **select, "output": {"file": {"path": "out.jsonl"}, "format": "json"}}
    spec["deadLetter"] = {"file": {"path": "dead.jsonl"}}
    job = StreamJoin.model_validate({"metadata": {"name": "random"}, "spec": spec})
    key_values = {f"{name}.n % 7": remainder for name in names}
    return Job(job, predicates, computed, {"k": key, "n": "integers"}, keeps, key_values)


def _steps_of(kind: str, inputs: int, before: Sequence[dict[str, Any]], left: Sequence[str], right: str) -> Any:
    """The steps that a job of the kind, with this number of inputs, may continue with."""
    if kind == "mixed" or (kind == "computed" and inputs > 2):
        return mixed_steps(before, left, right)
    if kind == "computed":
        return st.one_of(*(steps(left, right) for name, steps in STEPS.items() if name != "broadcast"))
    return STEPS[kind](left, right)


@st.composite
def edited_jobs(draw: Any, job: Job) -> Job:
    """The job with anything else that goes on with its state (M2)."""
    document = job.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec, predicates, computed = document["spec"], dict(job.predicates), job.computed
    keeps = dict(job.keeps)
    for number, step in enumerate(spec["joins"]):
        left = job.job.left_inputs(number)
        before = step["type"]
        step["type"] = draw(st.sampled_from([before, before, *NARROWER.get(before, ())]))
        if step["type"] != before or draw(st.integers(0, 3)) == 0:
            step.pop("filter", None)
            keeps.pop(number, None)
            if (chosen := draw(filters(left, step["right"], step["type"]))) is not None:
                step["filter"], keeps[number] = chosen
        if "interval" in step:
            lower, upper = sorted((draw(st.integers(-9, 4)), draw(st.integers(-4, 9))))
            step["interval"] |= {"lower": ms(lower), "upper": ms(upper)}
        if "asOf" in step:
            retention = draw(st.integers(1, 12))
            step["asOf"] |= {"historyRetention": ms(retention), "grace": ms(draw(st.integers(0, retention - 1)))}
        else:
            step["allowedLateness"] = ms(draw(st.sampled_from([0, 0, 1, 5, 12])))
            step["lateData"] = draw(st.sampled_from(["drop", "dlq", *(["reopen"] if "interval" in step else [])]))
        if draw(st.booleans()):
            where, predicates[number] = draw(wheres(left, step["right"], versions="asOf" in step))
            step.pop("where", None)
            step.update({"where": where} if where else {})
    if draw(st.booleans()):
        spec.pop("select", None)
        select, computed = draw(selects(job.job.left_inputs(len(spec["joins"]))))
        spec |= select
    for side in spec["inputs"]:
        side["watermark"]["delay"] = ms(draw(st.sampled_from([0, 0, 3, 6])))
        side["watermark"]["maxFuture"] = ms(draw(st.sampled_from([A_DAY, 5, 12, 20])))
    return replace(job, job=StreamJoin.model_validate(document), predicates=predicates, computed=computed, keeps=keeps)


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
        "watermark": {"delay": ms(draw(st.sampled_from([0, 0, 3]))), "maxFuture": ms(draw(st.sampled_from(FUTURES)))},
    }


@st.composite
def selects(draw: Any, names: Sequence[str], *, windowed: bool = False) -> tuple[dict[str, Any], dict[str, Check]]:
    """Every column, or a few with an expression that a padded row has to make something of. `windowed`: rows are in
    windows, and an expression reads their times."""
    if draw(st.integers(0, 1 if windowed else 3)):
        return {}, {}
    first, last = names[0], names[-1]
    chosen = [
        {"column": f"{first}.v", "as": "v"},
        {"column": f"{last}.ts"},
        {"expression": f"{last}.v IS NULL", "as": "unknown"},
    ]
    computed: dict[str, Check] = {"unknown": lambda columns: columns[last]["v"] is None}
    if windowed:
        chosen.append({"expression": "window_end - 3", "as": "until"})
        computed["until"] = lambda columns: None if columns[""]["window_end"] is None else columns[""]["window_end"] - 3
    return {"select": chosen}, computed
