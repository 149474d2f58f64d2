"""How the operator logs in to the API server: one configuration for its own calls and for kopf's watches."""

from __future__ import annotations

import os
from pathlib import Path

import kopf
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from joinery_runtime.errors import EnvironmentProblem


async def load_connection(kubeconfig: Path | None) -> Configuration:
    """The kubeconfig when it is given (or `$KUBECONFIG`), else the pod's service account. In a pod the token is read
    again every minute. Raises EnvironmentProblem."""
    configuration = Configuration()
    given = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG", "")
    try:
        if given:
            await load_kube_config(config_file=given, client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        place = f"kubeconfig {given}" if given else "not in a pod, and no kubeconfig is given"
        raise EnvironmentProblem(
            "The operator cannot log in to Kubernetes",
            facts=f"{place}: {error}",
            todo="Run it in a cluster with a service account, or name a kubeconfig with --kubeconfig",
        ) from error
    return configuration


async def credentials_for_kopf(configuration: Configuration) -> kopf.ConnectionInfo:
    """The same login as kopf wants it. kopf asks again when the API server no longer takes the token."""
    header = await configuration.get_api_key_with_prefix("BearerToken")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        scheme=scheme.capitalize() or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )
