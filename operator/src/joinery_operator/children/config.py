"""The ConfigMap of a revision: the job, and how Spark runs it."""

from __future__ import annotations

from joinery_operator.children.executor import executor_template
from joinery_operator.children.spark import DEFAULTS_FILE, EXECUTOR_FILE, defaults_file
from joinery_operator.children.template import Templates
from joinery_operator.children.yaml import to_yaml
from joinery_operator.names import Names, labels, owner_reference
from joinery_operator.observed import Manifest
from joinery_operator.settings import Settings
from joinery_runtime.job import Job

JOB_FILE = "job.yaml"
FILES = (JOB_FILE, DEFAULTS_FILE, EXECUTOR_FILE)


def config_map(
    job: Job, resource: Manifest, revision: str, image: str, settings: Settings, templates: Templates
) -> Manifest:
    """Immutable: another revision has a ConfigMap of its own. Raises ChildError."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": Names(resource).config_map(revision),
            "namespace": resource["metadata"]["namespace"],
            "labels": labels(resource, "config", revision=revision),
            "ownerReferences": [owner_reference(resource)],
        },
        "immutable": True,
        "data": {
            JOB_FILE: to_yaml(_job(resource)),
            DEFAULTS_FILE: defaults_file(job, resource, image),
            EXECUTOR_FILE: to_yaml(executor_template(job, resource, revision, settings, templates)),
        },
    }


def _job(resource: Manifest) -> Manifest:
    """The resource as its author wrote it: what the API server and others keep there is no business of a driver."""
    metadata = resource["metadata"]
    return {
        "apiVersion": resource["apiVersion"],
        "kind": resource["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": resource["spec"],
    }
