"""A real API server takes the children, where the restricted profile is enforced, and keeps them as they were meant."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from joinery_devkit.kubernetes.kubectl import KubectlFailed
from joinery_operator.manifests import repair_patch, service
from joinery_operator.manifests.yaml import from_yaml
from joinery_operator.pod_defaults import PodDefaults, PodSecurity
from simulated_cluster.resources import hash_of

pytestmark = pytest.mark.services

CRDS = Path(__file__).parents[3] / "crds"
SPARK = {
    "imagePullSecrets": [{"name": "pull"}],
    "driver": {
        "coreRequest": "200m",
        "nodeSelector": {"pool": "small"},
        "tolerations": [{"operator": "Exists"}],
        "podTemplate": {"name": "extra"},
    },
    "executor": {"tolerations": [{"key": "big", "value": "yes"}]},
}
TEMPLATE = """
kind: Pod
spec:
  volumes: [{name: certs, configMap: {name: ca}}]
  containers: [{name: joinery, volumeMounts: [{name: certs, mountPath: /certs}], env: [{name: A, value: b}]}]
"""


@pytest.fixture(scope="module")
def kubectl(api_server):
    api_server.kubectl.define(CRDS)
    return api_server.kubectl


@pytest.fixture
def stored(job, kubectl, api_namespace):
    """The job as the API server keeps it, in a namespace that enforces the restricted profile."""
    kubectl.restrict(api_namespace)
    kubectl("create", "serviceaccount", "driver-account", "-n", api_namespace)
    written = job.with_spark(**SPARK).resource
    about = {"name": "orders", "namespace": api_namespace}
    kubectl.apply(
        {"apiVersion": written["apiVersion"], "kind": written["kind"], "metadata": about, "spec": written["spec"]}
    )
    resource = kubectl.get(written["kind"].lower(), "orders", api_namespace)
    return replace(job, resource=resource, templates={"extra": {"data": {"pod.yaml": TEMPLATE}}})


def children_of(job):
    before = [{}, {"migrate": "s", "abandon_state": True}]
    drivers = [*(job.driver(attempt, **options) for attempt, options in enumerate(before)), job.restore()]
    return [job.config_map(), service(job.resource), *drivers, job.check(), job.delete_state()]


def create(kubectl, *manifests):
    for manifest in manifests:
        kubectl("create", "-f", "-", stdin=json.dumps(manifest))


def as_kept(kubectl, manifest):
    return kubectl.get(manifest["kind"], manifest["metadata"]["name"], manifest["metadata"]["namespace"])


def test_it_takes_all_children_and_adds_nothing_that_is_drift(kubectl, stored):
    expected = children_of(stored)
    create(kubectl, *expected)
    assert [repair_patch(manifest, as_kept(kubectl, manifest)) for manifest in expected] == [None] * len(expected)


def test_it_takes_executors_as_their_template_says(kubectl, stored, api_namespace):
    pod = from_yaml(stored.config_map()["data"]["executor.yaml"])
    pod["spec"]["containers"][0]["image"] = stored.image
    create(kubectl, {**pod, "metadata": {**pod["metadata"], "name": "executor", "namespace": api_namespace}})


def test_the_profile_is_in_force(kubectl, stored):
    pod = stored.driver()
    pod["spec"]["containers"][0]["securityContext"] = {}
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        create(kubectl, pod)


SECURITY_CONTEXTS = (
    "[object.spec.?securityContext] + object.spec.containers.map(c, c.?securityContext)"
    " + object.spec.?initContainers.orValue([]).map(c, c.?securityContext)"
)
# OpenShift's restricted-v2: users and groups of the namespace's own range, which it fills in, and no others.
RESTRICTED_V2 = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "restricted-v2"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "validations": [
            {
                "expression": f"({SECURITY_CONTEXTS}).all(s, s.?runAsUser.orValue(1000650000) >= 1000650000)"
                " && object.spec.?securityContext.?fsGroup.orValue(1000650000) >= 1000650000",
                "message": "must be in the ranges: [1000650000, 1000659999]",
            }
        ],
    },
}


def test_openshifts_ranges_take_the_pods_of_an_operator_that_runs_there(kubectl, stored, api_namespace):
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "restricted-v2"},
        "spec": {
            "policyName": "restricted-v2",
            "validationActions": ["Deny"],
            "matchResources": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": api_namespace}},
            },
        },
    }
    kubectl.apply([RESTRICTED_V2, binding])
    plain = json.dumps(stored.driver())

    def is_rejected():
        try:
            kubectl("create", "--dry-run=server", "-f", "-", stdin=plain)
        except KubectlFailed as error:
            return "must be in the ranges" in str(error)
        return False

    deadline = time.monotonic() + 30
    while not is_rejected():
        assert time.monotonic() < deadline, "the API server does not apply the policy"
        time.sleep(0.2)
    on_openshift = replace(stored, pod_defaults=PodDefaults(pod_security=PodSecurity()))
    create(kubectl, *children_of(on_openshift))
    executor = from_yaml(on_openshift.config_map()["data"]["executor.yaml"])
    executor["spec"]["containers"][0]["image"] = stored.image
    create(kubectl, {**executor, "metadata": {**executor["metadata"], "name": "executor", "namespace": api_namespace}})


def test_what_others_changed_is_repaired_by_the_patch(kubectl, stored, api_namespace):
    for expected in (stored.config_map(), service(stored.resource), stored.driver()):
        create(kubectl, expected)
        kind, name = expected["kind"], expected["metadata"]["name"]

        def patched(body, kind=kind, name=name):
            kubectl("patch", kind, name, "-n", api_namespace, "--type=merge", "-p", json.dumps(body))

        patched({"metadata": {"labels": {"joinery.dev/role": "nobody"}, "ownerReferences": None}})
        if kind == "Service":
            patched({"spec": {"ports": [{"name": "other", "port": 1}], "selector": {"their": "own"}}})
        patched(repair_patch(expected, as_kept(kubectl, expected)).body)
        assert repair_patch(expected, as_kept(kubectl, expected)) is None


def test_defaults_of_the_crd_make_no_other_revision(job, stored, kind):
    written = job.with_spark(**SPARK).resource
    assert stored.resource["spec"] != written["spec"]
    assert hash_of(kind, stored.resource, "i") == hash_of(kind, written, "i")


def test_the_jobs_file_says_what_the_api_server_keeps(stored):
    text = stored.config_map()["data"]["job.yaml"]
    assert yaml.safe_load(text)["spec"] == stored.resource["spec"]
