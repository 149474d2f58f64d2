"""Executors whose pods the API server rejects, as for a quota or an admission policy: the status has its words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.node.conftest import MakeJob
from e2e.node.works import Pairs
from joinery_devkit.kubernetes.kubectl import Kubectl

pytestmark = [pytest.mark.node, pytest.mark.soak, pytest.mark.timeout(1800)]
NAME, ANSWER = "rejected", "no executor of this job may run"


@contextmanager
def policy_against_executors(kubectl: Kubectl) -> Iterator[None]:
    """The API server rejects executors of this one job: a quota would be for all jobs of the namespace."""
    label = "object.metadata.?labels[?'joinery.dev/{}'].orValue('')"
    is_executor = f"{label.format('job')} == '{NAME}' && {label.format('role')} == 'executor'"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "matchConstraints": {"resourceRules": [pods]},
            "validations": [{"expression": f"!({is_executor})", "message": ANSWER}],
        },
    }
    binding = {
        "apiVersion": policy["apiVersion"],
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }
    kubectl.apply([policy, binding])
    try:
        yield
    finally:
        kubectl("delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", NAME)


def test_the_status_says_why_executors_are_rejected_and_the_driver_waits_for_them(make_job: MakeJob) -> None:
    job = make_job(NAME, Pairs)
    with job.feeder:
        with policy_against_executors(job.kubectl):
            job.apply(upgrade={"progressDeadline": "60s"})
            job.wait("it is told", lambda: ANSWER in job.condition("Ready").get("message", ""))
            driver = job.driver()["metadata"]["uid"]
            assert job.condition("Ready")["reason"] == "WaitingForExecutors"
            # Spark alone would end such a driver within half a minute.
            job.wait("it is degraded", lambda: job.condition("Degraded").get("reason") == "WaitingForExecutors")
            assert ANSWER in job.condition("Degraded")["message"]
        job.wait_until_running()
    job.judge()
    assert job.driver()["metadata"]["uid"] == driver
    job.delete()
    job.log.close()
