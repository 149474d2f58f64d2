"""What an error of the Kafka client means: the brokers are away (waiting may mend it), access is denied, the topic is
not there, or anything else. An answer without an offset is an error too. Sources and sinks ask here, so that one error
means the same to both.

A topic that is not there is no outage: brokers know their topics before they answer, and a wrong name would be waited
for without end.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from confluent_kafka import KafkaError, KafkaException

# Even at log_level 0 librdkafka prints that a client was fenced. Who takes a client's errors has heard of that.
SILENT = logging.Logger("librdkafka")
SILENT.addHandler(logging.NullHandler())

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
    # Brokers that are about to stop, have just started, or hand over to one another.
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
    # Brokers that answer and cannot take records now.
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}


SETTLE_SECONDS = 5.0  # how long a partition may be without a leader that knows it
RETRY_SECONDS = 0.1


def no_offset(answer: int) -> KafkaError:
    """For a negative answer that came without an error, as a broker gives while it starts. Taken for an offset, it
    would say that the log had been truncated."""
    return KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, f"the broker answered {answer}")


def watermarks(ask: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """The offsets of a partition's earliest record and of the next one to come, as `ask` has them from the broker. It
    is asked again for SETTLE_SECONDS while it answers no offsets; then KafkaException."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while min(found := ask()) < 0:
        if time.monotonic() >= deadline:
            raise KafkaException(no_offset(min(found)))
        time.sleep(RETRY_SECONDS)
    return found


def is_away(error: KafkaError) -> bool:
    """Whether waiting may mend it. The client itself says so of errors of transactions."""
    return error.code() in AWAY or bool(error.retriable())


def tls_port(bootstrap_servers: str, properties: Mapping[str, str], seconds: float = 2.0) -> str | None:
    """The first of these addresses that speaks TLS to a client that does not: the client only hears that its connection
    ends. None where the client speaks TLS too, or nobody answers; each may take so many seconds."""
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
    """The newest error that a client reported by the way: why it gets no answer. Pass it as the client's `error_cb`."""

    permanent: ClassVar[frozenset[int]] = frozenset(LOGIN_REFUSED)
    """Codes of errors that waiting does not heal."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if self._error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than the others
            self._error = error

    def forget(self) -> None:
        self._error = None

    @property
    def denied(self) -> KafkaError | None:
        """The newest error, if waiting does not heal it."""
        if self._error is None:
            return None
        untrusted = self._error.code() == KafkaError._SSL and "certificate verify failed" in self._error.str()
        return self._error if untrusted or self._error.code() in self.permanent else None

    def __str__(self) -> str:
        return self._error.str() if self._error is not None else "no answer at all"


def soon_back(properties: Mapping[str, str]) -> dict[str, int]:
    """Settings with which a client is back a second after its brokers at most (librdkafka's default is ten), unless a
    job sets the first wait, which may not be above the longest."""
    return {} if "reconnect.backoff.ms" in properties else {"reconnect.backoff.max.ms": 1_000}
