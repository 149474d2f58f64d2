"""TLS between a driver and its executors: who has which key, and what is wrong with the files that somebody names.

Spark encrypts its connections in Java (`spark.network.crypto`) or by TLS (`spark.ssl.rpc`), for which PySpark brings a
native library. In a JVM that compiles little, an exchange that Java encrypts takes five times the CPU. TLS only
encrypts: who may connect is still decided by `spark.authenticate`, because Spark's server asks no client for a
certificate (docs/decisions/0063).

If a standalone cluster does not admit a job, Spark itself logs after a minute that no master answered, be it that a
port is closed, a certificate does not fit or the secrets differ, and returns a context that has ended. `check_admitted`
finds out which.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from joinery_runtime.errors import EnvironmentProblem, explain_full_disk
from joinery_runtime.hosts.exchange_key import KeyFiles, write_key
from joinery_runtime.hosts.scratch import scratch_folder
from joinery_runtime.hosts.spark_security import (
    ENV_EXCHANGE_SECRET,
    ENV_KEY_FOLDER,
    SECRET,
    SPEAKS_TLS,
    executors_have_key_folder,
    is_authenticated,
    is_local,
    is_local_cluster,
    is_true,
    names_key,
    speaks_tls,
)

if TYPE_CHECKING:
    from pyspark import SparkContext

PRIVATE_KEY, CERTIFICATE, KEY_STORE, TRUST_STORE, NATIVE = (
    f"spark.ssl.rpc.{name}" for name in ("privateKey", "certChain", "keyStore", "trustStore", "openSslEnabled")
)
_PASSWORD = "spark.ssl.rpc.privateKeyPassword"
_DOCUMENTED = "docs/security.md#standalone"


def tls_settings(master: str, named: Mapping[str, str], stack: ExitStack) -> dict[str, str]:
    """Return the settings of TLS for a context, with a key made for it unless `named` names one. The key's files stay
    until `stack` is closed. Empty without TLS. Raises EnvironmentProblem if Spark could not use what is named."""
    if not speaks_tls(master, named):
        return {}
    if names_key(named):
        for problem in _find_problems(master, named):
            raise EnvironmentProblem(
                "The key for Spark's connections cannot be used",
                facts=problem,
                todo=f"Correct spark.ssl.rpc in spark-defaults.conf or the job's spark.conf ({_DOCUMENTED})",
            )
        return {}
    secret = secrets.token_hex(32)
    if is_local_cluster(master):
        own = stack.enter_context(scratch_folder("exchange"))
        with explain_full_disk("the key of Spark's connections", own):
            return _tls_settings(write_key(secret, own))
    if not master.startswith("k8s://") or not executors_have_key_folder(named):
        raise EnvironmentProblem(
            "Spark's connections have no key",
            facts=f"{SPEAKS_TLS} is true, and neither {PRIVATE_KEY} nor {KEY_STORE} is set",
            todo=f"Set {PRIVATE_KEY} and {CERTIFICATE} ({_DOCUMENTED}), or leave {SPEAKS_TLS} out",
        )
    folder = os.environ[ENV_KEY_FOLDER]
    try:
        files = write_key(secret, Path(folder))
    except OSError as error:
        raise EnvironmentProblem(
            "The key for Spark's connections cannot be written",
            facts=f"{ENV_KEY_FOLDER} names {folder}: {error}",
            todo="Leave the volume and the variable as the operator sets them",
        ) from error
    # Spark puts the variable into the executors' pods, where the image's entry point derives the same key from it.
    return _tls_settings(files) | {f"spark.executorEnv.{ENV_EXCHANGE_SECRET}": secret}


def keep_from_tasks(context: SparkContext) -> None:
    """Take the secret of the key out of what PySpark sends with each task."""
    context.environment.pop(ENV_EXCHANGE_SECRET, None)


def encryption_warnings(context: SparkContext) -> Iterator[str]:
    """Yield what the user should know about how this context's connections are encrypted."""
    from joinery_runtime.hosts.spark_internals import native_tls_problem  # noqa: PLC0415 - loads PySpark

    master, settings = context.master, dict(context.getConf().getAll())
    if is_local(master) or not is_authenticated(settings):
        return
    if speaks_tls(master, settings):
        if is_true(ssl_setting(settings, NATIVE)) and (cause := native_tls_problem(context)):
            yield (
                f"Spark's native TLS library does not load here: {cause}. Java's TLS encrypts what executors exchange, "
                "and an exchange takes five times the CPU. The library needs Linux with glibc on x86-64 or arm64, all "
                "jars of pyspark, and a folder for temporary files from which libraries may be loaded"
            )
        by_store = ssl_setting(settings, KEY_STORE) and not ssl_setting(settings, CERTIFICATE)
        if by_store and not ssl_setting(settings, TRUST_STORE):
            yield (
                f"{KEY_STORE} is set and {TRUST_STORE} is not, so Spark accepts any certificate. Name a trust store, "
                f"or {PRIVATE_KEY} and {CERTIFICATE} instead ({_DOCUMENTED})"
            )
    elif SPEAKS_TLS not in settings:
        yield (
            f"Spark encrypts what executors exchange in Java, which takes five times the CPU: {SPEAKS_TLS} is not set. "
            f"Set up TLS ({_DOCUMENTED}), or set {SPEAKS_TLS}: false in the job's spark.conf to keep it so without "
            "this warning"
        )


def exchange_todo(message: str) -> str | None:
    """Return what to do about a failure of Spark's whose message says that executors could not exchange blocks."""
    if "FetchFailed" not in message:
        return None
    if re.search(r"SSLHandshakeException|NotSslRecordException|SSLException|PKIX path|SslClosedEngine", message):
        return (
            "Nothing of the epoch was committed. Two processes of the job have different settings of spark.ssl.rpc, or "
            f"certificates that do not trust each other: give all of them the same files ({_DOCUMENTED})"
        )
    if re.search(r"Failed to connect to|Connection refused|Connection timed out|NoRouteToHost", message):
        return (
            "Nothing of the epoch was committed. If the other executor had ended, its log says why. Otherwise open the "
            "port in spark.blockManager.port (any port if it is not set; 7079 on Kubernetes) between executors, in "
            "firewalls and NetworkPolicies (docs/operations.md#ports)"
        )
    return None


def _tls_settings(files: KeyFiles) -> dict[str, str]:
    return {
        SPEAKS_TLS: "true",
        NATIVE: "true",
        PRIVATE_KEY: str(files.private_key),
        CERTIFICATE: str(files.certificate),
    }


def ssl_setting(named: Mapping[str, str], name: str) -> str:
    """Return the value of a setting of `spark.ssl.rpc`, which falls back to the same one of `spark.ssl`."""
    return named.get(name) or named.get(name.replace("spark.ssl.rpc.", "spark.ssl."), "")


def _find_problems(master: str, named: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the files that are named, each with its setting."""
    if not is_true(ssl_setting(named, NATIVE)):
        yield from _file_problems(named, KEY_STORE, f"{NATIVE} is not true, so Spark reads a key store")
        if store := ssl_setting(named, TRUST_STORE):
            yield from _file_problems({TRUST_STORE: store}, TRUST_STORE, "")
        return
    for setting in (PRIVATE_KEY, CERTIFICATE):
        yield from _file_problems(named, setting, f"{NATIVE} is true")
    key_file, certificate_file = ssl_setting(named, PRIVATE_KEY), ssl_setting(named, CERTIFICATE)
    password = ssl_setting(named, _PASSWORD) or os.environ.get("_SPARK_SSL_RPC_PRIVATE_KEY_PASSWORD") or None
    try:
        text = Path(key_file).read_bytes()
        key = load_pem_private_key(text, password.encode() if password else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        yield f"{PRIVATE_KEY} names {key_file}, which is no private key as PEM: {error}"
        return
    if b"BEGIN PRIVATE KEY" not in text and b"BEGIN ENCRYPTED PRIVATE KEY" not in text:
        yield (
            f"{PRIVATE_KEY} names {key_file}, which is not in the format PKCS 8 (openssl pkcs8 -topk8 -nocrypt "
            "converts it)"
        )
    try:
        certificate, *_ = x509.load_pem_x509_certificates(Path(certificate_file).read_bytes())
    except ValueError as error:
        yield f"{CERTIFICATE} names {certificate_file}, which holds no certificate as PEM: {error}"
        return
    if certificate.public_key() != key.public_key():
        yield (
            f"the first certificate in {certificate_file} ({CERTIFICATE}) is of another key than {key_file} "
            f"({PRIVATE_KEY})"
        )
    if password and master.startswith("k8s://"):
        yield f"{PRIVATE_KEY} is encrypted, and on Kubernetes Spark does not hand its password to executors"
    now = datetime.now(UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        yield (
            f"the first certificate in {certificate_file} ({CERTIFICATE}) is valid from "
            f"{certificate.not_valid_before_utc:%Y-%m-%d} to {certificate.not_valid_after_utc:%Y-%m-%d} only"
        )


def _file_problems(named: Mapping[str, str], setting: str, because: str) -> Iterator[str]:
    path = ssl_setting(named, setting)
    if not path:
        yield f"{because}, and {setting} is not set"
        return
    try:
        Path(path).open("rb").close()
    except OSError as error:
        yield f"{setting} names {path}: {error.strerror}"


_ID_WITHOUT_MASTER = "spark-application-"  # how Spark names an application that no master has registered
_PATIENCE_S = 5.0


def check_admitted(context: SparkContext) -> None:
    """Raise EnvironmentProblem if no master of a standalone cluster has registered the application."""
    master = context.master
    if not master.startswith("spark://") or not context.applicationId.startswith(_ID_WITHOUT_MASTER):
        return
    settings = dict(context.getConf().getAll())
    addresses = master.removeprefix("spark://").split(",")
    raise EnvironmentProblem(
        f"The Spark cluster {master} does not admit the job",
        facts="; ".join(rejection_reason(address, master, settings) for address in addresses),
        todo="Have spark.authenticate, spark.network.crypto and spark.ssl.rpc say the same in spark-defaults.conf of "
        "the master, of the workers and of this machine (docs/security.md#standalone)",
    )


def rejection_reason(address: str, master: str, settings: Mapping[str, str]) -> str:
    """Say how the master at an address differs from a job with these settings."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _PATIENCE_S).close()
    except OSError as error:
        return f"spark.master names {address}: {error.strerror or error}"
    job_uses_tls, master_uses_tls = speaks_tls(master, settings), _try_handshake(host, int(port), None) is None
    if job_uses_tls != master_uses_tls:
        words = {True: "speaks TLS", False: "does not speak TLS"}
        return f"{address} {words[master_uses_tls]}, and the job {words[job_uses_tls]} ({SPEAKS_TLS})"
    trusted = ssl_setting(settings, CERTIFICATE) if job_uses_tls else ""
    if trusted and (distrust := _try_handshake(host, int(port), trusted)):
        return f"the certificate of {address} does not fit those in {trusted} ({CERTIFICATE}): {distrust}"
    return f"{address} answers but rejects the job: {SECRET} or spark.network.crypto differs there"


def _try_handshake(host: str, port: int, trusted: str | None) -> str | None:
    """Connect by TLS, and return why that fails; None if it works. `trusted` is a file of certificates; without one,
    any certificate will do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # Spark does not check it either
    context.verify_mode = ssl.CERT_NONE if trusted is None else ssl.CERT_REQUIRED
    if trusted is not None:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trusts a named certificate itself, as Java does
        context.load_verify_locations(trusted)
    try:
        with socket.create_connection((host, port), _PATIENCE_S) as plain, context.wrap_socket(plain):
            pass
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError as error:  # a server without TLS closes the connection
        return error.strerror or str(error)
    return None
