"""What values.schema.json takes and refuses."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
import yaml

from charts.rendering import CHART, Chart, HelmFailed
from joinery_operator.pod_defaults import pod_defaults
from joinery_operator.settings import AllowedByInstallation, Settings, allowed_by, read_settings

pytestmark = pytest.mark.services


def test_the_chart_is_well_made(chart: Chart) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in chart.run("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"watchNamespaces": ["a"]}, "watchNamespaces"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"image.pullPolicy": "Sometimes"}, "pullPolicy"),
        ({"image.digest": "sha256:short"}, "digest"),
        ({"image.repository": ""}, "repository"),
        ({"watch.namespaces": "jobs"}, "namespaces"),
        ({"watch.namespaces": ["Not_A_Namespace"]}, "namespaces"),
        ({"watch.namespaces": ["jobs", "jobs"]}, "namespaces"),
        ({"operator.replicas": 0}, "replicas"),
        ({"operator.podDisruptionBudget.maxUnavailable": 0}, "maxUnavailable"),
        ({"operator.podDisruptionBudget": {"minAvailable": 1}}, "minAvailable"),
        ({"watch.class": "blue green"}, "class"),
        ({"operator.settings": {"pollSeconds": 0}}, "pollSeconds"),
        ({"operator.settings": {"stopGraceSeconds": 1.5}}, "stopGraceSeconds"),
        ({"operator.settings": {"pollMinutes": 1}}, "pollMinutes"),
        ({"operator.resources": {"claims": []}}, "claims"),
        ({"operator.podLabels": {"number": 1}}, "podLabels"),
        ({"operator.podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels"),
        ({"commonLabels": {"app.kubernetes.io/instance": "mine"}}, "commonLabels"),
        ({"operator.extraEnv": [{"name": "JOINERY_OPERATOR_PAGE_URL", "value": "x"}]}, "extraEnv"),
        ({"operator.topologySpreadConstraints": [{"maxSkew": 1}]}, "topologyKey"),
        ({"crds.install": "yes"}, "install"),
        ({"metrics.podMonitor.interval": "often"}, "interval"),
        ({"imagePullSecrets": ["registry"]}, "imagePullSecrets"),
        ({"demoPostgres.enabled": True}, "secretName"),
        ({"jobs.allow": {"pods": ["*"]}}, "pods"),
        ({"jobs.allow.images": "*"}, "images"),
        ({"imageRegistry": "https://mirror.example.com"}, "imageRegistry"),
        ({"drivers.proxy.http": "proxy:3128"}, "proxy"),
        ({"drivers.caBundle.configMap": "Not A Name"}, "configMap"),
        ({"drivers.tolerations": {"key": "a"}}, "tolerations"),
        ({"drivers.tolerations": [{"keys": "a"}]}, "keys"),
        ({"drivers.tolerations": [{"effect": "Never"}]}, "effect"),
        ({"watch.selector": "team in risk"}, "selector"),
        ({"watch.selector": "team=risk,"}, "selector"),
        ({"jobPage.url": "https://joinery.example.com:8443/{name}/"}, "url"),
        ({"jobPage.url": "https://joinery.example.com/{job}/{name}/"}, "url"),
        ({"jobPage.url": "https://joinery.example.com/{name}"}, "url"),
        ({"jobPage.url": "https://joinery.example.com/{namespace}/"}, "url"),
        ({"drivers.podSecurity": {"runAsUser": 0}}, "runAsUser"),
        ({"drivers.podSecurity": {"runAsNonRoot": False}}, "runAsNonRoot"),
        ({"drivers.podSecurity": {"privileged": True}}, "privileged"),
        ({"jobPage.ingress.enabled": True}, "url"),
        ({"jobPage.httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}}, "url"),
    ],
)
def test_wrong_values_are_refused_by_name(chart: Chart, values: dict[str, Any], named: str) -> None:
    with pytest.raises(HelmFailed) as refusal:
        chart.render(values)
    assert "values don't meet the specifications of the schema" in str(refusal.value)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    "values",
    [
        {"watch.selector": "team in (risk, fraud),!test,tier!=dev,example.com/a == b,c"},
        {"watch.selector": "team notin (risk)"},
        {"jobPage.url": "https://{name}.{namespace}.example.com/"},
        {"jobPage.url": "http://joinery.example.com/jobs/{namespace}/{name}/page/"},
        {"drivers.tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]},
        {"drivers.tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b"}]},
    ],
)
def test_what_the_schema_takes_the_operator_reads(chart: Chart, values: dict[str, Any]) -> None:
    """Otherwise the operator would end at its start, again and again."""
    read_settings(chart.render(values).environment)


def test_the_schema_knows_every_default_and_nothing_else() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert _undescribed(defaults, schema, "") == []
    assert set(schema["properties"]) - set(defaults) == {"global"}


def _undescribed(value: Any, schema: dict[str, Any], at: str) -> list[str]:
    """Defaults that the schema does not name, and objects that it does not close."""
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    problems = [] if schema.get("additionalProperties") is False else [f"{at} is open"]
    for name, below in value.items():
        subschema = schema["properties"].get(name)
        problems += [f"{at}.{name}"] if subschema is None else _undescribed(below, subschema, f"{at}.{name}")
    return problems


def test_every_time_of_the_operator_can_be_set(chart: Chart) -> None:
    times = {field.name: field for field in fields(Settings) if field.name.endswith("_seconds")}
    camel = {"".join([head, *map(str.title, rest)]): name for name in times for head, *rest in [name.split("_")]}
    environment = chart.render({"operator.settings": dict.fromkeys(camel, 7)}).environment
    settings = read_settings(environment)
    assert {name: getattr(settings, name) for name in times} == dict.fromkeys(times, 7)
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]["operator"]["properties"]["settings"]["properties"]) == set(camel)
    comments = (CHART / "values.yaml").read_text()
    for name, value in camel.items():
        assert f"{name} {times[value].default:g}" in comments


def test_the_operator_reads_what_the_chart_sets(chart: Chart) -> None:
    settings = read_settings(
        chart.render(
            {
                "watch.namespaces": ["a", "b"],
                "drivers.serviceAccount.name": "spark",
                "runtime.image": {"repository": "mine/runtime", "tag": "2", "digest": ""},
            }
        ).environment
    )
    assert json.loads(settings.status_from), "what it says is looked at with the chart's manifests"
    assert allowed_by(settings.jobs_allow) == AllowedByInstallation()
    plain = Settings(runtime_image="mine/runtime:2", service_account="spark", namespaces=("a", "b"))
    assert settings.pod == "$(POD_NAMESPACE)/$(POD_NAME)/$(POD_UID)", "the kubelet fills it in"
    assert replace(settings, status_from="", jobs_allow="", pod="") == plain


def test_the_operator_gives_pods_of_jobs_what_the_chart_says(chart: Chart) -> None:
    assert "JOINERY_OPERATOR_POD_DEFAULTS" not in chart.render().environment
    security = {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 2000,
        "runAsGroup": 0,
        "fsGroup": 2000,
        "fsGroupChangePolicy": "Always",
        "supplementalGroups": [7],
        "seLinuxOptions": {"level": "s0"},
    }
    settings = read_settings(chart.render({"drivers.podSecurity": security}).environment)
    assert pod_defaults(settings.pod_defaults).model_dump(mode="json", by_alias=True)["podSecurity"] == security
    drivers = {
        "labels": {"team": "data"},
        "tolerations": [{"key": "streams", "operator": "Exists"}],
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "registry"}],
        "proxy": {"http": "http://proxy:3128", "https": "", "noProxy": [".example.com"]},
        "caBundle": {"configMap": "trust", "key": "all.pem"},
        "podSecurity": {"fsGroup": 2000},
    }
    rendered = chart.render({f"drivers.{name}": value for name, value in drivers.items()})
    defaults = pod_defaults(read_settings(rendered.environment).pod_defaults)
    assert defaults.model_dump(mode="json", by_alias=True, exclude_none=True) == drivers


@pytest.mark.parametrize(
    ("repository", "image"),
    [
        ("joinery-runtime", "mirror.example.com/apps/joinery-runtime:1"),
        ("team/joinery-runtime", "mirror.example.com/apps/team/joinery-runtime:1"),
        ("localhost/joinery-runtime", "localhost/joinery-runtime:1"),
        ("images:5000/joinery-runtime", "images:5000/joinery-runtime:1"),
        ("images.example.com/joinery-runtime", "images.example.com/joinery-runtime:1"),
    ],
)
def test_images_without_a_registry_are_pulled_from_the_installations(chart: Chart, repository: str, image: str) -> None:
    rendered = chart.render(
        {
            "imageRegistry": "mirror.example.com/apps",
            "runtime.image": {"repository": repository, "tag": "1"},
            "demoPostgres": {"enabled": True, "secretName": "demo"},
        }
    )
    assert rendered.environment["JOINERY_OPERATOR_RUNTIME_IMAGE"] == image
    images = {container["image"] for _, spec in rendered.pods() for container in spec["containers"]}
    assert images == {"mirror.example.com/apps/joinery-operator:0.1.0", "mirror.example.com/apps/postgres:18"}


def test_the_demos_postgres_has_no_user_of_its_own_on_openshift(chart: Chart) -> None:
    values = ["--set-json", 'demoPostgres={"enabled":true,"secretName":"demo"}']
    command = ["template", "joinery", str(CHART), "--show-only", "templates/demo-postgres.yaml", *values]
    command += ["--kube-version", "1.34.0"]
    assert "runAsUser: 999" in chart.run(*command)
    assert "runAsUser" not in chart.run(*command, "--api-versions", "security.openshift.io/v1")


def test_the_operator_allows_jobs_what_the_chart_says(chart: Chart) -> None:
    allow = {
        "images": ["a/*"],
        "serviceAccounts": ["b"],
        "sparkConf": ["spark.c"],
        "podTemplate": ["spec.initContainers[*]"],
        "properties": ["plugin.library.paths"],
        "inputFiles": ["/run/x"],
    }
    settings = read_settings(chart.render({"jobs.allow": allow}).environment)
    assert allowed_by(settings.jobs_allow).model_dump(mode="json", by_alias=True) == allow
