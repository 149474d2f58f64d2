"""What an installation gives all pods of jobs (`drivers` of the chart): a pod that lies below a job's own template.

A revision keeps the defaults that it began with, and its name does not count them: another value restarts no job.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from joinery_runtime.job.model.pods import LocalRef, Toleration

USER = 185
"""The user of the runtime's image, and the group of mounted files."""
IMAGE_USER = {
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    # Volumes that already belong to the group are not traversed.
    "fsGroupChangePolicy": "OnRootMismatch",
}

_CA_VOLUME, _CA_FOLDER, _CA_FILE = "joinery-ca", "/etc/joinery-ca", "ca-bundle.crt"
# librdkafka does not read the first two: the runtime sets its `ssl.ca.location` by the third.
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "JOINERY_CA_FILE")
# Otherwise Spark would ask the proxy for the API server, and clients for the services of their own cluster.
_WITHOUT_PROXY = ("localhost", "127.0.0.1", ".svc", ".cluster.local")

_Name = Annotated[str, StringConstraints(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True)


class PodSecurity(_Model):
    """Fields of a pod's security context that the restricted Pod Security Standard leaves open. The first two are what
    the operator sets in any case."""

    run_as_non_root: Literal[True] | None = None
    seccomp_profile: dict[Literal["type"], Literal["RuntimeDefault"]] | None = None
    run_as_user: Annotated[int, Field(ge=1)] | None = None
    run_as_group: Annotated[int, Field(ge=0)] | None = None
    fs_group: Annotated[int, Field(ge=0)] | None = None
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    supplemental_groups: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    se_linux_options: dict[str, str] | None = None


class Proxy(_Model):
    """The proxy for HTTP requests to other hosts than those of the cluster and of `no_proxy`."""

    http: str = ""
    https: str = ""
    no_proxy: tuple[_Name, ...] = ()

    def environment(self) -> Iterator[tuple[str, str]]:
        """Yield variables by both of the names that clients look up."""
        excluded = ",".join(dict.fromkeys((*_WITHOUT_PROXY, *self.no_proxy)))
        for name, value in (("HTTP_PROXY", self.http), ("HTTPS_PROXY", self.https), ("NO_PROXY", excluded)):
            if value:
                yield from ((name, value), (name.lower(), value))


class CaBundle(_Model):
    """The key of a ConfigMap, in each namespace of jobs, with all certificates that clients trust."""

    config_map: _Name
    key: _Name = _CA_FILE


class PodDefaults(_Model):
    """The defaults. Without `pod_security`, pods have the user of the runtime's image."""

    labels: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    priority_class_name: str = ""
    image_pull_secrets: tuple[LocalRef, ...] = ()
    proxy: Proxy | None = None
    ca_bundle: CaBundle | None = None
    pod_security: PodSecurity | None = None

    def pod(self, main: str) -> dict[str, Any]:
        """Return the pod that lies below a job's template; `main` is the name of the operator's container in it."""
        spec: dict[str, Any] = {
            "securityContext": IMAGE_USER if self.pod_security is None else as_written(self.pod_security),
            "tolerations": [as_written(toleration) for toleration in self.tolerations],
            "imagePullSecrets": [as_written(secret) for secret in self.image_pull_secrets],
        }
        if self.priority_class_name:
            spec["priorityClassName"] = self.priority_class_name
        environment = dict(self.proxy.environment()) if self.proxy else {}
        container: dict[str, Any] = {"name": main}
        if self.ca_bundle:
            items = [{"key": self.ca_bundle.key, "path": _CA_FILE}]
            config_map = {"name": self.ca_bundle.config_map, "items": items}
            spec["volumes"] = [{"name": _CA_VOLUME, "configMap": config_map}]
            container["volumeMounts"] = [{"name": _CA_VOLUME, "mountPath": _CA_FOLDER, "readOnly": True}]
            environment |= dict.fromkeys(_CA_VARIABLES, f"{_CA_FOLDER}/{_CA_FILE}")
        container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
        return {"metadata": {"labels": self.labels}, "spec": {**spec, "containers": [container]}}


def as_written(model: BaseModel) -> dict[str, Any]:
    """Return a model's fields as in a manifest."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


@lru_cache(maxsize=4)
def pod_defaults(text: str) -> PodDefaults:
    """Parse `Settings.pod_defaults`. Raises ValidationError."""
    return PodDefaults.model_validate_json(text or "{}")
