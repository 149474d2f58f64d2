"""What a consumer of the tasks is told."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError

from connectors.kafka.kafka_bench import kafka_input
from joinery_runtime.connectors.kafka.settings import Cluster, LoggedErrors, consumer_settings
from joinery_runtime.connectors.kafka.target import KafkaTarget


def settings(partitions: int = 1, **properties: str) -> dict[str, object]:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    model = kafka_input("127.0.0.1:1", "any", properties=named)
    assert model.kafka is not None
    return consumer_settings(Cluster.of("in", model.kafka), LoggedErrors(), partitions)


def test_a_consumer_keeps_little_since_a_change_of_hands_throws_it_away() -> None:
    options = settings()
    assert (options["queued.min.messages"], options["queued.max.messages.kbytes"]) == (20_000, 3_000)


def test_the_job_may_choose_what_its_consumers_keep() -> None:
    options = settings(queued_min_messages="7", queued_max_messages_kbytes="99000", fetch_message_max_bytes="5000")
    names = ("queued.min.messages", "queued.max.messages.kbytes", "fetch.message.max.bytes")
    assert [options[name] for name in names] == ["7", "99000", "5000"]


@pytest.mark.parametrize(("partitions", "kilobytes"), [(1, 1024), (4, 1024), (16, 256), (64, 64), (1_000, 64)])
def test_an_answer_of_a_broker_brings_something_of_every_partition(partitions, kilobytes) -> None:
    assert settings(partitions)["fetch.message.max.bytes"] == kilobytes << 10


def test_a_client_is_back_soon_after_its_brokers_unless_the_job_says_otherwise() -> None:
    assert settings()["reconnect.backoff.max.ms"] == 1_000
    assert "reconnect.backoff.max.ms" not in settings(reconnect_backoff_ms="2000")
    output = KafkaTarget("joined", "127.0.0.1:1")
    assert output.producer_settings({})["reconnect.backoff.max.ms"] == 1_000
    patient = KafkaTarget("joined", "127.0.0.1:1", properties={"reconnect.backoff.max.ms": "5000"})
    assert patient.client_settings()["reconnect.backoff.max.ms"] == "5000"


def test_every_client_trusts_the_installations_certificates_and_knows_its_zone_unless_the_job_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOINERY_CA_FILE", "/ca.pem")
    monkeypatch.setenv("JOINERY_CLIENT_RACK", "zone-a")
    for client_settings in (settings(), KafkaTarget("joined", "127.0.0.1:1").client_settings()):
        assert (client_settings["ssl.ca.location"], client_settings["client.rack"]) == ("/ca.pem", "zone-a")
    own = settings(ssl_ca_location="/own.pem", client_rack="zone-b")
    assert (own["ssl.ca.location"], own["client.rack"]) == ("/own.pem", "zone-b")
    assert "ssl.ca.location" not in settings(ssl_ca_pem="-----BEGIN")


def test_an_outage_is_logged_once_and_not_by_an_error_that_says_less(caplog: pytest.LogCaptureFixture) -> None:
    errors = LoggedErrors()
    refused, down = KafkaError(KafkaError._TRANSPORT, "refused"), KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 down")
    unknown = KafkaError(KafkaError._RESOLVE, "unknown host")
    with caplog.at_level(logging.WARNING):
        for error in (refused, down, down, refused, down, unknown, down):
            errors(error)
    assert caplog.messages == ["kafka: refused", "kafka: unknown host"]
    assert str(errors) == "unknown host"


@pytest.mark.parametrize(
    ("address", "todo"),
    [
        ("http://kafka:9092", "as host:port, .* no http://"),
        ("kafka:9092", "Check bootstrapServers and that the brokers"),
    ],
)
def test_an_address_with_a_scheme_is_no_broker_that_does_not_run(address: str, todo: str) -> None:
    model = kafka_input(address, "any")
    assert model.kafka is not None
    for error in (
        Cluster.of("in", model.kafka).outage("no answer", "x"),
        KafkaTarget("out", address).unavailable("no", "x"),
    ):
        with pytest.raises(type(error), match=todo):
            raise error
