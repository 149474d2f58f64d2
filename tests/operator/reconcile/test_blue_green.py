"""The life of a BlueGreenJob: which jobs run, which of them readers read, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from joinery_operator.reconcile.context import FINALIZER
from joinery_runtime.job.crd import KINDS
from simulated_cluster.blue_green_world import BlueGreenWorld, blue_green, topic
from simulated_cluster.simulation import Killed

HOUR, MINUTE = 3600, 60


def started(**spec: Any) -> BlueGreenWorld:
    world = BlueGreenWorld(blue_green(**spec))
    world.settle()
    return world


def beside(**spec: Any) -> BlueGreenWorld:
    """Blue is read, green runs beside it."""
    world = started(**spec)
    world.edit(**topic("green"))
    world.settle()
    return world


def switched(**spec: Any) -> BlueGreenWorld:
    world = beside(**spec)
    world.settle(11 * MINUTE)
    world.switch()
    world.settle()
    return world


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_first_job_is_read_at_once(kind: Any) -> None:
    world = started(kind=kind)
    assert (world.read(), world.working()) == (["blue"], ["blue"])
    (job,) = world.jobs().values()
    assert job["kind"] == kind.name
    assert [owner["kind"] for owner in job["metadata"]["ownerReferences"]] == ["BlueGreenJob"]
    assert (world.state.phase, world.condition("Ready"), world.condition("UpToDate")) == (
        "Running", ("True", "Running"), ("True", "RolledOut"),
    )  # fmt: skip


def test_an_edit_that_keeps_the_outputs_changes_the_job_that_runs() -> None:
    world = started()
    (name,) = world.jobs()
    world.edit(trigger={"maxRecordsPerEpoch": 8})
    world.step()
    assert world.condition("UpToDate") == ("False", "Pending")
    world.settle()
    assert list(world.jobs()) == [name]
    assert world.jobs()[name]["spec"]["trigger"] == {"maxRecordsPerEpoch": 8}
    world.edit(trigger={})
    world.settle()
    assert world.jobs()[name]["spec"]["trigger"] == {}
    assert world.condition("UpToDate") == ("True", "RolledOut")


def test_an_edit_that_moves_the_outputs_runs_beside_the_old_job_until_the_switch() -> None:
    world = beside()
    assert (world.read(), world.working()) == (["blue"], ["blue", "green"])
    assert (world.state.phase, world.condition("UpToDate")) == ("Beside", ("False", "Beside"))
    world.settle(9 * MINUTE)
    assert world.state.phase == "Beside"
    world.settle(MINUTE)
    assert (world.state.phase, world.read()) == ("AwaitingSwitch", ["blue"])
    assert "kubectl joinery rollout switch orders" in world.message("UpToDate")
    world.settle(5 * HOUR)
    assert world.read() == ["blue"]
    world.switch()
    world.settle()
    assert (world.read(), world.working(), world.state.phase) == (["green"], ["blue", "green"], "KeepingOld")
    assert world.condition("UpToDate") == ("True", "RolledOut")
    world.settle(HOUR - MINUTE)
    assert world.working() == ["blue", "green"]
    world.settle(MINUTE)
    assert (world.working(), world.state.phase) == (["green"], "Running")
    (retired,) = world.state.retired
    assert [output.target for output in retired.outputs] == ["blue"]
    assert world.databases[retired.name].deleted
    assert not world.databases[world.state.active or ""].deleted
    reasons = [event.split(":")[0] for event in world.events]
    order = ["CandidateStarted", "AwaitingSwitch", "Switched", "JobRetired"]
    assert [reason.split()[1] for reason in reasons if reason.split()[1] in order] == order


def test_an_automatic_switch_needs_nobody() -> None:
    world = beside(switch="automatic")
    world.settle(9 * MINUTE)
    assert world.read() == ["blue"]
    world.settle(MINUTE)
    assert world.read() == ["green"]


def test_an_annotation_that_names_another_job_does_nothing() -> None:
    world = beside()
    world.annotate(switch="orders-1234567890")
    world.settle(HOUR)
    assert world.read() == ["blue"]


def test_a_job_that_is_behind_is_not_switched_to() -> None:
    world = started(switch="automatic")
    world.behind["green"], world.lag["green"] = timedelta(hours=3), 5_000
    world.edit(**topic("green"))
    world.settle(HOUR)
    assert (world.read(), world.state.phase) == (["blue"], "Beside")
    world.behind["green"] = timedelta(seconds=5)
    world.settle(HOUR)
    assert world.read() == ["blue"], "it has more unread records"
    world.lag["green"] = 0
    world.settle(MINUTE)
    world.settle(9 * MINUTE)
    world.lag["green"] = 7  # for one look at the figures
    world.settle(2 * MINUTE)
    assert world.read() == ["green"]


def test_what_interrupts_the_stable_time_begins_it_again() -> None:
    world = beside(switch="automatic")
    world.settle(8 * MINUTE)
    world.behind["green"] = timedelta(minutes=2)
    world.settle(MINUTE)
    assert world.state.candidate is not None
    assert world.state.candidate.stable_since is None
    world.behind["green"] = timedelta()
    world.settle(8 * MINUTE)
    cluster = world.clusters[world.by_topic()["green"]]
    (pod,) = cluster.alive()
    cluster.evict(pod["metadata"]["name"])
    world.settle(9 * MINUTE)
    assert world.read() == ["blue"]
    world.edit(trigger={"maxRecordsPerEpoch": 8})
    world.settle(9 * MINUTE)
    assert world.read() == ["blue"]
    world.settle(2 * MINUTE)
    assert world.read() == ["green"]


def test_a_switch_is_to_what_the_resource_asks_for_now() -> None:
    """FLINK-41074: a candidate that was edited in its delay counted as ready by what it was before."""
    world = beside(switch="automatic")
    world.settle(9 * MINUTE)
    world.edit(**topic("red"))
    world.settle(9 * MINUTE)
    assert (world.read(), world.working()) == (["blue"], ["blue", "red"])
    world.settle(2 * MINUTE)
    assert world.read() == ["red"]


def test_an_edit_back_gives_the_candidate_up_and_leaves_the_active_job_alone() -> None:
    world = beside()
    (blue,) = [pod["metadata"]["uid"] for pod in world.clusters[world.by_topic()["blue"]].alive()]
    green = world.by_topic()["green"]
    world.edit(**topic("blue"))
    world.settle()
    assert (world.read(), world.working()) == (["blue"], ["blue"])
    assert [pod["metadata"]["uid"] for pod in world.clusters[world.by_topic()["blue"]].alive()] == [blue]
    assert world.databases[green].deleted
    assert world.condition("UpToDate") == ("True", "RolledOut")


def test_an_output_that_was_written_is_not_written_by_another_job() -> None:
    """FLINK-41404: the next candidate began from what the failed one had left."""
    world = beside()
    world.edit(**topic("blue"))
    world.settle()
    world.edit(**topic("green"))
    world.settle()
    assert world.condition("Valid") == ("False", "Invalid")
    assert "writes to kafka green, where job" in world.message("Valid")
    assert world.working() == ["blue"]


def test_a_failed_candidate_is_reported_and_can_be_edited() -> None:
    world = started()
    world.broken.add("green")
    world.edit(**topic("green"))
    world.settle(HOUR)
    assert (world.read(), world.working()) == (["blue"], ["blue"])
    assert (world.condition("Degraded")[0], world.condition("Stalled")[0]) == ("True", "True")
    assert "no topic orders" in world.message("Degraded")
    assert world.condition("Ready") == ("True", "Running")
    world.broken.clear()
    world.edit(trigger={"maxRecordsPerEpoch": 8})
    world.settle()
    assert world.working() == ["blue", "green"]
    assert world.condition("Degraded") == ("False", "AsExpected")


def test_while_the_old_job_runs_the_way_back_is_a_switch() -> None:
    world = switched()
    world.settle(30 * MINUTE)
    world.edit(**topic("blue"))
    world.settle()
    assert (world.read(), world.working()) == (["blue"], ["blue", "green"])
    world.settle(HOUR)
    assert (world.read(), world.working()) == (["blue"], ["blue"])


def test_after_the_old_job_has_ended_its_outputs_are_not_written_again() -> None:
    world = switched(keepOld="0s")
    world.settle()
    assert world.working() == ["green"]
    world.edit(**topic("blue"))
    world.settle()
    assert world.condition("Valid") == ("False", "Invalid")
    assert world.read() == ["green"]


def test_suspension_stops_all_jobs_and_begins_the_stable_time_again() -> None:
    world = beside(switch="automatic")
    world.settle(8 * MINUTE)
    world.set(suspend=True)
    world.settle()
    assert (world.working(), world.state.phase) == ([], "Suspended")
    world.settle(HOUR)
    world.set(suspend=False)
    world.settle()
    assert (world.working(), world.read()) == (["blue", "green"], ["blue"])
    world.settle(9 * MINUTE)
    assert world.read() == ["blue"]
    world.settle(2 * MINUTE)
    assert world.read() == ["green"]


def test_nothing_begins_while_suspended() -> None:
    world = started()
    world.set(suspend=True)
    world.edit(**topic("green"))
    world.settle()
    assert len(world.jobs()) == 1
    assert world.condition("UpToDate") == ("False", "Suspended")
    world.set(suspend=False)
    world.settle()
    assert world.working() == ["blue", "green"]


@pytest.mark.parametrize(("pause", "reason"), [("rollouts", "Rollouts"), ("yes", "Everything")])
def test_a_pause_begins_and_switches_nothing(pause: str, reason: str) -> None:
    world = beside(switch="automatic")
    world.annotate(pause=pause)
    world.settle(HOUR)
    assert (world.read(), world.working()) == (["blue"], ["blue", "green"])
    assert world.condition("Paused") == ("True", reason)
    world.annotate(pause="")
    world.settle(MINUTE)
    assert world.read() == ["green"]


def test_rollouts_that_are_paused_start_no_job() -> None:
    world = started()
    world.annotate(pause="rollouts")
    world.edit(**topic("green"))
    world.settle()
    assert (world.working(), world.condition("UpToDate")) == (["blue"], ("False", "RolloutsPaused"))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"output": {"console": {}}}, "a console has no place"),
        ({"suspend": True}, "write spec.suspend"),
        ({"stateStore": {"memory": {}}}, "name a Postgres"),
        ({"shards": "many"}, "spec.template.spec.shards"),
        ({"joins": [{"right": "r", "keys": {"l.no": "r.id"}, "interval": {"of": "l", "upper": "1h"}}]}, "no"),
    ],
)
def test_an_invalid_template_changes_nothing(edit: Any, words: str) -> None:
    world = beside()
    world.edit(**edit)
    world.settle(HOUR)
    assert world.condition("Valid") == ("False", "Invalid")
    assert words in world.message("Valid")
    assert (world.read(), world.working()) == (["blue"], ["blue", "green"])


def test_a_named_consumer_group_is_rejected() -> None:
    resource = blue_green()
    resource["spec"]["template"]["spec"]["inputs"][1]["kafka"]["properties"] = {"group.id": "readers"}
    world = BlueGreenWorld(resource)
    world.settle()
    assert "spec.template.spec.inputs[1].kafka.properties: names group.id" in world.message("Valid")
    assert not world.jobs()


def test_a_template_that_moves_only_some_outputs_is_rejected() -> None:
    both = [{"name": name, **topic(name)["output"]} for name in ("blue", "red")]
    world = started()
    world.edit(output=None, outputs=both)
    del world.resource["spec"]["template"]["spec"]["output"]
    world.settle()
    assert "writes to kafka blue, as job orders-" in world.message("Valid")
    assert world.working() == ["blue"]


def test_the_executors_that_an_autoscaler_sets_stay() -> None:
    world = started()
    (job,) = world.jobs().values()
    job["spec"]["spark"] = {"executor": {"instances": 7}}
    world.settle()
    assert job["spec"]["spark"] == {"executor": {"instances": 7}}
    job["spec"]["shards"] = 64
    world.settle()
    assert job["spec"]["shards"] == 4, "what others change is set back"


def test_the_state_of_the_active_job_ends_as_the_template_says() -> None:
    world = beside()
    by_topic = world.by_topic()
    assert world.jobs()[by_topic["blue"]]["spec"]["cleanup"] == "retainState"
    assert world.jobs()[by_topic["green"]]["spec"]["cleanup"] == "deleteState"
    world.settle(11 * MINUTE)
    world.switch()
    world.settle()
    assert world.jobs()[by_topic["green"]]["spec"]["cleanup"] == "retainState"
    assert FINALIZER in world.jobs()[by_topic["blue"]]["metadata"]["finalizers"]
    world.edit(cleanup="deleteState")
    world.settle()
    assert FINALIZER in world.jobs()[by_topic["green"]]["metadata"]["finalizers"]


def test_a_job_that_somebody_deletes_is_created_again_and_continues_its_state() -> None:
    world = started()
    (name,) = world.jobs()
    world.clusters[name].delete()
    world.settle()
    assert (world.working(), world.read()) == (["blue"], ["blue"])
    assert world.databases[name].epoch == 2


def test_a_status_that_was_lost_is_found_again() -> None:
    world = beside()
    del world.resource["status"]
    world.settle()
    assert (world.read(), world.working()) == (["blue"], ["blue", "green"])


def test_a_job_that_cannot_be_created_is_named() -> None:
    world = started()
    world.create_refused = "exceeded quota"
    world.edit(**topic("green"))
    world.settle()
    assert world.condition("Degraded") == ("True", "CreateRefused")
    assert world.read() == ["blue"]


def test_what_is_due_by_time_alone_is_done_in_time() -> None:
    world = beside()
    assert world.step().again_after == 30
    world.settle(9 * MINUTE)
    world.now += timedelta(seconds=50)
    decision = world.step()
    assert decision.again_after == pytest.approx(10)
    world = started()
    assert world.step().again_after is None


def test_a_resource_that_is_being_deleted_leaves_its_jobs_to_kubernetes() -> None:
    world = beside()
    world.resource["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    decision = world.step()
    assert (decision.status, decision.actions) == (None, ())


def play(world: BlueGreenWorld) -> None:
    """All that may happen to a BlueGreenJob, one after the other."""
    world.settle()
    world.edit(**topic("green"))
    world.settle(11 * MINUTE)
    world.switch()
    world.settle(MINUTE)
    world.edit(**topic("blue"))
    world.settle(2 * HOUR)
    world.edit(**topic("red"))
    world.settle(MINUTE)
    world.set(suspend=True)
    world.settle(MINUTE)
    world.set(suspend=False)
    world.edit(**topic("black"))
    world.settle(11 * MINUTE)
    world.switch()
    world.settle(2 * HOUR)


def outcome(world: BlueGreenWorld) -> Any:
    retired = [past.name for past in world.state.retired]
    return world.read(), world.working(), retired, {name: data.deleted for name, data in world.databases.items()}


@pytest.mark.parametrize("share", range(24))
def test_an_operator_that_dies_at_any_write_leads_to_the_same_end(share: int) -> None:
    whole = BlueGreenWorld()
    play(whole)
    assert outcome(whole)[:2] == (["black"], ["black"])
    assert whole.writes > 30
    for death in range(share, whole.writes, 24):
        world = DyingWorld(death)
        play(world)
        assert outcome(world) == outcome(whole), f"after the death at write {death}"


class DyingWorld(BlueGreenWorld):
    """Its operator dies instead of one write, and starts again."""

    def __init__(self, death: int) -> None:
        super().__init__()
        self.death = death

    def step(self, killed_after: int | None = None) -> Any:
        if self.writes <= self.death:
            with suppress(Killed):
                return super().step(self.death - self.writes)
            self.death = -1
        return super().step(killed_after)


Edit = Callable[[BlueGreenWorld], None]
EDITS: dict[str, Edit] = {
    "back": lambda world: world.edit(**topic("blue")),
    "to a third": lambda world: world.edit(**topic("red")),
    "in place": lambda world: world.edit(trigger={"maxRecordsPerEpoch": 8}),
    "suspend": lambda world: world.set(suspend=True),
    "invalid": lambda world: world.edit(shards="many"),
    "switch": lambda world: world.switch() if world.state.candidate else None,
}
STAGES: dict[str, Callable[[], BlueGreenWorld]] = {
    "running": started,
    "beside": beside,
    "old": switched,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("first", EDITS)
@pytest.mark.parametrize("second", ["back", "suspend", "switch"])
def test_whatever_happens_in_a_transition_there_is_a_way_to_what_is_asked_for(
    stage: str, first: str, second: str
) -> None:
    world = STAGES[stage]()
    EDITS[first](world)
    world.step()
    world.check()
    EDITS[second](world)
    world.settle(2 * MINUTE)
    world.set(suspend=False, switch="automatic")
    world.edit(shards=4, **topic("last"))
    world.settle(11 * MINUTE)
    world.settle(2 * HOUR)
    assert (world.read(), world.working()) == (["last"], ["last"])
    assert world.condition("UpToDate") == ("True", "RolledOut")
