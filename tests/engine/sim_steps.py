"""Short histories of the simulated world without faults, step by step."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.audit import Auditor
from engine.simulation import World
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.state.store import JobRecord


def add(world: World, name: str, identifier: int, ts: int, key: str = "a") -> None:
    """To every partition, so that none holds the watermark back; what is added to others has no key."""
    for partition in range(len(world.topics[name].partitions)):
        world.append(name, partition, key if partition == 0 else None, ts, identifier=identifier + 1_000 * partition)


def started(world: World, **settings: Any) -> Driver:
    driver = world.new_driver(**settings)
    driver.recover()
    return driver


def epochs(driver: Driver, auditor: Auditor) -> list[EpochPlan]:
    """Until there is nothing to do."""
    plans = []
    while (plan := driver.plan()) is not None:
        driver.commit(plan, driver.run(plan))
        auditor.check()
        plans.append(plan)
        assert len(plans) < 50, "the job spins"
    return plans


def record(world: World) -> JobRecord:
    job_record = world.store.record(world.job.name)
    assert job_record is not None
    return job_record


def rows(world: World) -> Counter[tuple[int | None, ...]]:
    """Output rows of keys that are not null."""
    return Counter(
        row for row in world.output.table if all(identifier is None or identifier < 1_000 for identifier in row)
    )
