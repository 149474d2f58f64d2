"""Hypothesis strategies: random deduplication of one input, with what its condition means in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from core.cases import Case
from core.random_jobs import KEY_TYPES, ms
from core.random_sessions import CONDITIONS, INPUT, histories, input_of, watermark_of
from joinery_devkit.oracle import DeduplicationOracle, DeduplicationShape
from joinery_runtime.job import StreamJoin

Values = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class DeduplicatedJob:
    """`types` are the types of the columns of which rows have random values; `busy`: all rows are of one key."""

    job: StreamJoin
    types: Mapping[str, str]
    where: Callable[[Values], bool | None] | None = None
    busy: bool = False

    def oracle(self) -> DeduplicationOracle:
        """A fresh one."""
        return DeduplicationOracle(DeduplicationShape(self.job, self.where))

    def edit(self, oracle: DeduplicationOracle, before: DeduplicatedJob) -> None:
        oracle.edit(self.job)

    def with_lateness(self, milliseconds: int) -> DeduplicatedJob:
        document = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)
        document["spec"]["deduplicate"]["allowedLateness"] = ms(milliseconds)
        return replace(self, job=StreamJoin.model_validate(document))

    def __repr__(self) -> str:
        """What of the job a failing example is about."""
        spec = self.job.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
        return f"<{spec['deduplicate']}, delay {self.job.inputs[0].watermark.delay}, {dict(self.types)}>"


@st.composite
def deduplicated_jobs(draw: Any) -> DeduplicatedJob:
    kind = draw(st.sampled_from(sorted(KEY_TYPES)))
    busy = draw(st.booleans())
    types = {"k": KEY_TYPES[kind][0][0], "n": "int32", "v": "int64", "w": "string"}
    where = None if busy else draw(st.sampled_from([None, None, None, *CONDITIONS]))
    late_data = draw(st.sampled_from(["drop", "drop", "dlq"]))
    deduplicate = {
        "by": [f"{INPUT}.{name}" for name in draw(st.sampled_from([["k"], ["k"], ["k", "n"], ["n", "k"]]))],
        "keep": draw(st.sampled_from(["first", "last"])),
        "within": ms(draw(st.sampled_from([1, 2, 4, 7, 15, 40]))),
        "lateData": late_data,
        "allowedLateness": ms(draw(st.sampled_from([0, 0, 1, 5, 25]))),
    }
    source = {**input_of(types), "watermark": watermark_of(draw), **({"where": where[0]} if where else {})}
    written = {"file": {"path": "out.jsonl"}, "format": "json"}
    dead = {"deadLetter": {"file": {"path": "dead.jsonl"}}}
    spec = {"inputs": [source], "deduplicate": deduplicate, "output": written, **(dead if late_data == "dlq" else {})}
    job = StreamJoin.model_validate({"metadata": {"name": "random"}, "spec": spec})
    return DeduplicatedJob(job, types, where[1] if where else None, busy)


@st.composite
def deduplicated_cases(draw: Any, longest: int = 6) -> Case:
    """As `random_sessions.session_cases`, of deduplication."""
    return draw(histories(draw(deduplicated_jobs()), longest))
