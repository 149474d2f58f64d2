"""The groups that `joinery state show --key` finds in a job that aggregates twice (rule G10)."""

from __future__ import annotations

import pytest

from job.chains import load, step
from job.kinds.test_next_aggregate import MOST, twice
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.state_key import keys_of
from joinery_runtime.job import StreamJoin


def steps_of(job: StreamJoin, texts: list[str], number: int | None = None) -> list[int]:
    return [key.step + 1 for key in keys_of(job, compile_job(job), texts, number)]


def test_a_group_of_either_aggregate_and_a_key_of_the_join_are_found() -> None:
    job = load(step(), aggregate=twice({"groupBy": ["n"], "aggregates": [MOST]}))
    assert steps_of(job, ["orders.id=x"]) == [1]
    assert steps_of(job, ["currency=EUR"]) == [2]
    assert steps_of(job, ["n=2"]) == [3]


def test_a_group_of_both_aggregates_is_found_in_both_or_in_the_one_that_is_asked_for() -> None:
    job = load(step(), aggregate=twice({"groupBy": ["currency"], "aggregates": [MOST]}))
    assert steps_of(job, ["currency=EUR"]) == [2, 3]
    assert steps_of(job, ["currency=EUR"], 2) == [2]
    assert steps_of(job, ["currency=EUR"], 3) == [3]


def test_a_second_aggregate_without_groups_has_no_key() -> None:
    job = load(step(), aggregate=twice({"aggregates": [MOST]}))
    assert steps_of(job, ["currency=EUR"]) == [2]
    with pytest.raises(JoineryError, match="has no such key"):
        steps_of(job, ["currency=EUR"], 3)
