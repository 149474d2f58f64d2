"""The engine against the oracle of projections, on random jobs and histories: late and early rows, idle and ended
inputs, crashes, restarts, rescales, edits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core.cases import HISTORIES, Case
from core.harness import check_against_oracle, run
from core.random_jobs import FUTURES, KEY_TYPES, ms
from core.random_sessions import CONDITIONS, INPUT, VALUES, histories, input_of, plus_one
from joinery_devkit.oracle import ProjectionOracle
from joinery_runtime.job import StreamJoin

Values = Mapping[str, Any]
COLUMNS = [{"column": f"{INPUT}.k"}, {"column": f"{INPUT}.w", "as": "again"}, {"column": f"{INPUT}.ts", "as": "at"}]
PLUS_ONE = {"expression": f"{INPUT}.v + 1", "as": "p"}


@dataclass(frozen=True)
class ProjectingJob:
    """`types` are the types of the columns of which rows have random values."""

    job: StreamJoin
    types: Mapping[str, str]
    where: Callable[[Values], bool | None] | None = None
    busy: bool = False
    computed: Mapping[str, Callable[[Values], Any]] = field(default_factory=lambda: {"p": plus_one})

    def oracle(self) -> ProjectionOracle:
        """A fresh one."""
        return ProjectionOracle(self.job, self.where, self.computed)

    def edit(self, oracle: ProjectionOracle, before: ProjectingJob) -> None:
        oracle.job, oracle.where = self.job, self.where


@st.composite
def projecting_jobs(draw: Any, like: ProjectingJob | None = None) -> ProjectingJob:
    """A job, or an edit of the job `like`."""
    types = {"k": KEY_TYPES[draw(st.sampled_from(sorted(KEY_TYPES)))][0][0], "n": "int32", "v": "int64"}
    types = like.types if like is not None else types | {"w": draw(st.sampled_from(sorted(VALUES)))}
    where = draw(st.sampled_from([None, *CONDITIONS]))
    chosen = draw(st.lists(st.sampled_from([*COLUMNS, PLUS_ONE]), unique_by=str, max_size=4))
    rules = {"delay": ms(draw(st.sampled_from([0, 3, 8]))), "maxFuture": ms(draw(st.sampled_from(FUTURES)))}
    source = {
        **input_of(types),
        "watermark": rules if like is None else like.job.inputs[0].watermark.model_dump(mode="json", by_alias=True),
        **({"where": where[0]} if where else {}),
    }
    spec = {"inputs": [source], "output": {"file": {"path": "out.jsonl"}}, **({"select": chosen} if chosen else {})}
    job = StreamJoin.model_validate({"metadata": {"name": "random"}, "spec": spec})
    return ProjectingJob(job, types, where[1] if where else None)


@st.composite
def projected_cases(draw: Any) -> Case:
    """A history, of which one epoch may begin with an edit of the condition and the columns."""
    case = draw(histories(draw(projecting_jobs()), 6))
    at = draw(st.integers(1, len(case.epochs)))
    return case if at == len(case.epochs) else case.edited(at, draw(projecting_jobs(like=case.job)))


@settings(HISTORIES, max_examples=examples(150))
@given(case=projected_cases())
def test_every_epoch_gives_the_oracles_rows_and_counts(case: Case) -> None:
    check_against_oracle(case)


@pytest.mark.search
@settings(HISTORIES, max_examples=examples(30))
@given(case=projected_cases())
def test_nothing_is_kept(case: Case) -> None:
    assert all(result.report.state_rows == 0 for result in run(case))
