import json
import shlex

import pytest

from joinery_operator.manifests import MAIN_CONTAINER, ManifestError
from joinery_operator.manifests.spark import executor_template
from joinery_runtime.job import STORED_JOB


def main(pod):
    return pod["spec"]["containers"][0]


def environment(container):
    return {
        variable["name"]: variable.get("value") or variable["valueFrom"]["fieldRef"]["fieldPath"]
        for variable in container["env"]
    }


def mounts(container):
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}


def volume(pod, name):
    return next(volume for volume in pod["spec"]["volumes"] if volume["name"] == name)


BEFORE = [{}, {"migrate": "rollout-abc"}, {"migrate": "rollout-abc", "abandon_state": True}]


@pytest.mark.parametrize("before", BEFORE)
def test_it_meets_the_restricted_standard(job, violations, before):
    assert violations(job.driver(**before)) == []


def test_it_is_one_attempts_and_the_jobs(job):
    metadata = job.driver(3)["metadata"]
    assert (metadata["name"], metadata["namespace"]) == (job.names.driver(3), "shop")
    assert metadata["ownerReferences"][0]["uid"] == "7c1e"
    assert metadata["labels"]["joinery.dev/attempt"] == "3"
    assert metadata["labels"]["joinery.dev/revision"] == "abc"
    assert not {key for key in metadata["labels"] if "argocd" in key or key in {"team", "app.kubernetes.io/instance"}}


def test_it_runs_the_job_once(job):
    pod = job.driver()
    assert main(pod)["name"] == MAIN_CONTAINER
    assert main(pod)["image"] == job.image
    assert shlex.join(main(pod)["args"]) == (
        "joinery run /etc/joinery/job.yaml --master k8s://https://kubernetes.default.svc --status-port 8998"
    )
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 77
    assert "initContainers" not in pod["spec"]


def test_it_may_talk_to_the_api_server_as_the_installations_account(job):
    assert job.driver()["spec"]["automountServiceAccountToken"] is True
    assert job.driver()["spec"]["serviceAccountName"] == "driver-account"
    assert job.with_spark(serviceAccount="own").driver()["spec"]["serviceAccountName"] == "own"


def test_its_environment(job):
    variables = environment(main(job.driver(3)))
    assert variables["SPARK_CONF_DIR"] == "/etc/joinery"
    assert variables["SPARK_LOCAL_HOSTNAME"] == variables["POD_IP"] == "status.podIP"
    assert "SPARK_LOCAL_IP" not in variables, "kubectl port-forward connects to the loopback address"
    assert variables["JOINERY_STATUS_HOST"] == "status.podIP", "what it serves is for the pod's network only"
    assert variables["POD_NAME"] == "metadata.name"
    assert variables["POD_NAMESPACE"] == "metadata.namespace"
    assert variables["JOINERY_REVISION"] == "abc"
    assert variables[STORED_JOB] == "true", "a stored revision may be older than a rule"
    assert variables["JOINERY_ENDING_FILE"] == main(job.driver())["terminationMessagePath"] == "/dev/termination-log"


def test_its_executors_belong_to_this_attempt(job):
    arguments = shlex.split(environment(main(job.driver(3)))["PYSPARK_SUBMIT_ARGS"])
    assert arguments[-1] == "pyspark-shell"
    assert arguments[:-1:2] == ["--conf"] * 4
    assert dict(setting.split("=", 1) for setting in arguments[1:-1:2]) == {
        "spark.executor.instances": "2",
        "spark.kubernetes.driver.pod.name": job.names.driver(3),
        "spark.kubernetes.executor.podNamePrefix": job.names.executor_prefix(3),
        "spark.kubernetes.executor.label.joinery.dev/attempt": "3",
    }


def test_the_scale_is_a_file_that_follows_the_pods_annotation(job):
    pod = job.driver()
    scale = {"shards": 4, "instances": 2}
    assert json.loads(pod["metadata"]["annotations"]["joinery.dev/scale"]) == scale
    (item,) = volume(pod, "scale")["downwardAPI"]["items"]
    assert item["fieldRef"] == {"fieldPath": "metadata.annotations['joinery.dev/scale']"}
    (folder,) = [path for path, mount in mounts(main(pod)).items() if mount["name"] == "scale"]
    assert environment(main(pod))["JOINERY_SCALE_FILE"] == f"{folder}/{item['path']}"


def test_between_two_bounds_spark_decides_how_many_executors_there_are(job):
    pod = job.with_spark(executor={"instances": 3, "maxInstances": 6}).driver()
    assert json.loads(pod["metadata"]["annotations"]["joinery.dev/scale"]).keys() == {"shards"}
    assert "spark.executor.instances=3" in environment(main(pod))["PYSPARK_SUBMIT_ARGS"]


def test_an_autoscaled_job_starts_within_its_bounds_and_its_driver_decides(job):
    pod = job.with_spec(autoscale={"minInstances": 3, "maxInstances": 6}).driver()
    scale = json.loads(pod["metadata"]["annotations"]["joinery.dev/scale"])
    assert scale.keys() == {"shards", "autoscale"}
    assert (scale["autoscale"]["minInstances"], scale["autoscale"]["targetLag"]) == (3, "1m")
    assert "spark.executor.instances=3" in environment(main(pod))["PYSPARK_SUBMIT_ARGS"]


def test_all_secrets_of_the_job_are_there_once(job):
    pod = job.driver()
    secret_mounts = {path: mount for path, mount in mounts(main(pod)).items() if "/secrets/" in path}
    assert secret_mounts.keys() == {
        f"/etc/joinery/secrets/{name}" for name in ("kafka-client", "kafka.writer", "kafka-dead", "state-db")
    }
    for path, mount in secret_mounts.items():
        assert mount["readOnly"] is True
        assert volume(pod, mount["name"])["secret"]["secretName"] == path.rpartition("/")[2]


def test_other_references_are_no_secrets(job):
    template = {"name": "extra"}
    job = job.with_spark(imagePullSecrets=[{"name": "pull"}], driver={"podTemplate": template})
    pod = type(job)(job.resource, templates={"extra": {"data": {"pod.yaml": "kind: Pod"}}}).driver()
    assert not {"/etc/joinery/secrets/pull", "/etc/joinery/secrets/extra"} & mounts(main(pod)).keys()
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]


def test_no_mount_is_below_another_of_our_own(job):
    """A mount inside one that is read-only depends on who makes its mount point."""
    paths = sorted(mounts(main(job.driver())))
    assert not [(a, b) for a in paths for b in paths if b.startswith(f"{a}/")]


def test_the_jobs_files_are_those_of_the_config_map(job):
    pod = job.driver()
    job_mounts = {path: mount for path, mount in mounts(main(pod)).items() if mount["name"] == "job"}
    read_by_the_operator = {"driver.yaml", "pod-defaults.yaml"}
    assert job_mounts.keys() == {
        f"/etc/joinery/{file}" for file in job.config_map()["data"].keys() - read_by_the_operator
    }
    assert all(path == f"/etc/joinery/{mount['subPath']}" for path, mount in job_mounts.items())
    assert volume(pod, "job")["configMap"]["name"] == job.config_map()["metadata"]["name"]


def test_what_it_writes_goes_to_volumes(job):
    container = main(job.driver())
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert environment(container)["HOME"] == "/tmp"
    assert "/tmp" in mounts(container)


def resources(job):
    return main(job.driver())["resources"]


def test_memory_is_heap_and_overhead_and_python(job):
    assert resources(job) == {
        "requests": {"cpu": "1", "memory": f"{1024 + 384 + 512}Mi", "ephemeral-storage": "512Mi"},
        "limits": {"memory": f"{1024 + 384 + 512}Mi"},
    }
    assert resources(job.with_spark(driver={"memory": "8g"}))["limits"]["memory"] == f"{8192 + 819 + 512}Mi"


def test_cpu_is_what_is_requested(job):
    assert resources(job.with_spark(driver={"cores": 2}))["requests"]["cpu"] == "2"
    assert resources(job.with_spark(driver={"cores": 2, "coreRequest": "200m"}))["requests"]["cpu"] == "200m"


def test_memory_follows_the_jobs_own_conf(job):
    conf = {"spark.driver.memory": "2048M", "spark.driver.memoryOverhead": "100"}
    assert resources(job.with_spark(conf=conf))["limits"]["memory"] == "2148Mi"


def test_a_memory_setting_that_is_no_size_names_its_place(job):
    with pytest.raises(ManifestError, match=r"spark\.driver\.memory is no size: it is 'much'\. Write"):
        job.with_spark(conf={"spark.driver.memory": "much"}).driver()


def test_probes_ask_the_status_port_and_let_it_recover_for_minutes(job):
    container = main(job.driver())
    assert {"name": "status", "containerPort": 8998, "protocol": "TCP"} in container["ports"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "status"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "status"}
    startup = container["startupProbe"]
    assert startup["httpGet"]["path"] == "/healthz"
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300


@pytest.mark.parametrize(
    ("before", "name", "command"),
    [
        ({"migrate": "rollout-abc"}, "migrate", "joinery state migrate /etc/joinery/job.yaml --savepoint rollout-abc"),
        (
            {"migrate": "rollout-abc", "abandon_state": True},
            "migrate",
            "joinery state migrate /etc/joinery/job.yaml --savepoint rollout-abc --anew",
        ),
    ],
)
def test_what_comes_before_the_driver_sees_what_it_sees(job, before, name, command):
    pod = job.driver(**before)
    (initial,) = pod["spec"]["initContainers"]
    assert initial["name"] == name
    assert shlex.join(initial["args"]) == command
    for same in ("image", "volumeMounts", "env", "resources", "terminationMessagePath"):
        assert initial[same] == main(pod)[same]
    assert not initial.keys() & {"ports", "readinessProbe", "livenessProbe", "startupProbe"}


def test_placement(job):
    part = {"nodeSelector": {"pool": "small"}, "tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}
    spec = job.with_spark(driver=part).driver()["spec"]
    assert spec["nodeSelector"] == {"pool": "small"}
    assert spec["tolerations"] == [{"operator": "Exists", "effect": "NoExecute"}]


LOST = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20}
    for taint in ("not-ready", "unreachable")
]


@pytest.mark.parametrize(
    ("own", "added"),
    [
        ([], LOST),
        ([{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}], LOST),
        ([{"operator": "Exists", "effect": "NoSchedule"}], LOST),
        ([{**LOST[1], "tolerationSeconds": 600}], LOST[:1]),
        ([{"key": "node.kubernetes.io/unreachable", "operator": "Exists"}], LOST[:1]),
        ([{"operator": "Exists"}], []),
    ],
    ids=["nothing", "another taint", "another effect", "longer", "for ever", "everything"],
)
def test_pods_stay_briefly_on_a_lost_node_unless_the_job_says_otherwise(job, own, added):
    placed = job.with_spark(driver={"tolerations": own}, executor={"tolerations": own})
    drivers, executors = placed.driver(), executor_template(placed.revision)
    assert drivers["spec"]["tolerations"] == executors["spec"]["tolerations"] == [*own, *added]


def test_a_templates_toleration_of_lost_nodes_counts(job):
    own = "{key: node.kubernetes.io/unreachable, operator: Exists, tolerationSeconds: 5}"
    text = f"{{kind: Pod, spec: {{tolerations: [{own}]}}}}"
    (unreachable, not_ready) = job.with_template(text).driver()["spec"]["tolerations"]
    assert (unreachable["tolerationSeconds"], not_ready) == (5, LOST[0])
