"""Classifies errors of the Kafka client: the brokers do not answer (waiting may help), access is denied, the topic does
not exist, or anything else. An answer without an offset is an error too. Sources and sinks share this module, so that
an error means the same to both.

A missing topic is not an outage: brokers know their topics before they answer, and the job would wait for a misspelt
name for ever.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

# Even at log_level 0, librdkafka prints that a client was fenced. The code that handles the client's errors knows that
# already.
SILENT = logging.Logger("librdkafka")
SILENT.addHandler(logging.NullHandler())

_NO_TLS = re.compile(r"SSL.handshake|SSL alert|certificate verify failed", re.IGNORECASE)

LOGIN_REFUSED = {KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION}
DENIED = LOGIN_REFUSED | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
NO_ANSWER = {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
}
AWAY = NO_ANSWER | {
    # Brokers that are about to stop, have just started, or hand over to each other.
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    # Brokers that answer but cannot take records now.
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}


ASK_SECONDS = 3.0  # how long brokers may take to answer when asked: a busy machine takes longer than a second
SETTLE_SECONDS = 5.0  # how long a partition may be without a leader that knows it
RETRY_SECONDS = 0.1


def no_offset(answer: int) -> KafkaError:
    """Return the error for a negative offset that came without an error, as from a broker that is starting. Taken as an
    offset, it would mean that the log had been truncated."""
    return KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, f"the broker answered {answer}")


def watermarks(ask: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Return the offsets of a partition's earliest record and of the next one to come. `ask` queries the broker. It is
    called again for up to SETTLE_SECONDS while the answer holds no offsets. Then raises KafkaException."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while min(offsets := ask()) < 0:
        if time.monotonic() >= deadline:
            raise KafkaException(no_offset(min(offsets)))
        time.sleep(RETRY_SECONDS)
    return offsets


def is_unavailable(error: KafkaError) -> bool:
    """Return whether waiting may help. For errors of transactions, the client itself says so."""
    return error.code() in AWAY or bool(error.retriable())


def tls_port(bootstrap_servers: str, properties: Mapping[str, str], seconds: float = 2.0) -> str | None:
    """Return the first of these addresses that expects TLS from a client that does not use it. Such a client only sees
    its connection end. None if the client uses TLS too, or if nobody answers. Each address may take `seconds`."""
    if "SSL" in properties.get("security.protocol", "").upper():
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent but the greeting
    for address in bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), seconds) as connection:
                connection.settimeout(seconds)
                context.wrap_socket(connection).close()
                return address.strip()
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):  # it wants a certificate, or another version
                return address.strip()
        except (OSError, ValueError):
            continue
    return None


class LastError:
    """Remembers the newest error that a client reported in the background, which says why it gets no answer. Pass it as
    the client's `error_cb`."""

    permanent: ClassVar[frozenset[int]] = frozenset(LOGIN_REFUSED)
    """Codes of errors for which waiting does not help."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if self._error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than the others
            self._error = error

    def forget(self) -> None:
        self._error = None

    @property
    def denial(self) -> KafkaError | None:
        """The newest error, if waiting does not help."""
        if self._error is None:
            return None
        untrusted = self._error.code() == KafkaError._SSL and "certificate verify failed" in self._error.str()
        return self._error if untrusted or self._error.code() in self.permanent else None

    def __str__(self) -> str:
        return self._error.str() if self._error is not None else "no answer at all"


def silence_reason(admin: AdminClient, errors: LastError, seconds: float) -> str | None:
    """Return why no broker answers within `seconds`. None if one does, or if waiting would not help. `errors` is the
    client's `error_cb`. Safe to call from any thread.

    Asks for metadata: when a request of the Admin API times out at a broker that hangs, librdkafka may abort the
    process (an assertion in `rd_kafka_admin_response_parse`)."""
    try:
        admin.list_topics(timeout=seconds)
    except KafkaException as error:
        admin.poll(0)
        if is_unavailable(error.args[0]) and errors.denial is None:
            return str(errors)
    return None


def check_address(bootstrap_servers: str, facts: str) -> str:
    """Return what to do where no broker answers at these addresses. `facts` is what the client says."""
    if "://" in bootstrap_servers:
        return "Write bootstrapServers as host:port, several with commas between them, and no http:// before it"
    return check_tls(facts) or "Check bootstrapServers and that the brokers run and can be reached from here"


def check_tls(facts: str) -> str:
    """Return what to do where a client and a port do not agree on TLS; empty if `facts`, the client's words, are of
    something else."""
    if not _NO_TLS.search(facts):
        return ""
    return (
        "Check security.protocol and the ssl.* settings (certificates of both sides) in kafka.properties: the port was "
        "reached, and no TLS connection was made"
    )


def client_defaults(properties: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str | int]:
    """Return settings of every client, which the job's properties override. `environment` may name a file of trusted
    certificates (`JOINERY_CA_FILE`) and the client's zone (`JOINERY_CLIENT_RACK`)."""
    defaults: dict[str, str | int] = {}
    # A client reconnects within a second of its brokers' return (librdkafka's default is ten). The first wait, if the
    # job sets it, may not exceed the longest one.
    if "reconnect.backoff.ms" not in properties:
        defaults["reconnect.backoff.max.ms"] = 1_000
    if (ca_file := environment.get("JOINERY_CA_FILE")) and not properties.keys() & {"ssl.ca.pem", "ssl.ca"}:
        defaults["ssl.ca.location"] = ca_file
    if rack := environment.get("JOINERY_CLIENT_RACK"):
        defaults["client.rack"] = rack
    return defaults
