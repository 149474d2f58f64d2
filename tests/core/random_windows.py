"""Hypothesis strategies: random windows in an `aggregate` of one input, with what their expressions mean in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hypothesis import strategies as st

from core.cases import Case
from core.random_jobs import A_DAY, FUTURES, KEY_TYPES, ms
from core.random_sessions import (
    COMPUTED,
    CONDITIONS,
    EVERY,
    GROUPS,
    HAVING,
    INPUT,
    LARGE_HAVING,
    LARGE_SELECTED,
    SELECTED,
    VALUES,
    aggregates,
    estimate,
    histories,
    input_of,
    large_aggregates,
    plus_one,
    selected_items,
    selected_of,
    selection_in_python,
    selections,
    watermark_of,
)
from joinery_devkit.oracle.windowed import WindowOracle, WindowShape
from joinery_runtime.job import StreamJoin

Values = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class WindowedJob:
    """`types` are the types of the columns of which rows have random values; `busy`: all rows are of one group. Times
    of a history are multiples of `unit` milliseconds from `start` on (None: from anywhere)."""

    job: StreamJoin
    types: Mapping[str, str]
    where: Callable[[Values], bool | None] | None = None
    computed: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    busy: bool = False
    unit: int = 1
    start: int | None = None
    large: bool = False

    def oracle(self) -> WindowOracle:
        """A fresh one."""
        aggregate = self.job.spec.aggregate
        having = {**HAVING, **LARGE_HAVING}.get(aggregate.having or "") if aggregate is not None else None
        selection = selection_in_python(selected_of(self.job))
        shape = WindowShape(self.job, self.where, self.computed, self._sketched, _CONDITIONS, having, selection)
        return WindowOracle(shape)

    def edit(self, oracle: WindowOracle, before: WindowedJob) -> None:
        oracle.edit(self.job)

    def with_lateness(self, milliseconds: int) -> WindowedJob:
        return self._edited(allowedLateness=ms(milliseconds))

    def with_early_results(self, every: int) -> WindowedJob:
        return self._edited(emit={"every": ms(every)})

    def _edited(self, **fields: Any) -> WindowedJob:
        document = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
        document["spec"]["aggregate"] |= fields
        return replace(self, job=StreamJoin.model_validate(document))

    def _sketched(self, values: Sequence[Any]) -> int:
        """The estimate of one sketch that sees all values."""
        return estimate(values, self.types["w"])

    def __repr__(self) -> str:
        """What of the job a failing example is about."""
        spec = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
        return f"<{spec['aggregate']}, delay {self.job.inputs[0].watermark.delay}, {dict(self.types)}>"


WINDOWS: list[dict[str, dict[str, int]]] = [
    {"tumbling": {"size": 5}},
    {"tumbling": {"size": 7, "offset": 3}},
    {"hopping": {"size": 6, "slide": 2}},
    {"hopping": {"size": 7, "slide": 4}},
    {"hopping": {"size": 9, "slide": 6, "offset": 5}},
    {"cumulative": {"size": 12, "step": 4}},
    {"cumulative": {"size": 6, "step": 1, "offset": 2}},
]
HOUR = 3_600_000
LOCAL_WINDOWS: list[dict[str, dict[str, int]]] = [
    {"tumbling": {"size": 24}},
    {"tumbling": {"size": 1}},
    {"tumbling": {"size": 6, "offset": 5}},
    {"hopping": {"size": 48, "slide": 24}},
    {"hopping": {"size": 3, "slide": 1}},
    {"hopping": {"size": 8, "slide": 6, "offset": 1}},
    {"cumulative": {"size": 4, "step": 1}},
    {"cumulative": {"size": 24, "step": 6, "offset": 2}},
]
"""Windows of a zone (G12), in hours."""
CHANGES: list[tuple[str, str]] = [
    ("Europe/Zurich", "2026-03-29T01:00Z"),
    ("Europe/Zurich", "2026-10-25T01:00Z"),
    ("America/Sao_Paulo", "2018-11-04T03:00Z"),  # midnight is skipped
    ("America/Sao_Paulo", "2018-02-18T02:00Z"),
    ("Asia/Beirut", "2022-03-26T22:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00Z"),  # by half an hour
    ("Australia/Lord_Howe", "2026-10-03T15:30Z"),
    ("Asia/Kathmandu", "2026-01-01T00:00Z"),  # 5:45 ahead of UTC
    ("America/St_Johns", "2010-11-07T02:31Z"),  # at one minute past midnight
    ("Pacific/Apia", "2011-12-30T10:00Z"),  # a day is skipped
]
"""Zones, and times at which their clocks change."""
FAR_FUTURES = (400 * A_DAY,)  # `watermark.maxFuture`; no row of a history is so far ahead


def windows_of(draw: Any, zone: str | None) -> dict[str, dict[str, Any]]:
    """A window as a job has it."""
    ((kind, lengths),) = draw(st.sampled_from(WINDOWS if zone is None else LOCAL_WINDOWS)).items()
    unit = 1 if zone is None else HOUR
    written = {name: ms(length * unit) for name, length in lengths.items()}
    return {kind: {**written, **({"timeZone": zone} if zone is not None else {})}}


@st.composite
def windowed_jobs(
    draw: Any,
    *,
    having: bool = False,
    early: bool = False,
    reopen: bool = False,
    computing: bool = False,
    local: bool = False,
    large: bool = False,
) -> WindowedJob:
    value_types = ["decimal(38,0)"] if large else sorted(VALUES)
    kinds = {"k": draw(st.sampled_from(sorted(KEY_TYPES))), "w": draw(st.sampled_from(value_types))}
    busy = draw(st.booleans())
    types = {"k": KEY_TYPES[kinds["k"]][0][0], "n": "int32", "v": "int64", "w": kinds["w"]}
    where = None if busy else draw(st.sampled_from([None, None, None, *CONDITIONS]))
    zone, change = draw(st.sampled_from(CHANGES)) if local else (None, None)
    unit = draw(st.sampled_from([HOUR, 25 * 60_000])) if local else 1
    start = None if change is None else round(datetime.fromisoformat(change).timestamp() * 1000) - 12 * HOUR
    late_data = draw(st.sampled_from(["drop", "drop", "dlq"]))
    aggregate = {
        "groupBy": [name if name == "p" else f"{INPUT}.{name}" for name in draw(st.sampled_from([*GROUPS, ()]))],
        "window": windows_of(draw, zone),
        "compute": [{"expression": f"{INPUT}.{COMPUTED}", "as": "p"}],
        "aggregates": [_of_input(spec) for spec in draw(large_aggregates() if large else aggregates(kinds["w"]))],
        "lateData": late_data,
        "allowedLateness": ms(draw(st.sampled_from([0, 0, 1, 5, 25])) * unit),
    }
    if (having or computing) and not large:
        aggregate["aggregates"].append({"function": "count", "as": "rows"})
    if having:
        aggregate |= {"having": draw(st.sampled_from(sorted(LARGE_HAVING if large else HAVING)))}
    if reopen:
        late_data = aggregate["lateData"] = "reopen"
    if early:
        aggregate["emit"] = {"every": ms(draw(st.sampled_from(EVERY)) * unit)}
    watermark = watermark_of(draw, FAR_FUTURES if local else FUTURES, unit)
    source = {**input_of(types), "watermark": watermark, **({"where": where[0]} if where else {})}
    written = {"file": {"path": "out.jsonl"}, "format": "json"}
    dead = {"deadLetter": {"file": {"path": "dead.jsonl"}}}
    spec = {"inputs": [source], "aggregate": aggregate, "output": written, **(dead if late_data == "dlq" else {})}
    if computing:
        spec["select"] = selected_items(draw(selections(LARGE_SELECTED if large else SELECTED)), aggregate["groupBy"])
    job = StreamJoin.model_validate({"metadata": {"name": "random"}, "spec": spec})
    return WindowedJob(job, types, where[1] if where else None, {"p": plus_one}, busy, unit, start, large)


def _of_input(spec: dict[str, Any]) -> dict[str, Any]:
    names = {field: spec[field] for field in ("column", "by") if spec.get(field, "p") != "p"}
    return {**spec, **{field: f"{INPUT}.{column}" for field, column in names.items()}}


def _of_input_columns(condition: Callable[[Values], bool | None]) -> Callable[[Values], bool | None]:
    return lambda values: condition({"v": values[f"{INPUT}.v"]})


_CONDITIONS = {text: _of_input_columns(condition) for text, condition in CONDITIONS}


@st.composite
def windowed_cases(draw: Any, longest: int = 6, **chosen: bool) -> Case:
    """As `random_sessions.session_cases`, of windows; `chosen` are options of `windowed_jobs`."""
    return draw(histories(draw(windowed_jobs(**chosen)), longest))
