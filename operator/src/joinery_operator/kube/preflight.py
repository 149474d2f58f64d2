"""What must be there before the operator starts, each as an error that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from joinery_operator.kube.api import Api, ApiError
from joinery_operator.kube.resources import CHILDREN, EVENT, JOBS, ApiResource
from joinery_runtime.errors import EnvironmentProblem


@dataclass(frozen=True, slots=True)
class Permission:
    resource: ApiResource
    verb: str
    subresource: str = ""

    def __str__(self) -> str:
        group = f".{self.resource.group}" if self.resource.group else ""
        return f"{self.verb} {self.resource.plural}{group}{'/' if self.subresource else ''}{self.subresource}"


PERMISSIONS: Sequence[Permission] = (
    *(Permission(job, verb) for job in JOBS for verb in ("get", "list", "watch", "patch")),
    *(Permission(job, "update", "status") for job in JOBS),
    *(Permission(child, verb) for child in CHILDREN for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(Permission(EVENT, verb) for verb in ("create", "patch")),
)
"""All that the operator does, in each of its namespaces. Where the API server checks owner references, `update` of the
jobs' subresource `finalizers` as well."""


async def check(api: Api, namespaces: Sequence[str]) -> None:
    """Raises EnvironmentProblem: no API server, no CRDs, or rights that are missing (all of them)."""
    try:
        missing = [job for job in JOBS if not await api.served(job)]
    except ApiError as error:
        raise EnvironmentProblem(
            "The API server does not answer the operator",
            facts=str(error),
            todo="Check the address and the login in its kubeconfig or service account",
        ) from error
    if missing:
        raise EnvironmentProblem(
            "Joinery's CustomResourceDefinitions are missing",
            facts=", ".join(f"{job.plural}.{job.group} ({job.version})" for job in missing),
            todo="Apply them (folder crds/, or `joinery crds | kubectl apply --server-side -f -`), then start again",
        )
    await _check_rights(api, namespaces)


async def _check_rights(api: Api, namespaces: Sequence[str]) -> None:
    asked = [(namespace, right) for namespace in namespaces or (None,) for right in PERMISSIONS]
    answers = await asyncio.gather(
        *(api.may(right.resource, namespace, right.verb, right.subresource) for namespace, right in asked)
    )
    refused = [
        f"{right} in {f'namespace {namespace}' if namespace else 'all namespaces'}"
        for (namespace, right), allowed in zip(asked, answers, strict=True)
        if not allowed
    ]
    if refused:
        raise EnvironmentProblem(
            "The operator's service account lacks rights",
            facts="; ".join(refused),
            todo="Bind it to the chart's role there, or set JOINERY_OPERATOR_NAMESPACES to where it has them",
        )
