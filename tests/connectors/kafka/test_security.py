"""TLS and a login with secrets by reference, through a job's every Kafka client, and what must never be seen."""

from __future__ import annotations

import logging
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from connectors.rows import attempt
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kafka_tls import SecureAccess
from joinery_devkit.processes import deadline_after
from joinery_devkit.topics import ordered_producer
from joinery_runtime.connectors.inputs import planner_for, reader_for
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.connectors.sink import DEAD_LETTER_SCHEMA, Sink
from joinery_runtime.connectors.source import Range, StoredOffsets
from joinery_runtime.errors import JoineryError, SinkError, SourceError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.job import StreamJoin, explain, parse_job
from stores import STORE

pytestmark = pytest.mark.services
_names = (f"secure-{number}" for number in count())
ROWS = pa.table({"left_ts": [1], "right_ts": [2]})
DSN = "postgresql://me:hush-dsn@db/state"
JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: {name}}}
spec:
  inputs:
    - {{name: l, kafka: {{topic: {name}, {client}}}, format: json, schema: [{{name: ts, type: int64}}], eventTime: ts}}
    - {{name: r, kafka: {{topic: {name}, {client}}}, format: json, schema: [{{name: ts, type: int64}}], eventTime: ts}}
  joins:
    - {{right: r, keys: {{l.ts: r.ts}}, interval: {{of: l, lower: 0, upper: 0}}}}
  output: {{kafka: {{topic: {name}, {client}}}}}
  deadLetter: {{kafka: {{topic: {name}}}}}
  delivery: {delivery}
  stateStore: {{postgres: {{dsnSecretRef: {{name: state-db, key: dsn}}}}}}
"""


@pytest.fixture(scope="module")
def secure() -> Iterator[KafkaBroker]:
    with KafkaBroker(secure=True) as running:
        yield running


@pytest.fixture
def topic(secure: KafkaBroker) -> str:
    """A topic with one record."""
    name = next(_names)
    secure.create_topic(name)
    producer = ordered_producer(secure.bootstrap)
    producer.produce(name, b'{"ts": 1}')
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def secret(secure: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the secrets that jobs refer to, as Kubernetes mounts them: the broker's login but for some settings."""
    monkeypatch.setenv("JOINERY_SECRETS", str(tmp_path))

    def write(**other: str) -> None:
        values: Mapping[str, Mapping[str, str]] = {
            "kafka-client": {**secure.secure_access.secret, **{name.replace("_", "."): v for name, v in other.items()}},
            "state-db": {"dsn": DSN},
        }
        for name, keys in values.items():
            (tmp_path / name).mkdir(exist_ok=True)
            for key, value in keys.items():
                (tmp_path / name / key).write_text(value + "\n")

    write()
    return write


def referring(access: SecureAccess, topic: str, delivery: str = "exactlyOnce") -> StreamJoin:
    """A job that names the secret wherever it names Kafka."""
    plain = ", ".join(f"{name}: {value}" for name, value in access.plain.items())
    client = (
        f'bootstrapServers: "{access.bootstrap}", properties: {{{plain}}}, propertiesSecretRef: {{name: kafka-client}}'
    )
    return parse_job(JOB.format(name=topic, client=client, delivery=delivery), "job.yaml")


@pytest.fixture
def nothing_leaks(
    secure: KafkaBroker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., None]]:
    """Checks texts, and at the end everything that was logged or printed, for the secrets' values."""
    secrets = secure.secure_access.secret
    key = [line for line in secrets["ssl.key.pem"].splitlines() if not line.startswith("-----")]
    hidden = [secrets["sasl.password"], "wrong-hush", "hush-dsn", *key]

    def check(*texts: str) -> None:
        for text in texts:
            assert not [hidden_value for hidden_value in hidden if hidden_value in text], (
                "a secret's value is in a text"
            )

    caplog.set_level(logging.DEBUG)
    yield check
    check(caplog.text, *capfd.readouterr())


def texts_of(error: BaseException) -> list[str]:
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    return [
        "".join(traceback.format_exception(error)),
        *(f"{linked_error} {linked_error!r} {linked_error.args!r}" for linked_error in chain),
    ]


def planned(job: StreamJoin) -> tuple[int, int]:
    """What the left input's planner plans once its partition is its own."""
    planner, deadline = planner_for(job.spec.inputs[0], job.name, STORE), deadline_after(120)
    try:
        while not (only := planner.bounds(StoredOffsets())[0]).is_assigned:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return only.start, only.end_exclusive
    finally:
        planner.close()


def test_inputs_with_secrets_by_reference(secure, topic, secret, nothing_leaks) -> None:
    job = with_secrets(referring(secure.secure_access, topic))
    assert planned(job) == (0, 1)
    reader = reader_for(job.spec.inputs[0])
    values = [batch.values.to_pylist() for batch in reader.read(Range(PartitionRef("l", topic, 0), 0, 1))]
    reader.close()
    assert values == [[b'{"ts": 1}']]


def sinks_of(job: StreamJoin) -> list[tuple[Sink, pa.Table]]:
    dead = Outputs.of(job).dead_letter_sink()
    assert dead is not None
    letters = pa.Table.from_pylist([{"reason": "bad"}], schema=DEAD_LETTER_SCHEMA)
    return [(Outputs.of(job).sink(None), ROWS), (dead, letters)]


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_outputs_with_secrets_by_reference(secure, topic, secret, delivery, nothing_leaks) -> None:
    for sink, rows in sinks_of(with_secrets(referring(secure.secure_access, topic, delivery))):
        sink.prepare(rows.schema)
        writer = pickle.loads(pickle.dumps(sink.writer()))
        assert writer.write(attempt(), rows)["rows"] == 1
        nothing_leaks(repr(sink), repr(writer))
    assert len(written(secure, topic, 3)) == 3


def written(broker: KafkaBroker, topic: str, expected: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(expected, 60)
    consumer.close()
    return messages


def test_a_value_in_a_text_is_found(secure, nothing_leaks) -> None:
    for value in (secure.secure_access.secret["sasl.password"], secure.secure_access.secret["ssl.key.pem"], DSN):
        with pytest.raises(AssertionError):
            nothing_leaks(f"error: {value}")


def test_no_text_form_of_a_job_or_of_what_runs_it_has_a_value(secure, topic, secret, nothing_leaks) -> None:
    job = with_secrets(referring(secure.secure_access, topic))
    assert job.spec.state_store.postgres is not None
    assert job.spec.state_store.postgres.dsn == DSN
    writer = Outputs.of(job).sink(None).writer()
    nothing_leaks(repr(job), str(job), str(explain(job)), repr(explain(job)), repr(writer))


@pytest.fixture
def wrong(secure: KafkaBroker, topic: str, secret: Callable[..., None]) -> Callable[..., StreamJoin]:
    """A job whose secret has a wrong password."""

    def job(delivery: str = "exactlyOnce") -> StreamJoin:
        secret(sasl_password="wrong-hush")
        return with_secrets(referring(secure.secure_access, topic, delivery))

    return job


def refused(what: Callable[[], object], nothing_leaks: Callable[..., None], kind: type[JoineryError]) -> str:
    with pytest.raises(kind) as caught:
        what()
    nothing_leaks(*texts_of(caught.value))
    return str(caught.value)


def test_a_wrong_password_is_told_to_the_planner_at_once(topic, wrong, nothing_leaks) -> None:
    job, start = wrong(), time.monotonic()
    message = refused(lambda: planned(job), nothing_leaks, SourceError)
    assert f"Input l: access to topic {topic} is denied" in message
    assert "Authentication failed" in message
    assert time.monotonic() - start < 14, "less than it waits for an answer (15 s)"


def test_a_wrong_password_is_told_to_the_reader_at_once(topic, wrong, nothing_leaks) -> None:
    reader, start = reader_for(wrong().spec.inputs[0]), time.monotonic()
    message = refused(lambda: list(reader.read(Range(PartitionRef("l", topic, 0), 0, 1))), nothing_leaks, SourceError)
    reader.close()
    assert f"Input l: access to topic {topic} is denied" in message
    assert time.monotonic() - start < 28, "less than it waits for records (30 s)"


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_wrong_password_is_told_to_the_sinks(topic, wrong, delivery, nothing_leaks) -> None:
    for (sink, rows), what in zip(sinks_of(wrong(delivery)), ("Output", "Dead-letter"), strict=True):
        message = refused(lambda sink=sink, rows=rows: sink.prepare(rows.schema), nothing_leaks, SinkError)
        assert f"{what} topic {topic}: access is denied" in message


@pytest.mark.parametrize("name", ["ssl_key_pem", "ssl_certificate_pem", "ssl_ca_pem"])
def test_settings_that_are_not_what_they_should_be(secure, topic, secret, name, nothing_leaks) -> None:
    secret(**{name: "wrong-hush"})
    job = with_secrets(referring(secure.secure_access, topic))
    for what, kind in [
        (lambda: planned(job), SourceError),
        (lambda: list(reader_for(job.spec.inputs[0]).read(Range(PartitionRef("l", topic, 0), 0, 1))), SourceError),
        (lambda: Outputs.of(job).sink(None).prepare(ROWS.schema), SinkError),
    ]:
        assert "kafka.properties are not valid" in refused(what, nothing_leaks, kind)
