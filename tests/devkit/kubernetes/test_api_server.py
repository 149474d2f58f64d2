"""The API server tier is a real Kubernetes API: logins, rules, resources of our own, owners."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.kubectl import KubectlFailed, wait_until

pytestmark = pytest.mark.services

REPOSITORY = Path(__file__).parents[3]
EXAMPLE = REPOSITORY / "examples" / "orders-payments.yaml"


@pytest.fixture(scope="module")
def with_crds(api_server: ApiServer) -> ApiServer:
    api_server.kubectl.define(REPOSITORY / "crds")
    return api_server


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


@pytest.mark.slow
def test_several_servers_run_at_once_and_know_nothing_of_each_other(api_server: ApiServer, api_namespace: str) -> None:
    with ApiServer(controllers=()) as other:
        assert other.url != api_server.url
        assert api_namespace not in other.kubectl.names("namespaces")


@pytest.mark.slow
def test_a_server_that_was_left_is_gone() -> None:
    with ApiServer(controllers=()) as server:
        kubectl, directory = server.kubectl, server.directory
        assert "default" in kubectl.names("namespaces")
    assert not directory.exists()
    with pytest.raises(KubectlFailed):
        kubectl("get", "namespaces", "--request-timeout=2s")


def test_a_service_account_may_do_what_its_role_says_and_nothing_else(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    kubectl = api_server.kubectl
    kubectl("create", "serviceaccount", "reader", "-n", api_namespace)
    reader = kubectl.log_in_as("reader", api_namespace, tmp_path / "reader")
    with pytest.raises(KubectlFailed, match="Forbidden"):
        reader.list("configmaps", api_namespace)
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps", "-n", api_namespace)
    who = f"--serviceaccount={api_namespace}:reader"
    kubectl("create", "rolebinding", "reader", "--role=reader", who, "-n", api_namespace)

    wait_until("the role binding counts", lambda: reader.may("list", "configmaps"))

    reader.list("configmaps", api_namespace)
    with pytest.raises(KubectlFailed, match="Forbidden"):
        reader("delete", "configmap", "kube-root-ca.crt", "-n", api_namespace)
    with pytest.raises(KubectlFailed, match="Forbidden"):
        reader.list("configmaps", "default")


def test_the_crd_takes_the_example_and_refuses_it_with_one_input(with_crds: ApiServer, api_namespace: str) -> None:
    good = yaml.safe_load(EXAMPLE.read_text())
    bad = copy.deepcopy(good)
    del bad["spec"]["inputs"][1]

    with_crds.kubectl.apply(good, api_namespace)
    with pytest.raises(KubectlFailed, match="a join needs two inputs"):
        with_crds.kubectl.apply(bad, api_namespace)

    stored = with_crds.kubectl.get("streamjoin", good["metadata"]["name"], api_namespace)
    assert stored is not None
    assert len(stored["spec"]["inputs"]) == 2


def test_what_an_object_owns_goes_with_it(api_server: ApiServer, api_namespace: str) -> None:
    kubectl = api_server.kubectl
    kubectl.apply(config_map("owner"), api_namespace)
    owner = kubectl.get("configmap", "owner", api_namespace)
    assert owner is not None
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    kubectl.apply([config_map("owned", ownerReferences=[reference]), config_map("free")], api_namespace)

    kubectl("delete", "configmap", "owner", "-n", api_namespace)

    wait_until("the owned object is gone", lambda: "owned" not in kubectl.names("configmaps", api_namespace))
    assert "free" in kubectl.names("configmaps", api_namespace)


def test_a_deleted_namespace_is_emptied_and_goes(api_server: ApiServer) -> None:
    kubectl = api_server.kubectl
    with kubectl.namespace() as name:
        kubectl.apply(config_map("inhabitant"), name)
    wait_until("the namespace is gone", lambda: kubectl.get("namespace", name) is None)
