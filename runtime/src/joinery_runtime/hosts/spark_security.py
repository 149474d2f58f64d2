"""Restricts access to Spark to processes that know the application's secret.

Without it, anyone who reaches the driver's port and has seen the application's id can register an executor, gets tasks,
and with them records and settings. Spark makes a secret itself where it starts the processes itself (local masters,
Kubernetes, YARN). For `local-cluster` it needs one from outside, and a standalone cluster has one secret for its
master, its workers and all of its applications (docs/decisions/0016).
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping

from joinery_runtime.errors import EnvironmentProblem

SECRET = "spark.authenticate.secret"
ENV_EXCHANGE_SECRET = "JOINERY_EXCHANGE_SECRET"
"""The variable of an executor's pod from whose value its key for TLS derives. The image's entry point removes it."""

ENV_KEY_FOLDER = "JOINERY_KEY_FOLDER"
"""The variable that names a folder in memory for the key, in a driver's pod and in those of its executors."""

LOOPBACK = "127.0.0.1"

SPEAKS_TLS = "spark.ssl.rpc.enabled"
_AUTHENTICATE, _CRYPTO = "spark.authenticate", "spark.network.crypto.enabled"
_AUTHENTICATED = {_AUTHENTICATE: "true"}
_KEY_SETTINGS = ("keyStore", "privateKey", "certChain")
_IN_JAVA = {_CRYPTO: "true"}  # what encrypts where there is no TLS
# Both ends need the same settings. Not for a standalone cluster, which chooses its own.
_STRICT = {
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
}
_ENCRYPTED_BLOCKS = {"spark.io.encryption.enabled": "true"}
_SECURITY = ("spark.authenticate", "spark.network.crypto.", "spark.io.encryption.", "spark.ssl.")

# The names that `spark.redaction.regex` hides by default.
_HIDDEN = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


def is_secret(setting: str) -> bool:
    """Return whether no message may show the value of a setting."""
    return _HIDDEN.search(setting) is not None


def only_in_context(setting: str) -> bool:
    """Return whether a setting must not be an argument of the JVM. Every user of the machine can list arguments.
    Besides, they apply to each later context of the process, which may have another master."""
    return is_secret(setting) or setting.startswith(_SECURITY)


def speaks_tls(master: str, named: Mapping[str, str]) -> bool:
    """Return whether the driver and its executors speak TLS. `named` are the settings that somebody has set: without
    any, TLS is where Joinery can give every executor the key (`hosts.exchange_tls`)."""
    if SPEAKS_TLS in named:
        return is_true(named[SPEAKS_TLS])
    if not is_authenticated(named) or is_true(named.get(_CRYPTO, "")):
        return False
    if names_key(named):
        return False  # but not for these connections
    return is_local_cluster(master) or (master.startswith("k8s://") and executors_have_key_folder(named))


def names_key(named: Mapping[str, str]) -> bool:
    """Return whether somebody has named a key, for these connections or for all that Spark encrypts by TLS."""
    return any(f"spark.ssl.{rpc}{name}" in named for rpc in ("", "rpc.") for name in _KEY_SETTINGS)


def executors_have_key_folder(named: Mapping[str, str]) -> bool:
    """Return whether this driver's pod and those of its executors have a folder for the key. An operator of an earlier
    release may have rendered the template of the executors, in which there is none."""
    return ENV_KEY_FOLDER in os.environ and f"spark.executorEnv.{ENV_KEY_FOLDER}" in named


def security_defaults(master: str, named: Mapping[str, str]) -> dict[str, str]:
    """Return the security settings of a context, except those in `named` and those of TLS, including a secret where
    Spark needs one from outside. If `named` switches `spark.authenticate` off, nothing is encrypted. Raises
    EnvironmentProblem for a standalone cluster whose secret is not named."""
    if not is_authenticated(named):
        return {}
    encrypted = {} if speaks_tls(master, named) else _IN_JAVA
    if is_local(master):
        return _AUTHENTICATED | encrypted  # blocks are in a folder of this user, like the cache of the state
    if master.startswith("spark://"):
        if SECRET not in named:
            raise EnvironmentProblem(
                f"The secret of the Spark cluster {master} is not named",
                facts=f"spark.authenticate is on unless it is switched off, and {SECRET} is neither in "
                "spark-defaults.conf nor in the job's spark.conf",
                todo=f"Put spark.authenticate true, {SECRET} and the settings of spark.ssl.rpc "
                "(docs/security.md#standalone) into spark-defaults.conf of the master, of the workers and of this "
                "machine, readable by Spark's user only. Where everybody who reaches this network may see all of the "
                "job's data, set spark.authenticate: false in the job's spark.conf instead",
            )
        return _AUTHENTICATED | encrypted | _ENCRYPTED_BLOCKS
    strict = _STRICT if encrypted else {}
    if is_local_cluster(master):
        return _AUTHENTICATED | encrypted | strict | {SECRET: secrets.token_hex(32)}
    return _AUTHENTICATED | encrypted | strict | _ENCRYPTED_BLOCKS


def is_authenticated(named: Mapping[str, str]) -> bool:
    return named.get(_AUTHENTICATE, "true").lower() != "false"


def is_true(value: str) -> bool:
    return value.strip().lower() == "true"


def page_defaults(master: str) -> dict[str, str]:
    """Return settings of Spark's own UI, which is off unless it is asked for: it takes time to start, and listens on
    the address in SPARK_LOCAL_IP or, without that, on all addresses, as in a pod."""
    return {} if master.startswith("k8s://") else {"spark.ui.enabled": "false"}


def environment_defaults(master: str) -> dict[str, str]:
    """Environment variables of the driver, which its JVM and, on this machine, the workers inherit."""
    return {"SPARK_LOCAL_IP": LOOPBACK} if is_on_this_machine(master) else {}


def is_local(master: str) -> bool:
    """Return whether tasks run in the driver's own JVM and its workers."""
    return master == "local" or master.startswith("local[")


def is_on_this_machine(master: str) -> bool:
    return is_local(master) or is_local_cluster(master)


def is_local_cluster(master: str) -> bool:
    """Return whether tasks run in executors on this machine, which the driver starts."""
    return master.startswith("local-cluster[")
