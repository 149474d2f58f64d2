"""What the chart renders, for a table of values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.rendering import CHART, NAMESPACE, ROOT, Chart, HelmFailed, Manifest, Rendered
from joinery_operator.kube.process import BLUE_GREEN_PERMISSIONS, PERMISSIONS, page_permissions
from joinery_operator.kube.resources import HTTP_ROUTE, INGRESS, JOBS, OWNERS, ApiResource
from joinery_operator.names import labels as driver_labels
from joinery_operator.settings import read_settings

pytestmark = pytest.mark.services

DIGEST = "sha256:" + "a" * 64
ALL_ON: dict[str, Any] = {
    "metrics.podMonitor.enabled": True,
    "metrics.dashboard.enabled": True,
    "networkPolicy.enabled": True,
    "demoPostgres": {"enabled": True, "secretName": "demo"},
    "drivers.persistentVolumeClaims": True,
    "imagePullSecrets": [{"name": "registry"}],
}
TABLE: dict[str, dict[str, Any]] = {
    "defaults": {},
    "namespaced": {"watch.namespaces": ["jobs", "more-jobs"]},
    "all-on": ALL_ON,
    "all-on-namespaced": {**ALL_ON, "watch.namespaces": ["jobs"]},
    "everything-by-others": {
        "crds.install": False,
        "rbac": {"create": False, "aggregate": False},
        "drivers.serviceAccount.create": False,
        "operator.serviceAccount": {"create": False, "name": "mine"},
    },
    "placed": {
        "operator.nodeSelector": {"pool": "system"},
        "operator.tolerations": [{"key": "system", "operator": "Exists"}],
        "operator.affinity": {"nodeAffinity": {}},
        "operator.priorityClassName": "high",
        "operator.podLabels": {"team": "data"},
        "operator.podAnnotations": {"note": "x"},
    },
    "replicas": {**ALL_ON, "operator.replicas": 2},
    "labelled": {**ALL_ON, "commonLabels": {"team": "data", "cost": "1"}, "operator.podLabels": {"team": "streams"}},
}
BUILT_IN = {
    "admissionregistration.k8s.io", "apiextensions.k8s.io", "apps", "networking.k8s.io", "rbac.authorization.k8s.io",
    "monitoring.coreos.com", "policy",
}  # fmt: skip
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


@pytest.fixture(params=TABLE.values(), ids=TABLE.keys(), scope="module")
def rendered(chart: Chart, request: pytest.FixtureRequest) -> Rendered:
    return chart.render(request.param)


def test_every_pod_is_restricted(rendered: Rendered) -> None:
    """The rules of Kubernetes' restricted Pod Security profile, and a read-only root."""
    pods = dict(rendered.pods())
    assert {"joinery-operator", "joinery-test-ready"} <= set(pods)
    for name, spec in pods.items():
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert all("emptyDir" in volume for volume in spec.get("volumes", [])), name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


def test_only_the_operator_talks_to_the_api(rendered: Rendered) -> None:
    tokens = {name: spec["automountServiceAccountToken"] for name, spec in rendered.pods()}
    assert [name for name, mounted in tokens.items() if mounted] == ["joinery-operator"]


def test_no_right_is_a_wildcard_or_about_secrets(rendered: Rendered) -> None:
    for role in (*rendered.of("Role"), *rendered.of("ClusterRole")):
        for rule in role["rules"]:
            listed = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not [word for word in listed if "*" in word]
            assert "secrets" not in rule["resources"]
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
            assert not [
                resource for resource in rule["resources"] if resource in {"pods/exec", "serviceaccounts/token"}
            ]


def test_no_secret_is_rendered(rendered: Rendered) -> None:
    assert not rendered.of("Secret")
    for _, spec in rendered.pods():
        for container in spec["containers"]:
            assert not [
                variable
                for variable in container.get("env", ())
                if "PASSWORD" in variable["name"] and "value" in variable
            ]


def test_labels_and_namespaces_are_said(rendered: Rendered) -> None:
    for manifest in rendered.objects:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "joinery"
        assert labels["app.kubernetes.io/instance"] == "joinery"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert ("namespace" in manifest["metadata"]) is (manifest["kind"] not in CLUSTER_SCOPED)
        group = manifest["apiVersion"].rpartition("/")[0]
        assert group in BUILT_IN or not group


def test_what_is_bound_exists(rendered: Rendered) -> None:
    """Every binding's role is rendered in its place, and what selects pods selects some."""
    roles = {
        (role["kind"], role["metadata"].get("namespace"), role["metadata"]["name"])
        for role in (*rendered.of("Role"), *rendered.of("ClusterRole"))
    }
    for binding in (*rendered.of("RoleBinding"), *rendered.of("ClusterRoleBinding")):
        reference = binding["roleRef"]
        assert (reference["kind"], binding["metadata"].get("namespace"), reference["name"]) in roles
    labels = [deployment["spec"]["template"]["metadata"]["labels"] for deployment in rendered.of("Deployment")]
    selectors = [
        *(service["spec"]["selector"] for service in rendered.of("Service")),
        *(deployment["spec"]["selector"]["matchLabels"] for deployment in rendered.of("Deployment")),
        *(policy["spec"]["podSelector"]["matchLabels"] for policy in rendered.of("NetworkPolicy")),
    ]
    for selector in selectors:
        assert [pod_labels for pod_labels in labels if selector.items() <= pod_labels.items()], selector


def _rules(role: Manifest) -> dict[str, set[str]]:
    verbs: dict[str, set[str]] = {}
    for rule in role["rules"]:
        for resource in rule["resources"]:
            verbs.setdefault(resource, set()).update(rule["verbs"])
    return verbs


def _operator_rules(*page_kinds: ApiResource) -> dict[str, set[str]]:
    """What the operator checks at its start that it may, and what only some clusters check."""
    of_pages = [right for kind in page_kinds for right in page_permissions(kind)]
    rules = {f"{owner.plural}/finalizers": {"update"} for owner in OWNERS}
    for right in (*PERMISSIONS, *BLUE_GREEN_PERMISSIONS, *of_pages):
        name = f"{right.resource.plural}/{right.subresource}" if right.subresource else right.resource.plural
        rules.setdefault(name, set()).add(right.verb)
    return rules


DRIVER_RULES = {"pods": {"get", "list", "watch", "create", "delete", "deletecollection"}}


def test_cluster_wide_rights(chart: Chart) -> None:
    rendered = chart.render()
    assert _rules(rendered.one("ClusterRole", "joinery-operator")) == _operator_rules() | {"namespaces": {"get"}}
    (subject,) = rendered.one("ClusterRoleBinding", "joinery-operator")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "joinery-operator", "namespace": NAMESPACE}
    assert [role["metadata"]["namespace"] for role in rendered.of("Role")] == [NAMESPACE]
    assert _rules(rendered.one("Role", "joinery-driver")) == DRIVER_RULES
    assert "JOINERY_OPERATOR_NAMESPACES" not in rendered.environment


def test_namespaced_rights(chart: Chart) -> None:
    rendered = chart.render({"watch.namespaces": ["jobs", "more"], "rbac.aggregate": False})
    assert not rendered.of("ClusterRole")
    assert not rendered.of("ClusterRoleBinding")
    roles = rendered.by_name["Role", "joinery-operator"]
    assert [role["metadata"]["namespace"] for role in roles] == ["jobs", "more"]
    assert all(_rules(role) == _operator_rules() | {"namespaces": {"get"}} for role in roles)
    for binding in rendered.by_name["RoleBinding", "joinery-operator"]:
        assert binding["subjects"][0]["namespace"] == NAMESPACE
    accounts = rendered.by_name["ServiceAccount", "joinery-driver"]
    assert [account["metadata"]["namespace"] for account in accounts] == ["jobs", "more"]
    (of_cluster,) = rendered.by_name["Role", f"joinery-operator-{NAMESPACE}"]
    assert of_cluster["metadata"]["namespace"] == "kube-system"
    of_events = rendered.one("Role", "joinery-operator-events")
    assert (of_events["metadata"]["namespace"], _rules(of_events)) == (NAMESPACE, {"events": {"create", "patch"}})
    (rule,) = of_cluster["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (["namespaces"], ["kube-system"], ["get"])
    assert rendered.environment["JOINERY_OPERATOR_NAMESPACES"] == "jobs,more"


@pytest.mark.parametrize("namespaces", [[], ["jobs"]])
def test_a_cluster_with_a_name_is_not_asked_for_it(chart: Chart, namespaces: list[str]) -> None:
    """Whoever installs it may have no say about kube-system."""
    rendered = chart.render({"cluster": "east", "watch.namespaces": namespaces})
    assert rendered.environment["JOINERY_OPERATOR_CLUSTER"] == "east"
    if not namespaces:
        assert "namespaces" not in _rules(rendered.one("ClusterRole", "joinery-operator"))
    assert not [manifest for manifest in rendered.objects if manifest["metadata"].get("namespace") == "kube-system"]
    with pytest.raises(HelmFailed):
        chart.render({"cluster": "east/1"})


def test_drivers_have_their_own_namespaces(chart: Chart) -> None:
    rendered = chart.render({"drivers.namespaces": ["jobs"], "drivers.persistentVolumeClaims": True})
    assert rendered.one("ServiceAccount", "joinery-driver")["metadata"]["namespace"] == "jobs"
    assert rendered.one("RoleBinding", "joinery-driver")["subjects"][0]["namespace"] == "jobs"
    assert _rules(rendered.one("Role", "joinery-driver")) == {**DRIVER_RULES, "persistentvolumeclaims": {"create"}}


def test_one_operator_at_a_time(chart: Chart) -> None:
    spec = chart.render().one("Deployment", "joinery-operator")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    operator = spec["template"]["spec"]["containers"][0]
    assert operator["ports"] == [{"name": "metrics", "containerPort": 8080}]
    assert operator["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert operator["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_replicas_share_a_lease(chart: Chart) -> None:
    single, rendered = chart.render(), chart.render({"operator.replicas": 2, "watch.namespaces": ["jobs"]})
    assert "JOINERY_OPERATOR_LEASE" not in single.environment
    assert ("Role", "joinery-operator-lease") not in single.by_name
    spec = rendered.one("Deployment", "joinery-operator")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    assert "podAntiAffinity" in spec["template"]["spec"]["affinity"]
    assert rendered.environment["JOINERY_OPERATOR_LEASE"] == f"{NAMESPACE}/joinery-operator"
    role, binding = (rendered.one(kind, "joinery-operator-lease") for kind in ("Role", "RoleBinding"))
    assert {role["metadata"]["namespace"], binding["metadata"]["namespace"]} == {NAMESPACE}
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in role["rules"]] == [
        (None, ["create"]),
        (["joinery-operator"], ["get", "update"]),
    ]
    own = {"nodeAffinity": {}}
    chosen = chart.render({"operator.replicas": 2, "operator.affinity": own}).one("Deployment", "joinery-operator")
    assert chosen["spec"]["template"]["spec"]["affinity"] == own


def test_a_drain_evicts_one_replica_at_a_time_and_is_not_stopped_by_an_only_one(chart: Chart) -> None:
    budget, name = "operator.podDisruptionBudget", "joinery-operator"
    rendered = chart.render({"operator.replicas": 2})
    spec = rendered.one("PodDisruptionBudget", name)["spec"]
    labels = rendered.one("Deployment", name)["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    share = chart.render({"operator.replicas": 4, f"{budget}.maxUnavailable": "50%"}).one("PodDisruptionBudget", name)
    assert share["spec"]["maxUnavailable"] == "50%"
    for values in ({}, {"operator.replicas": 2, f"{budget}.enabled": False}):
        assert ("PodDisruptionBudget", name) not in chart.render(values).by_name


def test_which_jobs_an_operator_works_on(chart: Chart) -> None:
    rendered = chart.render({"watch.class": "blue", "watch.selector": "team in (risk, fraud)"})
    assert rendered.environment["JOINERY_OPERATOR_JOB_CLASS"] == "blue"
    assert rendered.environment["JOINERY_OPERATOR_JOB_SELECTOR"] == "team in (risk, fraud)"


@pytest.mark.parametrize(
    ("image", "written"),
    [
        ({}, "joinery-operator:0.1.0"),
        ({"image.tag": "7"}, "joinery-operator:7"),
        ({"image.repository": "local:5000/op", "image.tag": "7"}, "local:5000/op:7"),
        ({"image.tag": "7", "image.digest": DIGEST}, f"joinery-operator@{DIGEST}"),
    ],
)
def test_images(chart: Chart, image: dict[str, str], written: str) -> None:
    rendered = chart.render(image)
    assert rendered.operator["image"] == written
    assert rendered.one("Pod", "joinery-test-ready")["spec"]["containers"][0]["image"] == written
    assert rendered.environment["JOINERY_OPERATOR_RUNTIME_IMAGE"] == "joinery-runtime:0.1.0"


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("joinery", {}, "joinery-operator"),
        ("prod", {}, "prod-joinery-operator"),
        ("prod", {"nameOverride": "streams"}, "prod-streams-operator"),
        ("prod", {"fullnameOverride": "streams"}, "streams-operator"),
    ],
)
def test_names(chart: Chart, release: str, values: dict[str, str], name: str) -> None:
    rendered = chart.render(values, release)
    assert [deployment["metadata"]["name"] for deployment in rendered.of("Deployment")] == [name]


def test_definitions_are_those_of_crds(chart: Chart) -> None:
    """Helm parses and upgrades them like all else; kept, they outlive the release."""
    rendered = chart.render()
    sources = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").iterdir())]
    assert sources
    assert [definition["spec"] for definition in rendered.of("CustomResourceDefinition")] == [
        source["spec"] for source in sources
    ]
    for definition in rendered.of("CustomResourceDefinition"):
        assert definition["metadata"]["annotations"] == {
            "argocd.argoproj.io/sync-wave": "-1",
            "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
            "helm.sh/resource-policy": "keep",
        }


def test_a_chart_that_lost_its_definitions_is_not_installed(chart: Chart, tmp_path: Path) -> None:
    """Otherwise the operator's role would name no resource, and Helm would report success."""
    copy = shutil.copytree(CHART, tmp_path / "joinery", ignore=shutil.ignore_patterns("crds"))
    for values in ((), ("--set=crds.install=false",)):
        with pytest.raises(HelmFailed, match=r"has no files/crds.*install the chart of a release"):
            chart.run("template", "joinery", str(copy), "--kube-version", "1.34.0", *values)


def test_an_ingress_needs_an_address_also_without_the_schema(chart: Chart) -> None:
    options = ("--kube-version", "1.34.0", "--skip-schema-validation")
    for way in ("ingress", "httpRoute"):
        with pytest.raises(HelmFailed, match=rf"jobPage.{way}.enabled needs jobPage.url"):
            chart.run("template", "joinery", str(CHART), *options, f"--set=jobPage.{way}.enabled=true")


def test_definitions_can_be_left_to_others_or_to_the_release(chart: Chart) -> None:
    assert not chart.render({"crds.install": False}).of("CustomResourceDefinition")
    (first, *_) = chart.render({"crds.keep": False}).of("CustomResourceDefinition")
    assert first["metadata"]["annotations"] == {"argocd.argoproj.io/sync-wave": "-1"}


def test_options_are_off_by_default(chart: Chart) -> None:
    kinds = {manifest["kind"] for manifest in chart.render().objects}
    assert not kinds & {"PodMonitor", "PrometheusRule", "NetworkPolicy"}
    names = {manifest["metadata"]["name"] for manifest in chart.render().objects}
    assert not {name for name in names if "dashboard" in name or "postgres" in name}


def test_monitors_find_operator_and_drivers(chart: Chart) -> None:
    on = {"metrics.podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}
    rendered = chart.render(on)
    for monitor in rendered.of("PodMonitor"):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
    operator = rendered.one("PodMonitor", "joinery-operator")["spec"]
    labels = rendered.one("Deployment", "joinery-operator")["spec"]["template"]["metadata"]["labels"]
    assert operator["selector"]["matchLabels"].items() <= labels.items()
    assert operator["podMetricsEndpoints"][0]["port"] == "metrics"
    drivers = rendered.one("PodMonitor", "joinery-drivers")["spec"]
    assert drivers["namespaceSelector"] == {"any": True}
    for job in JOBS:
        resource = {"kind": job.kind, "metadata": {"name": "j"}}
        assert drivers["selector"]["matchLabels"].items() <= driver_labels(resource, "driver").items()
    assert drivers["podMetricsEndpoints"][0]["port"] == "status"
    namespaced = chart.render({**on, "watch.namespaces": ["jobs"]})
    assert namespaced.one("PodMonitor", "joinery-drivers")["spec"]["namespaceSelector"] == {"matchNames": ["jobs"]}
    second = chart.render({"metrics.podMonitor": {"enabled": True, "drivers": False}})
    assert [monitor["metadata"]["name"] for monitor in second.of("PodMonitor")] == ["joinery-operator"]


def test_the_dashboard_is_whole(chart: Chart) -> None:
    config_map = chart.render({"metrics.dashboard.enabled": True}).one("ConfigMap", "joinery-dashboard")
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads(config_map["data"]["joinery.json"])
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 10
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        assert panel["targets"], panel["title"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def _status_from(rendered: Rendered) -> Any:
    return json.loads(rendered.environment.get("JOINERY_OPERATOR_STATUS_FROM", "null"))


def test_who_reaches_a_jobs_status_port(chart: Chart) -> None:
    rendered = chart.render()
    pod = rendered.one("Deployment", "joinery-operator")
    (operator,) = _status_from(rendered)
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": pod["metadata"]["namespace"]}
    assert operator["podSelector"]["matchLabels"].items() <= pod["spec"]["template"]["metadata"]["labels"].items()
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert _status_from(chart.render({"networkPolicy": {"jobs": {"statusFrom": peers}}})) == [operator, *peers]
    scraped = _status_from(chart.render({"metrics.podMonitor.enabled": True}))
    assert scraped == [operator, {"namespaceSelector": {}}], "Prometheus may run anywhere"
    assert _status_from(chart.render({"networkPolicy.jobs.enabled": False})) is None


def test_the_job_page_has_an_address_and_an_ingress(chart: Chart) -> None:
    assert read_settings(chart.render().environment).page_url == ""
    url = "https://joinery.example.com/{namespace}/{name}/"
    ingress = {"enabled": True, "className": "nginx", "annotations": {"a/b": "c"}, "tlsSecretName": "cert"}
    rendered = chart.render({"jobPage": {"url": url, "ingress": ingress}})
    settings = read_settings(rendered.environment)
    assert settings.page_url == url
    assert json.loads(settings.page_ingress) == {key: value for key, value in ingress.items() if key != "enabled"}
    assert _status_from(rendered)[1:] == [{"namespaceSelector": {}}], "an ingress controller may run anywhere"


def test_the_job_page_has_an_http_route(chart: Chart) -> None:
    route = {"enabled": True, "parentRefs": [{"name": "public", "namespace": "edge"}], "annotations": {"a/b": "c"}}
    rendered = chart.render({"jobPage": {"url": "https://{name}.example.com/", "httpRoute": route}})
    settings = read_settings(rendered.environment)
    assert json.loads(settings.page_route) == {key: value for key, value in route.items() if key != "enabled"}
    assert settings.page_ingress == ""
    assert _status_from(rendered)[1:] == [{"namespaceSelector": {}}], "a gateway may run anywhere"
    with pytest.raises(HelmFailed, match="parentRefs"):
        chart.render({"jobPage": {"url": "https://{name}.example.com/", "httpRoute": {"enabled": True}}})


def test_the_metrics_port_can_be_closed(chart: Chart) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    rendered = chart.render({"networkPolicy": {"enabled": True, "metricsFrom": peers}})
    (rule,) = rendered.one("NetworkPolicy", "joinery-operator")["spec"]["ingress"]
    assert rule == {"ports": [{"protocol": "TCP", "port": "metrics"}], "from": peers}


def test_common_labels_are_on_every_object_and_in_no_selector(chart: Chart) -> None:
    rendered = chart.render({**ALL_ON, "commonLabels": {"team": "data"}, "operator.podLabels": {"cost": "1"}})
    assert {manifest["metadata"]["labels"]["team"] for manifest in rendered.objects} == {"data"}
    deployment = rendered.one("Deployment", "joinery-operator")["spec"]
    assert deployment["template"]["metadata"]["labels"].items() >= {"team": "data", "cost": "1"}.items()
    assert "team" not in deployment["selector"]["matchLabels"]
    drivers = json.loads(rendered.environment["JOINERY_OPERATOR_STATUS_FROM"])
    assert "team" not in drivers[0]["podSelector"]["matchLabels"]
    assert "JOINERY_OPERATOR_POD_DEFAULTS" not in rendered.environment, "jobs have labels of their own"


def test_the_operators_pod_takes_what_the_installation_adds(chart: Chart) -> None:
    constraint = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    selector = {"matchLabels": {"own": "selector"}}
    rendered = chart.render(
        {
            "operator.extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "operator.podSecurityContext": {"runAsUser": 1234, "fsGroup": 1234},
            "operator.topologySpreadConstraints": [constraint, {**constraint, "labelSelector": selector}],
        }
    )
    pod = rendered.one("Deployment", "joinery-operator")["spec"]["template"]
    assert rendered.environment["HTTPS_PROXY"] == "http://proxy:3128"
    restricted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for _, spec in rendered.pods():
        assert spec["securityContext"] == {**restricted, "runAsUser": 1234, "fsGroup": 1234}
    first, second = pod["spec"]["topologySpreadConstraints"]
    assert second == {**constraint, "labelSelector": selector}
    own = rendered.one("Deployment", "joinery-operator")["spec"]["selector"]
    assert first == {**constraint, "labelSelector": own}
    assert own["matchLabels"].items() <= pod["metadata"]["labels"].items()


PAGE_URL = {"jobPage.url": "https://{name}.{namespace}.example.com/"}
ROUTES = {"jobPage.httpRoute.parentRefs": [{"name": "public"}]}


@pytest.mark.parametrize(
    ("values", "page_kinds"),
    [
        ({}, ()),
        (PAGE_URL, ()),
        ({**PAGE_URL, "jobPage.ingress.enabled": True}, (INGRESS,)),
        ({**PAGE_URL, **ROUTES, "jobPage.httpRoute.enabled": True}, (HTTP_ROUTE,)),
        ({"jobPage.ingress.permissions": True, "jobPage.httpRoute.permissions": True}, (INGRESS, HTTP_ROUTE)),
    ],
)
def test_rights_on_what_leads_to_pages_come_with_the_setting(
    chart: Chart, values: dict[str, Any], page_kinds: tuple[ApiResource, ...]
) -> None:
    rendered = chart.render(values)
    rules = _rules(rendered.one("ClusterRole", "joinery-operator"))
    networking = {**_operator_rules(), **{kind.plural: set() for kind in page_kinds}}
    assert rules.keys() == {*networking, "namespaces"}
    assert all(rules[kind.plural] == _operator_rules(kind)[kind.plural] for kind in page_kinds)
    for name in ("INGRESS", "ROUTE"):
        assert '"permissions"' not in rendered.environment.get(f"JOINERY_OPERATOR_PAGE_{name}", "")
    read_settings(rendered.environment)
