import copy

import pytest

from joinery_operator.decision import Patch
from joinery_operator.manifests import repair_patch, service


@pytest.fixture
def expected(job):
    return service(job.resource)


@pytest.fixture
def live_service(expected):
    """As the API server keeps it."""
    stored = copy.deepcopy(expected)
    stored["metadata"] |= {"uid": "s-1", "resourceVersion": "9", "creationTimestamp": "2026-11-21T10:00:00Z"}
    stored["spec"] |= {"type": "ClusterIP", "clusterIPs": ["None"], "ipFamilies": ["IPv4"], "sessionAffinity": "None"}
    stored["status"] = {"loadBalancer": {}}
    return stored


def test_the_service_finds_drivers_before_they_are_ready(expected, job):
    spec = expected["spec"]
    assert expected["metadata"]["name"] == job.names.service
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert {port["name"]: port["port"] for port in spec["ports"]} == {"status": 8998, "spark-ui": 4040}
    assert spec["selector"].items() <= job.driver()["metadata"]["labels"].items()
    assert not spec["selector"].items() <= job.check()["metadata"]["labels"].items()
    named = {port["name"] for port in job.driver()["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in spec["ports"]} <= named


def test_what_the_api_server_adds_is_no_drift(expected, live_service):
    assert repair_patch(expected, live_service) is None


def test_what_others_add_is_left_alone(expected, live_service):
    live_service["metadata"]["labels"]["their/own"] = "x"
    live_service["metadata"]["ownerReferences"].append({"kind": "Other", "uid": "o"})
    assert repair_patch(expected, live_service) is None


def test_labels_that_others_changed_come_back(job):
    expected = job.driver()
    live_pod = copy.deepcopy(expected)
    live_pod["metadata"]["labels"]["joinery.dev/role"] = "nobody"
    del live_pod["metadata"]["labels"]["joinery.dev/attempt"]
    body = {"metadata": {"labels": {"joinery.dev/role": "driver", "joinery.dev/attempt": "1"}}}
    assert repair_patch(expected, live_pod) == Patch("Pod", job.names.driver(1), body)


def test_labels_and_owners_that_are_gone_altogether_come_back(job):
    expected = job.config_map()
    patch = repair_patch(expected, {"metadata": {"name": job.names.config_map("abc")}})
    assert patch is not None
    assert patch.body["metadata"]["labels"] == expected["metadata"]["labels"]
    assert patch.body["metadata"]["ownerReferences"] == expected["metadata"]["ownerReferences"]


def test_the_owner_comes_back_and_others_that_own_it_too_stay(job, expected, live_service):
    ours = expected["metadata"]["ownerReferences"][0]
    other, usurper = {"kind": "Other", "uid": "o"}, {"kind": "Other", "uid": "u", "controller": True}
    live_service["metadata"]["ownerReferences"] = [{**ours, "controller": False}, other, usurper]
    patch = repair_patch(expected, live_service)
    assert patch == Patch("Service", job.names.service, {"metadata": {"ownerReferences": [ours, other]}})


def test_a_services_spec_comes_back(expected, live_service):
    live_service["spec"]["publishNotReadyAddresses"] = False
    live_service["spec"]["ports"] = live_service["spec"]["ports"][:1]
    live_service["spec"]["selector"] = {**live_service["spec"]["selector"], "joinery.dev/role": "x", "their/own": "x"}
    patch = repair_patch(expected, live_service)
    assert patch is not None
    spec = patch.body["spec"]
    assert spec.keys() == {"publishNotReadyAddresses", "ports", "selector"}
    assert spec["ports"] == expected["spec"]["ports"]
    assert spec["selector"] == {**expected["spec"]["selector"], "their/own": None}


def test_a_pods_spec_is_not_looked_at(job):
    expected = job.driver()
    live_pod = copy.deepcopy(expected)
    live_pod["spec"]["nodeName"] = "n"
    live_pod["spec"]["containers"][0]["image"] = "other"
    assert repair_patch(expected, live_pod) is None
