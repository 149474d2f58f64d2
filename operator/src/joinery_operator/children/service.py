"""The headless Service of a job's driver: a name for its status, metrics and Spark's user interface."""

from __future__ import annotations

from joinery_operator.children.spark import UI_PORT
from joinery_operator.names import Names, labels, owner_reference
from joinery_operator.observed import Manifest
from joinery_runtime.job.crd import STATUS_PORT


def service(resource: Manifest) -> Manifest:
    driver = labels(resource, "driver")
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": Names(resource).service,
            "namespace": resource["metadata"]["namespace"],
            "labels": labels(resource, "service"),
            "ownerReferences": [owner_reference(resource)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": driver,
            "ports": [_port("status", STATUS_PORT), _port("spark-ui", UI_PORT)],
        },
    }


def _port(name: str, number: int) -> Manifest:
    # Says all that the API server would fill in, so that nothing differs afterwards.
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
