"""The whole cluster is a real one: pods run and are looked into, names resolve, limits hold, services are reached."""

from __future__ import annotations

import json
import shutil
import signal
from typing import Any

import pytest

from joinery_devkit.images.archive import oci_archive
from joinery_devkit.kubernetes import packages
from joinery_devkit.kubernetes.kubectl import Kubectl, KubectlFailed, log_of, phase, pod, wait_until
from joinery_devkit.kubernetes.providers import KubernetesCluster

pytestmark = pytest.mark.node

IMAGE = "localhost/joinery-busybox:1"
APPLETS = ("cat", "httpd", "nslookup", "sh", "sleep", "wget")
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 185,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def busybox(cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory) -> KubernetesCluster:
    """The cluster, which knows an image with a shell."""
    packages.install(packages.BUSYBOX)
    folder = tmp_path_factory.mktemp("busybox")
    programs = folder / "layer" / "bin"
    programs.mkdir(parents=True)
    shutil.copy("/bin/busybox", programs)
    for applet in APPLETS:
        (programs / applet).symlink_to("busybox")
    cluster.load_image(oci_archive(IMAGE, folder / "image.tar", [folder / "layer"]))
    return cluster


PATIENCE_S = 240  # for what hangs: the machine may be a tenth of itself for minutes


def ready(kubectl: Kubectl, name: str, namespace: str) -> None:
    waits = ("wait", f"pod/{name}", "--for=condition=Ready", f"--timeout={PATIENCE_S}s", "-n", namespace)
    kubectl(*waits, timeout_seconds=PATIENCE_S)


def test_a_pod_runs_under_the_restricted_profile_and_its_log_is_read(
    busybox: KubernetesCluster, cluster_namespace: str
) -> None:
    level = "pod-security.kubernetes.io/enforce=restricted"
    busybox.kubectl("label", "namespace", cluster_namespace, level)
    hello = pod(
        "hello", IMAGE, "sh", "-c", 'echo "user $(busybox id -u)"; echo no >/file || true', securityContext=RESTRICTED
    )
    busybox.kubectl.apply(hello, cluster_namespace)

    log = log_of(busybox.kubectl, "hello", cluster_namespace)

    assert "user 185" in log
    assert "Read-only file system" in log


def test_names_of_services_resolve(busybox: KubernetesCluster, cluster_namespace: str) -> None:
    # One question may be lost while the name server has just come.
    ask = 'until found=$(nslookup kubernetes.default.svc.cluster.local); do sleep 1; done; echo "$found"'
    busybox.kubectl.apply(pod("ask", IMAGE, "sh", "-c", ask), cluster_namespace)
    service = busybox.kubectl.get("service", "kubernetes")
    assert service is not None

    assert service["spec"]["clusterIP"] in log_of(busybox.kubectl, "ask", cluster_namespace)


def test_a_command_runs_in_a_pod(busybox: KubernetesCluster, cluster_namespace: str) -> None:
    busybox.kubectl.apply(pod("sleeper", IMAGE, "sleep", "3600"), cluster_namespace)
    ready(busybox.kubectl, "sleeper", cluster_namespace)

    printed = busybox.kubectl("exec", "sleeper", "-n", cluster_namespace, "--", "cat", "/etc/hostname")

    assert printed.strip() == "sleeper"


def test_a_service_is_reached_from_a_pod_and_through_the_api_server(
    busybox: KubernetesCluster, cluster_namespace: str
) -> None:
    say = "busybox mkdir /www && echo served >/www/index.html && exec httpd -f -p 8000 -h /www"
    probe = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    busybox.kubectl.apply(
        pod("web", IMAGE, "sh", "-c", say, labels={"app": "web"}, readinessProbe=probe), cluster_namespace
    )
    ports = [{"port": 80, "targetPort": 8000}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    busybox.kubectl.apply({**service, "spec": {"selector": {"app": "web"}, "ports": ports}}, cluster_namespace)
    ready(busybox.kubectl, "web", cluster_namespace)
    web_service = busybox.kubectl.get("service", "web", cluster_namespace)
    assert web_service is not None

    address = web_service["spec"]["clusterIP"]
    # Who routes to the pod learns of it a moment later.
    fetch = f"until wget -qO- http://{address}/ 2>/dev/null; do sleep 1; done"
    busybox.kubectl.apply(pod("client", IMAGE, "sh", "-c", fetch), cluster_namespace)

    assert log_of(busybox.kubectl, "client", cluster_namespace) == "served\n"
    proxy = f"/api/v1/namespaces/{cluster_namespace}/services/web:80/proxy/"
    assert busybox.kubectl("get", "--raw", proxy) == "served\n"


def test_whom_a_network_policy_does_not_name_is_kept_out(busybox: KubernetesCluster, cluster_namespace: str) -> None:
    kubectl = busybox.kubectl
    kubectl.apply(
        [
            pod("web", IMAGE, "httpd", "-f", "-p", "8000", "-h", "/etc", labels={"app": "web"}),
            *(pod(name, IMAGE, "sleep", "3600", labels={"app": name}) for name in ("named", "stranger")),
        ],
        cluster_namespace,
    )
    for name in ("web", "named", "stranger"):
        ready(kubectl, name, cluster_namespace)
    web_pod = kubectl.get("pod", "web", cluster_namespace)
    assert web_pod is not None
    url = f"http://{web_pod['status']['podIP']}:8000/hostname"
    fetch = ("busybox", "timeout", "3", "wget", "-qO-")

    def reached_from(name: str) -> bool:
        try:
            return kubectl("exec", name, "-n", cluster_namespace, "--", *fetch, url) == "web\n"
        except KubectlFailed:
            return False

    wait_until("the server answers", lambda: reached_from("stranger"))
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "web"}}
    ingress = [{"from": [{"podSelector": {"matchLabels": {"app": "named"}}}]}]
    spec = {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": ingress}
    kubectl.apply({**policy, "spec": spec}, cluster_namespace)

    wait_until("the policy is enforced", lambda: not reached_from("stranger"))
    wait_until("who is named is let in", lambda: reached_from("named"))
    kubectl("delete", "networkpolicy", "web", "-n", cluster_namespace)
    wait_until("nothing is left of the policy", lambda: reached_from("stranger"))


def test_a_container_beyond_its_memory_limit_is_killed(busybox: KubernetesCluster, cluster_namespace: str) -> None:
    """And says why, though not each time: containerd tells of the end and of its reason in either order."""
    fill = "a=0123456789abcdef; while :; do a=$a$a; done"

    def ended(name: str) -> dict[str, Any]:
        limited = pod(name, IMAGE, "sh", "-c", fill, resources={"limits": {"memory": "32Mi"}})
        busybox.kubectl.apply(limited, cluster_namespace)
        wait_until("the pod ends", lambda: phase(busybox.kubectl, name, cluster_namespace) == "Failed")
        failed_pod = busybox.kubectl.get("pod", name, cluster_namespace)
        assert failed_pod is not None
        terminated: dict[str, Any] = failed_pod["status"]["containerStatuses"][0]["state"]["terminated"]
        assert terminated["exitCode"] == 128 + signal.SIGKILL
        return terminated

    assert any(ended(f"glutton-{number}")["reason"] == "OOMKilled" for number in range(3))


def test_a_deployment_replaces_a_pod_that_is_deleted(busybox: KubernetesCluster, cluster_namespace: str) -> None:
    kubectl, labels = busybox.kubectl, {"app": "held"}
    template = {"metadata": {"labels": labels}, "spec": pod("held", IMAGE, "sleep", "3600")["spec"]}
    template["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    kubectl.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "held"}, "spec": spec}, cluster_namespace
    )
    rolled_out = ("rollout", "status", "deployment/held", f"--timeout={PATIENCE_S}s", "-n", cluster_namespace)
    kubectl(*rolled_out, timeout_seconds=PATIENCE_S)
    (first,) = kubectl.names("pods", cluster_namespace)

    kubectl("delete", "pod", first, "-n", cluster_namespace)

    def replaced() -> bool:
        replacements = [name for name in kubectl.names("pods", cluster_namespace) if name != first]
        return [phase(kubectl, name, cluster_namespace) for name in replacements] == ["Running"]

    # Not `rollout status`: the Deployment's status may be that of the pod that has gone.
    wait_until("another pod runs", replaced)
    kubectl("delete", "deployment", "held", "-n", cluster_namespace)
    wait_until("its pods are gone", lambda: not kubectl.names("pods", cluster_namespace))
    assert json.loads(kubectl("get", "replicasets", "-n", cluster_namespace, "-o", "json"))["items"] == []
