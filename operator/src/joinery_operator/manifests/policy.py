"""What a job may ask for: images, service accounts, Spark's settings, fields of pod templates, and what else would run
code or read files in its pods.

Whoever may create a job has the operator create pods, and a driver's service account may create more pods. Without
limits, the right to create a job would be the right to create any pod of the namespace. So a job may ask for what
neither runs code of its author, nor reaches the node, nor uses another identity. Volumes and security contexts are
those of Kubernetes' restricted Pod Security Standard. An installation allows more, by name (`jobs.allow` of the chart).

A field's path names entries of lists by their name, mounts by their path:
`spec.containers[joinery].volumeMounts[/mnt/data]`. In a pattern, `*` stands for any characters but brackets, and the
pattern `*` for everything. A pattern covers what is below it, except for what `_EXPLICIT` matches.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

from pydantic import BaseModel

from joinery_operator.decision import Manifest
from joinery_operator.manifests.pod_base import (
    CONFIG,
    EXECUTOR_CONTAINER,
    KEY_VOLUME,
    MAIN_CONTAINER,
    SCRATCH_VOLUME,
    pods_in_templates,
)
from joinery_operator.revision import JobRevision
from joinery_operator.settings import AllowedByInstallation, Settings, allowed_by
from joinery_runtime.errors import Problem
from joinery_runtime.job.crd import FORBIDDEN_PROPERTIES, UNSAFE_PROPERTIES
from joinery_runtime.job.model.inputs import FileInput, History

_VALUE = 80
"""The most characters of a value in a message."""
_DOCS = "docs/security.md#what-a-job-may-ask-for"


def forbidden_properties_env(settings: Settings) -> dict[str, str]:
    """Return the variable by which a job's processes know the settings of clients that no secret of the job may
    have."""
    allowed = allowed_by(settings.jobs_allow).properties
    names = sorted(name for name in UNSAFE_PROPERTIES if not _matches_any(allowed, name))
    return {"name": FORBIDDEN_PROPERTIES, "value": ",".join(names)}


def forbidden_requests(revision: JobRevision) -> Iterator[Problem]:
    """Yield what a job asks for without being allowed to, each with its path in the resource and its value. Raises
    ManifestError if a pod template cannot be read."""
    allowed, spark = allowed_by(revision.settings.jobs_allow), revision.job.spec.spark
    default_image = revision.settings.runtime_image
    if (
        spark.image
        and not _matches_any(allowed.images, spark.image)
        and _repository_of(spark.image) != _repository_of(default_image)
    ):
        yield _policy_problem("spec.spark.image", spark.image, "images")
    account = spark.service_account
    if account and account != revision.settings.service_account and not _matches_any(allowed.service_accounts, account):
        yield _policy_problem("spec.spark.serviceAccount", account, "serviceAccounts")
    for name, setting in spark.conf.items():
        if not _harmless_setting(name, setting) and not _matches_any(allowed.spark_conf, name):
            yield _policy_problem(f'spec.spark.conf["{name}"]', setting, "sparkConf")
    yield from _forbidden_in_spec("spec", revision.job.spec, allowed)
    for path, pod in pods_in_templates(spark, revision.templates).items():
        ref = spark.driver.pod_template if path == _DRIVER_TEMPLATE else spark.executor.pod_template
        where = f"{path}.inline."
        if ref is not None and ref.name is not None:
            where = f"{path}: ConfigMap {ref.name}, key {ref.key}: "
        main = MAIN_CONTAINER if path == _DRIVER_TEMPLATE else EXECUTOR_CONTAINER
        volumes = {str(volume["name"]) for volume in (pod.get("spec") or {}).get("volumes") or () if "name" in volume}
        for at, value in _list_leaves(pod):
            if not _harmless_field(at, value, main, volumes) and not _is_covered(allowed.pod_template, at):
                # Values of variables and annotations may be secret.
                hidden = ".env[" in at or at.startswith("metadata.")
                yield _policy_problem(f"{where}{at}", "(its value)" if hidden else str(value), "podTemplate")
            elif _OTHER_IMAGE.fullmatch(at) and f"[{main}]" not in at and not _matches_any(allowed.images, str(value)):
                yield _policy_problem(f"{where}{at}", str(value), "images")


_DRIVER_TEMPLATE = "spec.spark.driver.podTemplate"
_OTHER_IMAGE = re.compile(r"spec\.(?:initC|c)ontainers\[[^\[\]]*\]\.image")


def _policy_problem(path: str, value: str, key: str) -> Problem:
    short = value if len(value) <= _VALUE else f"{value[:_VALUE]}..."
    return Problem(
        path,
        f"{short!r} is not allowed in this cluster; leave it out, or have whoever installed the operator add it to "
        f"jobs.allow.{key} of the chart ({_DOCS})",
    )


# --- patterns ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", r"[^\[\]]*" if pattern != "*" else ".*"), re.DOTALL)


def _matches_any(patterns: Sequence[str], text: str) -> bool:
    return any(_compile(pattern).fullmatch(text) for pattern in patterns)


def _is_covered(patterns: Sequence[str], path: str) -> bool:
    """Return whether a pattern matches a field or one that contains it; of what must be allowed explicitly, no field
    above."""
    explicit = [
        match for pattern in _EXPLICIT if (match := re.match(rf"({_compile(pattern).pattern})(?=[.\[]|$)", path))
    ]
    shortest = max((len(match[1]) for match in explicit), default=0)
    # Not within brackets, where a name may hold dots.
    starts = (match.start() for match in re.finditer(r"(?=[.\[])", path))
    ends = [start for start in starts if path.count("[", 0, start) == path.count("]", 0, start)]
    return any(_matches_any(patterns, path[:end]) for end in (*ends, len(path)) if end >= shortest)


# --- Spark's settings -------------------------------------------------------------------------------------------------

# None of them names a class, a file that is read, a module, an identity or options of a process. `_VALUES` has those
# with which only some values are harmless. A `*` stands at the end alone: in the middle it would also stand for the
# name of a secret, a variable or a volume (`spark.kubernetes.executor.secretKeyRef.NAME.limit.cores`).
_CODECS = frozenset({"lz4", "lzf", "snappy", "zstd"})
_VALUES = {
    # Whoever reaches the port of a driver that does not ask for the secret runs code in it.
    "spark.authenticate": frozenset({"true"}),
    "spark.network.crypto.enabled": frozenset({"true"}),
    "spark.eventLog.compression.codec": _CODECS,
    "spark.io.compression.codec": _CODECS,
}
_SPARK_SETTINGS = tuple(
    """
    spark.io.encryption.enabled spark.io.encryption.keySizeBits spark.io.encryption.keygen.algorithm
    spark.network.crypto.cipher spark.ssl.rpc.enabled spark.ssl.rpc.openSslEnabled
    spark.broadcast.* spark.cleaner.* spark.dynamicAllocation.*
    spark.driver.maxResultSize spark.driver.memory* spark.executor.memory* spark.eventLog.* spark.excludeOnFailure.*
    spark.executor.failuresValidityInterval spark.executor.heartbeatInterval spark.executor.maxNumFailures
    spark.executor.processTreeMetrics.enabled spark.io.compression.* spark.kryoserializer.buffer*
    spark.locality.wait* spark.log.* spark.memory.* spark.metrics.namespace
    spark.network.maxRemoteBlockSizeFetchToMem spark.network.timeout* spark.python.worker.memory
    spark.python.worker.reuse spark.reducer.* spark.rpc.* spark.scheduler.listenerbus.*
    spark.scheduler.maxRegisteredResourcesWaitingTime spark.scheduler.minRegisteredResourcesRatio
    spark.scheduler.mode spark.speculation* spark.stage.* spark.shuffle.accurateBlockThreshold
    spark.shuffle.checksum.enabled spark.shuffle.compress spark.shuffle.file.buffer spark.shuffle.io.*
    spark.shuffle.registration.* spark.shuffle.spill.* spark.shuffle.readHostLocalDisk
    spark.shuffle.reduceLocality.enabled spark.shuffle.sort.bypassMergeThreshold spark.sql.session.timeZone
    spark.sql.shuffle.partitions spark.storage.memory* spark.task.* spark.ui.enabled spark.ui.retained*
    spark.ui.liveUpdate.* spark.ui.reverseProxy* spark.ui.timeline.* spark.ui.showConsoleProgress
    spark.kubernetes.driver.limit.cores spark.kubernetes.executor.limit.cores
    spark.kubernetes.driver.request.cores spark.kubernetes.executor.request.cores spark.kubernetes.allocation.batch.*
    spark.kubernetes.allocation.executor.timeout spark.kubernetes.allocation.maxPendingPods
    spark.kubernetes.node.selector.* spark.kubernetes.driver.node.selector.*
    spark.kubernetes.executor.node.selector.* spark.kubernetes.executor.apiPollingInterval
    spark.kubernetes.executor.deleteOnTermination spark.kubernetes.executor.enable*
    spark.kubernetes.executor.eventProcessingInterval spark.kubernetes.executor.missingPodDetectDelta
    spark.kubernetes.memoryOverheadFactor spark.kubernetes.local.dirs.tmpfs
    spark.kubernetes.executor.volumes.emptyDir.* spark.kubernetes.executor.volumes.persistentVolumeClaim.*
    """.split()  # noqa: SIM905 - one entry per line would hide what belongs together
)
_VARIABLE_SETTING = "spark.executorEnv."
_MOUNT_SETTING = re.compile(r"spark\.kubernetes\.executor\.volumes\..*\.mount\.(path|subPathExpr)", re.IGNORECASE)

# Variables that only say where and when, and keys. Others have interpreters, loaders or clients load code, run
# commands, or send a file such as the driver's token somewhere (AWS_WEB_IDENTITY_TOKEN_FILE).
_VARIABLES = tuple(
    """
    TZ LANG LANGUAGE LC_* NO_PROXY HTTP_PROXY HTTPS_PROXY no_proxy http_proxy https_proxy AWS_ACCESS_KEY_ID
    AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_REGION AWS_DEFAULT_REGION AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3
    AWS_ENDPOINT_URL_DYNAMODB AZURE_CLIENT_ID AZURE_CLIENT_SECRET AZURE_TENANT_ID AZURE_STORAGE_ACCOUNT*
    AZURE_STORAGE_ACCESS_KEY AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_ENDPOINT AZURE_STORAGE_KEY
    AZURE_STORAGE_SAS_* AZURE_STORAGE_TOKEN SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE MALLOC_ARENA_MAX
    JOINERY_CACHE_BYTES
    """.split()  # noqa: SIM905 - one entry per line would hide what belongs together
)
# Where the images have no files that a process reads by itself. Not /etc/ssl/certs: Java's trusted certificates are
# there, by which a driver knows the API server.
_MOUNTS = ("/mnt", "/mnt/*", "/data", "/data/*")


def _harmless_setting(name: str, value: str) -> bool:
    if name in _VALUES:
        return value in _VALUES[name]
    if name.startswith(_VARIABLE_SETTING):
        return _matches_any(_VARIABLES, name.removeprefix(_VARIABLE_SETTING))
    if _MOUNT_SETTING.fullmatch(name):
        return _matches_any(_SPARK_SETTINGS, name) and _matches_any(_MOUNTS, _normal_path(value))
    return _matches_any(_SPARK_SETTINGS, name)


# --- fields of pods ---------------------------------------------------------------------------------------------------

_CONTAINERS = ("containers", "initContainers")
# The operator's own value always replaces these, or nothing reads them.
_WITHOUT_EFFECT = (
    *("spec.serviceAccountName", "spec.automountServiceAccountToken", "spec.restartPolicy", "spec.enableServiceLinks"),
    *(f"spec.containers[MAIN].{name}" for name in ("name", "image", "imagePullPolicy", "command", "args")),
    *(f"spec.containers[MAIN].{name}" for name in ("startupProbe", "livenessProbe", "readinessProbe")),
)
_VOLUMES = ("configMap", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
_POD_FIELDS = (
    *(f"metadata.annotations[{domain}/*]" for domain in ("prometheus.io", "cluster-autoscaler.kubernetes.io")),
    *("metadata.annotations[karpenter.sh/*]", "metadata.labels[app.kubernetes.io/*]"),
    *("spec.activeDeadlineSeconds", "spec.affinity", "spec.nodeSelector", "spec.tolerations"),
    *("spec.topologySpreadConstraints", "spec.dnsConfig", "spec.dnsPolicy", "spec.hostAliases"),
    *("spec.imagePullSecrets", "spec.terminationGracePeriodSeconds"),
    *(f"spec.volumes[*].{name}" for name in ("name", *_VOLUMES)),
    *(f"spec.containers[MAIN].{name}" for name in ("ports", "resources")),
    *(f"spec.containers[MAIN].env[{name}]" for name in _VARIABLES),
    *(f"spec.containers[MAIN].volumeMounts[{path}]" for path in _MOUNTS),
)
# What must be named itself: a pattern for a whole container or volume does not cover it.
_EXPLICIT = (
    "spec.securityContext",
    "spec.volumes[*].hostPath",
    "spec.volumes[*].projected.sources[].serviceAccountToken",
    "spec.volumes[*].projected.sources[].podCertificate",
    *(
        f"spec.{containers}[*].{name}"
        for containers in _CONTAINERS
        for name in ("securityContext", "volumeDevices", "ports[*].hostPort", "ports[*].hostIP")
    ),
    *(f"spec.{containers}[*].volumeMounts[*].mountPropagation" for containers in _CONTAINERS),
)
# Webhooks act by labels and annotations with a domain: they inject containers, agents, roles.
_ABOUT = re.compile(r"metadata\.(?:labels|annotations)\[(.*)\]", re.DOTALL)
# A volume of such a name takes the place of the service account's token.
_TOKEN_VOLUME = "spec.volumes[kube-api-access"
_SECURITY = re.compile(r"spec\.(?:(?:initC|c)ontainers\[[^\[\]]*\]\.)?securityContext\.(.*)")


_MOUNTED = re.compile(r"spec\.containers\[[^\[\]]*\]\.volumeMounts\[[^\[\]]*\]\.name")
_OUR_VOLUMES = frozenset({"job", "scale", KEY_VOLUME["name"], SCRATCH_VOLUME["name"]})


def _harmless_field(path: str, value: object, main: str, volumes: Collection[str]) -> bool:
    """`volumes` are those of the template. It may not mount the operator's, such as the one of the exchange's key."""
    if _MOUNTED.fullmatch(path):
        volume = str(value)
        if volume not in volumes or volume in _OUR_VOLUMES or volume.startswith("secret-"):
            return False
    if match := _SECURITY.fullmatch(path):
        return _meets_restricted_standard(match[1], value)
    if value in (None, [], False) or (value == {} and (path == "spec" or path.endswith("ecurityContext"))):
        return True
    if path.startswith(_TOKEN_VOLUME):
        return False
    if match := _ABOUT.fullmatch(path):
        return "/" not in match[1] or _matches_any(_POD_FIELDS, path)
    prefix = f"spec.containers[{main}]"
    own = f"spec.containers[MAIN]{path.removeprefix(prefix)}" if path.startswith(prefix) else path
    return _is_covered((*_WITHOUT_EFFECT, *_POD_FIELDS), own)


def _meets_restricted_standard(name: str, value: object) -> bool:
    """Return whether the restricted Pod Security Standard lets every pod have this value in a security context."""
    match name:
        case "allowPrivilegeEscalation" | "privileged" | "hostProcess":
            return value is False
        case "runAsNonRoot":
            return value is True
        case "readOnlyRootFilesystem" | "fsGroupChangePolicy" | "capabilities.drop[]":
            return True
        case "capabilities" | "capabilities.drop" | "capabilities.add":
            return not value
        case "seccompProfile.type":
            return value == "RuntimeDefault"
        case "runAsUser" | "runAsGroup" | "fsGroup" | "supplementalGroups[]":
            return value is None or (isinstance(value, int) and value > 0)
        case _:
            return value is None


def _list_leaves(pod: Manifest) -> Iterator[tuple[str, object]]:
    """Yield the fields of a template that have a value and reach a pod, each with its path."""
    metadata = pod.get("metadata") or {}
    for name in ("labels", "annotations"):
        yield from ((f"metadata.{name}[{key}]", value) for key, value in (metadata.get(name) or {}).items())
    yield from _leaves_below("spec", pod.get("spec") or {})


def _leaves_below(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves_below(f"{path}.{key}", below)
    elif isinstance(value, list) and value:
        for entry in value:
            name = ""
            # Only where Kubernetes itself tells entries apart by name: in other lists, a name that it ignores would
            # hide what the entry is.
            if isinstance(entry, Mapping) and path.endswith(".volumeMounts"):
                name = _normal_path(str(entry.get("mountPath", "")))
            elif isinstance(entry, Mapping) and _NAMED.fullmatch(path):
                name = str(entry.get("name", ""))
            name = re.sub(r"[\[\]]", "?", name)
            yield from _leaves_below(f"{path}[{name}]", entry)
    else:
        yield path, value


_NAMED = re.compile(r"spec\.(?:volumes|(?:initC|c)ontainers(?:\[[^\[\]]*\]\.(?:env|ports))?)")


def _normal_path(path: str) -> str:
    """Return a path without "..", and with one slash where it has several: `normpath` leaves two at the start."""
    return re.sub(r"^/+", "/", posixpath.normpath(path))


# --- what else runs code or reads files -------------------------------------------------------------------------------

# A driver's token, other pods' secrets and the processes' own memory.
_OWN_FILES = ("/dev", "/etc/joinery", "/proc", "/run", "/sys", "/var/run")


def _forbidden_in_spec(path: str, value: object, allowed: AllowedByInstallation) -> Iterator[Problem]:
    if (
        isinstance(value, FileInput | History)
        and _is_own_file(value.path)
        and not _matches_any(allowed.input_files, value.path)
    ):
        yield _policy_problem(f"{path}.path", value.path, "inputFiles")
    if isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            yield from _forbidden_in_spec(f"{path}.{info.alias or name}", getattr(value, name), allowed)
    elif isinstance(value, list | tuple):
        for i, entry in enumerate(value):
            yield from _forbidden_in_spec(f"{path}[{i}]", entry, allowed)
    elif isinstance(value, Mapping) and path.endswith(".properties"):
        for name, setting in value.items():
            if name.lower() in UNSAFE_PROPERTIES and not _matches_any(allowed.properties, name.lower()):
                yield _policy_problem(f'{path}["{name}"]', str(setting), "properties")


def _is_own_file(pattern: str) -> bool:
    """Return whether an input's path may lead to the pod's own files. A relative path counts from the job's folder."""
    literal = re.split(r"[*?\[]", pattern.removeprefix("file://"), maxsplit=1)[0]
    start = _normal_path(posixpath.join(CONFIG, literal))
    if len(literal) < len(pattern.removeprefix("file://")):
        # The last part is only the beginning of a name.
        start = start if literal.endswith("/") or not literal else posixpath.dirname(start)
    return any(_is_inside(start, own) or _is_inside(own, start) for own in _OWN_FILES)


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _repository_of(image: str) -> str:
    """Return an image's name without its tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"
