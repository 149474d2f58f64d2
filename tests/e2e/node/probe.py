"""What another pod reaches of a job's pods, what it is let do there, and what it hears of what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from e2e.node.cluster_job import PATIENCE_S, ClusterJob
from joinery_devkit.kubernetes.kubectl import log_of, pod
from joinery_devkit.spark_cluster import OPENED
from joinery_operator.manifests.spark import BLOCK_MANAGER_PORT, DRIVER_PORT, UI_PORT
from joinery_runtime.hosts.spark_security import ENV_EXCHANGE_SECRET, ENV_KEY_FOLDER
from joinery_runtime.job.crd import STATUS_PORT

STATUS = "status"
_STRANGER = "stranger"
_CONNECT = """
import json, socket, sys

def connects(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError:
        return False
    return True

print(json.dumps([connects(address) for address in sys.argv[1:]]))
"""
_RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def ports(job: ClusterJob) -> Mapping[str, str]:
    """Addresses of its driver, and of one executor, by what they are for."""
    driver, executor = (spark_pod["status"]["podIP"] for spark_pod in (job.driver(), job.running("executor")[0]))
    return {
        "RPC": f"{driver}:{DRIVER_PORT}",
        "blocks": f"{driver}:{BLOCK_MANAGER_PORT}",
        "Spark's page": f"{driver}:{UI_PORT}",
        STATUS: f"{driver}:{STATUS_PORT}",
        "an executor's blocks": f"{executor}:{BLOCK_MANAGER_PORT}",
    }


def reached_from(job: ClusterJob, name: str, namespace: str) -> set[str]:
    """Those of `ports` to which a pod with Python connects."""
    addresses = ports(job)
    command = ["python3", "-c", _CONNECT, *addresses.values()]
    answers = json.loads(job.kubectl("exec", name, "-n", namespace, "--", *command))
    return {what for what, connects in zip(addresses, answers, strict=True) if connects}


def reached_by_stranger(job: ClusterJob) -> set[str]:
    """Those that a pod of its namespace which is no job's connects to; the pod is made when it is not there."""
    if job.kubectl.get("pod", _STRANGER, job.namespace) is None:
        sleeper = pod(_STRANGER, job.image, "sleep", "infinity", securityContext=_RESTRICTED)
        job.kubectl.apply(sleeper, job.namespace)
        _wait_until_ready(job, _STRANGER, job.namespace)
    return reached_from(job, _STRANGER, job.namespace)


def _wait_until_ready(job: ClusterJob, name: str, namespace: str) -> None:
    ready = ("--for=condition=Ready", f"--timeout={PATIENCE_S}s", "-n", namespace)
    job.kubectl("wait", f"pod/{name}", *ready, timeout_seconds=PATIENCE_S)


# --- who speaks to the driver without being asked ---------------------------------------------------------------------

# In an executor's pod, for whoever may read pods of the namespace: its Java options, and the application's secret.
_OPTIONS, _SECRET = "SPARK_JAVA_OPT_", "_SPARK_AUTH_SECRET"
# A profile that there is none of: the driver says so to those it listens to, and makes no executor of them.
_NO_PROFILE = 4242
HEARD = f"ResourceProfileId {_NO_PROFILE} not found"


def environment_of_executor(job: ClusterJob) -> Mapping[str, str]:
    """As the API server shows it."""
    (container,) = job.running("executor")[0]["spec"]["containers"]
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def guest_is_told(job: ClusterJob, secret: str | None) -> str:
    """The words of a program of Spark's own that asks the driver, from the stranger's pod, for what executors are given
    at their start: the application's settings. It knows all that the API server and Spark's page show, also the key of
    TLS, and has that secret."""
    seen = environment_of_executor(job)
    folder = f"/tmp/guest-{secret}"
    key = {ENV_KEY_FOLDER: folder, ENV_EXCHANGE_SECRET: seen[ENV_EXCHANGE_SECRET]}
    options = [
        value.replace(seen[ENV_KEY_FOLDER], folder)
        for name, value in seen.items()
        if name.startswith(_OPTIONS) and "-Dspark." in value
    ]
    stranger, executor = job.kubectl.get("pod", _STRANGER, job.namespace), job.running("executor")[0]
    assert stranger is not None
    address = stranger["status"]["podIP"]
    program = [
        *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", *OPENED, *options),
        *("-cp", "/opt/joinery/lib/python3.11/site-packages/pyspark/jars/*"),
        "org.apache.spark.executor.CoarseGrainedExecutorBackend",
        *("--driver-url", f"spark://CoarseGrainedScheduler@{ports(job)['RPC']}"),
        *("--app-id", executor["metadata"]["labels"]["spark-app-selector"], "--executor-id", "4242", "--cores", "1"),
        *("--resourceProfileId", str(_NO_PROFILE), "--bind-address", address, "--hostname", address),
    ]
    environment = [f"{name}={value}" for name, value in (key | ({_SECRET: secret} if secret else {})).items()]
    with_key = f'mkdir -p "{folder}" && python3 -m joinery_runtime.hosts.exchange_key && "$@" 2>&1 || true'
    command = ["env", *environment, "sh", "-c", with_key, "sh", *program]
    return job.kubectl("exec", _STRANGER, "-n", job.namespace, "--", *command)


def application_secret(job: ClusterJob) -> str | None:
    return environment_of_executor(job).get(_SECRET)


# --- who listens on the wire ------------------------------------------------------------------------------------------

_LISTENER = "listener"
_LISTEN = """
import json, pathlib, socket, sys

ports, words = json.loads(sys.argv[1])
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**25)
packets.settimeout(0.2)
count, found, end = 0, set(), pathlib.Path("/tmp/end")
pathlib.Path("/tmp/listens").touch()
while not end.exists():
    try:
        packet = packets.recv(2**17)
    except TimeoutError:
        continue
    if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
        continue
    segment = packet[(packet[0] & 15) * 4:]
    if {int.from_bytes(segment[:2], "big"), int.from_bytes(segment[2:4], "big")} & set(ports):
        said = segment[(segment[12] >> 4) * 4:]
        count += len(said)
        found |= {word for word in words if word.encode() in said}
print(json.dumps([count, sorted(found)]))
"""


@dataclass(frozen=True, slots=True)
class Overheard:
    """`bytes` went through Spark's ports; `words` are those of the asked ones that could be read in them."""

    bytes: int
    words: Sequence[str]


def listen(job: ClusterJob, namespace: str, words: Sequence[str]) -> None:
    """Starts a pod that listens to the node's whole network, for `words` between the pods of Spark jobs. `namespace`
    must let it."""
    script = json.dumps([[DRIVER_PORT, BLOCK_MANAGER_PORT], list(words)])
    ready = {"exec": {"command": ["test", "-e", "/tmp/listens"]}, "periodSeconds": 1}
    root = {"runAsUser": 0, "capabilities": {"add": ["NET_RAW"]}}
    command = ("python3", "-u", "-c", _LISTEN, script)
    listener = pod(_LISTENER, job.image, *command, securityContext=root, readinessProbe=ready)
    listener["spec"]["hostNetwork"] = True
    job.kubectl.apply(listener, namespace)
    _wait_until_ready(job, _LISTENER, namespace)


def overheard(job: ClusterJob, namespace: str) -> Overheard:
    """What it heard, whose pod ends."""
    job.kubectl("exec", _LISTENER, "-n", namespace, "--", "touch", "/tmp/end")
    return Overheard(*json.loads(log_of(job.kubectl, _LISTENER, namespace)))


# --- how Java starts --------------------------------------------------------------------------------------------------

_JAVA = """
import json, os, pathlib

ticks, processes = os.sysconf("SC_CLK_TCK"), {}
boot = next(int(line.split()[1]) for line in open("/proc/stat") if line.startswith("btime"))
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        program = (folder / "cmdline").read_bytes().split(b"\\0")[0].decode()
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        maps = (folder / "maps").read_text() if program.endswith("/java") else ""
    except OSError:
        continue
    began, cpu = boot + int(fields[19]) / ticks, (int(fields[11]) + int(fields[12])) / ticks
    processes[int(folder.name)] = program, int(fields[1]), began, cpu, maps
((pid, (_, _, began, cpu, maps)),) = [item for item in processes.items() if item[1][4]]
children = [process[2] for process in processes.values() if process[1] == pid]
archives = sorted({line.split()[-1] for line in maps.splitlines() if line.endswith(".jsa")})
print(json.dumps({"archives": archives, "began": began, "cpu": cpu, "first_child": min(children, default=None)}))
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A pod's Java process: its archives of classes, when it and its first child began (seconds since 1970), and the
    seconds of CPU that it has used."""

    archives: Sequence[str]
    began: float
    cpu: float
    first_child: float | None


def java_of(job: ClusterJob, name: str) -> Java:
    return Java(**json.loads(job.kubectl("exec", name, "-n", job.namespace, "--", "python", "-c", _JAVA)))


# --- what a row costs -------------------------------------------------------------------------------------------------

_CPU = """
import json, os, pathlib

ticks, seconds = os.sysconf("SC_CLK_TCK"), {"java": 0.0, "python": 0.0}
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        program = (folder / "cmdline").read_bytes().split(b"\\0")[0].decode()
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        continue
    if int(folder.name) == os.getpid():
        continue
    own, ended = ([int(field) / ticks for field in fields[at : at + 2]] for at in (11, 13))
    kind = "java" if program.endswith("/java") else "python"
    seconds[kind] += sum(own)
    if kind == "python":
        seconds[kind] += sum(ended)
print(json.dumps(seconds))
"""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of CPU that a pod's processes have used, in user and system mode."""

    java: float
    python: float


def cpu_of(job: ClusterJob, name: str) -> Cpu:
    return Cpu(**json.loads(job.kubectl("exec", name, "-n", job.namespace, "--", "python", "-c", _CPU)))
