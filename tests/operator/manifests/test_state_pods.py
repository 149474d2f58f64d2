import shlex

import pytest


@pytest.fixture(params=["check", "restore", "delete_state"])
def pod(request, job):
    return getattr(job, request.param)()


def test_they_meet_the_restricted_standard(pod, violations):
    assert violations(pod) == []


def test_they_need_no_rights_and_end_by_themselves(pod):
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["restartPolicy"] == "Never"
    assert not pod["spec"]["containers"][0].keys() & {"livenessProbe", "readinessProbe", "startupProbe", "ports"}


def test_they_see_the_revisions_job_and_all_secrets(pod, job):
    driver = job.driver()
    for mine, the_drivers in (
        (pod["spec"]["volumes"], driver["spec"]["volumes"]),
        (pod["spec"]["containers"][0]["volumeMounts"], driver["spec"]["containers"][0]["volumeMounts"]),
    ):
        assert mine == [entry for entry in the_drivers if entry["name"] not in {"scale", "joinery-exchange-key"}]
    assert pod["spec"]["containers"][0]["image"] == job.image


def test_the_check(job):
    pod = job.check()
    assert pod["metadata"]["name"] == job.names.check("abc")
    assert pod["metadata"]["labels"]["joinery.dev/role"] == "check"
    assert shlex.join(pod["spec"]["containers"][0]["args"]) == "joinery state check /etc/joinery/job.yaml"


def test_the_end_of_the_state(job):
    pod = job.delete_state()
    assert pod["metadata"]["name"] == job.names.delete_state
    assert pod["metadata"]["labels"]["joinery.dev/role"] == "delete-state"
    assert shlex.join(pod["spec"]["containers"][0]["args"]) == "joinery state delete /etc/joinery/job.yaml --yes"


def test_they_have_the_memory_of_the_jobs_driver(pod, job):
    assert pod["spec"]["containers"][0]["resources"] == job.driver()["spec"]["containers"][0]["resources"]


def test_the_return_to_a_savepoint_is_an_attempt_without_a_driver(job):
    pod = job.restore()
    assert pod["metadata"]["name"] == job.names.driver(3)
    assert pod["metadata"]["labels"] == job.driver(3)["metadata"]["labels"]
    command = "joinery state restore /etc/joinery/job.yaml --savepoint rollout-abc --before-first-commit"
    assert shlex.join(pod["spec"]["containers"][0]["args"]) == command
    assert "initContainers" not in pod["spec"]


def test_they_are_no_drivers_for_the_service(job):
    for pod in (job.check(), job.delete_state()):
        assert pod["metadata"]["labels"]["joinery.dev/role"] != "driver"


def test_a_templates_other_containers_would_keep_them_from_ending(job):
    text = """
    kind: Pod
    spec:
      initContainers: [{name: proxy, image: p, restartPolicy: Always}]
      containers: [{name: logger, image: l}, {name: joinery, env: [{name: A, value: b}]}]
    """
    spec = job.with_template(text).check()["spec"]
    assert [container["name"] for container in spec["containers"]] == ["joinery"]
    assert {"name": "A", "value": "b"} in spec["containers"][0]["env"]
    assert [container["name"] for container in spec["initContainers"]] == ["proxy"]
