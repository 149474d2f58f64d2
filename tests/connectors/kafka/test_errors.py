"""Which errors of the Kafka client waiting may mend: the same for inputs and outputs."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from joinery_runtime.connectors.kafka.errors import LastError
from joinery_runtime.connectors.kafka.settings import Cluster
from joinery_runtime.connectors.kafka.target import KafkaTarget
from joinery_runtime.errors import SinkError, SourceError, Unavailable

TARGET = KafkaTarget("joined", "kafka:9092")
CLUSTER = Cluster("orders", "topic orders", "kafka:9092", {})
WAITED_FOR = [
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
]
FINAL = [
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.POLICY_VIOLATION,
    KafkaError._INVALID_ARG,
]


@pytest.mark.parametrize("code", [*WAITED_FOR, *FINAL])
def test_an_error_is_waited_out_or_ends_the_job(code: int) -> None:
    error = KafkaError(code)
    failures = [CLUSTER.failure(error, "reading"), TARGET.failure(error, LastError(), "rows were not written", "facts")]
    assert [isinstance(failure, Unavailable) for failure in failures] == [code in WAITED_FOR] * 2
    assert isinstance(failures[0], SourceError)
    assert isinstance(failures[1], SinkError)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (KafkaError._AUTHENTICATION, "wrong password"),
        (KafkaError._SSL, "SSL handshake failed: certificate verify failed: broker certificate could not be verified"),
    ],
)
def test_a_refused_login_is_no_silence(code: int, text: str) -> None:
    """The calls themselves only time out; the client tells by the way why."""
    errors = LastError()
    errors(KafkaError(code, text))
    timeout = KafkaError(KafkaError._TIMED_OUT)
    assert not isinstance(TARGET.failure(timeout, errors, "rows were not written", "facts"), Unavailable)
    assert not isinstance(TARGET.too_slow(3, errors), Unavailable)
    errors(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
    assert isinstance(TARGET.failure(timeout, errors, "rows were not written", "facts"), Unavailable)
