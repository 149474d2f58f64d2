"""Which store a job's state is opened in."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from joinery_runtime.errors import JobError, StateError
from joinery_runtime.hosts.stores import MEMORY_WARNING, open_store
from joinery_runtime.job import StreamJoin, load_job, parse_job
from joinery_runtime.job.model.outputs import StoreSpec
from joinery_runtime.state.memory import MemoryStore

EXAMPLE = Path(__file__).parents[2] / "examples" / "as-of-join.yaml"


class WithDisk(StoreSpec):
    """A kind of store that the models have and nothing opens."""

    KINDS: ClassVar = ("postgres", "memory", "disk")

    disk: str | None = None


def test_a_store_in_memory_warns_that_it_loses_everything() -> None:
    warnings: list[str] = []
    with open_store(load_job(EXAMPLE), warnings.append) as opened:
        assert isinstance(opened.store, MemoryStore)
        assert opened.address is None
    assert warnings == [MEMORY_WARNING]


def test_a_store_that_nothing_opens_is_an_error_and_never_the_embedded_one() -> None:
    job = load_job(EXAMPLE)
    assert isinstance(job, StreamJoin)
    spec = job.spec.model_copy(update={"state_store": WithDisk(disk="/state")})
    with pytest.raises(StateError, match="Nothing opens the state store disk of job as-of-join"):
        open_store(job.model_copy(update={"spec": spec}), lambda _: None).__enter__()


def test_two_stores_are_refused() -> None:
    both = EXAMPLE.read_text().replace("{memory: {}}", "{memory: {}, postgres: {dsn: dbname=x}}")
    with pytest.raises(JobError, match="postgres and memory are both named; keep one"):
        parse_job(both, "job.yaml")
