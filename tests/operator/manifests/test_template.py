from dataclasses import replace

import pytest

from joinery_operator.manifests import ManifestError
from joinery_operator.manifests.spark import EXECUTOR_FILE

FULL = """
apiVersion: v1
kind: Pod
metadata:
  name: theirs
  namespace: theirs
  finalizers: [their/own]
  labels: {team: a, joinery.dev/role: nobody}
  annotations: {prometheus.io/scrape: "true"}
spec:
  restartPolicy: Always
  serviceAccountName: admin
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  priorityClassName: high
  affinity: {podAntiAffinity: {}}
  nodeSelector: {disk: ssd, pool: theirs}
  tolerations: [{key: theirs, operator: Exists}]
  securityContext: {runAsUser: 0, supplementalGroups: [7]}
  volumes: [{name: certs, configMap: {name: ca}}, {name: tmp, hostPath: {path: /tmp}}]
  initContainers: [{name: proxy, image: p, restartPolicy: Always}]
  containers:
    - name: joinery
      image: theirs
      args: [sleep]
      command: [theirs]
      securityContext:
        privileged: true
        allowPrivilegeEscalation: true
        readOnlyRootFilesystem: false
        capabilities: {add: [SYS_ADMIN]}
        seccompProfile: {type: Localhost, localhostProfile: p}
        seLinuxOptions: {level: s0}
      livenessProbe: {exec: {command: [sh]}}
      env: [{name: EXTRA, value: "1"}, {name: JOINERY_REVISION, value: theirs}]
      envFrom: [{secretRef: {name: more}}]
      volumeMounts: [{name: certs, mountPath: /certs}, {name: certs, mountPath: /tmp}]
      resources: {limits: {cpu: "2", memory: 1Mi}, requests: {ephemeral-storage: 1Gi}}
    - {name: logger, image: l}
"""


@pytest.fixture
def pod(job):
    job = job.with_spark(driver={"podTemplate": {"name": "extra"}, "nodeSelector": {"pool": "ours"}})
    return replace(job, templates={"extra": {"data": {"pod.yaml": FULL}}}).driver(migrate="s")


@pytest.fixture
def main(pod):
    return pod["spec"]["containers"][0]


def test_what_the_operator_does_not_set_is_kept(pod, main):
    spec = pod["spec"]
    assert pod["metadata"]["annotations"].keys() == {"prometheus.io/scrape", "joinery.dev/scale"}
    assert pod["metadata"]["labels"]["team"] == "a"
    assert spec["priorityClassName"] == "high"
    assert spec["affinity"] == {"podAntiAffinity": {}}
    assert spec["nodeSelector"] == {"disk": "ssd", "pool": "ours"}
    assert {"key": "theirs", "operator": "Exists"} in spec["tolerations"]
    assert spec["securityContext"]["supplementalGroups"] == [7]
    assert {"name": "certs", "configMap": {"name": "ca"}} in spec["volumes"]
    assert [container["name"] for container in spec["containers"]] == ["joinery", "logger"]
    assert {"name": "EXTRA", "value": "1"} in main["env"]
    assert main["envFrom"] == [{"secretRef": {"name": "more"}}]
    assert {"name": "certs", "mountPath": "/certs"} in main["volumeMounts"]
    assert main["resources"]["limits"]["cpu"] == "2"
    assert main["resources"]["requests"]["ephemeral-storage"] == "1Gi"
    assert main["securityContext"]["seLinuxOptions"] == {"level": "s0"}


def test_what_the_operator_sets_wins(pod, main, job):
    spec, plain = pod["spec"], job.driver()
    assert pod["metadata"].keys() == {"name", "namespace", "labels", "annotations", "ownerReferences"}
    assert (pod["metadata"]["name"], pod["metadata"]["namespace"]) == (job.names.driver(1), "shop")
    assert pod["metadata"]["labels"]["joinery.dev/role"] == "driver"
    for key in ("restartPolicy", "serviceAccountName", "automountServiceAccountToken", "terminationGracePeriodSeconds"):
        assert spec[key] == plain["spec"][key]
    assert spec["securityContext"]["runAsUser"] == 185
    assert [volume for volume in spec["volumes"] if volume["name"] == "tmp"] == [
        {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}}
    ]
    assert main["image"] == job.image
    assert main["args"][0] == "joinery"
    assert "command" not in main
    assert main["livenessProbe"] == plain["spec"]["containers"][0]["livenessProbe"]
    assert main["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main["resources"]["limits"]["memory"] == plain["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert [variable["value"] for variable in main["env"] if variable["name"] == "JOINERY_REVISION"] == ["abc"]
    assert [mount["name"] for mount in main["volumeMounts"] if mount["mountPath"] == "/tmp"] == ["tmp"]


def test_our_container_stays_restricted(pod, violations):
    assert [finding for finding in violations(pod) if "joinery:" in finding or "migrate:" in finding] == []


def test_what_comes_before_the_driver_comes_after_the_templates_and_sees_its_additions(pod):
    proxy, migrate = pod["spec"]["initContainers"]
    assert (proxy["name"], migrate["name"]) == ("proxy", "migrate")
    assert {"name": "certs", "mountPath": "/certs"} in migrate["volumeMounts"]
    assert {"name": "EXTRA", "value": "1"} in migrate["env"]


def test_a_template_may_say_nothing(job):
    plain = job.driver()
    assert job.with_template("kind: Pod").driver() == plain
    assert job.with_template("{kind: Pod, metadata: null, spec: {containers: null, volumes: []}}").driver() == plain


def test_a_pod_may_be_written_into_the_job(job):
    pod = FULL.replace("apiVersion: v1\n", "").replace("kind: Pod\n", "")
    driver = job.with_spark(driver={"podTemplate": {"inline": pod}}).driver()
    assert driver["spec"] == job.with_template(FULL).driver()["spec"]
    executor = job.with_spark(executor={"podTemplate": {"inline": pod}}).config_map()["data"]
    assert executor[EXECUTOR_FILE] == job.with_template(FULL, part="executor").config_map()["data"][EXECUTOR_FILE]


def test_a_pod_in_the_job_that_is_none_says_where(job):
    for inline, problem in (
        ("kind: Deployment", "its kind is 'Deployment'"),
        ("spec: {containers: {}}", "spec.containers is no list"),
        ("[spec]", "it is no mapping"),
        ("spec: " + "{a: " * 2000, "is not readable YAML"),
    ):
        with pytest.raises(ManifestError, match=rf"spec\.spark\.driver\.podTemplate\.inline:? {problem}"):
            job.with_spark(driver={"podTemplate": {"inline": inline}}).driver()


def test_a_template_of_another_key(job):
    job = job.with_spark(driver={"podTemplate": {"name": "extra", "key": "d.yaml"}})
    text = "{kind: Pod, spec: {priorityClassName: p}}"
    assert replace(job, templates={"extra": {"data": {"d.yaml": text}}}).driver()["spec"]["priorityClassName"] == "p"


def test_the_templates_own_values_are_not_changed(job):
    templates = {"extra": {"data": {"pod.yaml": FULL}}}
    job = replace(job.with_spark(driver={"podTemplate": {"name": "extra"}}), templates=templates)
    assert job.driver(migrate="s") == job.driver(migrate="s")
    assert len(job.driver(migrate="s")["spec"]["initContainers"]) == 2


@pytest.mark.parametrize("templates", [{}, {"extra": None}])
def test_a_template_that_is_missing(job, templates):
    job = replace(job.with_template("kind: Pod"), templates=templates)
    with pytest.raises(
        ManifestError, match=r"there is no ConfigMap extra, named by spec\.spark\.driver\.podTemplate\. Cre"
    ):
        job.driver()


def test_a_key_that_is_missing(job):
    job = replace(job.with_template("kind: Pod"), templates={"extra": {"data": {"other": ""}}})
    with pytest.raises(ManifestError, match=r"key pod\.yaml: its keys are other"):
        job.check()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is no mapping"),
        ("- a", "it is no mapping"),
        ("kind: Deployment", "its kind is 'Deployment'"),
        ("spec: {}", "its kind is None"),
        ("{kind: Pod, spec: [1]}", "spec is no mapping"),
        ("{kind: Pod, metadata: {labels: [a]}}", "metadata.labels is no mapping"),
        ("{kind: Pod, spec: {containers: {}}}", "spec.containers is no list"),
        ("{kind: Pod, spec: {containers: [a]}}", r"spec.containers\[0\] is no mapping"),
        ("{kind: Pod, spec: {containers: [{image: a}]}}", r"spec.containers\[0\] has no name"),
        ("{kind: Pod, spec: {initContainers: a}}", "spec.initContainers is no list"),
        ("{kind: Pod, spec: {volumes: [a]}}", r"spec.volumes\[0\] is no mapping"),
        ("{kind: Pod, spec: {tolerations: [a]}}", r"spec.tolerations\[0\] is no mapping"),
        ("{kind: Pod, spec: {containers: [{name: joinery, env: a}]}}", r"spec.containers\[0\].env is no list"),
        (
            "{kind: Pod, spec: {containers: [{name: joinery, resources: a}]}}",
            r"spec.containers\[0\].resources is no mapping",
        ),
        ("kind: [", "not readable YAML"),
        ("{kind: Pod, spec: {a: 1, a: 2}}", "not readable YAML"),
    ],
)
def test_a_template_that_is_no_pod_says_where(job, text, problem):
    with pytest.raises(ManifestError, match=rf"ConfigMap extra, key pod\.yaml.*{problem}"):
        job.with_template(text).driver()


def test_aliases_that_multiply_are_rejected_at_once(job):
    levels = "".join(f"  x{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10))
    for text in (
        f"kind: Pod\nspec:\n  x0: &a0 [{', '.join('1' * 10)}]\n{levels}",
        "kind: Pod\nspec: &s {volumes: [*s]}\n",
        f"kind: Pod\nspec: {{args: [&s {'x' * 20_000}{', *s' * 300}]}}\n",
        f"kind: Pod\nspec:\n  x0: &a0 {{k: v}}\n{levels.replace('[*', '{<<: [*').replace(']', ']}')}",
    ):
        for template in (job.with_template(text), job.with_spark(driver={"podTemplate": {"inline": text}})):
            with pytest.raises(ManifestError, match="it is too large, each alias counted"):
                template.driver()


@pytest.mark.parametrize("text", ["? [[a]]\n: b\n", "? [{a: b}]\n: c\n", "a: !!bool x\n", "a: !!int ''\n", "[" * 5000])
def test_whatever_a_parser_raises_is_told_as_a_template_that_cannot_be_read(job, text):
    with pytest.raises(ManifestError, match="is not readable YAML"):
        job.with_template(text).driver()


def test_a_template_may_have_aliases(job):
    text = "kind: Pod\nspec: {nodeSelector: &labels {disk: ssd}}\nmetadata: {labels: *labels}\n"
    driver = job.with_template(text).driver()
    assert driver["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert driver["metadata"]["labels"]["disk"] == "ssd"
