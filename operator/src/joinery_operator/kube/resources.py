"""The kinds of objects that the operator deals with, and their paths on the API server."""

from __future__ import annotations

from dataclasses import dataclass

from joinery_runtime.job.crd import BLUE_GREEN as BLUE_GREEN_KIND
from joinery_runtime.job.crd import KINDS
from joinery_runtime.job.crd import SAVEPOINT as SAVEPOINT_KIND
from joinery_runtime.job.model.resource import API_VERSION


@dataclass(frozen=True, slots=True)
class ApiResource:
    """A kind as the API server serves it; `group` is empty for the core."""

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path on the API server; `namespace` None: all of the cluster."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        return "/".join([*parts, *(part for part in (name, subresource) if part)])


_GROUP, _, _VERSION = API_VERSION.partition("/")

POD = ApiResource("Pod", "pods")
CONFIG_MAP = ApiResource("ConfigMap", "configmaps")
SERVICE = ApiResource("Service", "services")
EVENT = ApiResource("Event", "events")
NAMESPACE = ApiResource("Namespace", "namespaces")
NETWORK_POLICY = ApiResource("NetworkPolicy", "networkpolicies", "networking.k8s.io")
LEASE = ApiResource("Lease", "leases", "coordination.k8s.io")
INGRESS = ApiResource("Ingress", "ingresses", "networking.k8s.io")
HTTP_ROUTE = ApiResource("HTTPRoute", "httproutes", "gateway.networking.k8s.io")
SECURITY_CONTEXT_CONSTRAINTS = ApiResource(
    "SecurityContextConstraints", "securitycontextconstraints", "security.openshift.io"
)
CHILDREN = (POD, CONFIG_MAP, SERVICE, NETWORK_POLICY)
PAGE_KINDS = (INGRESS, HTTP_ROUTE)
"""What may lead to jobs' pages. The operator has no permissions on a kind that its installation does not use."""
ALL_CHILDREN = (*CHILDREN, *PAGE_KINDS)
JOBS = tuple(ApiResource(kind.name, kind.plural, _GROUP, _VERSION) for kind in KINDS)
SAVEPOINT = ApiResource(SAVEPOINT_KIND.name, SAVEPOINT_KIND.plural, _GROUP, _VERSION)
BLUE_GREEN = ApiResource(BLUE_GREEN_KIND.name, BLUE_GREEN_KIND.plural, _GROUP, _VERSION)
OWNERS = (*JOBS, SAVEPOINT, BLUE_GREEN)
"""The kinds that users apply, to which children belong. The jobs of a BlueGreenJob are its children."""
WATCHED = (*OWNERS, *CHILDREN)

JOB_KINDS = {kind.name: kind for kind in KINDS}
OWNER_KINDS = frozenset(resource.kind for resource in OWNERS)
BY_KIND = {resource.kind: resource for resource in (*OWNERS, *ALL_CHILDREN, EVENT, LEASE)}


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """The name of an object, with its kind and namespace."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"
