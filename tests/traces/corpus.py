"""Reads the golden traces of this folder: what README.md says of their format, as values.

Anything that README.md does not name is refused, so that a misspelt `expect` cannot pass for "nothing expected".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import yaml

from traces.session_ids import with_session_id

FOLDER = Path(__file__).parent

# What a trace writes as `end`: the watermark of an input that has ended (rule T7).
END = 2**63 - 1

_TRACE = {"about", "source", "covers", "differs", "spark", "anyCut", "kind", "job", "sides", "steps", "refused"}
_EXPECT = {"output", "late", "dropped", "watermarks", "stepWatermarks", "dead", "after_eviction", "fails"}
_SCHEMA = {"k": "string", "v": "string", "ts": "timestamp"}
_TOP_N = {"rows": 2, "window": {"tumbling": {"size": 10}}}
_ENDS = {"output": {"file": {"path": "unused-output.jsonl"}}, "stateStore": {"memory": {}}}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """What one step prints. `watermarks`, `step_watermarks` (one per join), `dropped` (by input and reason, without
    late rows) and `after_eviction` are None where the trace does not say; inputs that `late` and `dead` leave out have
    0. With `fails` the step raises an error whose text holds all of these fragments."""

    output: tuple[Row, ...] = ()
    late: Mapping[str, int] | None = None
    dropped: Mapping[str, Mapping[str, int]] | None = None
    watermarks: Mapping[str, int | None] | None = None
    step_watermarks: tuple[Mapping[str, int | None], ...] | None = None
    dead: Mapping[str, int] | None = None
    after_eviction: Mapping[str, int] | None = None
    fails: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """`action` is what run_trace takes."""

    action: Mapping[str, Any]
    expected: Expected


@dataclass(frozen=True, slots=True)
class Refusal:
    """A problem that loading the job reports at the path `at`; `says` is part of its message."""

    at: str
    says: str


@dataclass(frozen=True, slots=True)
class Trace:
    """One file. `name` is its path without the suffix, `job` a whole resource with the defaults of README.md filled in;
    either `steps` or `refused` is not empty."""

    name: str
    about: str
    source: str
    covers: tuple[str, ...]
    job: Mapping[str, Any]
    steps: tuple[Step, ...]
    refused: tuple[Refusal, ...]
    differs: str | None
    spark: bool
    any_cut: bool
    sides: tuple[str, ...] = ()

    @property
    def sessions(self) -> bool:
        return bool(self.job["kind"] == "SessionWindow")

    @property
    def inputs(self) -> tuple[str, ...]:
        """What is joined: inputs, unions in the place of their branches, and inputs that the SQL reads again (J13)."""
        if self.sides:
            return self.sides
        return self.sources if self.sessions or "unions" not in self.job["spec"] else _joined(self.job["spec"])

    @property
    def sources(self) -> tuple[str, ...]:
        """The inputs of the job, then those that its SQL reads again (J13), by the names under which they get rows."""
        spec = self.job["spec"]
        names = [side["name"] for side in ([spec["input"]] if self.sessions else spec["inputs"])]
        if "sql" in spec:
            names += [name for step in self.steps for name in step.action.get("rows", ()) if "input" not in step.action]
        return tuple(dict.fromkeys(names))

    @property
    def ordered(self) -> bool:
        """The rows of a step have a defined order when the job is one join, or sessions."""
        return len(self.inputs) <= 2


class _Loader(yaml.CSafeLoader):
    """Reads as YAML 1.2, of whose words only true and false are booleans. The product's reader, in Python, took 2.5 s
    for the corpus, in each process that collects tests."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if first in "tTfF" or not tag.endswith(":bool")]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


@cache
def load_traces(folder: Path = FOLDER) -> Sequence[Trace]:
    """Every trace below the folder, by name."""
    return [_read(path, path.relative_to(folder).with_suffix("").as_posix()) for path in sorted(folder.rglob("*.yaml"))]


def _read(path: Path, name: str) -> Trace:
    raw = yaml.load(path.read_bytes(), Loader=_Loader)
    _known(raw, _TRACE, name)
    if ("steps" in raw) == ("refused" in raw):
        raise ValueError(f"{name}: has either steps or refused")
    job = _RESOURCES[raw.get("kind", "StreamJoin")](raw["job"], name.replace("/", "."))
    complete = partial(with_session_id, job["spec"]) if _has_sessions(job) else dict
    steps = enumerate(raw.get("steps", ()), start=1)
    return Trace(
        name,
        about=raw["about"],
        source=raw["source"],
        covers=tuple(raw["covers"]),
        job=job,
        steps=tuple(_step(step, f"{name}, step {number}", complete) for number, step in steps),
        refused=tuple(Refusal(**problem) for problem in raw.get("refused", ())),
        differs=raw.get("differs"),
        spark=raw.get("spark", False),
        any_cut=raw.get("anyCut", False),
        sides=tuple(raw.get("sides", ())),
    )


def _has_sessions(job: Mapping[str, Any]) -> bool:
    aggregate = job["spec"].get("aggregate", {})
    return job["kind"] == "SessionWindow" or "session" in aggregate.get("window", {})


def _known(raw: Mapping[str, Any], names: set[str], location: str) -> None:
    if unknown := set(raw) - names:
        raise ValueError(f"{location}: {sorted(unknown)} is not one of {sorted(names)}")


def _step(raw: Mapping[str, Any], location: str, complete: Callable[[Row], Row]) -> Step:
    expect = raw.get("expect", {})
    _known(expect, _EXPECT, location)
    expected = Expected(
        output=tuple(map(complete, expect.get("output", ()))),
        late=expect.get("late"),
        dropped=expect.get("dropped"),
        watermarks=_watermarks(expect.get("watermarks")),
        step_watermarks=_step_watermarks(expect.get("stepWatermarks")),
        dead=expect.get("dead"),
        after_eviction=expect.get("after_eviction"),
        fails=tuple(expect.get("fails", ())),
    )
    return Step({key: value for key, value in raw.items() if key != "expect"}, expected)


def _watermarks(raw: Mapping[str, Any] | None) -> dict[str, int | None] | None:
    return None if raw is None else {name: END if value == "end" else value for name, value in raw.items()}


def _step_watermarks(raw: Sequence[Mapping[str, Any]] | None) -> tuple[Mapping[str, int | None], ...] | None:
    return None if raw is None else tuple(_watermarks(step) or {} for step in raw)


# --- what a trace leaves out of its job -------------------------------------------------------------------------------


def resource(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The whole StreamJoin of a trace's `job`."""
    input_specs = spec.get("inputs", ({"name": "l"}, {"name": "r"}))
    names = _joined({**spec, "inputs": input_specs})
    joins = [_join(step, names, number) for number, step in enumerate(spec.get("joins", ()), start=1)]
    absent = {step["right"] for step in joins if step.get("type") in {"semi", "anti"}}  # E1
    emitted = [name for name in names if name not in absent]
    every_v = [*({"column": f"{side}.v", "as": side} for side in emitted), *_window_columns(joins)]
    filled = {
        "select": "default" if "aggregate" in spec else every_v,
        **_ENDS,
        **spec,
        "inputs": [_input(side, joins) for side in input_specs],
    }
    if "aggregate" in spec:
        filled["aggregate"] = _aggregate(spec["aggregate"], names[0])
    if "deduplicate" in spec:
        filled["deduplicate"] = {"by": [f"{names[0]}.k"], "within": 10, **spec["deduplicate"]}
    if "topN" in spec and "aggregate" not in spec:
        filled["topN"] = {**_TOP_N, "by": [f"{names[0]}.k"], **spec["topN"]}
        order = [{"expression": f"{names[0]}.v", "direction": "desc"}]
        filled["topN"] = {"orderBy": order, **filled["topN"]}
        ranks = [{"column": name} for name in ("window_start", "window_end", "row_number")]
        filled["select"] = spec.get("select", [*every_v, *ranks])
    if joins:
        filled["joins"] = joins
    if filled.get("select") == "default" or "sql" in spec:
        del filled["select"]
    return _resource("StreamJoin", name, filled)


def _joined(spec: Mapping[str, Any]) -> tuple[str, ...]:
    unions = spec.get("unions", ())
    union_of = {branch["input"]: union["name"] for union in unions for branch in union["branches"]}
    names = (side["name"] for side in spec["inputs"])
    return tuple(dict.fromkeys(union_of.get(name, name) for name in names))


def _window_columns(joins: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, str]]:
    windowed = any("window" in step for step in joins)
    return [{"column": name} for name in ("window_start", "window_end")] if windowed else []


def _aggregate(spec: Mapping[str, Any], first: str) -> dict[str, Any]:
    completed = {
        "groupBy": [f"{first}.k"],
        "window": {"session": {}},
        "aggregates": [{"function": "count", "as": "rows"}],
        **spec,
    }
    if "session" in completed["window"]:
        completed["window"] = {
            **completed["window"],
            "session": {"gap": 10, "maxDuration": 1000, **completed["window"]["session"]},
        }
    return completed


def session_resource(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The whole SessionWindow of a trace's `job`; what is null in it is left out."""
    defaults = (
        {} if "sql" in spec else {"groupBy": ["k"], "gap": 10, "aggregates": [{"function": "count", "as": "rows"}]}
    )
    filled = {"maxDuration": 1000, **_ENDS, **defaults, **spec}
    completed = {key: value for key, value in filled.items() if value is not None}
    return _resource(
        "SessionWindow", name, {**completed, "input": _input({"name": "c", **completed.get("input", {})}, [])}
    )


def _resource(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


_RESOURCES = {"StreamJoin": resource, "SessionWindow": session_resource}


def _input(spec: Mapping[str, Any], joins: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    schema = spec.get("schema", _SCHEMA)
    tables = [{"table": _table(step)} for step in joins if "asOf" in step and step["right"] == spec["name"]]
    return {
        **({} if "kafka" in spec else {"file": {"path": f"unused-{spec['name']}.jsonl"}}),
        "format": "json",
        "eventTime": "ts",
        **(tables[0] if tables else {}),
        **spec,
        "schema": [
            {"name": name, **(kind if isinstance(kind, dict) else {"type": kind})} for name, kind in schema.items()
        ],
    }


def _table(step: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": [str(column).partition(".")[2] for column in step["keys"].values()]}


def _join(spec: Mapping[str, Any], names: Sequence[str], number: int) -> dict[str, Any]:
    first, right = names[0], spec.get("right", names[number])
    step = {"right": right, "keys": {f"{first}.k": f"{right}.k"}, **spec}
    if "window" in step or "asOf" in step:
        return step
    interval = step.pop("interval", {})
    return step if interval is None else {**step, "interval": {"of": first, **interval}}
