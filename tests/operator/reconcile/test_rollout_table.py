"""The table of a rollout: total, without overlap or dead rows, and rendered as it stands; and its rarer rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from joinery_operator.reconcile import rollout
from joinery_operator.reconcile.rollout_table import (
    DIMENSIONS,
    STAGES,
    TABLE,
    Act,
    Restore,
    RolloutObservation,
    RolloutStage,
    Transition,
    observations,
    rendered,
    row_for,
)
from joinery_runtime.job.crd import Refusal, Rollout
from simulated_cluster.simulation import SimulatedCluster, resource

OBSERVATIONS = list(observations())
REFUSING = {Act.REJECT, Act.REJECT_AND_ROLL_BACK}
# Acts that begin a stage; the others stay in theirs or end the rollout.
ENTERS = {
    Act.BEGIN: RolloutStage.CHECKING,
    Act.STOP: RolloutStage.STOPPING,
    Act.START: RolloutStage.STARTING,
    Act.ROLL_BACK: RolloutStage.ROLLING_BACK,
    Act.REJECT_AND_ROLL_BACK: RolloutStage.ROLLING_BACK,
}
STAYS = {Act.WAIT, Act.REPORT, Act.LIFT, Act.RESTORE_WITH_DESIRED}


def test_there_are_observations_of_every_stage_and_value() -> None:
    assert len(OBSERVATIONS) == len(set(OBSERVATIONS)) > 150
    assert {observation.stage for observation in OBSERVATIONS} == set(RolloutStage) == set(STAGES)
    for name, kind in DIMENSIONS.items():
        assert {getattr(observation, name) for observation in OBSERVATIONS} - {None} == set(kind), name
    assert {stage.value for stage in RolloutStage} - {"Stable"} == set(
        get_args(Rollout.model_fields["stage"].annotation)
    )


def test_every_observation_has_exactly_one_row() -> None:
    for observation in OBSERVATIONS:
        rows = [row for row in TABLE if row.matches(observation)]
        assert len(rows) == 1, (observation, rows)
        assert row_for(observation) is rows[0]


@pytest.mark.parametrize("row", TABLE, ids=[f"{i}-{row.stage.value}-{row.act.name}" for i, row in enumerate(TABLE)])
def test_every_row_is_of_use_and_consistent(row: Transition) -> None:
    assert any(row.matches(observation) for observation in OBSERVATIONS)
    assert set(row.when) <= set(STAGES[row.stage].dimensions)
    assert all(values < set(DIMENSIONS[name]) for name, values in row.when.items()), "a condition that always holds"
    assert (row.rejected_as is not None) == (row.act in REFUSING)
    assert row.rejected_as is None or row.rejected_as in get_args(Refusal.model_fields["reason"].annotation)
    assert row.to is (row.stage if row.act in STAYS else ENTERS.get(row.act, RolloutStage.STABLE))
    assert row.act is not Act.DROP or row.stage is not RolloutStage.STABLE, "would go round for ever"


def test_every_act_can_be_carried_out() -> None:
    assert set(rollout._ACTS) == {row.act for row in TABLE} == set(Act)


@pytest.mark.parametrize("stage", [stage for stage in RolloutStage if stage is not RolloutStage.STABLE])
def test_the_way_out_that_a_stage_names_leads_out_of_it_whatever_is_observed(stage: RolloutStage) -> None:
    names = {kind: name for name, kind in DIMENSIONS.items()}
    way_out = {names[type(value)]: value for value in STAGES[stage].leaves}
    staying = [
        observation for observation in OBSERVATIONS if observation.stage is stage and row_for(observation).to is stage
    ]
    if stage is RolloutStage.ROLLING_BACK:  # else it ends by itself
        staying = [observation for observation in staying if observation.restore is Restore.STUCK]
    assert any(row_for(observation).act is Act.REPORT for observation in staying)
    for observation in staying:
        after = row_for(replace(observation, **way_out))  # type: ignore[arg-type]
        assert after.to is not stage or after.act is Act.RESTORE_WITH_DESIRED, observation


def test_the_rendering_is_in_the_docs() -> None:
    documented = (Path(__file__).parents[3] / "docs" / "rollout-table.md").read_text()
    assert documented == rendered(), "run `make crds`"
    assert sum(
        line.startswith(tuple(f"| `{stage.value}` | " for stage in RolloutStage)) for line in documented.splitlines()
    ) == (len(TABLE) + len(STAGES))


# What is observed is one of the observations, and the rows that the courses of test_rollout.py do not take


@pytest.fixture
def rows_taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RolloutStage, Act]]:
    """The rows that a reconcile took."""
    rows: list[tuple[RolloutStage, Act]] = []

    def noted(observation: RolloutObservation) -> Transition:
        assert observation in OBSERVATIONS
        row = row_for(observation)
        rows.append((row.stage, row.act))
        return row

    monkeypatch.setattr(rollout, "row_for", noted)
    return rows


@pytest.fixture
def cluster(rows_taken: list[tuple[RolloutStage, Act]]) -> SimulatedCluster:
    """A job that has run for a while and is changed: its check runs."""
    cluster = SimulatedCluster(resource())
    name = cluster.started(1)
    cluster.commit(name)
    cluster.tell(name)
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})
    cluster.step()
    cluster.run(check(cluster))
    rows_taken.clear()
    return cluster


def check(cluster: SimulatedCluster) -> str:
    return next(name for name in cluster.pods if "-check-" in name)


def starting(cluster: SimulatedCluster, rows_taken: list[Any]) -> None:
    """No pod of the new revision can be created: an admission refuses it before its attempt is written."""
    cluster.check_result(check(cluster), fits=True)
    cluster.step()
    cluster.stopped("orders-driver-1")
    # Written by an operator that died before it wrote the attempt.
    cluster.step()
    assert cluster.resource is not None
    cluster.resource["status"]["driver"] = {**cluster.resource["status"]["driver"], "number": 1, "outcome": "Stopped"}
    del cluster.resource["status"]["driver"]["migrate"]
    cluster.pods.clear()
    # A driver of an earlier resource is still there, so that no attempt begins.
    pod = {"metadata": {"name": "orders-driver-7", "uid": "u", "creationTimestamp": "2026-11-21T10:00:00Z"}}
    cluster.orphaned_drivers = {"orders-driver-7": {**pod, "status": {"phase": "Running"}}}
    rows_taken.clear()


def test_a_check_that_ends_as_incompatible_refuses_the_revision(
    cluster: SimulatedCluster, rows_taken: list[Any]
) -> None:
    ending = {"outcome": "failed", "kind": "IncompatibleState", "error": "written by a newer release", "retry": False}
    cluster.end(check(cluster), ending)
    cluster.step()
    assert rows_taken == [(RolloutStage.CHECKING, Act.REJECT)]
    refused = cluster.status.refused
    assert refused is not None
    assert (refused.reason, refused.message) == (
        "IncompatibleState",
        "the check pod failed: written by a newer release",
    )


def test_before_the_first_new_driver_another_job_drops_the_rollout(
    cluster: SimulatedCluster, rows_taken: list[Any]
) -> None:
    starting(cluster, rows_taken)
    cluster.edit(trigger={"maxRecordsPerEpoch": 9})
    cluster.step()
    assert rows_taken == [(RolloutStage.STARTING, Act.DROP), (RolloutStage.STABLE, Act.BEGIN)]
    assert cluster.status.refused is None


def test_without_a_new_driver_the_deadline_refuses_and_restores_nothing(
    cluster: SimulatedCluster, rows_taken: list[Any]
) -> None:
    starting(cluster, rows_taken)
    cluster.pass_time(601)
    cluster.step()
    assert rows_taken[0] == (RolloutStage.STARTING, Act.REJECT)
    assert cluster.status.refused is not None
    assert (cluster.status.rollout, cluster.status.refused.reason) == (None, "DeadlineExceeded")
