"""Restricts access to Spark to processes that know the application's secret.

Without it, anyone who reaches the driver's port and has seen the application's id can register an executor, gets tasks,
and with them records and settings. Spark makes a secret itself where it starts the processes itself (local masters,
Kubernetes, YARN). For `local-cluster` it needs one from outside, and a standalone cluster has one secret for its
master, its workers and all of its applications (docs/decisions/0016).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from joinery_runtime.errors import EnvironmentProblem

if TYPE_CHECKING:
    from pyspark import SparkContext

SECRET = "spark.authenticate.secret"
LOOPBACK = "127.0.0.1"

_AUTHENTICATED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
# Both ends need the same settings. Not for a standalone cluster, which chooses its own.
_STRICT = {
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
}
_ENCRYPTED_BLOCKS = {"spark.io.encryption.enabled": "true"}
_SECURITY = ("spark.authenticate", "spark.network.crypto.", "spark.io.encryption.")

# The names that `spark.redaction.regex` hides by default.
_HIDDEN = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


def only_in_context(setting: str) -> bool:
    """Whether a setting must not be an argument of the JVM. Every user of the machine can list arguments. Besides, they
    apply to each later context of the process, which may have another master."""
    return _HIDDEN.search(setting) is not None or setting.startswith(_SECURITY)


def security_defaults(master: str, named: Mapping[str, str]) -> dict[str, str]:
    """The security settings of a context, except those in `named`, including a secret where Spark needs one from
    outside. If `named` switches `spark.authenticate` off, nothing is encrypted. Raises EnvironmentProblem for a
    standalone cluster whose secret is not named."""
    if named.get("spark.authenticate", "true").lower() == "false":
        return {}
    if is_local(master):
        return _AUTHENTICATED  # blocks are in a folder of this user, like the cache of the state
    if master.startswith("spark://"):
        if SECRET not in named:
            raise _no_secret(master)
        return _AUTHENTICATED | _ENCRYPTED_BLOCKS
    fresh = {SECRET: secrets.token_hex(32)} if master.startswith("local-cluster[") else {}
    return _AUTHENTICATED | _STRICT | _ENCRYPTED_BLOCKS | fresh


def page_defaults(master: str) -> dict[str, str]:
    """Settings of Spark's own UI, which is off unless it is asked for: it takes time to start, and listens on the
    address in SPARK_LOCAL_IP or, without that, on all addresses. In a pod the operator sets the address."""
    return {} if master.startswith("k8s://") else {"spark.ui.enabled": "false"}


def environment_defaults(master: str) -> dict[str, str]:
    """Environment variables of the driver, which its JVM and, on this machine, the workers inherit."""
    return {"SPARK_LOCAL_IP": LOOPBACK} if on_this_machine(master) else {}


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own JVM and its workers."""
    return master == "local" or master.startswith("local[")


def on_this_machine(master: str) -> bool:
    return is_local(master) or master.startswith("local-cluster[")


def of_environment(context: SparkContext, part: str) -> Any:
    """Reads a part of the driver's SparkEnv by its field. To call a method, py4j would inspect all methods of the
    class, and in Spark 4.3 one of them concerns UDF workers, whose class needs a protobuf that PySpark does not
    bundle."""
    jvm: Any = context._jvm
    scala: Any = context._jsc.sc()
    field = jvm.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField(part)
    field.setAccessible(True)
    return field.get(scala.env())


def _no_secret(master: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"The secret of the Spark cluster {master} is not named",
        facts=f"spark.authenticate is on unless it is switched off, and {SECRET} is neither in spark-defaults.conf nor "
        "in the job's spark.conf",
        todo=f"Put spark.authenticate true, spark.network.crypto.enabled true and {SECRET} into spark-defaults.conf of "
        "the master, of the workers and of this machine, readable by Spark's user only. Where everybody who reaches "
        "this network may see all of the job's data, set spark.authenticate: false in the job's spark.conf instead",
    )
