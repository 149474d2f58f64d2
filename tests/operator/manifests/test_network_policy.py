"""Who reaches a job's pods."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from joinery_operator.manifests import network_policy, repair_patch
from joinery_operator.names import labels
from joinery_operator.settings import Settings, read_settings
from joinery_runtime.errors import EnvironmentProblem

OPERATOR = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "joinery-system"}}}
SETTINGS = Settings(status_from=json.dumps([OPERATOR]))


def selects(selector, pod_labels) -> bool:
    """As Kubernetes does, of the forms that are used here."""
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    assert all(expression["operator"] == "In" for expression in selector.get("matchExpressions", ()))
    return selector.get("matchLabels", {}).items() <= pod_labels.items() and all(
        pod_labels.get(expression["key"]) in expression["values"] for expression in selector.get("matchExpressions", ())
    )


def test_driver_and_executors_reach_each_other_and_the_operator_the_status_port(job):
    policy = network_policy(job.resource, SETTINGS)
    spark, status = policy["spec"]["ingress"]
    assert policy["spec"]["policyTypes"] == ["Ingress"], "Kafka and Postgres are anywhere"
    assert "ports" not in spark
    assert status == {"from": [OPERATOR], "ports": [{"protocol": "TCP", "port": SETTINGS.status_port}]}
    (peer,) = spark["from"]
    assert peer.keys() == {"podSelector"}, "of the job's own namespace"
    mine = {role: labels(job.resource, role) for role in ("driver", "executor", "check", "delete-state")}
    assert all(selects(policy["spec"]["podSelector"], pod_labels) for pod_labels in mine.values())
    reach = {role for role, pod_labels in mine.items() if selects(peer["podSelector"], pod_labels)}
    assert reach == {"driver", "executor"}


def test_pods_of_other_jobs_are_strangers(job):
    policy = network_policy(job.resource, SETTINGS)
    other = copy.deepcopy(job.resource)
    other["metadata"]["name"] = "other"
    for role in ("driver", "executor"):
        pod_labels = labels(other, role)
        assert not selects(policy["spec"]["podSelector"], pod_labels)
        assert not selects(policy["spec"]["ingress"][0]["from"][0]["podSelector"], pod_labels)


def test_without_peers_nobody_reaches_the_status_port(job):
    """An empty list of peers would be everybody."""
    assert len(network_policy(job.resource, Settings(status_from="[]"))["spec"]["ingress"]) == 1


def merged(current, patch):
    """As the API server merges (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    base = current if isinstance(current, dict) else {}
    changed = {key: merged(base.get(key), value) for key, value in patch.items() if value is not None}
    return {**{key: value for key, value in base.items() if key not in patch}, **changed}


def test_what_others_change_of_it_comes_back(job):
    expected = network_policy(job.resource, SETTINGS)
    live = copy.deepcopy(expected)
    assert repair_patch(expected, live) is None
    live["spec"]["ingress"].append({})
    patch = repair_patch(expected, live)
    assert patch is not None
    assert (patch.kind, patch.body) == ("NetworkPolicy", {"spec": {"ingress": expected["spec"]["ingress"]}})
    live = copy.deepcopy(expected)
    live["spec"]["podSelector"]["matchLabels"]["team"] = "a"
    live["spec"]["podSelector"]["matchExpressions"] = [{"key": "team", "operator": "Exists"}]
    patch = repair_patch(expected, live)
    assert patch is not None
    assert merged(live, patch.body) == expected, "what others added to the selector goes, at every depth"
    named = replace(SETTINGS, status_from="[]")
    changed = repair_patch(network_policy(job.resource, named), expected)
    assert changed is not None, "as the installation says now"


@pytest.mark.parametrize("text", ["operator", "{}", "[1]"])
def test_peers_that_are_none_are_refused(text):
    with pytest.raises(EnvironmentProblem, match=r"JOINERY_OPERATOR_STATUS_FROM is .*NetworkPolicyPeers") as caught:
        read_settings({"JOINERY_OPERATOR_STATUS_FROM": text})
    assert "networkPolicy.jobs" in caught.value.todo
