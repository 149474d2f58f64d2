"""Listeners that some clients use and others do not: cut off by a proxy, or with TLS and a login."""

import errno
import socket
import ssl
import time

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.processes import deadline_after

pytestmark = [pytest.mark.services, pytest.mark.slow]
QUIET = {"log_level": 0, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}


@pytest.fixture(scope="module")
def broker():
    with KafkaBroker(proxied=True, secure=True) as running:
        running.create_topic("t")
        yield running


def delivered(settings, seconds):
    """Whether a record arrives within so many seconds."""
    producer = Producer({**QUIET, **settings})
    producer.produce("t", b"x")
    return producer.flush(seconds) == 0


def test_a_client_behind_the_proxy_is_cut_off_and_others_are_not(broker):
    behind, direct = {"bootstrap.servers": broker.proxied_bootstrap}, {"bootstrap.servers": broker.bootstrap}
    assert delivered(behind, 60)
    for silent in (False, True):
        broker.cut(silent=silent)
        assert not delivered(behind, 0.5)
        assert delivered(direct, 60)
        broker.restore()
        assert delivered(behind, 60)


def test_clients_of_the_proxy_s_listener_are_told_the_proxy_s_port(broker):
    (advertised,) = (
        AdminClient({"bootstrap.servers": broker.proxied_bootstrap}).list_topics(timeout=30).brokers.values()
    )
    assert f"{advertised.host}:{advertised.port}" == broker.proxied_bootstrap


def test_the_secure_listener_takes_its_user(broker):
    access = broker.secure_access
    assert delivered({"bootstrap.servers": access.bootstrap, **access.plain, **access.secret}, 60)
    assert not any(value in repr(access) for value in access.secret.values())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sasl.password": "wrong"}, KafkaError._AUTHENTICATION),
        # TLS 1.3: the client has shaken hands before the server finds that it wants more, and hangs up.
        ({"ssl.key.pem": None, "ssl.certificate.pem": None}, KafkaError._TRANSPORT),
        ({"ssl.ca.pem": None}, KafkaError._SSL),
    ],
)
def test_the_secure_listener_refuses_everybody_else(broker, change, code):
    access, errors = broker.secure_access, []
    settings = {**access.plain, **access.secret, **change}
    remaining = {name: value for name, value in settings.items() if value is not None}
    admin = AdminClient({**QUIET, "bootstrap.servers": access.bootstrap, **remaining, "error_cb": errors.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    deadline = deadline_after(60)
    while code not in {error.code() for error in errors}:
        assert time.monotonic() < deadline, errors
        admin.poll(0.1)


def test_the_certificate_names_the_address(broker):
    context = ssl.create_default_context(cadata=broker.secure_access.secret["ssl.ca.pem"])
    (authority,) = context.get_ca_certs()
    assert authority["subjectAltName"] == (("IP Address", "127.0.0.1"), ("DNS", "localhost"))


def test_a_broker_of_another_address_serves_clients_there_and_not_on_loopback():
    with KafkaBroker(host="127.0.0.2", secure=True) as other:
        other.create_topic("t")
        access = other.secure_access
        for bootstrap, settings in ((other.bootstrap, {}), (access.bootstrap, {**access.plain, **access.secret})):
            assert bootstrap.startswith("127.0.0.2:")
            assert delivered({"bootstrap.servers": bootstrap, **settings}, 60)
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", int(bootstrap.rpartition(":")[2]))) == errno.ECONNREFUSED


def test_partitions_are_added(broker):
    broker.create_topic("grows")
    broker.add_partitions("grows", 3)
    answer = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics["grows"].partitions
    assert sorted(answer) == [0, 1, 2]


def test_settings_are_changed_one_by_one(broker):
    broker.create_topic("set", config={"segment.ms": "5000"})
    broker.alter_config("set", {"cleanup.policy": "compact"})
    answer = broker.topic_config("set")
    assert (answer["segment.ms"], answer["cleanup.policy"]) == ("5000", "compact")


def test_the_leader_of_a_partition(broker):
    assert broker.leader("t") == 1
