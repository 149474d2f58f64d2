"""Hypothesis strategies: random top-N of one input, with what its condition means in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from core.cases import Case
from core.random_jobs import KEY_TYPES, ms
from core.random_sessions import CONDITIONS, INPUT, VALUES, histories, input_of, watermark_of
from core.random_windows import WINDOWS
from joinery_devkit.oracle import TopNOracle, TopNShape
from joinery_runtime.job import StreamJoin

Values = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class RankedJob:
    """`types` are the types of the columns of which rows have random values; `busy`: all rows are of one key."""

    job: StreamJoin
    types: Mapping[str, str]
    where: Callable[[Values], bool | None] | None = None
    busy: bool = False

    def oracle(self) -> TopNOracle:
        """A fresh one."""
        return TopNOracle(TopNShape(self.job, self.where))

    def edit(self, oracle: TopNOracle, before: RankedJob) -> None:
        oracle.edit(self.job)

    def with_lateness(self, milliseconds: int) -> RankedJob:
        document = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
        document["spec"]["topN"]["allowedLateness"] = ms(milliseconds)
        return replace(self, job=StreamJoin.model_validate(document))

    def __repr__(self) -> str:
        """What of the job a failing example is about."""
        spec = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
        return f"<{spec['topN']}, delay {self.job.inputs[0].watermark.delay}, {dict(self.types)}>"


@st.composite
def ranked_jobs(draw: Any) -> RankedJob:
    kind = draw(st.sampled_from(sorted(KEY_TYPES)))
    busy = draw(st.booleans())
    types = {"k": KEY_TYPES[kind][0][0], "n": "int32", "v": "int64", "w": draw(st.sampled_from(sorted(VALUES)))}
    where = None if busy else draw(st.sampled_from([None, None, None, *CONDITIONS]))
    late_data = draw(st.sampled_from(["drop", "drop", "dlq"]))
    names = draw(st.lists(st.sampled_from(["v", "w", "n", "ts"]), min_size=1, max_size=3, unique=True))
    order = [
        {
            "expression": f"{INPUT}.{name}",
            "direction": draw(st.sampled_from(["asc", "desc"])),
            "nulls": draw(st.sampled_from([None, "first", "last"])),
        }
        for name in names
    ]
    by = draw(st.sampled_from([["k"], ["k"], ["k", "n"], ["n", "k"], None]))
    window = draw(st.sampled_from(WINDOWS))
    top_n = {
        "by": None if by is None else [f"{INPUT}.{name}" for name in by],
        "orderBy": order,
        "rows": draw(st.sampled_from([1, 1, 2, 3, 50])),
        "window": {form: {name: ms(value) for name, value in lengths.items()} for form, lengths in window.items()},
        "lateData": late_data,
        "allowedLateness": ms(draw(st.sampled_from([0, 0, 1, 5, 25]))),
    }
    source = {**input_of(types), "watermark": watermark_of(draw), **({"where": where[0]} if where else {})}
    written = {"file": {"path": "out.jsonl"}, "format": "json"}
    dead = {"deadLetter": {"file": {"path": "dead.jsonl"}}}
    spec = {"inputs": [source], "topN": top_n, "output": written, **(dead if late_data == "dlq" else {})}
    job = StreamJoin.model_validate({"metadata": {"name": "random"}, "spec": spec})
    return RankedJob(job, types, where[1] if where else None, busy)


@st.composite
def ranked_cases(draw: Any, longest: int = 6) -> Case:
    """As `random_sessions.session_cases`, of top-N."""
    return draw(histories(draw(ranked_jobs()), longest))
