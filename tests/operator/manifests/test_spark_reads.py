"""Spark itself, with a Kubernetes API server that only writes down: what it makes of the operator's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest

from joinery_runtime.hosts.exchange_key import derive, key_files
from joinery_runtime.hosts.spark_security import ENV_EXCHANGE_SECRET, ENV_KEY_FOLDER
from joinery_runtime.job.crd import KINDS

pytestmark = [pytest.mark.services, pytest.mark.slow]

TEMPLATE = """
kind: Pod
metadata: {annotations: {odd: "1:30", "on": "yes", text: "é\\nx"}}
spec:
  affinity: {nodeAffinity: {}}
  containers:
    - {name: logger, image: l, securityContext: {allowPrivilegeEscalation: true}}
    - {name: spark-kubernetes-executor, env: [{name: EXTRA, value: "0x1F"}], command: [sleep]}
"""
LOOPBACK, POD_IP = "127.0.0.1", "127.0.0.2"
PODS = "/api/v1/namespaces/shop/pods"
# As the runtime starts Spark; goes on until the executors were asked for.
DRIVER = """
import json, socket, sys
from joinery_runtime.hosts.spark import start_context, stop_context
context = start_context("job", json.loads(sys.argv[1]), sys.argv[2])
def listens(address, port):
    try:
        return not socket.create_connection((address, int(port)), 10).close()
    except ConnectionRefusedError:
        return False
ports = {"ui": context.uiWebUrl.rpartition(":")[2], "driver": context.getConf().get("spark.driver.port")}
print(json.dumps({name: [listens(address, port) for address in sys.argv[3:]] for name, port in ports.items()}))
print(json.dumps([name for name in context.environment if "SECRET" in name]))
print(json.dumps(dict(context.getConf().getAll())), flush=True)
sys.stdin.read()
stop_context(context)
"""


@pytest.fixture
def kind():
    """One: Spark is told nothing of kinds."""
    return KINDS[0]


@dataclass
class ApiServer:
    """Knows one pod, the driver's, and keeps what is created."""

    driver: dict[str, Any]
    address: str = ""
    created: list[Any] = field(default_factory=list)
    two: Event = field(default_factory=Event)


@contextmanager
def api_server(driver: Any) -> Iterator[ApiServer]:
    fake_api = ApiServer({**driver, "metadata": {**driver["metadata"], "uid": "d-1"}})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].removeprefix(f"{PODS}/")
            if name == fake_api.driver["metadata"]["name"]:
                self._answer(fake_api.driver)
            else:
                self._answer({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []})

        def do_POST(self) -> None:
            pod = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            pod["metadata"]["uid"] = f"e-{len(fake_api.created)}"
            fake_api.created.append((self.path.partition("?")[0], pod))
            self._answer(pod, status=201)
            if len(fake_api.created) == 2:
                fake_api.two.set()

        def do_DELETE(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer({"apiVersion": "v1", "kind": "Status", "status": "Success"})

        def _answer(self, document: Any, status: int = 200) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake_api.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield fake_api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_executors_are_those_that_the_operator_means(job, tmp_path, violations):
    conf = {
        "spark.driver.extraJavaOptions": '-Dtext="two words"',
        "spark.odd": "line\nline \\ é",
        # The pod's place of it is not on this machine, nor are its ports free for sure.
        "spark.kubernetes.executor.podTemplateFile": str(tmp_path / "executor.yaml"),
        # This server has no events to watch, and what it creates never registers.
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
        **dict.fromkeys(("spark.driver.port", "spark.driver.blockManager.port", "spark.ui.port"), "0"),
    }
    executor = {"coreRequest": "200m", "nodeSelector": {"on": "1:30"}, "podTemplate": {"name": "extra"}}
    job = replace(job.with_spark(executor=executor, conf=conf), templates={"extra": {"data": {"pod.yaml": TEMPLATE}}})
    for name, text in job.config_map()["data"].items():
        (tmp_path / name).write_text(text)
    driver = job.driver(7)
    pod_environment = {
        variable["name"]: variable.get("value", POD_IP) for variable in driver["spec"]["containers"][0]["env"]
    }
    environment = {
        **os.environ,
        **{key: pod_environment[key] for key in pod_environment if "SPARK" in key},
        "SPARK_CONF_DIR": str(tmp_path),
        ENV_KEY_FOLDER: str(tmp_path),  # in place of the pod's
    }

    with api_server(driver) as server:
        arguments = [sys.executable, "-c", DRIVER, json.dumps(job.model.spec.spark.conf), f"k8s://{server.address}"]
        arguments += [LOOPBACK, POD_IP]
        with subprocess.Popen(
            arguments, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            both = server.two.wait(240)
            out, errors = process.communicate("", timeout=240)
    assert both, errors
    assert out, errors

    in_force = json.loads(out.splitlines()[-1])
    assert in_force["spark.odd"] == "line\nline \\ é"
    assert in_force["spark.driver.extraJavaOptions"].endswith('-Dtext="two words"')
    assert in_force["spark.kubernetes.namespace"] == "shop"

    assert {path for path, _ in server.created} == {PODS}  # no ConfigMap, no Service, no claim
    first, second = (pod for _, pod in server.created[:2])
    assert [pod["metadata"]["name"] for pod in (first, second)] == ["orders-7-exec-1", "orders-7-exec-2"]
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "orders-driver-7", "d-1")
    assert (
        first["metadata"]["labels"].items()
        >= {
            "joinery.dev/job": "orders",
            "joinery.dev/role": "executor",
            "joinery.dev/revision": "abc",
            "joinery.dev/attempt": "7",
        }.items()
    )
    assert first["metadata"]["annotations"].items() >= {"odd": "1:30", "on": "yes", "text": "é\nx"}.items()

    spec = first["spec"]
    container = next(container for container in spec["containers"] if container["name"] == "spark-kubernetes-executor")
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert [finding for finding in violations(first) if not finding.startswith("logger:")] == []
    assert spec["nodeSelector"]["on"] == "1:30"
    assert spec["serviceAccountName"] == "driver-account"
    assert spec["automountServiceAccountToken"] is False
    assert (container["image"], container["imagePullPolicy"]) == (job.image, "IfNotPresent")
    assert container["args"] == ["executor"]
    assert "command" not in container
    assert container["resources"]["limits"] == {"memory": "2400Mi"}
    assert container["resources"]["requests"] == {"cpu": "200m", "memory": "2400Mi", "ephemeral-storage": "2Gi"}
    assert variables["EXTRA"] == "0x1F"
    assert variables["SPARK_LOCAL_DIRS"] == "/var/data/spark"
    assert f"@{POD_IP}:" in variables["SPARK_DRIVER_URL"]  # the pod's own address, by its environment
    listening = json.loads(out.splitlines()[-3])
    assert listening == {"ui": [True, True], "driver": [False, True]}, "kubectl port-forward reaches the UI alone"
    theirs = {volume["name"] for volume in driver["spec"]["volumes"]} - {"scale"}  # only a driver asks how wide
    assert {volume["name"] for volume in spec["volumes"]} == {"spark-local-dir-1", *theirs}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/etc/joinery/job.yaml", "/etc/joinery/secrets/state-db"} <= mounted
    assert in_force["spark.authenticate"] == "true"
    assert len(variables["_SPARK_AUTH_SECRET"]) >= 32, "Spark makes it, and hands it over"

    secret, options = (
        variables[ENV_EXCHANGE_SECRET],
        [text for name, text in variables.items() if "SPARK_JAVA_OPT" in name],
    )
    assert key_files(tmp_path).private_key.read_bytes() == derive(secret).private_key, "executors derive the same"
    assert f"-Dspark.ssl.rpc.privateKey={key_files(tmp_path).private_key}" in options
    assert "-Dspark.ssl.rpc.enabled=true" in options
    assert not [text for text in (*options, *container["args"]) if secret in text]
    assert not [name for name in in_force if name.startswith("spark.network.crypto")]
    assert in_force["spark.io.encryption.enabled"] == "false", "an emptyDir goes with its pod"
    assert json.loads(out.splitlines()[-2]) == [], "no task has the key's secret"
