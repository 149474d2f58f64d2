from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from joinery_operator import manifests
from joinery_operator.manifests.yaml import from_yaml, to_yaml
from joinery_operator.revision import ManifestError
from joinery_runtime.hosts.spark_security import ENV_KEY_FOLDER
from joinery_runtime.job.load import parse_job
from simulated_cluster.resources import BY_NAME


def loaded(text):
    return YAML(typ="safe", pure=True).load(text)


def properties(text):
    """As java.util.Properties reads simple lines."""
    return dict(line.split("=", 1) for line in text.splitlines())


def defaults(job):
    return properties(job.config_map()["data"]["spark-defaults.conf"])


def executor(job):
    return loaded(job.config_map()["data"]["executor.yaml"])


def test_it_is_immutable_and_belongs_to_the_job_and_revision(job):
    config_map = job.config_map()
    assert config_map["immutable"] is True
    assert config_map["metadata"]["name"] == job.names.config_map("abc")
    assert config_map["metadata"]["namespace"] == "shop"
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == "7c1e"
    assert config_map["metadata"]["labels"]["joinery.dev/revision"] == "abc"
    mounted, stored = {"job.yaml", "spark-defaults.conf", "executor.yaml"}, {"driver.yaml", "pod-defaults.yaml"}
    assert config_map["data"].keys() == mounted | stored


def test_the_stored_driver_is_the_pod_of_every_attempt(job):
    template = """
    kind: Pod
    metadata: {labels: {team: a}, annotations: {note: "yes"}}
    spec:
      containers: [{name: joinery, env: [{name: SIZE, value: "010"}]}, {name: proxy, image: "proxy:1"}]
      initContainers: [{name: first, image: "proxy:1"}]
    """
    built = job.with_template(template)
    stored = manifests.stored_driver(built.config_map())
    assert stored is not None
    assert not {"name", "namespace", "ownerReferences"} & stored["metadata"].keys(), "an attempt has them"
    for before in ({}, {"migrate": "rollout-abc", "abandon_state": True}):
        pod = manifests.driver_pod(replace(built.revision, driver=stored), 3, **before)
        assert pod == built.driver(3, **before)


def test_a_revision_of_an_earlier_release_is_read_on(job):
    """Earlier releases accepted patterns that this one rejects in a new job."""
    config_map = job.config_map()
    columns = [{"name": "id", "type": "string"}, {"name": "ts", "type": "timestamp", "format": "%H:%M:%S"}]
    stored = loaded(config_map["data"]["job.yaml"])
    for source in stored["spec"].get("inputs") or [stored["spec"]["input"]]:
        source["schema"] = columns
    config_map["data"]["job.yaml"] = to_yaml(stored)
    model, resource = manifests.stored_job(config_map, BY_NAME[job.resource["kind"]], job.resource)
    assert [column.format for column in model.inputs[0].columns] == [None, "%H:%M:%S"]
    assert resource["spec"] == stored["spec"]


def test_the_job_is_what_its_author_wrote(job):
    text = job.config_map()["data"]["job.yaml"]
    assert loaded(text).keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert loaded(text)["metadata"] == {"name": "orders", "namespace": "shop"}
    assert loaded(text)["spec"] == job.resource["spec"]
    assert parse_job(text, "job.yaml").name == "shop/orders"


def test_sparks_page_cannot_end_what_runs(job):
    assert defaults(job)["spark.ui.killEnabled"] == "false"


def test_every_text_in_a_job_comes_back_as_it_was(job):
    odd = [
        "on",
        "1e3",
        "0x1F",
        "1:30",
        "null",
        "~",
        "2026-01-01",
        "a: b",
        "#",
        " x ",
        "'\"",
        "line\nline\n",
        "é\u2028",
        "",
    ]
    job = job.with_spark(conf={f"spark.{i}": text for i, text in enumerate(odd)})
    parsed = parse_job(job.config_map()["data"]["job.yaml"], "job.yaml")
    assert parsed.spec.spark.conf == job.model.spec.spark.conf


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_yaml_comes_back_as_it_was_in_each_version(document):
    assert from_yaml(to_yaml(document)) == document
    assert yaml.safe_load(to_yaml(document)) == document


@pytest.mark.parametrize(
    "value", [1e30, 1e-7, -0.0, float("inf"), {"x" * 200: [{"a": 1}, []]}, {"x" * 200: {}}, {"x" * 2_000: "\U0001f600"}]
)
def test_numbers_and_long_keys_come_back_as_they_were(value):
    document = {"a": value, "b": [[value]]}
    assert from_yaml(to_yaml(document)) == yaml.safe_load(to_yaml(document)) == document


@pytest.mark.parametrize("text", ["yes", "Off", "n", "1:30", "0o7", "1_000", "2026-01-01", "=", "<<", "1e3", "~", ".5"])
def test_text_that_one_version_takes_for_something_else_stays_text(text):
    document = {"a": text, text: "b"}
    assert from_yaml(to_yaml(document)) == yaml.safe_load(to_yaml(document)) == document


def test_half_of_a_surrogate_pair_is_replaced_as_the_api_server_does():
    assert from_yaml(to_yaml({"a\udc00": "\ud800x"})) == {"a\ufffd": "\ufffdx"}


def test_a_document_that_is_nested_too_deep_is_not_read():
    assert from_yaml(to_yaml(from_yaml("[" * 200 + "]" * 200))) == from_yaml("[" * 200 + "]" * 200)
    with pytest.raises(YAMLError, match="nested too deep"):
        from_yaml("[" * 300 + "]" * 300)


def test_what_only_yaml_has_becomes_its_text():
    document = from_yaml(
        "{a: 2026-01-01, b: 2026-01-01 10:00:00, c: !!set {x}, d: !!binary aGk=, 1: &anchor [true], 2: *anchor}"
    )
    text = to_yaml(document)
    assert list(from_yaml(text).values()) == [[True], [True], "2026-01-01", "2026-01-01 10:00:00", "{'x'}", "b'hi'"]
    assert "&" not in text


def test_plain_words_stay_readable():
    assert to_yaml({"kind": "Pod", "image": "a/b-c"}) == "image: a/b-c\nkind: Pod\n"


def test_sparks_settings(job):
    spark_defaults = defaults(
        job.with_spark(
            imagePullPolicy="Always",
            imagePullSecrets=[{"name": "one"}, {"name": "two"}],
            driver={"memory": "3g"},
            executor={"instances": 4, "cores": 2, "memory": "2g", "coreRequest": "200m"},
        )
    )
    assert spark_defaults["spark.kubernetes.namespace"] == "shop"
    assert spark_defaults["spark.kubernetes.container.image"] == job.image
    assert spark_defaults["spark.kubernetes.container.image.pullPolicy"] == "Always"
    assert spark_defaults["spark.kubernetes.container.image.pullSecrets"] == "one,two"
    assert spark_defaults["spark.driver.memory"] == "3g"
    # An argument of each driver: it may change under a revision.
    assert "spark.executor.instances" not in spark_defaults
    assert spark_defaults["spark.executor.cores"] == "2"
    assert spark_defaults["spark.executor.memory"] == "2g"
    assert spark_defaults["spark.executor.memoryOverhead"] == f"{384 + 400 + 2 * 80 + 8 * 64}m"
    assert spark_defaults["spark.kubernetes.executor.request.cores"] == "200m"
    assert spark_defaults["spark.kubernetes.executor.podTemplateFile"] == "/etc/joinery/executor.yaml"
    assert spark_defaults["spark.executor.failuresValidityInterval"], (
        "else a job of months ends by the executors that it lost"
    )


@pytest.mark.parametrize(
    ("spark", "bytes_per_epoch", "overhead"),
    [
        ({}, "64Mi", 384 + 400 + 80 + 8 * 64),
        ({}, "256Mi", 384 + 400 + 80 + 8 * 256),
        ({"conf": {"spark.executor.memory": "10g"}}, "64Mi", 1024 + 400 + 80 + 8 * 64),
        ({"executor": {"cores": 8}}, "64Mi", 384 + 400 + 8 * 80 + 8 * 64),
        ({"executor": {"cores": 12}}, "16Mi", 384 + 2 * 400 + 12 * 80 + 8 * 16),
    ],
)
def test_executors_overhead_follows_heap_cores_and_the_bytes_of_an_epoch(job, spark, bytes_per_epoch, overhead):
    """As docs/operations.md tells what a Python process needs if it gets all rows of an epoch."""
    job = job.with_spec(spark=spark, trigger={"maxBytesPerEpoch": bytes_per_epoch})
    assert defaults(job)["spark.executor.memoryOverhead"] == f"{overhead}m"


@pytest.mark.parametrize(("cache", "requested"), [(None, "2Gi"), ("20Gi", "20Gi")])
def test_executors_request_the_disk_that_they_usually_fill(job, cache, requested):
    conf = {"spark.executorEnv.JOINERY_CACHE_BYTES": cache} if cache else {}
    (container,) = executor(job.with_spark(conf=conf))["spec"]["containers"]
    assert container["resources"] == {"requests": {"ephemeral-storage": requested}}
    text = "resources: {requests: {ephemeral-storage: 50Gi}}"
    text = f"{{kind: Pod, spec: {{containers: [{{name: spark-kubernetes-executor, {text}}}]}}}}"
    (container,) = executor(job.with_template(text, part="executor"))["spec"]["containers"]
    assert container["resources"]["requests"]["ephemeral-storage"] == "50Gi"


@pytest.mark.parametrize("part", ["driver", "executor"])
def test_a_template_that_limits_the_disk_gets_no_request_above_its_limit(job, part):
    name = {"driver": "joinery", "executor": "spark-kubernetes-executor"}[part]
    text = f"{{name: {name}, resources: {{limits: {{ephemeral-storage: 256Mi}}}}}}"
    limited = job.with_template(f"{{kind: Pod, spec: {{containers: [{text}]}}}}", part=part)
    pod = executor(limited) if part == "executor" else limited.driver()
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["limits"]["ephemeral-storage"] == "256Mi"
    # The API server takes the limit for the request.
    assert "ephemeral-storage" not in resources.get("requests", {})


def test_nothing_of_one_attempt_and_no_master_is_in_a_revisions_file(job):
    assert not defaults(job).keys() & {"spark.master", "spark.kubernetes.driver.pod.name"}


def test_the_jobs_own_conf_is_not_in_the_file(job):
    conf = {"spark.driver.extraJavaOptions": "-Da=b c\nspark.x=y", "spark.driver.memory": "5g"}
    spark_defaults = defaults(job.with_spark(conf=conf))
    assert "spark.driver.extraJavaOptions" not in spark_defaults
    assert "spark.x" not in spark_defaults
    assert spark_defaults["spark.driver.memory"] == "1g"


def test_an_image_cannot_bring_in_settings(job):
    spark_defaults = defaults(job.with_spark())
    assert spark_defaults.keys() == defaults(type(job)(job.resource, image="a\nspark.x=1\\")).keys()


@pytest.mark.parametrize(
    ("value", "written"),
    [("a b", "a b"), ("  a", "\\  a"), ("a\nb", "a\\nb"), ("a\\b", "a\\\\b"), ("a\tb\r", "a\\tb\\r")],
)
def test_values_are_escaped_as_java_reads_them(job, value, written):
    assert defaults(type(job)(job.resource, image=value))["spark.kubernetes.container.image"] == written


def test_a_fixed_number_of_executors_is_not_dynamic(job):
    assert not [key for key in defaults(job) if "dynamicAllocation" in key]
    same = job.with_spark(executor={"instances": 3, "maxInstances": 3})
    assert not [key for key in defaults(same) if "dynamicAllocation" in key]


def test_a_dynamic_number_of_executors(job):
    spark_defaults = defaults(job.with_spark(executor={"instances": 2, "maxInstances": 6}))
    assert spark_defaults["spark.dynamicAllocation.enabled"] == "true"
    assert spark_defaults["spark.dynamicAllocation.shuffleTracking.enabled"] == "true"
    assert spark_defaults["spark.dynamicAllocation.minExecutors"] == "2"
    assert spark_defaults["spark.dynamicAllocation.maxExecutors"] == "6"


def test_executors_meet_the_restricted_standard(job, violations):
    assert violations(executor(job)) == []


def test_executors_have_the_drivers_secrets_and_the_jobs_file_where_the_driver_has_them(job):
    """They look them up themselves: the driver sends none."""
    ours, theirs = executor(job)["spec"], job.driver()["spec"]
    mounts = [spec["containers"][0]["volumeMounts"] for spec in (ours, theirs)]
    secret, file = "/etc/joinery/secrets/", "/etc/joinery/job.yaml"
    required = [mount for mount in mounts[1] if mount["mountPath"].startswith(secret) or mount["mountPath"] == file]
    assert len(required) > 1
    assert all(mount in mounts[0] for mount in required)
    volumes = [volume for volume in theirs["volumes"] if volume["name"] in {mount["name"] for mount in required}]
    assert all(volume in ours["volumes"] for volume in volumes)
    assert ours["securityContext"]["fsGroup"] == theirs["securityContext"]["fsGroup"], "who may read them"


def test_executors_have_no_rights_and_no_name_of_their_own(job):
    pod = executor(job)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["metadata"].keys() == {"labels"}
    assert pod["metadata"]["labels"]["joinery.dev/role"] == "executor"
    assert not {key for key in pod["metadata"]["labels"] if "argocd" in key or key == "team"}


def test_executors_can_write_where_spark_writes(job):
    container = executor(job)["spec"]["containers"][0]
    assert container["name"] == "spark-kubernetes-executor"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"/tmp", "/var/data/spark"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    # By this name Spark takes the volume for its blocks.
    assert "spark-local-dir-1" in {mount["name"] for mount in container["volumeMounts"]}


def test_the_key_of_an_attempt_is_in_memory_where_its_driver_has_it_too(job):
    settings = defaults(job)
    folder = settings[f"spark.executorEnv.{ENV_KEY_FOLDER}"]
    assert {"name": ENV_KEY_FOLDER, "value": folder} in job.driver()["spec"]["containers"][0]["env"]
    for spec in (executor(job)["spec"], job.driver()["spec"]):
        (container,) = spec["containers"]
        (name,) = (mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == folder)
        (volume,) = (volume for volume in spec["volumes"] if volume["name"] == name)
        assert volume["emptyDir"]["medium"] == "Memory"
    assert "joinery-exchange-key" not in {volume["name"] for volume in job.check()["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("volume", "encrypted"),
    [
        (None, "false"),
        ("{name: spark-local-dir-1, hostPath: {path: /disk}}", "false"),  # the operator's own of that name is used
        ("{name: spark-local-dir-2, emptyDir: {medium: Memory}}", "false"),
        ("{name: spark-local-dir-2, hostPath: {path: /disk}}", "true"),
        ("{name: spark-local-dir-2, persistentVolumeClaim: {claimName: disk}}", "true"),
        ("{name: else, hostPath: {path: /disk}}", "false"),
    ],
)
def test_blocks_are_encrypted_where_their_volume_outlives_the_pod(job, volume, encrypted):
    if volume is not None:
        job = job.with_template(f"{{kind: Pod, spec: {{volumes: [{volume}]}}}}", part="executor")
    assert defaults(job)["spark.io.encryption.enabled"] == encrypted


@pytest.mark.parametrize(("kind_of_volume", "encrypted"), [("persistentVolumeClaim", "true"), ("emptyDir", "false")])
def test_blocks_are_encrypted_where_the_jobs_conf_mounts_a_volume_that_outlives_the_pod(job, kind_of_volume, encrypted):
    name = f"spark.kubernetes.executor.volumes.{kind_of_volume}.spark-local-dir-2.mount.path"
    assert defaults(job.with_spark(conf={name: "/disk"}))["spark.io.encryption.enabled"] == encrypted


def test_a_vanished_executor_is_given_up_after_a_minute_unless_the_job_says_otherwise(job):
    names = ("spark.network.timeout", "spark.network.timeoutInterval")
    assert [defaults(job).get(name) for name in names] == ["60s", "10s"]
    # Of its own heartbeat, which must be below the timeout.
    own = job.with_spark(conf={"spark.executor.heartbeatInterval": "90s"})
    assert [defaults(own).get(name) for name in names] == [None, None]


def test_executors_are_placed_as_the_job_says(job):
    toleration = {"key": "dedicated", "operator": "Equal", "value": "spark", "effect": "NoSchedule"}
    part = {"nodeSelector": {"pool": "big"}, "tolerations": [toleration]}
    spec = executor(job.with_spark(executor=part, imagePullSecrets=[{"name": "pull"}]))["spec"]
    assert spec["nodeSelector"] == {"pool": "big"}
    assert spec["tolerations"][0] == toleration
    assert spec["imagePullSecrets"] == [{"name": "pull"}]


@pytest.mark.parametrize(("cache", "limit"), [(None, "30Gi"), ("20Gi", "40Gi")])
def test_what_executors_write_is_limited_beyond_their_cache(job, cache, limit):
    conf = {"spark.executorEnv.JOINERY_CACHE_BYTES": cache} if cache else {}
    volumes = executor(job.with_spark(conf=conf))["spec"]["volumes"]
    limits = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in volumes if "emptyDir" in volume}
    assert limits == {"tmp": "4Gi", "spark-local-dir-1": limit, "joinery-exchange-key": "1Mi"}


def test_a_cache_that_has_no_size_is_told(job):
    with pytest.raises(ManifestError, match="JOINERY_CACHE_BYTES is no size"):
        executor(job.with_spark(conf={"spark.executorEnv.JOINERY_CACHE_BYTES": "much"}))


def test_executors_take_their_own_template(job):
    text = """
    kind: Pod
    metadata: {annotations: {a: b}}
    spec:
      volumes: [{name: fast, emptyDir: {medium: Memory}}]
      containers:
        - name: spark-kubernetes-executor
          volumeMounts: [{name: fast, mountPath: /fast}]
          securityContext: {allowPrivilegeEscalation: true}
    """
    pod = executor(job.with_template(text, part="executor"))
    container = pod["spec"]["containers"][0]
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert {"name": "fast", "emptyDir": {"medium": "Memory"}} in pod["spec"]["volumes"]
    assert {"name": "fast", "mountPath": "/fast"} in container["volumeMounts"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
