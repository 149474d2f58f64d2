"""What a job may ask for: every field, setting or name that would run code, reach the node or use another identity is
forbidden until the installation allows it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from joinery_operator.manifests import forbidden_requests, spark_problems
from joinery_operator.names import CHILD_JOB_ANNOTATION
from joinery_operator.settings import Settings, read_settings
from joinery_runtime.errors import EnvironmentProblem

OURS = Settings(service_account="driver-account", runtime_image="images.example:5000/joinery:1@sha256:0")


def refused(job, **allow):
    settings = replace(OURS, jobs_allow=json.dumps(allow) if allow else "")
    return [str(problem) for problem in forbidden_requests(replace(job, settings=settings).revision)]


def template(main, spec="", metadata=""):
    about = f"apiVersion: v1\nkind: Pod\nmetadata: {{{metadata}}}\n"
    return f"{about}spec:\n  {spec}\n  containers: [{{name: joinery, {main}}}]"


def of_template(job, text, **allow):
    problems = refused(job.with_template(text), **allow)
    prefix = "spec.spark.driver.podTemplate: ConfigMap extra, key pod.yaml: "
    assert all(problem.startswith(prefix) for problem in problems)
    return [problem.removeprefix(prefix).split(": ")[0] for problem in problems]


def test_a_job_that_asks_for_nothing_special_is_allowed(job):
    spark = {
        "conf": {
            "spark.executor.memoryOverhead": "2g",
            "spark.executorEnv.TZ": "UTC",
            "spark.kubernetes.driver.limit.cores": "2",
            "spark.kubernetes.executor.node.selector.pool": "streams",
            "spark.kubernetes.node.selector.zone.example.com/a": "b",
            "spark.io.encryption.keySizeBits": "256",
            "spark.kubernetes.executor.volumes.persistentVolumeClaim.spark-local-dir-1.mount.path": "/mnt/blocks",
            "spark.kubernetes.executor.volumes.persistentVolumeClaim.spark-local-dir-1.options.claimName": "OnDemand",
        },
        "image": "images.example:5000/joinery:2",
        "serviceAccount": "driver-account",
        "driver": {"nodeSelector": {"pool": "streams"}, "podTemplate": {"name": "extra"}},
    }
    text = template(
        "image: any, env: [{name: HTTPS_PROXY, value: p}], resources: {limits: {cpu: 1}}, volumeMounts: "
        "[{name: a, mountPath: /mnt/a/../b}], command: [replaced], securityContext: {runAsUser: 185, privileged: false,"
        " capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}, allowPrivilegeEscalation: false}",
        "volumes: [{name: a, emptyDir: {}}, {name: s, secret: {secretName: x}}, {name: c, persistentVolumeClaim: "
        "{claimName: y}}]\n  securityContext: {runAsNonRoot: true}\n  serviceAccountName: replaced\n"
        "  affinity: {podAntiAffinity: {}}\n  initContainers: []\n  hostAliases: [{ip: 10.0.0.1, hostnames: [kafka]}]",
        'labels: {team: a}, annotations: {prometheus.io/scrape: "true"}',
    )
    allowed = replace(job.with_spark(**spark), templates={"extra": {"data": {"pod.yaml": text}}})
    assert refused(allowed) == []


@pytest.mark.parametrize(
    ("field", "value", "key"),
    [
        ("image", "elsewhere/joinery:1", "images"),
        ("image", "images.example:5000/joinery-evil:1", "images"),
        ("image", "images.example/joinery:1", "images"),
        ("serviceAccount", "admin", "serviceAccounts"),
    ],
)
def test_images_and_service_accounts_of_others_are_forbidden(job, field, value, key):
    changed = job.with_spark(**{field: value})
    (problem,) = refused(changed)
    assert problem.startswith(f"spec.spark.{field}: '{value}' is not allowed in this cluster")
    assert f"jobs.allow.{key} of the chart" in problem
    assert refused(changed, **{key: [value]}) == refused(changed, **{key: [value[:5] + "*"]}) == []
    assert refused(changed, **{key: [value[1:] + "*"]}) == [problem]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.plugins", "org.example.Plugin"),
        ("spark.kubernetes.driver.secrets.other", "/mnt/other"),
        ("spark.kubernetes.executor.secrets.other", "/mnt/other"),
        ("spark.kubernetes.executor.secretKeyRef.KEY", "other:key"),
        ("spark.kubernetes.executor.secretKeyRef.KEY.limit.cores", "other:key"),
        ("spark.kubernetes.executor.secretKeyRef.KEY.request.cores", "other:key"),
        ("spark.kubernetes.executor.secrets.node.selector.other", "/mnt/other"),
        ("spark.kubernetes.executor.annotation.iam.amazonaws.com/node.selector.a", "admin"),
        ("spark.io.encryption.commons.config.cipher.classes", "org.example.Cipher"),
        ("spark.kubernetes.executor.volumes.hostPath.node.mount.path", "/mnt/node"),
        ("spark.kubernetes.executor.volumes.persistentVolumeClaim.a.mount.path", "/opt/joinery/lib"),
        ("spark.kubernetes.executor.volumes.persistentVolumeClaim.a.mount.path", "/mnt/../opt"),
        ("spark.kubernetes.executor.volumes.emptyDir.a.mount.subPathExpr", "$(X)"),
        ("spark.kubernetes.authenticate.driver.serviceAccountName", "admin"),
        ("spark.kubernetes.authenticate.executor.serviceAccountName", "admin"),
        ("spark.kubernetes.allocation.pods.allocator", "org.example.Allocator"),
        ("spark.kubernetes.executor.annotation.iam.amazonaws.com/role", "admin"),
        ("spark.kubernetes.scheduler.name", "other"),
        ("spark.driver.extraJavaOptions", "-javaagent:/mnt/a.jar"),
        ("spark.driver.defaultJavaOptions", "-XX:OnOutOfMemoryError=sh"),
        ("spark.executor.extraJavaOptions", "-XX:OnOutOfMemoryError=sh"),
        ("spark.executor.extraClassPath", "/mnt/a.jar"),
        ("spark.driver.extraLibraryPath", "/mnt"),
        ("spark.jars", "https://example.com/a.jar"),
        ("spark.jars.packages", "org.example:a:1"),
        ("spark.files", "/var/run/secrets/kubernetes.io/serviceaccount/token"),
        ("spark.archives", "a.zip"),
        ("spark.submit.pyFiles", "a.py"),
        ("spark.pyspark.python", "/mnt/python"),
        ("spark.python.daemon.module", "evil"),
        ("spark.extraListeners", "org.example.Listener"),
        ("spark.shuffle.manager", "org.example.Manager"),
        ("spark.metrics.conf.*.sink.a.class", "org.example.Sink"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.example.Provider"),
        ("spark.executorEnv.PYTHONPATH", "/mnt"),
        ("spark.executorEnv.LD_PRELOAD", "/mnt/a.so"),
        ("spark.executorEnv.AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/kubernetes.io/serviceaccount/token"),
        ("spark.executorEnv.AWS_ENDPOINT_URL_STS", "http://elsewhere"),
        ("spark.executorEnv.AZURE_STORAGE_AUTHORITY_HOST", "http://elsewhere"),
        ("spark.executorEnv.SPARK_USER", "root"),
        ("spark.redaction.regex", "x"),
        ("spark.something.new", "x"),
        ("spark.authenticate", "false"),
        ("spark.network.crypto.enabled", "false"),
        ("spark.io.compression.codec", "org.example.Codec"),
    ],
)
def test_settings_that_run_code_or_use_another_identity_are_forbidden(job, name, value):
    changed = job.with_spark(conf={name: value})
    (problem,) = refused(changed)
    assert problem.startswith(f'spec.spark.conf["{name}"]: {value!r} is not allowed')
    assert refused(changed, sparkConf=[name]) == []


PRIVILEGED = [
    ("", "hostNetwork: true", "spec.hostNetwork"),
    ("", "hostPID: true", "spec.hostPID"),
    ("", "hostUsers: true", "spec.hostUsers"),
    ("", "securityContext: {runAsUser: 0}", "spec.securityContext.runAsUser"),
    ("", "securityContext: {sysctls: [{name: k, value: v}]}", "spec.securityContext.sysctls[].name"),
    ("", "volumes: [{name: n, hostPath: {path: /}}]", "spec.volumes[n].hostPath.path"),
    ("", "volumes: [{name: n, csi: {driver: d}}]", "spec.volumes[n].csi.driver"),
    ("", "volumes: [{name: n, nfs: {server: s}}]", "spec.volumes[n].nfs.server"),
    (
        "",
        "volumes: [{name: n, projected: {sources: [{serviceAccountToken: {path: t}}]}}]",
        "spec.volumes[n].projected.sources[].serviceAccountToken.path",
    ),
    (
        "",
        "volumes: [{name: n, projected: {sources: [{podCertificate: {signerName: s/s}}]}}]",
        "spec.volumes[n].projected.sources[].podCertificate.signerName",
    ),
    (
        "",
        "volumes: [{name: n, projected: {sources: [{name: x, serviceAccountToken: {path: t}}]}}]",
        "spec.volumes[n].projected.sources[].serviceAccountToken.path",
    ),
    ("", "volumes: [{name: kube-api-access-x, secret: {secretName: s}}]", "spec.volumes[kube-api-access-x].name"),
    ("", "runtimeClassName: other", "spec.runtimeClassName"),
    ("", "priorityClassName: system-node-critical", "spec.priorityClassName"),
    ("", "shareProcessNamespace: true", "spec.shareProcessNamespace"),
    ("", "nodeName: control-plane", "spec.nodeName"),
    ("securityContext: {privileged: true}", "", "spec.containers[joinery].securityContext.privileged"),
    ("securityContext: {capabilities: {add: [A]}}", "", "spec.containers[joinery].securityContext.capabilities.add[]"),
    ("securityContext: {runAsNonRoot: false}", "", "spec.containers[joinery].securityContext.runAsNonRoot"),
    ("securityContext: {procMount: Unmasked}", "", "spec.containers[joinery].securityContext.procMount"),
    ("ports: [{name: p, containerPort: 1, hostPort: 1}]", "", "spec.containers[joinery].ports[p].hostPort"),
    ("lifecycle: {preStop: {exec: {command: [sh]}}}", "", "spec.containers[joinery].lifecycle.preStop.exec.command[]"),
    ("workingDir: /mnt", "", "spec.containers[joinery].workingDir"),
    ("envFrom: [{secretRef: {name: s}}]", "", "spec.containers[joinery].envFrom[].secretRef.name"),
    ("env: [{name: LD_PRELOAD, value: x}]", "", "spec.containers[joinery].env[LD_PRELOAD].name"),
    ("env: [{name: 'TZ]', value: x}]", "", "spec.containers[joinery].env[TZ?].name"),
    ("volumeMounts: [{name: n, mountPath: /opt}]", "", "spec.containers[joinery].volumeMounts[/opt].name"),
    ("volumeMounts: [{name: n, mountPath: //opt}]", "", "spec.containers[joinery].volumeMounts[/opt].name"),
    (
        "volumeMounts: [{name: n, mountPath: /etc/ssl/certs}]",
        "",
        "spec.containers[joinery].volumeMounts[/etc/ssl/certs].name",
    ),
    ("terminationMessagePath: /run/joinery/key", "", "spec.containers[joinery].terminationMessagePath"),
    ("volumeMounts: [{name: n, mountPath: /data/../opt}]", "", "spec.containers[joinery].volumeMounts[/opt].name"),
    (
        "volumeMounts: [{name: n, mountPath: /mnt/a, mountPropagation: Bidirectional}]",
        "",
        "spec.containers[joinery].volumeMounts[/mnt/a].mountPropagation",
    ),
    ("volumeDevices: [{name: n, devicePath: /mnt/a}]", "", "spec.containers[joinery].volumeDevices[].name"),
    ("", "initContainers: [{name: i, image: x}]", "spec.initContainers[i].name"),
]


@pytest.mark.parametrize(("main", "spec", "path"), PRIVILEGED, ids=[path for _, _, path in PRIVILEGED])
def test_fields_that_run_code_or_reach_the_node_are_forbidden(job, main, spec, path):
    text = template(main or "image: x", spec)
    assert path in of_template(job, text)
    assert of_template(job, text, podTemplate=["*"], images=["*"]) == []


@pytest.mark.parametrize(
    ("annotation", "allowed"),
    [
        ("container.apparmor.security.beta.kubernetes.io/joinery", True),
        ("vault.hashicorp.com/agent-image", True),
        ("owner", False),
        ("iam.amazonaws.com/role", True),
        ("k8s.v1.cni.cncf.io/networks", True),
        ("prometheus.io/port", False),
    ],
)
def test_annotations_that_change_what_a_pod_may_do_are_forbidden(job, annotation, allowed):
    text = template("image: x", metadata=f"annotations: {{{annotation}: secret}}")
    assert of_template(job, text) == ([f"metadata.annotations[{annotation}]"] if allowed else [])
    assert "'secret'" not in str(refused(job.with_template(text)))


SIDECAR = template("image: x", "initContainers: [{name: i, image: proxies/envoy:1, command: [run]}]")


def test_an_installation_opens_sidecars_without_opening_the_node(job):
    assert of_template(job, SIDECAR, podTemplate=["spec.initContainers[*]"]) == ["spec.initContainers[i].image"]
    assert of_template(job, SIDECAR, podTemplate=["spec.initContainers[*]"], images=["proxies/*"]) == []
    privileged = SIDECAR.replace("command: [run]", "securityContext: {privileged: true}")
    wide = {"podTemplate": ["spec.initContainers[*]", "spec.volumes[*]"], "images": ["*"]}
    assert of_template(job, privileged, **wide) == ["spec.initContainers[i].securityContext.privileged"]
    node = template("image: x", "volumes: [{name: n, hostPath: {path: /}}, {name: m, csi: {driver: d}}]")
    assert of_template(job, node, **wide) == ["spec.volumes[n].hostPath.path"]
    assert of_template(job, node, podTemplate=["spec.volumes[*]", "spec.volumes[n].hostPath"]) == []


def test_a_pod_in_the_job_has_the_limits_of_a_template(job):
    inline = "spec: {hostNetwork: true, nodeSelector: {disk: ssd}}"
    written = job.with_spark(executor={"podTemplate": {"inline": inline}})
    (problem,) = refused(written)
    assert problem.startswith("spec.spark.executor.podTemplate.inline.spec.hostNetwork: 'True' is not allowed")
    assert refused(written, podTemplate=["spec.hostNetwork"]) == []


def test_a_template_mounts_no_volume_of_the_operators(job):
    mount = "volumeMounts: [{name: VOLUME, mountPath: /mnt/k}]"
    for volume in ("joinery-exchange-key", "secret-1234", "job", "tmp"):
        text = template(mount.replace("VOLUME", volume), f"volumes: [{{name: {volume}, emptyDir: {{}}}}]")
        assert of_template(job, text) == ["spec.containers[joinery].volumeMounts[/mnt/k].name"]
        undefined = template(mount.replace("VOLUME", volume))
        assert of_template(job, undefined) == ["spec.containers[joinery].volumeMounts[/mnt/k].name"]
    assert of_template(job, template(mount.replace("VOLUME", "a"), "volumes: [{name: a, emptyDir: {}}]")) == []


def test_a_setting_whose_name_would_be_cut_elsewhere_is_no_setting(job):
    """spark-submit takes what is behind the first "=" for the value."""
    name = "spark.kubernetes.executor.podTemplateFile=https://evil/pod.yaml?node.selector."
    (problem,) = spark_problems(job.with_spark(conf={name: "x"}).model.spec.spark)
    assert problem.message.startswith("is no name of a setting")


def test_executors_have_their_own_main_container(job):
    text = template("env: [{name: TZ, value: UTC}]").replace("joinery", "spark-kubernetes-executor")
    assert refused(job.with_template(text, part="executor")) == []
    (problem, *_) = refused(job.with_template(text, part="driver"))
    assert "spec.containers[spark-kubernetes-executor]" in problem


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("/var/run/secrets/kubernetes.io/serviceaccount/token", True),
        ("/mnt/../run/secrets/x", True),
        ("/var/*/secrets/x", True),
        ("/r?n/secrets/x", True),
        ("/**/token", True),
        ("/proc/1/environ", True),
        ("secrets/other/key", True),
        ("../../proc/self/environ", True),
        ("//proc/self/environ", True),
        ("///run/secrets/x", True),
        ("/mnt/orders/*.csv", False),
        ("/runs/*.csv", False),
        ("/data/[ab]/x.csv", False),
    ],
)
def test_inputs_do_not_read_the_pods_own_files(job, path, ours):
    side = {"file": {"path": path}, "format": "json", "schema": [{"name": "id", "type": "string"}]}
    name = "input" if "input" in job.resource["spec"] else "inputs"
    old = job.resource["spec"][name]
    first = {**(old[0] if name == "inputs" else old), **side}
    del first["kafka"]
    first["schema"] = [*side["schema"], {"name": "ts", "type": "timestamp"}]
    changed = job.with_spec(**{name: [first, *old[1:]] if name == "inputs" else first})
    problems = refused(changed)
    assert bool(problems) is ours
    if ours:
        at = "spec.inputs[0].file.path" if name == "inputs" else "spec.input.file.path"
        assert problems[0].startswith(f"{at}: ")
        assert refused(changed, inputFiles=[path]) == []


def test_properties_do_not_run_code(job):
    kafka = {
        "bootstrapServers": "k:1",
        "topic": "out",
        "properties": {"plugin.library.paths": "/mnt/a.so", "linger.ms": 5},
    }
    changed = job.with_spec(output={"kafka": kafka})
    (problem,) = refused(changed)
    assert problem.startswith("spec.output.kafka.properties[\"plugin.library.paths\"]: '/mnt/a.so' is not allowed")
    assert refused(changed, properties=["plugin.*"]) == []


TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
LAKE_PROPERTIES = {
    "iceberg": (
        "gcp.bigquery.credential-file",
        "py-catalog-impl",
        "py-io-impl",
        "s3.retry-strategy-impl",
    ),
    # As object_store's builders and delta-rs' Unity catalog read them.
    "delta": (
        *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "container_authorization_token_file"),
        *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "container_credentials_full_uri"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "container_credentials_relative_uri"),
        *("AWS_ENDPOINT_URL_STS", "endpoint_url_sts"),
        *("AWS_METADATA_ENDPOINT", "metadata_endpoint"),
        *("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file"),
        *("AZURE_STORAGE_AUTHORITY_HOST", "AZURE_AUTHORITY_HOST", "authority_host"),
        *("AZURE_FABRIC_TOKEN_SERVICE_URL", "fabric_token_service_url"),
        *("AZURE_FEDERATED_TOKEN_FILE", "federated_token_file"),
        *("AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT", "identity_endpoint", "msi_endpoint"),
        *("AZURE_USE_AZURE_CLI", "use_azure_cli"),
        *("unity_authority_host", "unity_federated_token_file", "unity_msi_endpoint", "unity_use_azure_cli"),
        *("databricks_authority_host", "databricks_federated_token_file", "databricks_msi_endpoint"),
        "databricks_use_azure_cli",
        *("GOOGLE_APPLICATION_CREDENTIALS", "application_credentials"),
        *("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "service_account", "service_account_path"),
    ),
}


FORBIDDEN_HERE = [(kind, name) for kind, names in LAKE_PROPERTIES.items() for name in names]


@pytest.mark.parametrize(("output", "name"), FORBIDDEN_HERE)
def test_lake_tables_run_no_code_and_send_no_file(job, output, name):
    table = {"path": "s3://bucket/out"} if output == "delta" else {"table": "db.out"}
    changed = job.with_spec(output={output: {**table, "properties": {name: TOKEN}}})
    (problem,) = refused(changed)
    assert problem.startswith(f"spec.output.{output}.properties[\"{name}\"]: '{TOKEN}' is not allowed")
    assert refused(changed, properties=[name.lower()]) == []


def test_lake_tables_have_credentials_and_endpoints_of_their_own(job):
    delta = {"AWS_ENDPOINT_URL": "http://minio", "AWS_ACCESS_KEY_ID": "a", "azure_storage_account_key": "k"}
    iceberg = {"type": "rest", "uri": "https://c", "oauth2-server-uri": "https://o", "s3.endpoint": "http://minio"}
    assert refused(job.with_spec(output={"delta": {"path": "s3://b/out", "properties": delta}})) == []
    assert refused(job.with_spec(output={"iceberg": {"table": "db.out", "properties": iceberg}})) == []


def test_secrets_do_not_run_code_either(job):
    """The operator cannot read them, so the driver is told."""

    def forbidden_properties(**allow):
        driver = replace(job, settings=replace(OURS, jobs_allow=json.dumps(allow))).driver()
        env = {entry["name"]: entry.get("value") for entry in driver["spec"]["containers"][0]["env"]}
        return env["JOINERY_FORBIDDEN_PROPERTIES"].split(",")

    assert {"plugin.library.paths", "sasl.oauthbearer.assertion.file"} <= set(forbidden_properties())
    assert {name.lower() for names in LAKE_PROPERTIES.values() for name in names} <= set(forbidden_properties())
    assert "plugin.library.paths" not in forbidden_properties(properties=["plugin.library.paths"])
    executor = yaml.safe_load(job.config_map()["data"]["executor.yaml"])
    variables = {entry["name"]: entry.get("value") for entry in executor["spec"]["containers"][0]["env"]}
    assert "plugin.library.paths" in variables["JOINERY_FORBIDDEN_PROPERTIES"].split(",")


def test_the_driver_of_a_blue_green_jobs_job_is_told_that_others_read_with_its_secrets(job):
    def variables(pod):
        return {entry["name"] for entry in pod["spec"]["containers"][0]["env"]}

    metadata = job.resource["metadata"]
    copy = {**job.resource, "metadata": {**metadata, "annotations": {CHILD_JOB_ANNOTATION: "another"}}}
    own = {**job.resource, "metadata": {**metadata, "annotations": {CHILD_JOB_ANNOTATION: metadata["name"]}}}
    for other in (job.resource, copy):
        assert "JOINERY_OWN_GROUPS" not in variables(replace(job, resource=other).driver())
    ours = replace(job, resource=own)
    assert {"JOINERY_OWN_GROUPS"} <= variables(ours.driver()) & variables(ours.check())
    assert "JOINERY_OWN_GROUPS" not in variables(ours.delete_state()), "it reads no input"


@pytest.mark.parametrize("text", ["[]", "{", '{"pods": []}', '{"images": "*"}', '{"images": [""]}'])
def test_an_installations_mistake_is_named(text):
    with pytest.raises(EnvironmentProblem, match=r"JOINERY_OPERATOR_JOBS_ALLOW is .*Correct jobs\.allow of the chart"):
        read_settings({"JOINERY_OPERATOR_JOBS_ALLOW": text})
