"""What a job's references to secrets become, and what is said when they cannot be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from job.resources import job
from joinery_runtime.errors import EnvironmentProblem, JobError
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.job import PostgresStoreSpec, StreamJoin, explain

TOPIC = "        topic: orders\n"
OUTPUT = "    postgres: {table: joined}\n"
REF = "propertiesSecretRef: {name: kafka-client}"
INPUT_REF = (TOPIC, f"{TOPIC}        {REF}\n")
DSN_REF = (OUTPUT, OUTPUT + "  stateStore: {postgres: {dsnSecretRef: {name: state-db, key: dsn}, schema: s}}\n")
DEAD = "  delivery: atLeastOnce\n  deadLetter: {kafka: {topic: dead%s}}\n"
PEM = "-----BEGIN PRIVATE KEY-----\nhush-pem\n-----END PRIVATE KEY-----"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that holds kafka-client and state-db."""
    client, state = tmp_path / "kafka-client", tmp_path / "state-db"
    client.mkdir()
    state.mkdir()
    (client / "sasl.password").write_text("hush-password\n")
    (client / "ssl.key.pem").write_text(PEM + "\n")
    (state / "dsn").write_text("postgresql://me:hush-dsn@db/state\r\n")
    monkeypatch.setenv("JOINERY_SECRETS", str(tmp_path))
    return tmp_path


SECRET = {"sasl.password": "hush-password", "ssl.key.pem": PEM}


def kafka_output(*, more: str = "") -> tuple[str, str]:
    return OUTPUT, f"    kafka: {{bootstrapServers: kafka:9092, topic: out{more}}}\n"


def test_a_job_without_references_stays_as_it_is() -> None:
    assert with_secrets(job()) == job()


def test_settings_of_an_input_join_those_of_the_job(secrets: Path) -> None:
    resolved = with_secrets(job((TOPIC, TOPIC + f"        properties: {{client.id: me}}\n        {REF}\n")))
    assert resolved.spec.inputs[0].kafka is not None
    assert resolved.spec.inputs[0].kafka.properties == {"client.id": "me", **SECRET}
    assert resolved.spec.inputs[1] == job().spec.inputs[1]


@pytest.mark.parametrize("setting", ["group.id", "group.instance.id"])
def test_a_secret_does_not_make_two_inputs_one_consumer_group(secrets: Path, setting: str) -> None:
    """Each would read only some of the partitions, and nothing would say so."""
    (secrets / "kafka-client" / setting).write_text("hush-group\n")
    assert with_secrets(job(INPUT_REF)).inputs[0].kafka is not None, "one input may have a name of its own"
    with pytest.raises(JobError) as caught:
        with_secrets(job(INPUT_REF, ("topic: payments\n", f"topic: payments\n        {REF}\n")))
    (problem,) = caught.value.problems
    assert problem.path == "spec.inputs"
    assert problem.message.startswith(f"orders and payments have the same {setting}, by their secrets")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("setting", ["group.id", "group.instance.id"])
def test_a_secret_of_a_job_of_a_blue_green_job_names_no_consumer_group(
    secrets: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """Both jobs would read with it, and each would lack what the other one reads."""
    monkeypatch.setenv("JOINERY_OWN_GROUPS", "true")
    with_secrets(job(INPUT_REF))
    (secrets / "kafka-client" / setting).write_text("hush-group\n")
    with pytest.raises(JobError) as caught:
        with_secrets(job(INPUT_REF))
    (problem,) = caught.value.problems
    assert problem.path == "spec.inputs"
    assert problem.message.startswith(f"orders: the secret names {setting}, and the jobs of the BlueGreenJob would")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["plugin.library.paths", "Plugin.Library.Paths"])
def test_a_secret_has_no_setting_that_the_operator_forbids(
    secrets: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (secrets / "kafka-client" / name).write_text("/mnt/evil.so")
    with_secrets(job((TOPIC, TOPIC + f"        {REF}\n")))
    monkeypatch.setenv("JOINERY_FORBIDDEN_PROPERTIES", "plugin.library.paths,ssl.engine.location")
    message = (
        rf"spec\.inputs\[0\]\.kafka\.propertiesSecretRef: the secret kafka-client has {name}, which is not allowed"
    )
    with pytest.raises(JobError, match=message):
        with_secrets(job((TOPIC, TOPIC + f"        {REF}\n")))


def test_settings_of_the_outputs(secrets: Path) -> None:
    resolved = with_secrets(job(kafka_output(more=f", {REF}"), ("  joins:", DEAD % f", {REF}" + "  joins:")))
    assert resolved.spec.output.kafka is not None
    assert resolved.spec.output.kafka.properties == SECRET
    assert resolved.dead_letter_kafka is not None
    assert resolved.dead_letter_kafka.properties == SECRET


def test_dead_letters_take_the_output_s_settings_unless_they_have_their_own(secrets: Path) -> None:
    out = kafka_output(more=f", properties: {{client.id: me}}, {REF}")
    inherited = with_secrets(job(out, ("  joins:", DEAD % "" + "  joins:"))).dead_letter_kafka
    own = with_secrets(job(out, ("  joins:", DEAD % f", {REF}" + "  joins:"))).dead_letter_kafka
    plain = with_secrets(job(out, ("  joins:", DEAD % ", properties: {client.id: x}" + "  joins:"))).dead_letter_kafka
    assert [target and target.properties for target in (inherited, own, plain)] == [
        {"client.id": "me", **SECRET},
        SECRET,
        {"client.id": "x"},
    ]


def test_the_address_of_the_state(secrets: Path) -> None:
    store = with_secrets(job(DSN_REF)).spec.state_store.postgres
    assert store == PostgresStoreSpec(dsn="postgresql://me:hush-dsn@db/state", schema="s")


def test_the_result_is_a_valid_job_that_no_longer_refers_to_anything(secrets: Path) -> None:
    resolved = with_secrets(job(INPUT_REF, DSN_REF))
    assert with_secrets(resolved) == resolved
    assert StreamJoin.model_validate(resolved.model_dump(by_alias=True, exclude_unset=True)) == resolved


def test_a_secret_as_kubernetes_mounts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "kafka-client" / "..2026_01_01"
    data.mkdir(parents=True)
    (data / "sasl.password").write_text("hush")
    (data.parent / "..data").symlink_to(data.name)
    (data.parent / "sasl.password").symlink_to("..data/sasl.password")
    (data.parent / ".hidden").write_text("x")
    (data.parent / "lost+found").mkdir()
    monkeypatch.setenv("JOINERY_SECRETS", str(tmp_path))
    kafka = with_secrets(job(INPUT_REF)).spec.inputs[0].kafka
    assert kafka is not None
    assert kafka.properties == {"sasl.password": "hush"}


def test_where_secrets_are_looked_for(secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOINERY_SECRETS")
    monkeypatch.delenv("JOINERY_HOME", raising=False)
    monkeypatch.setattr("joinery_runtime.hosts.secrets._IN_A_POD", tmp_path / "pod")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    at_home = tmp_path / "me" / ".joinery" / "secrets"
    with pytest.raises(EnvironmentProblem) as caught:
        with_secrets(job(INPUT_REF))
    assert f"no directory {tmp_path}/pod/kafka-client or {at_home}/kafka-client. Make it" in str(caught.value)
    for root in (at_home, tmp_path / "pod"):  # the second one goes first once it is there
        root.mkdir(parents=True)
        (root / "kafka-client").mkdir()
        (root / "kafka-client" / "client.id").write_text(root.name)
        kafka = with_secrets(job(INPUT_REF)).spec.inputs[0].kafka
        assert kafka is not None
        assert kafka.properties == {"client.id": root.name}


def test_a_setting_in_both_places_is_refused_with_every_other_one(secrets: Path) -> None:
    twice = "properties: {sasl.password: a, ssl.key.pem: b}"
    with pytest.raises(JobError) as caught:
        with_secrets(
            job(
                (TOPIC, f"{TOPIC}        {twice}\n        {REF}\n"),
                kafka_output(more=f", {twice}, {REF}"),
                ("  joins:", DEAD % "" + "  joins:"),
            )
        )
    paths = [problem.path for problem in caught.value.problems]
    assert paths == [
        f'spec.{side}.kafka.properties["{name}"]'
        for side in ("inputs[0]", "output")
        for name in ("sasl.password", "ssl.key.pem")
    ]
    assert f"is also in the secret kafka-client ({secrets}/kafka-client/sasl.password); keep one" in str(caught.value)
    assert "hush" not in str(caught.value)


def _no_key(secrets: Path) -> None:
    (secrets / "state-db" / "dsn").unlink()


def _empty_key(secrets: Path) -> None:
    (secrets / "state-db" / "dsn").write_text("\n")


def _binary_key(secrets: Path) -> None:
    (secrets / "state-db" / "dsn").write_bytes(b"hush\xff")


def _dangling_key(secrets: Path) -> None:
    _no_key(secrets)
    (secrets / "state-db" / "dsn").symlink_to("..data/dsn")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_no_key, "cannot be read: {}: No such file or directory. Write the value into that file"),
        (_dangling_key, "cannot be read: {}: No such file or directory. Write the value into that file"),
        (_empty_key, "A secret is empty: {}"),
        (_binary_key, "A secret is not text: {}"),
    ],
)
def test_a_key_that_cannot_be_used(secrets: Path, damage, words: str) -> None:
    damage(secrets)
    with pytest.raises(EnvironmentProblem) as caught:
        with_secrets(job(DSN_REF))
    assert words.format(secrets / "state-db" / "dsn") in str(caught.value)
    assert "hush" not in repr(caught.value) + repr(caught.value.__cause__) + repr(caught.value.__context__)


def test_a_key_that_may_not_be_read(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # to root nothing is denied

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(EnvironmentProblem, match="Permission denied"):
        with_secrets(job(DSN_REF))


def test_a_secret_without_keys(secrets: Path) -> None:
    for file in (secrets / "kafka-client").iterdir():
        file.unlink()
    with pytest.raises(EnvironmentProblem, match=f"kafka-client has no keys: {secrets}/kafka-client holds no file"):
        with_secrets(job(INPUT_REF))


def test_values_are_in_no_text_form_of_a_job(secrets: Path) -> None:
    resolved = with_secrets(job(INPUT_REF, DSN_REF))
    assert (
        "hush"
        not in f"{resolved!r} {resolved} {resolved.spec.inputs!r} {resolved.spec.state_store} {explain(resolved)}"
    )


def test_values_are_in_no_message_about_a_bad_model() -> None:
    with pytest.raises(ValidationError) as caught:
        PostgresStoreSpec.model_validate({"dsn": "hush", "dsn_secret_ref": {"name": "hush"}, "shema": "hush"})
    assert "hush" not in str(caught.value)


def test_a_job_is_checked_and_explained_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOINERY_SECRETS", str(tmp_path / "nowhere"))
    assert "orders" in str(explain(job(INPUT_REF, DSN_REF)))
