"""A small reconcile in place of the real one, for what the shell does around it: one driver, attempt after attempt."""

from __future__ import annotations

from typing import Any

from joinery_operator.decision import (
    Action,
    Create,
    Decision,
    Delete,
    Event,
    Manifest,
    Observed,
    ObservedEnd,
    SetFinalizers,
)
from joinery_operator.names import ChildNames, labels, owner_reference
from joinery_runtime.job.crd import DriverAttempt, Status

IMAGE = "example/joinery:1"


def reconcile(observed: Observed | ObservedEnd) -> Decision:
    """Suspended: no driver. Else one, and another attempt when it has ended."""
    if isinstance(observed, ObservedEnd):
        return Decision(None)
    resource, names = observed.resource, ChildNames(observed.resource)
    old = Status.model_validate(resource.get("status") or {})
    if resource["metadata"].get("deletionTimestamp"):
        return Decision(None, (SetFinalizers(()),) if resource["metadata"].get("finalizers") else ())
    if resource["spec"].get("suspend"):
        stop = tuple(Delete("Pod", name, pod["metadata"]["uid"]) for name, pod in observed.children.pods.items())
        return Decision(old.model_copy(update={"phase": "Suspended"}), stop)
    number = old.driver.number if old.driver else 1
    pod = observed.children.pods.get(names.driver(number))
    if pod is not None and pod.get("status", {}).get("phase") == "Failed":
        number, pod = number + 1, None
    driver = old.driver
    if driver is None or driver.number != number:
        driver = DriverAttempt(number=number, revision="r1", image=IMAGE, created=observed.now)
    ready = observed.driver is not None and observed.driver.ready
    status = Status(
        phase="Running" if ready else "Starting",
        observed_generation=resource["metadata"].get("generation"),
        driver=driver,
        epoch=observed.driver.epoch if observed.driver else None,
    )
    started = (Event("Normal", "Started", f"Attempt {number}"),) if driver is not old.driver else ()
    return Decision(status, tuple(_missing(observed, number)), started, again_after=60.0)


def _missing(observed: Observed, number: int) -> list[Action]:
    resource, names = observed.resource, ChildNames(observed.resource)
    children = [
        (observed.children.config_maps, _child(resource, "ConfigMap", names.config_map("r1"), "config", {"data": {}})),
        (observed.children.services, _child(resource, "Service", names.service, "service", {"spec": _SERVICE})),
        (observed.children.pods, _child(resource, "Pod", names.driver(number), "driver", {"spec": _POD})),
    ]
    return [Create(manifest) for existing, manifest in children if manifest["metadata"]["name"] not in existing]


_POD = {"containers": [{"name": "joinery", "image": IMAGE}], "restartPolicy": "Never"}
_SERVICE = {"clusterIP": "None", "ports": [{"name": "status", "port": 8998}]}


def _child(resource: Manifest, kind: str, name: str, role: Any, rest: Manifest) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": resource["metadata"]["namespace"],
        "labels": labels(resource, role),
        "ownerReferences": [owner_reference(resource)],
    }
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **rest}


def job(name: str = "orders", namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    """A resource for the stand-in and MemoryServer; no valid job."""
    return {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "StreamJoin",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
