"""What of a job's secrets travels to Spark's workers (nothing), and how a worker gets at them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest
from pyspark.serializers import CloudPickleSerializer

from joinery_runtime.errors import EnvironmentProblem, JobError
from joinery_runtime.hosts.own_secrets import WITHHELD, lacks_secrets, private_copy, with_own_secrets, without_secrets
from joinery_runtime.hosts.run_spark import RunSpark
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.spark_tasks import WorkerSetup
from joinery_runtime.hosts.stores import OpenStore, PostgresStoreAddress
from joinery_runtime.hosts.worker_builder import WorkerBuilder
from joinery_runtime.job import StreamJoin, load_job, load_own_job, parse_job
from joinery_runtime.job.model.inputs import SchemaRegistry
from joinery_runtime.state.memory import MemoryStore

PLAIN = {"security.protocol": "SASL_SSL", "ssl.key.location": "/keys/client", "sasl.username": "me"}
SECRET = {
    "sasl.password": "hush-password",
    "ssl.key.pem": "hush-key",
    "ssl.key.password": "hush-passphrase",
    "sasl.oauthbearer.client.secret": "hush-client",
    "sasl.oauthbearer.config": "hush-config",
}
DSN = "postgresql://me:hush-dsn@db/state"
SAYS = ", ".join(f"{name}: {value}" for name, value in {**PLAIN, **SECRET}.items())
OWN = f"properties: {{{SAYS}}}"
REFERS = "properties: {security.protocol: SASL_SSL}, propertiesSecretRef: {name: kafka-client}"
JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: j}}
spec:
  inputs:
    - {{name: l, kafka: {{topic: l, bootstrapServers: k, {client}}}, format: json, schema: [{{name: ts, type: int64}}], eventTime: ts}}
    - {{name: r, kafka: {{topic: r, bootstrapServers: k, {client}}}, format: json, schema: [{{name: ts, type: int64}}], eventTime: ts}}
  joins:
    - {{right: r, keys: {{l.ts: r.ts}}, interval: {{of: l, lower: 0, upper: 0}}}}
  output: {{kafka: {{topic: out, bootstrapServers: k, {client}}}}}
  deadLetter: {{kafka: {{topic: dead}}}}
  stateStore: {{postgres: {{{store}}}}}
  spark: {{conf: {{spark.hadoop.fs.s3a.secret.key: hush-s3}}}}
"""  # noqa: E501
DSN_REF = "dsnSecretRef: {name: state-db, key: dsn}"
KINDS = {"own": (OWN, f'dsn: "{DSN}"'), "referred to": (REFERS, DSN_REF), "both": (OWN, DSN_REF)}


def job(kind: str) -> StreamJoin:
    client, store = KINDS[kind]
    parsed = parse_job(JOB.format(client=client, store=store), "job.yaml")
    assert isinstance(parsed, StreamJoin)
    return parsed


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, keys in {"kafka-client": SECRET, "state-db": {"dsn": DSN}}.items():
        (tmp_path / name).mkdir()
        for key, value in keys.items():
            (tmp_path / name / key).write_text(value)
    monkeypatch.setenv("JOINERY_SECRETS", str(tmp_path))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def spark(stack: ExitStack, address: PostgresStoreAddress | None) -> RunSpark:
    return RunSpark(OpenStore(MemoryStore(), address), stack, None, Event(), print, None)


def pickled(build: WorkerBuilder) -> bytes:
    """As Spark's tasks carry it."""
    return bytes(CloudPickleSerializer().dumps(WorkerSetup(build.digest, build, 1)))


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_travels_and_a_worker_has_all_of_them(stack: ExitStack, kind: str) -> None:
    build = spark(stack, PostgresStoreAddress(DSN, "joinery")).worker_builder(job(kind), "local[2]", stack)
    assert b"hush" not in pickled(build)
    assert b"hush" not in build.digest.encode() + repr(build).encode()
    unpickled: WorkerBuilder = pickle.loads(pickle.dumps(build))
    completed = with_secrets(
        with_own_secrets(unpickled.job, unpickled.job_file) if unpickled.job_file else unpickled.job
    )
    expected = with_secrets(job(kind))
    assert [side.kafka for side in completed.inputs] == [side.kafka for side in expected.inputs]
    assert completed.spec.output == expected.spec.output
    assert completed.dead_letter_kafka == expected.dead_letter_kafka
    assert completed.spec.state_store == expected.spec.state_store


def test_what_is_no_secret_travels_so_that_workers_anywhere_need_no_file(stack: ExitStack) -> None:
    build = spark(stack, PostgresStoreAddress(DSN, "s")).worker_builder(job("referred to"), "spark://there:7077", stack)
    assert build.job_file is None
    plain = parse_job(JOB.format(client="properties: {client.id: me}", store='dsn: "dbname=state user=me"'), "job.yaml")
    assert not lacks_secrets(without_secrets(plain))
    kafka = without_secrets(job("own")).inputs[0].kafka
    assert kafka is not None
    assert kafka.properties == {**PLAIN, **dict.fromkeys(SECRET, WITHHELD)}


def test_the_embedded_postgres_has_no_password_and_is_named_to_workers(stack: ExitStack) -> None:
    text = JOB.format(client="properties: {}", store="").replace("  stateStore: {postgres: {}}\n", "")
    embedded = "postgresql://postgres:@/postgres?host=/home/me/.joinery/postgres/data"
    address = PostgresStoreAddress(embedded, "joinery")
    build = spark(stack, address).worker_builder(parse_job(text, "j"), "local[2]", stack)
    assert build.job_file is None
    assert build.job.spec.state_store.postgres is not None
    assert build.job.spec.state_store.postgres.dsn == embedded


def test_in_a_pod_workers_read_the_file_that_is_mounted_there(stack: ExitStack) -> None:
    build = spark(stack, PostgresStoreAddress(DSN, "s")).worker_builder(job("own"), "k8s://https://there", stack)
    assert build.job_file == Path("/etc/joinery/job.yaml")


def test_the_drivers_copy_is_for_its_user_alone_and_goes_with_it() -> None:
    with private_copy(job("own")) as path:
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not path.parent.exists()


def test_the_login_of_a_schema_registry_is_a_secret_too(tmp_path: Path) -> None:
    registry = 'schemaRegistry: {url: "http://r", properties: {basic.auth.user.info: "me:hush-registry"}}, format: json'
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(client=OWN, store=DSN_REF).replace("format: json", registry, 1))
    mine = parse_job(path.read_text(), "job.yaml")
    sent = without_secrets(mine)
    assert sent.inputs[0].schema_registry is not None
    assert sent.inputs[0].schema_registry.properties == {"basic.auth.user.info": WITHHELD}
    assert with_own_secrets(sent, path).inputs == mine.inputs


def test_the_login_of_the_outputs_schema_registry_is_a_secret_too(tmp_path: Path) -> None:
    mine = job("own")
    registry = SchemaRegistry.model_validate({"url": "http://r", "properties": {"basic.auth.user.info": "me:hush"}})
    output = mine.spec.output.model_copy(update={"schema_registry": registry, "format": "avro"})
    mine = mine.model_copy(update={"spec": mine.spec.model_copy(update={"output": output})})
    sent = without_secrets(mine).spec.output.schema_registry
    assert sent is not None
    assert sent.properties == {"basic.auth.user.info": WITHHELD}


def test_the_drivers_copy_names_no_variables_of_the_environment() -> None:
    mine = parse_job(JOB.format(client=OWN, store=DSN_REF).replace("hush-key", '"${HUSH}"', 1), "job.yaml")
    with private_copy(mine) as path:
        assert with_own_secrets(without_secrets(mine), path).inputs == mine.inputs


@pytest.mark.parametrize("bounds", ["lower: -30, upper: 30", "lower: 0, upper: 1h"])
def test_workers_read_a_job_that_only_earlier_releases_took(bounds: str, tmp_path: Path) -> None:
    """A plan is ended under the job that made it: with numbers without units and patterns of its time."""
    text = JOB.format(client=OWN, store=DSN_REF).replace("lower: 0, upper: 0", bounds)
    text = text.replace(
        "[{name: ts, type: int64}]", "[{name: ts, type: int64}, {name: t, type: date, format: '%C%y %j'}]"
    )
    path = tmp_path / "job.yaml"
    path.write_text(text)
    stored = load_own_job(path)
    with pytest.raises(JobError, match="%C"):
        load_job(path)
    with private_copy(stored) as copy:
        for file in (copy, path):
            assert with_own_secrets(without_secrets(stored), file).inputs == stored.inputs


def test_an_input_is_found_by_its_name(tmp_path: Path) -> None:
    """The job that made a plan had its inputs in another order than the file has them now."""
    mine = job("own")
    turned = mine.model_copy(update={"spec": mine.spec.model_copy(update={"inputs": mine.spec.inputs[::-1]})})
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(client=OWN, store=f'dsn: "{DSN}"').replace("hush-password", "hush-other", 1))
    kafka_by_input = {side.name: side.kafka for side in with_own_secrets(without_secrets(turned), path).inputs}
    passwords = {name: kafka.properties["sasl.password"] for name, kafka in kafka_by_input.items() if kafka is not None}
    assert passwords == {"l": "hush-other", "r": "hush-password"}


@pytest.mark.parametrize("text", [None, "{}", JOB.format(client="properties: {}", store=DSN_REF)])
def test_a_worker_that_finds_no_values_says_what_to_do(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EnvironmentProblem, match=r"A worker cannot read the secrets of job j: .* Name") as caught:
        with_own_secrets(without_secrets(job("own")), path)
    assert "hush" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("named", [f'dsn: "{DSN}"', DSN_REF])
def test_the_dsn_of_an_output_table_is_a_secret_too(named: str, tmp_path: Path) -> None:
    text = JOB.format(client="properties: {}", store='dsn: "host=state"')
    lines = [
        f"  output: {{postgres: {{table: t, {named}}}}}" if "output:" in line else line for line in text.splitlines()
    ]
    text = "\n".join(lines).replace("{topic: dead}", "{topic: dead, bootstrapServers: k}")
    referring = parse_job(text, "job.yaml")
    sent = without_secrets(referring)
    assert "hush-dsn" not in sent.model_dump_json()
    (tmp_path / "job.yaml").write_text(text)
    completed = with_secrets(with_own_secrets(sent, tmp_path / "job.yaml"))
    assert completed.spec.output.postgres is not None
    assert completed.spec.output.postgres.dsn == DSN
