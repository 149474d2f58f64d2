"""The life of a BlueGreenJob: which jobs run, which of them readers read, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from budget import rest_in_search
from joinery_operator.decision import ObservedBlueGreen, SharedPlace
from joinery_operator.names import CHILD_JOB_ANNOTATION, PAUSE_ANNOTATION
from joinery_operator.reconcile import blue_green as blue_green_module
from joinery_operator.reconcile import blue_green_conditions, blue_green_jobs, reconcile
from joinery_operator.reconcile.blue_green_jobs import RequestedJob, requested_job, shared_places
from joinery_operator.reconcile.context import FINALIZER
from joinery_runtime.job.crd import KINDS, BlueGreenState
from simulated_cluster.blue_green_world import BlueGreenWorld, blue_green, topic
from simulated_cluster.resources import copied
from simulated_cluster.simulation import Killed

HOUR, MINUTE = 3600, 60


def remembered(make: Callable[..., BlueGreenWorld]) -> Callable[..., BlueGreenWorld]:
    """Many tests begin with the same worlds: those of the usual spec are played once, and copied."""
    usual = cache(make)
    return lambda **spec: make(**spec) if spec else copied(usual())


@remembered
def started(**spec: Any) -> BlueGreenWorld:
    world = BlueGreenWorld(blue_green(**spec))
    world.settle()
    return world


@remembered
def beside(**spec: Any) -> BlueGreenWorld:
    """Blue is read, green runs beside it."""
    world = started(**spec)
    world.edit(**topic("green"))
    world.settle()
    return world


@remembered
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
    world.settle()
    assert world.read() == (["green"] if pause == "rollouts" else ["blue"])


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


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_named_consumer_group_is_rejected_beside_and_in_a_union(index: int) -> None:
    """The jobs of one group would divide the partitions of that branch."""
    resource = blue_green()
    spec = resource["spec"]["template"]["spec"]
    branches = [{**deepcopy(spec["inputs"][0]), "name": name} for name in ("eu", "us")]
    spec["inputs"] = [*branches, spec["inputs"][1]]
    spec["unions"] = [{"name": "l", "branches": [{"input": "eu"}, {"input": "us"}]}]
    world = BlueGreenWorld(deepcopy(resource))
    world.settle()
    assert world.condition("Valid") != ("False", "Invalid")
    assert world.jobs()
    spec["inputs"][index]["kafka"]["properties"] = {"group.id": "readers"}
    world = BlueGreenWorld(resource)
    world.settle()
    assert f"spec.template.spec.inputs[{index}].kafka.properties: names group.id" in world.message("Valid")
    assert not world.jobs()


FILES = [{"file": {"path": path}} for path in ("/out/a", "/out/a/", "/out//./a", "/out/b/../a")]
DELTA = [{"delta": {"path": path}} for path in ("s3://lake/a", "s3://lake/a/")]
TABLES = [{"postgres": {"table": table}} for table in ("t", "public.t")]


@pytest.mark.parametrize("spellings", [FILES, DELTA, TABLES], ids=["files", "delta", "tables"])
def test_another_spelling_of_a_place_is_no_other_place(spellings: Any) -> None:
    """A second job for it would write into the active job's output, beside that job."""

    def requested(output: Any) -> RequestedJob:
        resource = blue_green()
        resource["spec"]["template"]["spec"]["output"] = output
        job = requested_job(resource)
        assert isinstance(job, RequestedJob), job
        return job

    first, *respelled = map(requested, spellings)
    (kind,) = spellings[0]
    other_place = requested({kind: {"table": "u"} if kind == "postgres" else {"path": "/out/b"}})
    assert not shared_places(first.outputs, other_place.outputs)
    for other in respelled:
        assert other.name == first.name != other_place.name
        assert shared_places(first.outputs, other.outputs)


def test_a_template_that_moves_only_some_outputs_is_rejected() -> None:
    both = [{"name": name, **topic(name)["output"]} for name in ("blue", "red")]
    world = started()
    world.edit(output=None, outputs=both)
    del world.resource["spec"]["template"]["spec"]["output"]
    world.settle()
    assert "writes to kafka blue, as job orders-" in world.message("Valid")
    assert world.working() == ["blue"]


def test_a_template_with_more_outputs_than_the_status_remembers_is_rejected() -> None:
    """The places that it does not remember could be written twice."""
    world = started()
    outputs = [{"name": f"o{number}", **topic(f"t-{number}")["output"]} for number in range(65)]
    world.edit(outputs=outputs)
    del world.resource["spec"]["template"]["spec"]["output"]
    world.settle()
    assert "outputs: has 65 outputs, and the status has room for the places of 64" in world.message("Valid")
    assert world.working() == ["blue"]
    outputs.pop()
    world.step()
    assert world.condition("Valid") == ("True", "Valid")
    world.step()
    assert max(len(listed.outputs) for listed in world.state.jobs) == 64


def test_of_many_jobs_that_write_to_an_output_some_are_named_and_what_to_do() -> None:
    world = started()
    writers = [{"kind": "StreamJoin", "metadata": {"namespace": "shop", "name": f"other-{n}"}} for n in range(20)]
    world.shared_places = tuple(SharedPlace(world.state.active or "", "kafka blue", writer) for writer in writers)
    world.settle()
    *_, more, todo = world.message("OutputsShared").splitlines()
    assert (more, todo) == ("and 4 more", "If that is not intended, give one of them another output")


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
    assert {job["spec"]["cleanup"] for job in world.jobs().values()} == {"retainState"}
    world.settle(11 * MINUTE)
    world.switch()
    world.settle()
    assert {job["spec"]["cleanup"] for job in world.jobs().values()} == {"retainState"}
    assert FINALIZER not in world.jobs()[by_topic["blue"]]["metadata"].get("finalizers", ())
    world.edit(cleanup="deleteState")
    world.settle()
    assert all(FINALIZER in job["metadata"]["finalizers"] for job in world.jobs().values())
    assert all(job.deletes_state for job in world.state.jobs)
    world.edit(cleanup="retainState")
    world.settle()
    assert not any(job.deletes_state for job in world.state.jobs)


@pytest.mark.parametrize("stage", ["started", "beside", "switched"])
def test_a_job_that_somebody_deletes_is_created_again_and_continues_its_state(stage: str) -> None:
    world = {"started": started, "beside": beside, "switched": switched}[stage]()
    output = world.resource["spec"]["template"]["spec"]["output"]["kafka"]["topic"]
    seen, name = (world.working(), world.read()), world.by_topic()[output]
    world.clusters[name].delete()
    world.settle()
    assert (world.working(), world.read()) == seen
    assert world.databases[name].epoch == 2


def test_an_active_job_that_is_deleted_beside_another_one_is_named() -> None:
    world = beside(switch="automatic")
    world.clusters[world.by_topic()["blue"]].delete()
    world.settle()
    assert (world.working(), world.condition("Degraded")) == (["green"], ("True", "JobMissing"))
    assert world.condition("Ready") == ("False", "JobMissing")
    assert "write its outputs (kafka blue) into the template again, or wait until readers switch" in world.message(
        "Ready"
    )
    world.settle(11 * MINUTE)
    assert (world.read(), world.condition("Degraded")[0]) == (["green"], "False")


def test_an_active_job_that_is_deleted_while_the_template_is_invalid_is_named() -> None:
    world = started()
    (blue,) = world.jobs()
    world.edit(output={"console": {}})
    world.settle()
    world.clusters[blue].delete()
    world.settle()
    assert (world.working(), world.condition("Ready")) == ([], ("False", "JobMissing"))
    assert world.message("Ready").endswith("write its outputs (kafka blue) into the template again")
    world.edit(**topic("blue"))
    world.settle()
    assert (world.working(), world.condition("Ready")[0]) == (["blue"], "True")


def test_a_candidate_that_is_deleted_with_its_state_is_not_created_again() -> None:
    world = started()
    world.edit(cleanup="deleteState", **topic("green"))
    world.settle()
    green = world.by_topic()["green"]
    world.clusters[green].delete()
    world.settle(HOUR)
    assert world.databases[green].deleted
    assert (world.read(), world.working()) == (["blue"], ["blue"])
    assert world.condition("Valid") == ("False", "Invalid")
    assert "writes to kafka green, where job" in world.message("Valid")
    world.edit(**topic("red"))
    world.settle()
    assert world.working() == ["blue", "red"]


def test_an_active_job_that_is_deleted_with_its_state_is_named_and_replaced_elsewhere() -> None:
    world = started(switch="automatic")
    world.edit(cleanup="deleteState")
    world.settle()
    (blue,) = world.jobs()
    world.clusters[blue].delete()
    world.settle(HOUR)
    assert (world.working(), world.condition("Degraded")) == ([], ("True", "JobMissing"))
    assert "give every output of spec.template another place" in world.message("Degraded")
    world.edit(**topic("green"))
    world.settle(11 * MINUTE)
    world.settle(MINUTE)
    assert (world.read(), world.working()) == (["green"], ["green"])
    assert [past.name for past in world.state.retired] == [blue]


def test_a_job_works_once_the_status_lists_it() -> None:
    """Whether a job that is not listed was never created, or was deleted, is all one then: it has written nothing."""
    second = started()
    second.edit(cleanup="deleteState")
    second.settle()
    second.edit(**topic("green"))
    first = BlueGreenWorld()
    first.edit(cleanup="deleteState")
    for world in (first, second):
        with suppress(Killed):
            world.step(killed_after=2)  # the status and the creation
        (name,) = [name for name in world.jobs() if name not in {job.name for job in world.state.jobs}]
        assert world.jobs()[name]["spec"]["suspend"] is True
        world.work()
        assert not world.clusters[name].alive()
        world.clusters[name].delete()
        world.settle(MINUTE)
        assert name in world.jobs()
        assert world.databases[name].epoch == 1


@pytest.mark.parametrize("stage", ["started", "beside", "switched"])
def test_roles_are_read_from_the_jobs_if_the_status_was_lost(stage: str) -> None:
    world = {"started": started, "beside": beside, "switched": switched}[stage]()
    seen = world.read(), world.working()
    del world.resource["status"]
    world.settle()
    assert (world.read(), world.working()) == seen
    world.settle(HOUR + MINUTE)
    assert world.read() == seen[0]


def newer(status: Any) -> None:
    """What an operator of a later release might write: other fields, other values, and longer lists."""
    ended = {"outputs": [], "ended": "2026-01-16T10:00:00Z"}
    status["later"] = {"field": 1}
    status["phase"] = "Later"
    status["conditions"][0]["later"] = True
    status["jobs"][0] |= {"later": [1, 2]}
    status["jobs"].append({"name": "of a later kind", "kind": "Later"})
    status["retired"] = [{**ended, "name": f"ended-{number}"} for number in range(30)] + status["retired"]
    status["retired"][-1]["later"] = "x"
    status["earlierPlaces"] = [{"later": number} for number in range(3000)] + ["0123456789"]


def test_what_a_newer_operator_wrote_into_the_status_hides_nothing_else() -> None:
    """Else the status would count as lost: a place of an ended job would be written again, and a job that only claims
    to be of the resource would become one of its jobs."""
    world = switched()
    world.settle(2 * HOUR)
    before = world.state
    assert [job.name for job in before.retired]
    newer(world.resource["status"])
    copied = claiming(world, "orders-copy", "green")
    copied["metadata"]["annotations"][CHILD_JOB_ANNOTATION] = "orders-copy"
    world.strangers["orders-copy"] = copied
    world.edit(**topic("blue"))
    world.settle()
    assert world.condition("Valid") == ("False", "Invalid")
    assert "writes to kafka blue" in world.message("Valid")
    assert (world.read(), world.working()) == (["green"], ["green"])
    assert world.state.jobs == before.jobs
    assert len(world.state.retired) == 16
    assert world.state.retired[-1] == before.retired[-1]
    assert world.state.earlier_places == ("0123456789",)
    assert world.condition("Degraded") == ("True", "ForeignJob")


def test_of_a_longer_list_of_places_as_many_stay_as_fit_and_no_other_place_is_added() -> None:
    world = started()
    world.resource["status"]["earlierPlaces"] = [f"{number:010x}" for number in range(12_000)]
    world.edit(**topic("green"))
    world.settle()
    assert "and its status remembers at most 10,000" in world.message("Valid")
    assert (len(world.state.earlier_places), world.working()) == (10_000, ["blue"])


def test_both_jobs_tell_their_role() -> None:
    world = switched()
    roles = {name: job["metadata"]["labels"]["joinery.dev/blue-green-role"] for name, job in world.jobs().items()}
    assert roles == {world.by_topic()["blue"]: "old", world.by_topic()["green"]: "active"}


def claiming(world: BlueGreenWorld, job: str, colour: str = "blue", **reference: Any) -> Any:
    """A copy of the job that writes there under another name, with a driver."""
    copied = deepcopy(world.jobs()[world.by_topic()[colour]])
    copied["metadata"] |= {"name": job, "uid": "uid-stranger"}
    copied["metadata"]["ownerReferences"][0] |= reference
    return copied


@pytest.mark.parametrize(
    "reference",
    [{}, {"uid": "uid-other"}, {"name": "other"}, {"kind": "StreamJoin"}, {"controller": False}, {"apiVersion": "v1"}],
    ids=str,
)
@pytest.mark.parametrize("has_annotation", [False, True])
def test_a_job_that_only_claims_to_be_of_the_resource_is_left_alone(reference: Any, has_annotation: bool) -> None:
    world = started(switch="automatic")
    copied = claiming(world, "orders-copy", **reference)
    if has_annotation:
        copied["metadata"]["annotations"][CHILD_JOB_ANNOTATION] = "orders-copy"
    world.strangers["orders-copy"] = copied
    before = deepcopy(copied)
    world.settle(HOUR)
    assert world.strangers["orders-copy"] == before
    assert [job.name for job in world.state.jobs] == [world.state.active]
    assert world.condition("Degraded") == ("True", "ForeignJob")
    assert "orders-copy claims by its owner reference" in world.message("Degraded")
    assert (world.read(), world.working()) == (["blue"], ["blue"])


def test_a_job_that_has_a_candidates_name_and_has_worked_is_no_candidate() -> None:
    green = next(name for topic_, name in beside().by_topic().items() if topic_ == "green")
    world = started(switch="automatic")
    forged = claiming(world, green)
    forged["metadata"]["annotations"][CHILD_JOB_ANNOTATION] = green
    forged["spec"] |= topic("green")
    world.strangers[green] = forged
    world.edit(**topic("green"))
    before = deepcopy(forged)
    world.settle(2 * HOUR)
    assert (world.read(), world.strangers[green]) == (["blue"], before)
    assert world.condition("Degraded") == ("True", "ForeignJob")
    del world.strangers[green]
    world.settle(11 * MINUTE)
    world.settle(MINUTE)
    assert world.read() == ["green"]


def test_a_job_of_the_other_kind_that_has_a_candidates_name_is_no_candidate() -> None:
    """It has had no driver, and all else that the operator writes."""
    joins, windows = KINDS
    world = started()
    world.edit(**topic("green"))
    with suppress(Killed):
        world.step(killed_after=2)  # the status and the creation
    (green,) = [name for name in world.jobs() if name not in {job.name for job in world.state.jobs}]
    created = world.clusters.pop(green).resource
    assert created is not None
    assert created["kind"] == joins.name
    forged = {
        **deepcopy(created),
        "kind": windows.name,
        "spec": blue_green(windows, "green")["spec"]["template"]["spec"],
    }
    world.strangers[green] = forged
    before = deepcopy(forged)
    world.settle(HOUR)
    assert world.strangers[green] == before
    assert world.condition("Degraded") == ("True", "ForeignJob")
    assert (world.read(), world.working()) == (["blue"], ["blue"])


def test_no_place_that_any_earlier_job_wrote_is_written_again() -> None:
    """The status has the last 16 jobs that ended whole, and digests of the places of those before."""
    world = started(keepOld="0s")
    colours = [f"colour-{number}" for number in range(20)]
    for colour in colours:
        world.edit(**topic(colour))
        world.settle()
    assert len(world.state.retired) == 16
    assert len(world.state.earlier_places) == 3
    for colour in (colours[0], colours[18]):
        world.edit(**topic(colour))
        world.settle()
        assert world.condition("Valid") == ("False", "Invalid")
        assert f"writes to kafka {colour}" in world.message("Valid")
        assert world.working() == ["blue", "colour-19"]
    world.edit(**topic("last"))
    world.settle()
    assert world.working() == ["blue", "last"]


def test_when_the_status_has_no_room_for_more_places_no_job_starts_at_another_one() -> None:
    world = started()
    world.resource["status"]["earlierPlaces"] = [f"{number:010x}" for number in range(9_999)]
    world.edit(**topic("green"))
    world.settle()
    assert "have written to 10000 places" in world.message("Valid")
    assert world.working() == ["blue"]
    world.edit(**topic("blue"))
    world.settle()
    assert world.condition("UpToDate") == ("True", "RolledOut")


def test_jobs_whose_states_are_not_deleted_stay_its_own_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that the status does not list would be somebody else's, and would keep running."""
    for module in (blue_green_module, blue_green_conditions, blue_green_jobs):
        monkeypatch.setattr(module, "MOST_JOBS", 4)
    world = started()
    for number in range(6):
        world.edit(**topic(f"colour-{number}"))
        world.step()
        world.step()
    assert len(world.jobs()) == len(world.state.jobs) == 4
    assert world.condition("UpToDate") == ("False", "TooManyJobs")
    assert "of which the status lists at most 4: orders-" in world.message("UpToDate")
    assert world.condition("Degraded") == ("False", "AsExpected")
    assert world.working() == ["blue"]
    world.settle()
    assert (len(world.jobs()), world.working()) == (2, ["blue", "colour-5"])


def test_owner_and_annotation_that_others_removed_are_set_back() -> None:
    world = beside()
    for name, job in world.jobs().items():
        before = deepcopy(job["metadata"])
        del job["metadata"]["ownerReferences"]
        job["metadata"]["annotations"] = {}
        job["metadata"]["labels"] = {}
        world.settle()
        assert world.jobs()[name]["metadata"] == before


def test_a_change_that_is_rejected_is_a_condition() -> None:
    world = started()
    (name,) = world.jobs()
    world.patch_refused[name] = "StreamJoin shop/orders cannot be changed: 403 Forbidden: quota"
    world.edit(trigger={"maxRecordsPerEpoch": 8})
    world.settle()
    assert (world.condition("Degraded"), world.condition("UpToDate")) == (
        ("True", "PatchRefused"), ("False", "Pending"),
    )  # fmt: skip
    assert world.message("Degraded") == world.patch_refused[name]
    world.patch_refused.clear()
    world.settle()
    assert (world.condition("Degraded")[0], world.condition("UpToDate")[0]) == ("False", "True")


def test_paused_rollouts_change_no_job_that_runs() -> None:
    world = started()
    (name,) = world.jobs()
    revision = world.clusters[name].status.revision
    world.annotate(pause="rollouts")
    world.edit(trigger={"maxRecordsPerEpoch": 8})
    world.settle(HOUR)
    assert world.clusters[name].status.revision == revision
    assert world.clusters[name].condition("Paused") == ("True", "Rollouts")
    messages = [condition.message for condition in world.clusters[name].status.conditions]
    assert any("`kubectl joinery rollout resume bgj/orders` ends that" in message for message in messages)
    world.annotate(pause="")
    world.settle(MINUTE)
    assert world.clusters[name].status.revision != revision
    assert world.condition("UpToDate") == ("True", "RolledOut")


def test_paused_rollouts_end_no_job() -> None:
    world = switched()
    world.annotate(pause="rollouts")
    world.settle(3 * HOUR)
    assert world.working() == ["blue", "green"]
    world.annotate(pause="")
    world.settle(MINUTE)
    assert world.working() == ["green"]
    world = beside()
    world.annotate(pause="rollouts")
    for edit in (topic("red"), topic("blue")):
        world.edit(**edit)
        world.settle(HOUR)
        assert world.working() == ["blue", "green"]
    world.annotate(pause="")
    world.settle(MINUTE)
    assert world.working() == ["blue"]


def test_a_pause_of_everything_leaves_the_jobs_alone() -> None:
    world = beside()
    world.annotate(pause="all")
    world.settle()
    for name in world.jobs():
        (pod,) = world.clusters[name].alive()
        world.clusters[name].evict(pod["metadata"]["name"])
    world.edit(**topic("red"))
    world.settle(HOUR)
    assert world.working() == []
    assert len(world.jobs()) == 2
    world.annotate(pause="")
    world.settle(MINUTE)
    world.settle(MINUTE)
    assert world.working() == ["blue", "red"]


def test_a_pause_of_everything_begins_the_stable_time_again() -> None:
    world = beside(switch="automatic")
    world.settle(9 * MINUTE)
    world.annotate(pause="all")
    world.settle(HOUR)
    world.annotate(pause="")
    world.settle(9 * MINUTE)
    assert world.read() == ["blue"]
    world.settle(2 * MINUTE)
    assert world.read() == ["green"]


@pytest.mark.parametrize("scope", ["all", "rollouts"])
def test_a_job_that_is_paused_itself_is_not_switched_to(scope: str) -> None:
    world = beside(switch="automatic")
    green = world.jobs()[world.by_topic()["green"]]
    green["metadata"]["annotations"][PAUSE_ANNOTATION] = scope
    world.settle(HOUR)
    assert world.read() == ["blue"]
    assert "paused by its own annotation" in world.message("UpToDate")
    before = deepcopy(green)
    world.edit(trigger={"maxRecordsPerEpoch": 8})
    world.settle()
    assert (green["spec"] == before["spec"]) == (scope == "all")
    del green["metadata"]["annotations"][PAUSE_ANNOTATION]
    world.settle(11 * MINUTE)
    world.settle(MINUTE)
    assert world.read() == ["green"]


def test_an_edit_at_the_moment_of_the_switch_begins_the_stable_time_again() -> None:
    """FLINK-41074, for an edit that the second job's resource does not have yet."""
    world = beside(switch="automatic")
    world.settle(9 * MINUTE)
    world.now += timedelta(minutes=2)
    world.edit(trigger={"maxRecordsPerEpoch": 8})
    world.settle()
    assert world.read() == ["blue"]
    world.settle(9 * MINUTE)
    assert world.read() == ["blue"]
    world.settle(2 * MINUTE)
    assert world.read() == ["green"]


def test_a_switch_that_names_a_generation_is_of_no_later_edit() -> None:
    world = beside()
    generation = world.resource["metadata"]["generation"]
    world.annotate(switch=f"{world.by_topic()['green']}@{generation}")
    world.edit(trigger={"maxRecordsPerEpoch": 8})
    world.settle(HOUR)
    assert (world.read(), world.state.phase) == (["blue"], "AwaitingSwitch")
    assert "The annotation is of an earlier edit" in world.message("UpToDate")
    world.annotate(switch=f"{world.by_topic()['green']}@{generation + 1}")
    world.settle()
    assert world.read() == ["green"]


@pytest.mark.parametrize("cleanup", ["retainState", "deleteState"])
@pytest.mark.parametrize("stage", ["beside", "switched"])
def test_the_deletion_of_the_resource_does_with_all_states_what_the_template_says(stage: str, cleanup: str) -> None:
    world = {"beside": beside, "switched": switched}[stage]()
    world.edit(cleanup=cleanup)
    world.settle()
    world.resource["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    for cluster in world.clusters.values():
        cluster.delete()  # as Kubernetes does, by the owner references
    world.settle(MINUTE)
    assert world.jobs() == {}
    assert {data.deleted for data in world.databases.values()} == {cleanup == "deleteState"}


def test_a_template_that_is_nested_too_deep_is_named() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    world = started()
    world.resource["spec"]["template"]["spec"]["spark"] = {"driver": {"podTemplate": {"inline": deep}}}
    decision = reconcile(
        ObservedBlueGreen(resource=world.resource, jobs=world.jobs(), now=world.now, settings=world.settings)
    )
    assert isinstance(decision.status, BlueGreenState)
    (valid,) = [condition for condition in decision.status.conditions if condition.type == "Valid"]
    assert "nested too deep" in valid.message


def test_a_job_that_cannot_be_created_is_named() -> None:
    world = started()
    world.create_refused = "exceeded quota"
    world.edit(**topic("green"))
    world.settle()
    assert world.condition("Degraded") == ("True", "CreateRefused")
    assert world.read() == ["blue"]


def test_a_job_that_was_never_created_leaves_its_places_to_others() -> None:
    world = BlueGreenWorld()
    world.create_refused = "exceeded quota"
    world.settle()
    world.edit(**topic("green"))
    world.settle()
    world.create_refused = ""
    world.settle()
    assert (world.read(), world.working()) == (["green"], ["green"])
    world.create_refused = "exceeded quota"
    world.edit(**topic("red"))
    world.settle()
    world.edit(**topic("green"))
    world.settle()
    world.create_refused = ""
    world.edit(**topic("red"))
    world.settle()
    assert (world.read(), world.working()) == (["green"], ["green", "red"])


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


LIFE: tuple[Callable[[BlueGreenWorld], object], ...] = (
    lambda world: world.settle(),
    lambda world: world.edit(**topic("green")),
    lambda world: world.settle(11 * MINUTE),
    lambda world: world.switch(),
    lambda world: world.settle(MINUTE),
    lambda world: world.edit(**topic("blue")),
    lambda world: world.settle(2 * HOUR),
    lambda world: world.edit(**topic("red")),
    lambda world: world.settle(MINUTE),
    lambda world: world.set(suspend=True),
    lambda world: world.settle(MINUTE),
    lambda world: world.set(suspend=False),
    lambda world: world.edit(**topic("black")),
    lambda world: world.settle(11 * MINUTE),
    lambda world: world.switch(),
    lambda world: world.settle(2 * HOUR),
)
"""All that may happen to a BlueGreenJob, one after the other."""


def outcome(world: BlueGreenWorld) -> Any:
    retired = [past.name for past in world.state.retired]
    return world.read(), world.working(), retired, {name: data.deleted for name, data in world.databases.items()}


@pytest.mark.parametrize("cleanup", ["retainState", "deleteState"])
@pytest.mark.parametrize("share", rest_in_search(range(12), (0,)))
def test_an_operator_that_dies_at_any_write_leads_to_the_same_end(share: int, cleanup: str) -> None:
    *before, undisturbed = course_of_life(cleanup)
    assert outcome(undisturbed)[:2] == (["black"], ["black"])
    assert undisturbed.writes > 30
    for death in range(share, undisturbed.writes, 12):
        # Until its operator dies, the life is the undisturbed one.
        begun = max(number for number, world in enumerate(before) if world.writes <= death)
        world = copied(before[begun])
        world.death = death
        for happens in LIFE[begun:]:
            happens(world)
        assert outcome(world) == outcome(undisturbed), f"after the death at write {death}"


@cache
def course_of_life(cleanup: str) -> list[DyingWorld]:
    """A world before each thing that happens to it, and at the end."""
    world = DyingWorld()
    world.edit(cleanup=cleanup)
    course = [copied(world)]
    for happens in LIFE:
        happens(world)
        course.append(copied(world))
    return course


class DyingWorld(BlueGreenWorld):
    """Its operator dies instead of the write `death`, and starts again; -1: it does not die."""

    death = -1

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


@pytest.mark.search
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
