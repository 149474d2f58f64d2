"""A revision's ConfigMap: what the revision began with, so that every later pod of it is built from the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruamel.yaml.error import YAMLError

from joinery_operator.decision import Manifest
from joinery_operator.manifests.pod_base import JOB_FILE, named_templates
from joinery_operator.manifests.pods import driver_base
from joinery_operator.manifests.spark import DEFAULTS_FILE, EXECUTOR_FILE, defaults_file, executor_template
from joinery_operator.manifests.yaml import from_yaml, to_yaml
from joinery_operator.names import ChildNames, labels, owner_reference
from joinery_operator.pod_defaults import PodDefaults, as_written
from joinery_operator.revision import JobRevision, PodTemplates
from joinery_runtime.job.crd import ResourceKind
from joinery_runtime.job.model.base import AS_STORED

_DRIVER = "driver.yaml"
_TEMPLATES = "templates.yaml"
_POD_DEFAULTS = "pod-defaults.yaml"


def config_map(revision: JobRevision) -> Manifest:
    """Return the ConfigMap with the job, how Spark runs it, and its driver's pod, merged of the job's template, the
    installation's defaults and what this release adds as they are now. The job's other pods are merged from the
    template and the defaults in it. It is immutable: another revision has a ConfigMap of its own. Raises
    ManifestError."""
    resource = revision.resource
    templates = named_templates(revision.job.spec.spark, revision.templates)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": ChildNames(resource).config_map(revision.revision),
            "namespace": resource["metadata"]["namespace"],
            "labels": labels(resource, "config", revision=revision.revision),
            "ownerReferences": [owner_reference(resource)],
        },
        "immutable": True,
        "data": {
            # As its author wrote it: a driver needs nothing of what the API server and others keep in the resource.
            JOB_FILE: to_yaml(
                {
                    "apiVersion": resource["apiVersion"],
                    "kind": resource["kind"],
                    "metadata": {name: resource["metadata"][name] for name in ("name", "namespace")},
                    "spec": resource["spec"],
                }
            ),
            DEFAULTS_FILE: defaults_file(revision),
            EXECUTOR_FILE: to_yaml(executor_template(revision)),
            _DRIVER: to_yaml(driver_base(revision)),
            _POD_DEFAULTS: to_yaml(as_written(revision.pod_defaults)),
            **({_TEMPLATES: to_yaml(templates)} if templates else {}),
        },
    }


def stored_job(config_map: Manifest | None, kind: ResourceKind, resource: Manifest) -> tuple[Any, Manifest] | None:
    """Return the job in a revision's ConfigMap, and the resource as it was then; None if the ConfigMap is gone, or this
    release cannot use it."""
    text = (config_map or {}).get("data", {}).get(JOB_FILE)
    if text is None:
        return None
    try:
        written = from_yaml(text)
        spec = written["spec"] if isinstance(written, Mapping) else None
        then = {**resource, "spec": spec}
        return kind.model.model_validate(then, by_alias=True, by_name=False, context=AS_STORED), then
    except (YAMLError, ValueError, KeyError):
        return None


def stored_templates(config_map: Manifest | None) -> PodTemplates | None:
    """Return the pod templates of a revision, as they were when it was stored; None if it has none, or if an earlier
    release stored it."""
    try:
        templates: Any = from_yaml((config_map or {})["data"][_TEMPLATES])
    except (YAMLError, KeyError):
        return None
    return templates if isinstance(templates, Mapping) else None


def stored_driver(config_map: Manifest | None) -> Manifest | None:
    """Return the driver's pod of a revision, as it was merged when the revision was stored; None if an earlier release
    stored it."""
    try:
        pod: Any = from_yaml((config_map or {})["data"][_DRIVER])
    except (YAMLError, KeyError):
        return None
    return pod if isinstance(pod, Mapping) else None


def stored_pod_defaults(config_map: Manifest | None) -> PodDefaults:
    """Return the installation's defaults of a revision, as they were when it was stored. Revisions of earlier releases
    have none."""
    try:
        return PodDefaults.model_validate(from_yaml((config_map or {})["data"][_POD_DEFAULTS]))
    except (YAMLError, ValueError, KeyError):
        return PodDefaults()


def stored_service_account(config_map: Manifest | None) -> str | None:
    """Return the service account that a revision's pods run as: its job need not name one, and only the operator knows
    the installation's. None if the ConfigMap is gone, or this release cannot use it."""
    try:
        template: Any = from_yaml((config_map or {})["data"][EXECUTOR_FILE])
        return str(template["spec"]["serviceAccountName"])
    except (YAMLError, KeyError, TypeError):
        return None
