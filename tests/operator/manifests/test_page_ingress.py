"""The way to a job's page from outside the cluster."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import pytest

from joinery_operator.manifests import page_ingress, page_route, page_url, repair_patch, service
from joinery_operator.settings import Settings, read_settings
from joinery_runtime.errors import EnvironmentProblem

LOGIN = {"nginx.ingress.kubernetes.io/auth-type": "basic"}
GIVEN = {"className": "nginx", "annotations": LOGIN, "tlsSecretName": "cert"}
SETTINGS = Settings(page_url="https://joinery.example.com/{namespace}/{name}/", page_ingress=json.dumps(GIVEN))


def test_it_leads_from_the_address_to_the_status_port(job):
    metadata = job.resource["metadata"]
    ingress = page_ingress(job.resource, SETTINGS)
    path = f"/{metadata['namespace']}/{metadata['name']}/"
    assert page_url(job.resource, SETTINGS) == f"https://joinery.example.com{path}"
    assert ingress["metadata"]["annotations"] == GIVEN["annotations"]
    assert ingress["spec"] == {
        "ingressClassName": "nginx",
        "tls": [{"hosts": ["joinery.example.com"], "secretName": "cert"}],
        "rules": [
            {
                "host": "joinery.example.com",
                "http": {
                    "paths": [
                        {
                            "path": path,
                            "pathType": "Prefix",
                            "backend": {
                                "service": {
                                    "name": service(job.resource)["metadata"]["name"],
                                    "port": {"name": "status"},
                                }
                            },
                        }
                    ]
                },
            }
        ],
    }


def test_a_job_may_have_a_host_of_its_own(job):
    own = replace(SETTINGS, page_url="http://{name}.{namespace}.example.com/", page_ingress="{}")
    dotted = copy.deepcopy(job.resource)
    dotted["metadata"]["name"] = "shop.orders"
    (rule,) = page_ingress(dotted, own)["spec"]["rules"]
    assert rule["host"] == f"shop-orders.{dotted['metadata']['namespace']}.example.com"
    assert rule["http"]["paths"][0]["path"] == "/"
    assert page_ingress(dotted, own)["spec"].keys() == {"rules"}


def host_of(name, namespace="shop", url="https://{name}.{namespace}.example.com/"):
    address = page_url({"metadata": {"name": name, "namespace": namespace}}, replace(SETTINGS, page_url=url))
    return address.partition("://")[2].partition("/")[0]


@pytest.mark.parametrize(
    "url",
    [
        "https://{name}.{namespace}.example.com/",
        "https://{name}-{namespace}.example.com/",
        "https://jobs-{namespace}-{name}-page.example.com/{name}/",
    ],
)
@pytest.mark.parametrize("name", ["o" * 253, "o" * 63, "o" * 64, f"{'o' * 51}.{'p' * 60}", ".".join(["orders"] * 20)])
def test_a_host_has_labels_of_63_characters_at_most(url, name):
    host = host_of(name, "s" * 63, url)
    assert len(host) <= 253
    for label in host.split("."):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", label)
    assert host == host_of(name, "s" * 63, url)


def test_a_host_that_fits_is_the_jobs_name_and_shortened_ones_differ():
    assert host_of("o" * 63) == f"{'o' * 63}.shop.example.com"
    long = "o" * 64
    assert host_of(long).startswith("o" * 52 + "-")
    assert len({host_of(name) for name in (long, f"{long}o", f"{long}.a", f"{long}-a")}) == 4
    of_namespaces = {host_of("o" * 40, "s" * 40 + end, "https://{name}-{namespace}.x/") for end in "ab"}
    assert len(of_namespaces) == 2


def test_a_path_holds_a_name_of_any_length(job):
    long = {"metadata": {"name": "o" * 253, "namespace": "shop"}}
    assert page_url(long, SETTINGS) == f"https://joinery.example.com/shop/{'o' * 253}/"


def test_what_others_change_of_it_comes_back_and_a_filled_in_class_stays(job):
    expected = page_ingress(job.resource, SETTINGS)
    assert repair_patch(expected, copy.deepcopy(expected)) is None
    live = copy.deepcopy(expected)
    live["spec"]["rules"][0]["host"] = "elsewhere.example.com"
    patch = repair_patch(expected, live)
    assert patch is not None
    assert (patch.kind, patch.body) == ("Ingress", {"spec": expected["spec"]})
    plain = page_ingress(job.resource, replace(SETTINGS, page_ingress="{}"))
    filled = copy.deepcopy(plain)
    filled["spec"]["ingressClassName"] = "the-default"
    assert repair_patch(plain, filled) is None
    patch = repair_patch(plain, {**filled, "spec": {**filled["spec"], "tls": []}})
    assert patch is not None
    assert patch.body["spec"]["tls"] is None


ROUTED = replace(
    SETTINGS, page_route=json.dumps({"parentRefs": [{"name": "public", "namespace": "edge"}], "annotations": LOGIN})
)


def test_a_route_leads_the_same_way_through_a_gateway(job):
    metadata, route = job.resource["metadata"], page_route(job.resource, ROUTED)
    assert (route["apiVersion"], route["kind"]) == ("gateway.networking.k8s.io/v1", "HTTPRoute")
    assert route["metadata"]["name"] == page_ingress(job.resource, SETTINGS)["metadata"]["name"]
    assert route["metadata"]["annotations"] == LOGIN
    to = service(job.resource)
    backend = {"group": "", "kind": "Service", "name": to["metadata"]["name"], "port": 8998, "weight": 1}
    assert backend["port"] in {port["port"] for port in to["spec"]["ports"]}
    path = {"type": "PathPrefix", "value": f"/{metadata['namespace']}/{metadata['name']}/"}
    assert route["spec"] == {
        "parentRefs": [
            {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public", "namespace": "edge"}
        ],
        "hostnames": ["joinery.example.com"],
        "rules": [{"matches": [{"path": path}], "backendRefs": [backend]}],
    }
    changed = copy.deepcopy(route)
    assert repair_patch(route, changed) is None
    changed["spec"] |= {"hostnames": ["elsewhere.example.com"], "useDefaultGateways": "All"}
    patch = repair_patch(route, changed)
    assert patch is not None
    assert (patch.kind, patch.body["spec"]) == ("HTTPRoute", {**route["spec"], "useDefaultGateways": None})


@pytest.mark.parametrize(
    "text", ["public", "{}", '{"parentRefs": []}', '{"parentRefs": [{}]}', '{"parentRefs": [{"name": "a"}], "to": "b"}']
)
def test_route_settings_that_are_none_are_refused(text):
    environment = {"JOINERY_OPERATOR_PAGE_URL": "https://{name}.x/", "JOINERY_OPERATOR_PAGE_ROUTE": text}
    with pytest.raises(EnvironmentProblem, match="JOINERY_OPERATOR_PAGE_ROUTE is") as caught:
        read_settings(environment)
    assert "jobPage.httpRoute.parentRefs" in caught.value.todo


@pytest.mark.parametrize(
    "text",
    [
        "joinery.example.com/{name}/", "https://joinery.example.com/", "https://joinery.example.com/{name}",
        "https://joinery.example.com/{job}/{name}/", "https://joinery.example.com:8443/{name}/", "https://{name/", "ftp://{name}/",
        "https://joinery.example.com/?{name}/", f"https://{{name}}.{'x' * 64}.com/", f"https://{{name}}{'x' * 64}.com/",
    ],
)  # fmt: skip
def test_addresses_that_are_none_are_refused(text):
    with pytest.raises(EnvironmentProblem, match="JOINERY_OPERATOR_PAGE_URL is") as caught:
        read_settings({"JOINERY_OPERATOR_PAGE_URL": text})
    assert "jobPage.url" in caught.value.todo


@pytest.mark.parametrize("text", ["nginx", "[]", '{"class": "nginx"}'])
def test_ingress_settings_that_are_none_are_refused(text):
    environment = {"JOINERY_OPERATOR_PAGE_URL": "https://{name}.x/", "JOINERY_OPERATOR_PAGE_INGRESS": text}
    with pytest.raises(EnvironmentProblem, match="JOINERY_OPERATOR_PAGE_INGRESS is") as caught:
        read_settings(environment)
    assert "jobPage.ingress" in caught.value.todo


@pytest.mark.parametrize("name", ["PAGE_INGRESS", "PAGE_ROUTE"])
def test_a_way_to_the_page_needs_an_address(name):
    with pytest.raises(EnvironmentProblem, match=f"{name} is set, and JOINERY_OPERATOR_PAGE_URL is not"):
        read_settings({f"JOINERY_OPERATOR_{name}": '{"parentRefs": [{"name": "a"}]}' if "ROUTE" in name else "{}"})
