"""The installation's defaults lie below a job's template, and a template takes them away with null."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from joinery_operator.kube import process
from joinery_operator.manifests.yaml import from_yaml
from joinery_operator.pod_defaults import pod_defaults
from joinery_operator.settings import Settings
from joinery_runtime.connectors.kafka.errors import client_defaults
from simulated_cluster.memory_server import MemoryApi, MemoryServer

IDS = {"runAsUser", "runAsGroup", "fsGroup"}
NO_IDS = "{kind: Pod, spec: {securityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}}}"
FORCED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def pods(job):
    """Every kind of pod of a job."""
    executor = from_yaml(job.config_map()["data"]["executor.yaml"])
    return [job.driver(migrate="s"), job.restore(), job.check(), job.delete_state(), executor]


def pod_security(job):
    return [pod["spec"]["securityContext"] for pod in pods(job)]


def with_templates(job, text):
    ref = {"podTemplate": {"name": "extra"}}
    return replace(job.with_spark(driver=ref, executor=ref), templates={"extra": {"data": {"pod.yaml": text}}})


def with_defaults(job, **defaults):
    return replace(job, pod_defaults=pod_defaults(json.dumps(defaults)))


def test_without_a_word_pods_have_the_images_user(job):
    for security in pod_security(job):
        assert {name: security[name] for name in IDS} == dict.fromkeys(IDS, 185)


def test_a_templates_null_removes_a_default_from_each_pod(job, violations):
    job = with_templates(job, NO_IDS)
    for pod in pods(job):
        assert pod["spec"]["securityContext"] == {**FORCED, "fsGroupChangePolicy": "OnRootMismatch"}
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
            assert not IDS & container["securityContext"].keys()
        assert violations(pod) == []


def test_a_templates_own_user_counts_and_root_does_not(job):
    (security, *_) = pod_security(with_templates(job, "{kind: Pod, spec: {securityContext: {runAsUser: 1234}}}"))
    assert (security["runAsUser"], security["fsGroup"]) == (1234, 185)
    root = "securityContext: {runAsUser: 0}"
    pod = with_templates(job, f"{{kind: Pod, spec: {{{root}, containers: [{{name: joinery, {root}}}]}}}}").driver()
    assert pod["spec"]["securityContext"]["runAsUser"] == 185
    assert "runAsUser" not in pod["spec"]["containers"][0]["securityContext"]


@pytest.mark.parametrize("fields", [{}, {"fsGroup": 2000}, {"runAsNonRoot": True}, {"seLinuxOptions": {"level": "s0"}}])
def test_the_installations_security_context_replaces_the_images_user(job, fields):
    assert pod_security(with_defaults(job, podSecurity=fields)) == [{**FORCED, **fields}] * 5


def test_a_template_counts_more_than_the_installation(job):
    job = with_templates(with_defaults(job, podSecurity={"fsGroup": 2000, "runAsUser": 2000}), NO_IDS)
    assert pod_security(job) == [FORCED] * 5


def cluster_defaults(text="", *, openshift=True):
    server = MemoryServer()
    served = (200, {"resources": [{"name": "securitycontextconstraints"}]})
    answers = {"/apis/security.openshift.io/v1": served} if openshift else {}
    server.before = lambda _, path: answers.get(path, (404, {"reason": "NotFound"}))

    async def run():
        async with MemoryApi(server) as api:
            return await process.with_cluster_defaults(api, Settings(pod_defaults=text))

    return pod_defaults(asyncio.run(run()).pod_defaults)


def test_on_openshift_the_namespace_chooses_the_user_unless_the_installation_does(job):
    assert pod_security(replace(job, pod_defaults=cluster_defaults())) == [FORCED] * 5
    assert pod_security(replace(job, pod_defaults=cluster_defaults(openshift=False))) == pod_security(job)
    chosen = cluster_defaults(json.dumps({"podSecurity": {"fsGroup": 2000}}))
    assert pod_security(replace(job, pod_defaults=chosen)) == [{**FORCED, "fsGroup": 2000}] * 5


ALL = {
    "labels": {"team": "data", "joinery.dev/role": "nobody"},
    "tolerations": [{"key": "streams", "operator": "Exists"}],
    "priorityClassName": "low",
    "imagePullSecrets": [{"name": "registry"}],
    "proxy": {"http": "http://proxy:3128", "https": "http://proxy:3129", "noProxy": [".example.com"]},
    "caBundle": {"configMap": "trust", "key": "all.pem"},
}
TEMPLATE = """
kind: Pod
metadata: {labels: {team: own}}
spec:
  priorityClassName: high
  tolerations: [{key: own, operator: Exists}]
  containers:
    - {name: joinery, env: [{name: HTTP_PROXY, value: "http://own:1"}]}
    - {name: spark-kubernetes-executor, env: [{name: HTTP_PROXY, value: "http://own:1"}]}
"""


def environment(pod):
    return {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}


def test_each_pod_of_a_job_has_the_installations_defaults(job, violations):
    for pod in pods(with_defaults(job, **ALL)):
        spec = pod["spec"]
        assert pod["metadata"]["labels"]["team"] == "data"
        assert pod["metadata"]["labels"]["joinery.dev/role"] != "nobody"
        assert {"key": "streams", "operator": "Exists"} in spec["tolerations"]
        assert spec["priorityClassName"] == "low"
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        for container in [*spec.get("initContainers", ()), spec["containers"][0]]:
            (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "joinery-ca")
            assert mount == {"name": "joinery-ca", "mountPath": "/etc/joinery-ca", "readOnly": True}
        (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "joinery-ca")
        assert volume["configMap"] == {"name": "trust", "items": [{"key": "all.pem", "path": "ca-bundle.crt"}]}
        variables = environment(pod)
        assert variables["HTTP_PROXY"] == variables["http_proxy"] == "http://proxy:3128"
        assert variables["HTTPS_PROXY"] == variables["https_proxy"] == "http://proxy:3129"
        assert variables["SSL_CERT_FILE"] == "/etc/joinery-ca/ca-bundle.crt"
        assert client_defaults({}, variables)["ssl.ca.location"] == "/etc/joinery-ca/ca-bundle.crt"
        assert violations(pod) == []


def test_no_proxy_is_asked_for_the_cluster_itself(job):
    (variables, *_) = map(environment, pods(with_defaults(job, **ALL)))
    assert variables["NO_PROXY"] == variables["no_proxy"]
    excluded = variables["NO_PROXY"].split(",")
    for host in ("kubernetes.default.svc", "kafka.shop.svc.cluster.local", "localhost", "db.example.com"):
        assert any(host.endswith(suffix) for suffix in excluded)
    (variables, *_) = map(environment, pods(with_defaults(job, proxy={"https": "http://proxy:3129"})))
    assert "HTTP_PROXY" not in variables


def test_a_jobs_template_replaces_defaults_and_adds_to_lists(job):
    for pod in pods(with_templates(with_defaults(job, **ALL), TEMPLATE)):
        spec = pod["spec"]
        assert pod["metadata"]["labels"]["team"] == "own"
        assert spec["priorityClassName"] == "high"
        assert [toleration["key"] for toleration in spec["tolerations"]][:2] == ["own", "streams"]
        assert environment(pod)["HTTP_PROXY"] == "http://own:1"
        assert environment(pod)["HTTPS_PROXY"] == "http://proxy:3129"


def test_what_the_job_itself_says_comes_first(job):
    spark = {"imagePullSecrets": [{"name": "own"}], "driver": {"tolerations": [{"key": "mine"}]}}
    spec = with_defaults(job.with_spark(**spark), **ALL).driver()["spec"]
    assert [secret["name"] for secret in spec["imagePullSecrets"]] == ["own", "registry"]
    assert [toleration["key"] for toleration in spec["tolerations"]][:2] == ["mine", "streams"]


def test_clients_know_the_zone_of_their_node(job):
    for pod in pods(job):
        (entry,) = (
            variable for variable in pod["spec"]["containers"][0]["env"] if variable["name"] == "JOINERY_CLIENT_RACK"
        )
        assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['topology.kubernetes.io/zone']"
    assert client_defaults({}, {"JOINERY_CLIENT_RACK": "b"})["client.rack"] == "b"
    assert "client.rack" not in client_defaults({}, {"JOINERY_CLIENT_RACK": ""}), "the cluster does not say"
