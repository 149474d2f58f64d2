"""What all pods of a job have in common: writable directories, placement, and three layers: the installation's
defaults, over them the user's pod template, and over that the operator's own fields.

Entries of lists are merged as in Kubernetes: containers, volumes and environment by name, mounts by path, ports by
name. A template's container with the operator's name keeps the fields that the operator does not set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from ruamel.yaml.error import YAMLError

from joinery_operator.decision import Manifest
from joinery_operator.manifests.yaml import from_yaml
from joinery_operator.names import digest_of
from joinery_operator.pod_defaults import PodDefaults
from joinery_operator.revision import WITHOUT_TEMPLATE, ManifestError, PodTemplates
from joinery_operator.settings import Settings
from joinery_runtime.job.model.base import SecretRef
from joinery_runtime.job.model.pods import DriverSpec, PodTemplate, SparkSpec

CONFIG, JOB_FILE = "/etc/joinery", "job.yaml"
SECRETS = f"{CONFIG}/secrets"
_GROUP_READS = 0o440

MAIN_CONTAINER = "joinery"
"""The main container of every pod that the operator makes; a pod template's container of this name is merged with
it."""

EXECUTOR_CONTAINER = "spark-kubernetes-executor"

SCRATCH = "/tmp"

# Neither has a user or a group: what the installation's defaults, a template or the cluster (OpenShift) says counts.
POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# The root file system is read-only. Software that looks for a home (library caches, Spark) finds a writable one.
SCRATCH_ENV = [{"name": "HOME", "value": SCRATCH}]
# A driver's Spark files, compiled kernels and the logs of a dying JVM stay far below this. Growth beyond it is a fault,
# and ends this pod instead of all pods of the node.
SCRATCH_VOLUME: dict[str, Any] = {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}}
SCRATCH_MOUNT = {"name": "tmp", "mountPath": SCRATCH}

LOST_NODE_SECONDS = 20
"""How long a pod stays on a node that does not answer before Kubernetes deletes it. Postgres fences a driver that is
still alive, so waiting longer would protect nothing."""
_LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

# The zone of a pod's node, which Kubernetes 1.35 copies to the pod's labels; empty on clusters that do not.
_ZONE = "metadata.labels['topology.kubernetes.io/zone']"
RACK_ENV = {"name": "JOINERY_CLIENT_RACK", "valueFrom": {"fieldRef": {"fieldPath": _ZONE}}}

# Where driver and executors put the key with which they encrypt what they exchange: in memory, so that no node's disk
# has it. The runtime makes the key; only with this variable does it make one in a pod.
_KEY_FOLDER = "/run/joinery"
KEY_VOLUME: dict[str, Any] = {"name": "joinery-exchange-key", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
KEY_MOUNT = {"name": "joinery-exchange-key", "mountPath": _KEY_FOLDER}
KEY_ENV = {"name": "JOINERY_KEY_FOLDER", "value": _KEY_FOLDER}


def placement_fields(part: DriverSpec) -> dict[str, Any]:
    """Return the fields of a pod's spec that say where it may run."""
    fields: dict[str, Any] = {}
    if part.node_selector:
        fields["nodeSelector"] = dict(part.node_selector)
    if part.tolerations:
        fields["tolerations"] = [
            toleration.model_dump(mode="json", by_alias=True, exclude_none=True) for toleration in part.tolerations
        ]
    return fields


def identity(spark: SparkSpec, settings: Settings, *, token: bool) -> dict[str, Any]:
    """Return the fields of a pod's spec that say who it runs as. It can talk to the API server only with `token`."""
    fields: dict[str, Any] = {
        "serviceAccountName": spark.service_account or settings.service_account,
        "automountServiceAccountToken": token,
        "securityContext": POD_SECURITY,
    }
    if spark.image_pull_secrets:
        fields["imagePullSecrets"] = [{"name": secret.name} for secret in spark.image_pull_secrets]
    return fields


def field_env(**paths: str) -> list[dict[str, Any]]:
    """Environment variables from fields of the pod itself."""
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()]


def job_volume(config_map: str) -> dict[str, Any]:
    return {"name": "job", "configMap": {"name": config_map}}


def job_mount(file: str) -> dict[str, Any]:
    """Return the mount of a single file: a directory mounted from a ConfigMap is read-only, so secrets could not be
    mounted below it."""
    return {"name": "job", "mountPath": f"{CONFIG}/{file}", "subPath": file, "readOnly": True}


def secret_volumes(spec: BaseModel) -> list[dict[str, Any]]:
    """Return volumes of all secrets in the models' `...SecretRef` fields, each once, sorted. Secrets are mounted whole,
    because those for a client's settings have keys that the job does not name."""
    return [
        {"name": _volume_name(name), "secret": {"secretName": name, "defaultMode": _GROUP_READS, "optional": False}}
        for name in sorted(set(_names(spec)))
    ]


def secret_mounts(spec: BaseModel) -> list[dict[str, Any]]:
    return [
        {"name": _volume_name(name), "mountPath": f"{SECRETS}/{name}", "readOnly": True}
        for name in sorted(set(_names(spec)))
    ]


def _volume_name(secret: str) -> str:
    """Return the name of a secret's volume, which is a DNS label; a secret's own name may be longer and hold dots."""
    return f"secret-{digest_of(secret)}"


def _names(value: object) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for field, field_value in value:
            if field.endswith("secret_ref") and isinstance(field_value, SecretRef):
                yield field_value.name
            else:
                yield from _names(field_value)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _names(element)


_POD_LISTS = {"volumes": "name", "imagePullSecrets": "name"}
_CONTAINER_LISTS = {"env": "name", "volumeMounts": "mountPath", "ports": "name"}
_CONTAINERS = ("containers", "initContainers")
# Fields that only the operator sets, even to nothing: a container that checks has no probes.
_OURS = {"command", "args", "startupProbe", "livenessProbe", "readinessProbe"}


def template_of(ref: PodTemplate | None, templates: PodTemplates, ref_path: str) -> Manifest:
    """Return the pod in a template; empty without one. `ref_path` is the template's path in the resource, for
    messages. Raises ManifestError if there is no such ConfigMap or key, or if it does not hold a pod."""
    if ref is None:
        return {}
    if ref.name is None:
        where = f"{ref_path}.inline"
        pod = _parse_pod(ref.inline or "", where)
        return _checked_pod({"kind": "Pod", **pod} if isinstance(pod, dict) else pod, where)
    where = f"ConfigMap {ref.name}, key {ref.key}"
    config_map = templates.get(ref.name)
    if config_map == WITHOUT_TEMPLATE:
        return {}
    if config_map is None:
        todo = f"Create it in the job's namespace with the key {ref.key}, or correct {ref_path}"
        raise ManifestError(
            "A pod template is missing", facts=f"there is no ConfigMap {ref.name}, named by {ref_path}", todo=todo
        )
    text = (config_map.get("data") or {}).get(ref.key)
    if text is None:
        keys = ", ".join(sorted(config_map.get("data") or {})) or "none"
        raise ManifestError(
            "A pod template is missing", facts=f"{where}: its keys are {keys}", todo=f"Correct {ref_path}.key"
        )
    return _checked_pod(_parse_pod(text, where), where)


def _parse_pod(text: str, where: str) -> object:
    try:
        return from_yaml(text)
    except (YAMLError, ValueError, RecursionError) as error:
        facts = f"{where} is not readable YAML: {' '.join(str(error).split())}"
        raise ManifestError("A pod template cannot be read", facts=facts, todo="Correct its text") from error


def _checked_pod(pod: object, where: str) -> Manifest:
    problem = next(_find_problems(pod), None)
    if problem is not None:
        todo = "Write a Pod with apiVersion, kind, metadata and spec"
        raise ManifestError("A pod template is no pod", facts=f"{where}: {problem}", todo=todo)
    return pod  # type: ignore[return-value]


def pods_in_templates(spark: SparkSpec, templates: PodTemplates) -> dict[str, Manifest]:
    """Return the pods in the job's templates, by their path in the resource. Raises ManifestError."""
    refs = {f"spec.spark.{part}.podTemplate": getattr(spark, part).pod_template for part in ("driver", "executor")}
    return {path: template_of(ref, templates, path) for path, ref in refs.items() if ref is not None}


def named_templates(spark: SparkSpec, templates: PodTemplates) -> dict[str, Manifest]:
    """Those of the ConfigMaps that the job names, each with the keys that it names."""
    named: dict[str, dict[str, dict[str, str]]] = {}
    for ref in (spark.driver.pod_template, spark.executor.pod_template):
        if ref is None or ref.name is None:
            continue
        data = (templates.get(ref.name) or {}).get("data") or {}
        if ref.key in data:
            named.setdefault(ref.name, {"data": {}})["data"][ref.key] = data[ref.key]
    return dict(named)


def merged_pod(
    defaults: PodDefaults, template: Manifest, operator_pod: Manifest, *, storage: str, extra_containers: bool
) -> dict[str, Any]:
    """Lay the template over the defaults, and `operator_pod` over both. The pod requests `storage` on its node's disk,
    unless the template has a request or a limit for it. The template's other containers come after the operator's;
    without `extra_containers`, for a pod that must end by itself, they are omitted."""
    metadata, spec = template.get("metadata") or {}, _without_root(template.get("spec") or {})
    (operator_container,) = operator_pod["spec"]["containers"]
    main = operator_container["name"]
    default_pod = defaults.pod(main)
    (default_container,) = default_pod["spec"]["containers"]
    merged = _layered_spec(_layered_spec(default_pod["spec"], spec), operator_pod["spec"])
    tolerations = merged.get("tolerations") or []
    merged["tolerations"] = [*tolerations, *_tolerations_of_lost_nodes(tolerations)]
    containers = [_without_root(container) for container in spec.get("containers") or ()]
    template_container: Manifest = next((container for container in containers if container["name"] == main), {})
    extra = [container for container in containers if container["name"] != main] if extra_containers else []
    own_container = merged_container(default_container, template_container)
    resources = dict(own_container.get("resources") or {})
    if "ephemeral-storage" not in (resources.get("limits") or {}):  # a request above its limit is rejected
        resources["requests"] = {"ephemeral-storage": storage, **(resources.get("requests") or {})}
    own_container["resources"] = resources
    main_container = merged_container(own_container, operator_container)
    for section in (merged, main_container):  # a null in a template has removed a default
        security = section["securityContext"]
        section["securityContext"] = {key: value for key, value in security.items() if value is not None}
    merged["containers"] = [main_container, *extra]
    if initial := spec.get("initContainers"):
        merged["initContainers"] = list(initial)
    template_metadata = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _overlay(_overlay(default_pod["metadata"], template_metadata), operator_pod["metadata"]),
        "spec": merged,
    }


def _tolerations_of_lost_nodes(tolerations: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yield how long a pod may stay on a node that does not answer, unless the job says so. As the API server's own
    default (300 s), which applies if a pod tolerates no such taint at all."""
    for taint in _LOST_NODE_TAINTS:
        tolerated = (
            toleration.get("key") in {None, "", taint} and toleration.get("effect") in {None, "", "NoExecute"}
            for toleration in tolerations
        )
        if not any(tolerated):
            yield {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}


def _without_root(section: Manifest) -> Manifest:
    """Return a template's pod or container without the user 0, with which the kubelet would not start it."""
    security = section.get("securityContext")
    if not isinstance(security, Mapping) or security.get("runAsUser") != 0:
        return section
    return {**section, "securityContext": {key: value for key, value in security.items() if key != "runAsUser"}}


def _layered_spec(lower: Manifest, upper: Manifest) -> dict[str, Any]:
    """Lay one pod's spec over another one's, all but its containers."""
    lower_fields, upper_fields = (
        {key: value for key, value in spec.items() if key not in (*_CONTAINERS, *_POD_LISTS)} for spec in (lower, upper)
    )
    merged = _overlay(lower_fields, upper_fields)
    for key, name in _POD_LISTS.items():
        if both := by_key(lower.get(key) or (), upper.get(key) or (), name):
            merged[key] = both
    if tolerations := [*(upper.get("tolerations") or ()), *(lower.get("tolerations") or ())]:
        merged["tolerations"] = tolerations
    return merged


def merged_container(template: Manifest, operator_container: Manifest) -> dict[str, Any]:
    """Lay the operator's container over the template's container of the same name."""
    template_fields = {key: value for key, value in template.items() if key not in _OURS}
    merged = _overlay(template_fields, operator_container)
    for key, name in _CONTAINER_LISTS.items():
        if both := by_key(template_fields.get(key) or (), operator_container.get(key) or (), name):
            merged[key] = both
    if "resources" in operator_container:
        merged["resources"] = _overlay(template_fields.get("resources") or {}, operator_container["resources"])
    return merged


def by_key(template_entries: Sequence[Manifest], operator_entries: Sequence[Manifest], key: str) -> list[Manifest]:
    """Return the operator's entries first, so that later ones may refer to them, then the template's entries with
    other names."""
    operator_keys = {operator_entry.get(key) for operator_entry in operator_entries}
    return [
        *operator_entries,
        *(template_entry for template_entry in template_entries if template_entry.get(key) not in operator_keys),
    ]


def _overlay(template_fields: Manifest, operator_fields: Manifest) -> dict[str, Any]:
    """Return the operator's fields, plus entries of mappings that only the template has. Merges one level only: half
    of a capability list, a seccomp profile or a probe does not mean the same as the whole."""
    merged = dict(template_fields)
    for key, value in operator_fields.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = {**below, **value}
        else:
            merged[key] = value
    return merged


def _find_problems(pod: object) -> Iterator[str]:
    """Yield what would break the merge; the API server judges the rest."""
    if not isinstance(pod, Mapping):
        yield "it is no mapping"
        return
    if pod.get("kind") != "Pod":
        yield f"its kind is {pod.get('kind')!r}"
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    for at, part in (("metadata", metadata), ("spec", spec)):
        if not isinstance(part, Mapping):
            yield f"{at} is no mapping"
            return
    for key in ("labels", "annotations"):
        if not isinstance(metadata.get(key) or {}, Mapping):
            yield f"metadata.{key} is no mapping"
    for key in _CONTAINERS:
        containers = spec.get(key)
        yield from _list_problems(f"spec.{key}", containers)
        for i, container in enumerate(containers if isinstance(containers, list) else ()):
            yield from _container_problems(f"spec.{key}[{i}]", container)
    for key in (*_POD_LISTS, "tolerations"):
        yield from _list_problems(f"spec.{key}", spec.get(key))


def _container_problems(at: str, container: object) -> Iterator[str]:
    if not isinstance(container, Mapping):
        return
    if not isinstance(container.get("name"), str):
        yield f"{at} has no name"
    for key in _CONTAINER_LISTS:
        yield from _list_problems(f"{at}.{key}", container.get(key))
    if not isinstance(container.get("resources") or {}, Mapping):
        yield f"{at}.resources is no mapping"


def _list_problems(at: str, entries: object) -> Iterator[str]:
    if entries is not None and not isinstance(entries, list):
        yield f"{at} is no list"
        return
    yield from (f"{at}[{i}] is no mapping" for i, entry in enumerate(entries or ()) if not isinstance(entry, Mapping))
