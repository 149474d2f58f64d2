"""Makes the archive of Java classes of the runtime image, while the image is built (docs/decisions/0069).

    python3 classes.py ENTRYPOINT ARCHIVE

A driver and an executor on Kubernetes run one small job here, and list the classes that they load. `java -Xshare:dump`
archives the classes of both lists. A server that agrees to everything stands in for Kubernetes, and starts executors by
the image's own entry point.

A JVM uses the archive only if its class path begins with the same jars in the same order. Java reads `jars/*` in the
order of the file system, so drivers and executors name the jars, sorted (`_EXEC` in hosts/java_process.py, and
entrypoint.sh).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext

HOST = "127.0.0.1"
SETTINGS = {
    "spark.authenticate": "true",
    "spark.driver.host": HOST,
    "spark.executor.instances": "1",
    "spark.executor.memory": "512m",
    "spark.kubernetes.container.image": "this one",
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.network.crypto.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.ui.showConsoleProgress": "false",
}


class Kubernetes(ThreadingHTTPServer):
    """The part of the API that a driver needs to start executors. They are processes of this machine."""

    daemon_threads = True

    def __init__(self, entrypoint: Path) -> None:
        super().__init__((HOST, 0), _Request)
        self._entrypoint = entrypoint
        self.pods: list[dict[str, Any]] = []
        self.executors: list[subprocess.Popen[bytes]] = []

    def start_pod(self, pod: dict[str, Any]) -> None:
        (container,) = pod["spec"]["containers"]
        # What comes from a field of the pod is its address.
        variables = {variable["name"]: variable.get("value", HOST) for variable in container["env"]}
        command = [str(self._entrypoint), *container["args"]]
        self.executors.append(subprocess.Popen(command, env={**os.environ, **variables}))
        pod["metadata"] |= {"namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.pods.append({**pod, "status": {"phase": "Running"}})


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Kubernetes

    def do_GET(self) -> None:
        version = {"resourceVersion": "1"}
        self._answer({"kind": "PodList", "apiVersion": "v1", "metadata": version, "items": self.server.pods})

    def do_POST(self) -> None:
        resource = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if resource["kind"] == "Pod":
            self.server.start_pod(resource)
        self._answer(resource)

    def do_DELETE(self) -> None:
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _answer(self, resource: dict[str, Any]) -> None:
        body = json.dumps(resource).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def kubernetes(entrypoint: Path) -> Iterator[tuple[Kubernetes, str]]:
    """Yield the stand-in, and the master by which Spark reaches it. Its executors end with their driver."""
    with Kubernetes(entrypoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server, f"k8s://http://{HOST}:{server.server_port}"
            for executor in server.executors:
                executor.wait()
        finally:
            server.shutdown()


def run_job(context: SparkContext) -> None:
    """Run a job with a shuffle."""
    pairs = context.parallelize([(0, b"a"), (1, b"b")], 2).partitionBy(2)
    assert pairs.mapPartitions(lambda rows: [len(list(rows))]).collect() == [1, 1]


def loaded_classes(entrypoint: Path, folder: Path) -> list[str]:
    """Run the job and return the lines of both lists, each once."""
    conf = SparkConf().setAppName("classes")
    for key, value in SETTINGS.items():
        conf.set(key, value)
    for role in ("driver", "executor"):
        conf.set(f"spark.{role}.extraJavaOptions", f"-XX:DumpLoadedClassList={folder / role}")
    with kubernetes(entrypoint) as (_, master):
        context = SparkContext(conf=conf.setMaster(master))
        run_job(context)
        context.stop()
        java = SparkContext._gateway.proc
        java.stdin.close()  # Java ends when its input does
        java.wait()
    lines = [line for role in ("driver", "executor") for line in (folder / role).read_text().splitlines()]
    return list(dict.fromkeys(line for line in lines if not line.startswith("#")))


def make(entrypoint: Path, archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(os.environ["SPARK_HOME"], "jars")
    jars = [*folder.glob("slf4j-api-*.jar"), *sorted(folder.glob("*.jar"))]  # Spark's launcher names that one first
    with tempfile.TemporaryDirectory() as name:
        classes = Path(name, "all")
        classes.write_text("\n".join([*loaded_classes(entrypoint, Path(name)), ""]))
        options = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}", "-XX:+UseG1GC"]
        silent = ["-Xlog:disable", "-Xlog:all=error:stderr"]
        java = Path(os.environ["JAVA_HOME"], "bin", "java")
        subprocess.run([java, "-Xshare:dump", *options, *silent, "-cp", ":".join(map(str, jars))], check=True)
    archive.chmod(0o444)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
