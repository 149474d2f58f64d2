"""Says why a standalone cluster does not admit a job. Spark itself logs after a minute that no master answered, be it
that a port is closed, a certificate does not fit or the secrets differ, and hands out a context that has ended."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.exchange_tls import CERTIFICATE, ssl_setting
from joinery_runtime.hosts.spark_security import SECRET, SPEAKS_TLS, speaks_tls

if TYPE_CHECKING:
    from pyspark import SparkContext

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
