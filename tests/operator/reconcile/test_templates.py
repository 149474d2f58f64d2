"""A revision keeps the pod templates that it began with; an edited one is another revision; and what an installation
does not allow keeps back the next revision of a job, not the one that runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from joinery_operator.revision import revision_hash
from simulated_cluster.simulation import SimulatedCluster, resource

FIRST, SECOND = "orders-driver-1", "orders-driver-2"
NAMED = {"driver": {"podTemplate": {"name": "mine"}}}


def template(**spec: object) -> dict[str, dict[str, str]]:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}
    return {"data": {"pod.yaml": json.dumps(pod), "other": "not named by the job"}}


def inline(pool: str) -> dict[str, object]:
    return {"driver": {"podTemplate": {"inline": f"spec: {{nodeSelector: {{pool: {pool}}}}}"}}}


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(resource(spark=NAMED))
    cluster.templates = {"mine": template(nodeSelector={"pool": "one"})}
    cluster.started(1)
    return cluster


def pool(cluster: SimulatedCluster, name: str) -> str | None:
    selector: dict[str, str] = cluster.pods[name]["spec"].get("nodeSelector", {})
    return selector.get("pool")


def fail(cluster: SimulatedCluster, name: str) -> None:
    cluster.end(name, None, 1)
    cluster.step()
    cluster.pass_time(60)
    cluster.step()


def test_a_template_that_was_deleted_is_still_that_of_the_revision(cluster: SimulatedCluster) -> None:
    cluster.templates = {"mine": None}
    fail(cluster, FIRST)
    assert cluster.condition("Valid") == ("False", "Incomplete")
    assert pool(cluster, SECOND) == "one"


def test_an_edited_template_is_a_rollout(cluster: SimulatedCluster) -> None:
    before = cluster.status.revision
    cluster.templates = {"mine": template(nodeSelector={"pool": "two"})}
    cluster.step()
    assert cluster.status.rollout is not None
    assert cluster.status.rollout.revision == cluster.status.target_revision != before
    check = next(pod for name, pod in cluster.pods.items() if "-check-" in name)
    assert check["spec"]["nodeSelector"] == {"pool": "two"}
    fail(cluster, FIRST)
    assert pool(cluster, SECOND) == "one", "the revision in force runs until the new one is checked"


def test_a_rollback_has_the_template_that_the_old_revision_began_with(cluster: SimulatedCluster) -> None:
    """A generated name that Git prunes with the edit must not keep the old job from coming back."""
    cluster.templates = {"mine": None, "mine-2": template(nodeSelector={"pool": "two"})}
    cluster.edit(spark={"driver": {"podTemplate": {"name": "mine-2"}}})
    fail(cluster, FIRST)
    assert cluster.status.rollout is not None
    assert pool(cluster, SECOND) == "one"


def test_a_pod_in_the_job_is_part_of_the_revision() -> None:
    """No ConfigMap is read for it, and a rollback has the old one."""
    cluster = SimulatedCluster(resource(spark=inline("one")))
    cluster.started(1)
    assert pool(cluster, FIRST) == "one"
    before = cluster.status.revision
    cluster.edit(spark=inline("two"))
    cluster.step()
    assert cluster.status.rollout is not None
    assert cluster.status.rollout.revision != before
    check = next(pod for name, pod in cluster.pods.items() if "-check-" in name)
    assert check["spec"]["nodeSelector"] == {"pool": "two"}
    fail(cluster, FIRST)
    assert pool(cluster, SECOND) == "one"


def test_what_the_job_does_not_name_is_no_part_of_a_revision(cluster: SimulatedCluster) -> None:
    same = template(nodeSelector={"pool": "one"})
    same["data"]["other"] = "edited"
    same["data"]["pod.yaml"] = json.dumps(json.loads(same["data"]["pod.yaml"]), indent=4)
    cluster.templates = {"mine": same}
    decision = cluster.step()
    assert (decision.status, cluster.status.rollout) == (None, None)
    (stored,) = cluster.config_maps.values()
    assert "not named by the job" not in stored["data"]["templates.yaml"]


def test_a_revision_of_an_earlier_release_goes_on(cluster: SimulatedCluster) -> None:
    """It has no templates stored, and its name does not count them."""
    (name, stored), status = next(iter(cluster.config_maps.items())), cluster.status
    assert cluster.resource is not None
    assert status.driver is not None
    model = cluster.observed().kind.model.model_validate(cluster.resource, by_alias=True, by_name=False)
    old = revision_hash(model, cluster.resource, status.image or "")
    assert old != status.revision
    del stored["data"]["templates.yaml"]
    cluster.config_maps = {name.replace(status.revision or "", old): stored}
    stored["metadata"]["name"] = name.replace(status.revision or "", old)
    driver = status.driver.model_copy(update={"revision": old})
    changed = status.model_copy(update={"revision": old, "target_revision": old, "driver": driver})
    cluster.resource["status"] = changed.model_dump(mode="json", by_alias=True, exclude_none=True)
    cluster.step()
    assert (cluster.status.revision, cluster.status.rollout) == (old, None)
    fail(cluster, FIRST)
    assert pool(cluster, SECOND) == "one"


def test_what_is_not_allowed_keeps_back_the_next_revision_and_not_the_one_that_runs(cluster: SimulatedCluster) -> None:
    revision = cluster.status.revision
    cluster.templates = {"mine": template(hostNetwork=True)}
    cluster.edit(spark={**NAMED, "serviceAccount": "admin"})
    cluster.step()
    assert cluster.condition("Valid") == ("False", "NotAllowed")
    assert cluster.condition("Ready")[0] == "True"
    message = next(condition.message for condition in cluster.status.conditions if condition.type == "Valid")
    assert "spec.spark.serviceAccount: 'admin' is not allowed in this cluster" in message
    assert "ConfigMap mine, key pod.yaml: spec.hostNetwork: 'True' is not allowed" in message
    fail(cluster, FIRST)
    pod = cluster.pods[SECOND]["spec"]
    assert (pod.get("hostNetwork"), pod["serviceAccountName"]) == (None, "joinery-driver")
    assert (cluster.status.revision, cluster.status.rollout) == (revision, None)

    allow = json.dumps({"serviceAccounts": ["admin"], "podTemplate": ["spec.hostNetwork"]})
    cluster.settings = replace(cluster.settings, jobs_allow=allow)
    cluster.step()
    assert cluster.condition("Valid") == ("True", "Valid")
    assert cluster.status.rollout is not None


def test_a_job_that_runs_goes_on_when_an_upgrade_brings_the_limits() -> None:
    wide = json.dumps({"podTemplate": ["*"], "images": ["*"]})
    cluster = SimulatedCluster(resource(spark=NAMED))
    cluster.settings = replace(cluster.settings, jobs_allow=wide)
    cluster.templates = {"mine": template(hostNetwork=True)}
    cluster.started(1)
    cluster.settings = replace(cluster.settings, jobs_allow="")
    fail(cluster, FIRST)
    assert cluster.condition("Valid") == ("False", "NotAllowed")
    assert cluster.pods[SECOND]["spec"]["hostNetwork"] is True


def test_a_template_that_is_made_harmless_is_noticed(cluster: SimulatedCluster) -> None:
    cluster.templates = {"mine": template(hostNetwork=True)}
    again_after = cluster.step().again_after
    assert cluster.condition("Valid") == ("False", "NotAllowed")
    assert again_after == cluster.settings.poll_seconds
