"""Many StreamJoins at once on a real API server (etcd, kube-apiserver, garbage collector; pods only pretend to run):
how long the operator takes, how many API calls it makes per job, and how much memory it needs. Prints the figures and
writes them as JSON.

    python bench/operator_scale.py --jobs 500 --out build/operator_scale.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "operator"))

from joinery_devkit.kubernetes.api_server import ApiServer  # noqa: E402
from joinery_devkit.kubernetes.kubectl import wait_until  # noqa: E402
from simulated_cluster.fake_node import ApiServerClient, FakeDrivers, FakeKubelet  # noqa: E402
from simulated_cluster.operator_process import OperatorProcess  # noqa: E402

NAMESPACE = "many"
WAIT_SECONDS = 1200.0


@dataclass
class World:
    server: ApiServer
    cluster: ApiServerClient
    kubelet: FakeKubelet
    drivers: FakeDrivers
    folder: Path
    starts: int = 0

    def start(self) -> OperatorProcess:
        more = {
            "JOINERY_OPERATOR_STATUS_PORT": str(self.drivers.port),
            "JOINERY_OPERATOR_POLL_SECONDS": "5",
            "JOINERY_OPERATOR_FIGURES_SECONDS": "15",
        }
        self.starts += 1
        return OperatorProcess(self.server.kubeconfig, self.folder / f"operator-{self.starts}.log", [], more)

    def phases(self) -> dict[str, int]:
        counted: dict[str, int] = {}
        for job in self.cluster.list("StreamJoin", NAMESPACE):
            phase = job.get("status", {}).get("phase", "none")
            counted[phase] = counted.get(phase, 0) + 1
        return counted


@contextmanager
def world() -> Iterator[World]:
    with ApiServer() as server, tempfile.TemporaryDirectory() as folder:
        server.kubectl.apply(REPOSITORY / "crds")
        for name in server.kubectl.names("crd"):
            server.kubectl("wait", f"crd/{name}", "--for=condition=Established", "--timeout=30s")
        server.kubectl("create", "namespace", NAMESPACE)
        server.kubectl("create", "serviceaccount", "joinery-driver", "-n", NAMESPACE)
        kubelet = FakeKubelet(server.kubeconfig, NAMESPACE)

        def answer(address: str) -> dict[str, Any] | None:
            pod = kubelet.pods_by_address.get(address)
            if pod is None:
                return None
            environment = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
            # Something changes with every question, as it does where records come in.
            epoch = int(time.time())
            return {"revision": environment["JOINERY_REVISION"], "ready": True, "committed": 1, "epoch": epoch}

        with FakeDrivers(answer) as drivers, kubelet:
            yield World(server, ApiServerClient(server.kubeconfig), kubelet, drivers, Path(folder))


class Usage:
    """CPU seconds, memory and API calls of the operator's process so far."""

    def __init__(self, operator: OperatorProcess) -> None:
        self._process = psutil.Process(operator.process.pid)
        self._metrics = f"http://127.0.0.1:{operator.port}/metrics"

    def cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def peak_mebibytes(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(row for row in status.splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    def calls(self) -> dict[str, float]:
        """By verb and kind."""
        calls: dict[str, float] = {}
        for name, labels, value in self._parse_samples("joinery_operator_api_calls_total"):
            assert name
            key = f"{labels['verb']} {labels['kind']}"
            calls[key] = calls.get(key, 0) + value
        return calls

    def total(self, metric: str) -> float:
        return sum(value for _, _, value in self._parse_samples(metric))

    def _parse_samples(self, metric: str) -> list[tuple[str, dict[str, str], float]]:
        with urllib.request.urlopen(self._metrics, timeout=30) as answer:
            text = answer.read().decode()
        samples = []
        for line in text.splitlines():
            if line.startswith((f"{metric}{{", f"{metric} ")):
                head, _, value = line.rpartition(" ")
                pairs = head.partition("{")[2].rstrip("}").split(",") if "{" in head else []
                labels = dict(pair.split("=", 1) for pair in pairs)
                samples.append((metric, {key: text.strip('"') for key, text in labels.items()}, float(value)))
        return samples


def measured(jobs: int, quiet_seconds: float) -> dict[str, Any]:
    manifest = yaml.safe_load((REPOSITORY / "examples" / "orders-payments.yaml").read_text())
    manifest["spec"]["stateStore"] = {"postgres": {"dsn": "postgresql://nowhere/state", "schema": "joinery"}}
    figures: dict[str, Any] = {"jobs": jobs}
    with world() as around:
        operator = around.start()
        operator.wait_until_ready()
        usage = Usage(operator)
        figures["mebibytes_before"] = round(usage.peak_mebibytes())
        start = time.monotonic()
        for number in range(jobs):
            around.cluster.create({**manifest, "metadata": {"name": f"job-{number:04}"}}, NAMESPACE)
        figures["seconds_to_create_the_resources"] = round(time.monotonic() - start, 1)
        wait_until("every job has a driver", lambda: len(around.kubelet.created) >= jobs, WAIT_SECONDS)
        figures["seconds_until_every_driver_pod"] = round(time.monotonic() - start, 1)
        wait_until("every job runs", lambda: around.phases() == {"Running": jobs}, WAIT_SECONDS)
        figures["seconds_until_all_run"] = round(time.monotonic() - start, 1)
        figures["api_calls_per_job"] = round(sum(usage.calls().values()) / jobs, 2)
        figures["api_calls"] = {key: value for key, value in sorted(usage.calls().items()) if value >= jobs / 10}
        looks, seconds = (usage.total(f"joinery_operator_{metric}") for metric in (
            "reconciles_total", "reconcile_seconds_sum"
        ))  # fmt: skip
        figures["looks_per_job"], figures["seconds_per_look"] = round(looks / jobs, 1), round(seconds / looks, 4)
        figures["cpu_seconds"] = round(usage.cpu(), 1)
        figures |= quiet(usage, jobs, quiet_seconds)
        figures["peak_mebibytes"] = round(usage.peak_mebibytes())
        figures["pods_per_job"] = len(around.kubelet.created) / jobs
        assert operator.stop() == 0, operator.log
        figures |= restarted(around, jobs)
    return figures


def quiet(usage: Usage, jobs: int, seconds: float) -> dict[str, Any]:
    """Return what it costs while all jobs run and their figures change."""
    calls, cpu = sum(usage.calls().values()), usage.cpu()
    time.sleep(seconds)
    return {
        "running_api_calls_per_second": round((sum(usage.calls().values()) - calls) / seconds, 1),
        "running_cpu_cores": round((usage.cpu() - cpu) / seconds, 3),
        "running_jobs": jobs,
    }


def restarted(around: World, jobs: int) -> dict[str, Any]:
    """Measure a restart, which reads everything and changes nothing."""
    pods = len(around.kubelet.created)
    operator = around.start()
    start = time.monotonic()
    operator.wait_until_ready()
    usage = Usage(operator)
    wait_until("every job was reconciled", lambda: usage.total("joinery_operator_reconciles_total") >= jobs, 600)
    restart = {
        "restart_seconds_until_all_looked_at": round(time.monotonic() - start, 1),
        "restart_peak_mebibytes": round(usage.peak_mebibytes()),
        "restart_new_pods": len(around.kubelet.created) - pods,
    }
    assert operator.stop() == 0, operator.log
    return restart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--quiet-seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures = measured(options.jobs, options.quiet_seconds)
    text = json.dumps(figures, indent=2)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
