"""A job's Service, NetworkPolicy, Ingress and HTTPRoute, and patches that repair children which others changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from joinery_operator.decision import Manifest, Patch
from joinery_operator.manifests.spark import UI_PORT
from joinery_operator.names import JOB_LABEL, KIND_LABEL, ROLE_LABEL, ChildNames, labels, owner_reference, shorten_label
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import STATUS_PORT


def service(resource: Manifest) -> Manifest:
    """Return a headless Service: a name for the driver's status, metrics and Spark's UI."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": ChildNames(resource).service,
            "namespace": resource["metadata"]["namespace"],
            "labels": labels(resource, "service"),
            "ownerReferences": [owner_reference(resource)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(resource, "driver"),
            "ports": [_port_entry("status", STATUS_PORT), _port_entry("spark-ui", UI_PORT)],
        },
    }


def network_policy(resource: Manifest, settings: Settings) -> Manifest:
    """Restrict access to the job's pods: driver and executors may reach each other on all ports, and the peers that the
    installation names may reach the driver's status port. Outgoing traffic is open: Kafka and Postgres may be
    anywhere."""
    names = ChildNames(resource)
    job = {JOB_LABEL: names.label, KIND_LABEL: names.kind}
    roles = {"key": ROLE_LABEL, "operator": "In", "values": ["driver", "executor"]}
    spark = {"from": [{"podSelector": {"matchLabels": job, "matchExpressions": [roles]}}]}
    status = {
        "from": json.loads(settings.status_from),
        "ports": [{"protocol": "TCP", "port": settings.status_port}],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": names.network_policy,
            "namespace": resource["metadata"]["namespace"],
            "labels": labels(resource, "network-policy"),
            "ownerReferences": [owner_reference(resource)],
        },
        "spec": {
            "podSelector": {"matchLabels": job},
            "policyTypes": ["Ingress"],
            # An empty list of peers would mean everybody.
            "ingress": [spark, *([status] if status["from"] else [])],
        },
    }


def page_url(resource: Manifest, settings: Settings) -> str | None:
    """Return the address of the job's page for browsers, if the installation has one. Dots in the name become hyphens,
    because a wildcard certificate covers one label. A label of the host that would be too long ends in a hash."""
    if not settings.page_url:
        return None
    namespace, name = (str(resource["metadata"][field]) for field in ("namespace", "name"))
    scheme, _, rest = settings.page_url.partition("://")
    host, slash, path = rest.partition("/")
    filled = {"namespace": namespace, "name": name.replace(".", "-")}
    labels = (shorten_label(label.format(**filled), f"{namespace}/{name}") for label in host.split("."))
    return f"{scheme}://{'.'.join(labels)}{slash}{path.format(**filled)}"


def page_ingress(resource: Manifest, settings: Settings) -> Manifest:
    """Return the Ingress from `page_url` to the driver's status port, which serves the page under any path."""
    names, ingress_settings = ChildNames(resource), json.loads(settings.page_ingress)
    address = urlsplit(page_url(resource, settings) or "")
    backend = {"service": {"name": names.service, "port": {"name": "status"}}}
    paths = [{"path": address.path, "pathType": "Prefix", "backend": backend}]
    spec: dict[str, Any] = {"rules": [{"host": address.netloc, "http": {"paths": paths}}]}
    if ingress_settings.get("className"):
        spec["ingressClassName"] = ingress_settings["className"]
    if ingress_settings.get("tlsSecretName"):
        spec["tls"] = [{"hosts": [address.netloc], "secretName": ingress_settings["tlsSecretName"]}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": _page_metadata(resource, ingress_settings),
        "spec": spec,
    }


def page_route(resource: Manifest, settings: Settings) -> Manifest:
    """Return the same through a Gateway, which has the certificate. Spells out the defaults that the API server would
    fill in."""
    names, route_settings = ChildNames(resource), json.loads(settings.page_route)
    address = urlsplit(page_url(resource, settings) or "")
    gateway = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
    backend = {"group": "", "kind": "Service", "name": names.service, "port": STATUS_PORT, "weight": 1}
    path = {"type": "PathPrefix", "value": address.path}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": _page_metadata(resource, route_settings),
        "spec": {
            "parentRefs": [{**gateway, **parent} for parent in route_settings["parentRefs"]],
            "hostnames": [address.netloc],
            "rules": [{"matches": [{"path": path}], "backendRefs": [backend]}],
        },
    }


def _page_metadata(resource: Manifest, page_settings: Mapping[str, Any]) -> Manifest:
    return {
        "name": ChildNames(resource).page,
        "namespace": resource["metadata"]["namespace"],
        "labels": labels(resource, "page"),
        "annotations": page_settings.get("annotations") or {},
        "ownerReferences": [owner_reference(resource)],
    }


def _port_entry(name: str, number: int) -> Manifest:
    # Spells out the defaults that the API server would fill in, so that nothing differs afterwards.
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}


def repair_patch(expected: Manifest, actual: Manifest) -> Patch | None:
    """Return the merge patch that turns `actual` into `expected`; None if nothing differs. What others added stays,
    except in a selector, where it would change what is selected. Only labels, annotations, owner, and the spec of a
    Service, NetworkPolicy, Ingress or HTTPRoute can be repaired: nearly all of a pod is immutable, and so is a
    ConfigMap.
    """
    metadata: dict[str, Any] = {}
    if changed := _differences(expected["metadata"]["labels"], actual["metadata"].get("labels") or {}):
        metadata["labels"] = changed
    if changed := _differences(
        expected["metadata"].get("annotations", {}), actual["metadata"].get("annotations") or {}
    ):
        metadata["annotations"] = changed
    owner = expected["metadata"]["ownerReferences"][0]
    owners = actual["metadata"].get("ownerReferences") or []
    if owner not in owners:
        # Only one owner may be the controller.
        other_owners = (
            reference
            for reference in owners
            if reference.get("uid") != owner["uid"] and not reference.get("controller")
        )
        metadata["ownerReferences"] = [owner, *other_owners]
    body: dict[str, Any] = {"metadata": metadata} if metadata else {}
    spec = actual.get("spec") or {}
    if expected["kind"] == "Service" and (changed := _spec_patch(expected["spec"], spec, "selector")):
        body["spec"] = changed
    if expected["kind"] == "NetworkPolicy" and (changed := _spec_patch(expected["spec"], spec, "podSelector")):
        body["spec"] = changed
    # A cluster may fill in its own class.
    actual_spec = {key: value for key, value in spec.items() if key != "ingressClassName" or key in expected["spec"]}
    if expected["kind"] in {"Ingress", "HTTPRoute"} and actual_spec != expected["spec"]:
        body["spec"] = {**{key: None for key in actual_spec if key not in expected["spec"]}, **expected["spec"]}
    return Patch(expected["kind"], expected["metadata"]["name"], body) if body else None


def _differences(expected: Manifest, actual: Manifest) -> dict[str, Any]:
    return {key: value for key, value in expected.items() if actual.get(key) != value}


def _spec_patch(expected: Manifest, actual: Manifest, selector: str) -> dict[str, Any]:
    changed = _differences({key: value for key, value in expected.items() if key != selector}, actual)
    actual_selector = actual.get(selector) or {}
    if expected[selector] != actual_selector:
        changed[selector] = _replacement_patch(expected[selector], actual_selector)
    return changed


def _replacement_patch(expected: Manifest, actual: Manifest) -> dict[str, Any]:
    """Return the merge patch that leaves exactly `expected`: it removes other keys by null, and recurses into
    mappings."""
    nested = {
        key: _replacement_patch(value, actual[key])
        for key, value in expected.items()
        if isinstance(value, Mapping) and isinstance(actual.get(key), Mapping)
    }
    return {**{key: None for key in actual if key not in expected}, **expected, **nested}
