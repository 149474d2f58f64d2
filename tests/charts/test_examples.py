"""The examples for a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from charts.rendering import ROOT
from joinery_runtime.job import load_job
from joinery_runtime.job.crd import KINDS
from joinery_runtime.job.model.base import SecretRef

EXAMPLES = ROOT / "examples" / "kubernetes"
JOBS = sorted(set(EXAMPLES.glob("*.yaml")) - {EXAMPLES / "secrets.yaml"})


def test_there_is_one_of_every_kind() -> None:
    assert {load_job(path).kind for path in JOBS} == {kind.name for kind in KINDS}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_job_is_valid_and_its_secrets_are_beside_it(path: Path) -> None:
    job = load_job(path)
    secrets = {
        secret["metadata"]["name"]: set(secret["stringData"])
        for secret in yaml.safe_load_all((EXAMPLES / "secrets.yaml").read_text())
    }
    store = job.spec.state_store.postgres
    assert store is not None
    assert store.dsn_secret_ref is not None
    assert store.dsn_secret_ref.key in secrets[store.dsn_secret_ref.name]
    for side in job.inputs:
        assert side.kafka is not None
        assert isinstance(side.kafka.properties_secret_ref, SecretRef)
        assert "sasl.password" in secrets[side.kafka.properties_secret_ref.name]


def test_the_job_of_make_kind_is_valid_and_its_parts_are_beside_it() -> None:
    folder = ROOT / "deploy" / "kind"
    job = load_job(folder / "job.yaml")
    parts = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in yaml.safe_load_all((folder / "parts.yaml").read_text())
    }
    store = job.spec.state_store.postgres
    assert store is not None
    assert store.dsn_secret_ref is not None
    assert store.dsn_secret_ref.key in parts["Secret", store.dsn_secret_ref.name]["stringData"]
    assert {side.kafka.bootstrap_servers for side in job.inputs if side.kafka} == {"kafka:9092"}
    assert parts["Service", "kafka"]["spec"]["ports"][0]["port"] == 9092
    sent = parts["ConfigMap", "feeder"]["data"]["feeder.py"]
    compile(sent, "feeder.py", "exec")
    for side in job.inputs:
        assert side.kafka is not None
        assert f'produce("{side.kafka.topic}"' in sent
        assert all(f'"{column.name}"' in sent for column in side.columns)


def test_the_compose_file_has_the_kafka_of_make_kind_on_loopback_alone() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    parts = yaml.safe_load_all((ROOT / "deploy/kind/parts.yaml").read_text())
    (kafka,) = [
        manifest["spec"]["template"]["spec"]["containers"][0]
        for manifest in parts
        if (manifest["kind"], manifest["metadata"]["name"]) == ("Deployment", "kafka")
    ]
    assert services["kafka"]["image"] == kafka["image"]
    advertised = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:9092"}
    expected = {variable["name"]: variable["value"] for variable in kafka["env"]} | advertised
    assert services["kafka"]["environment"] == {**expected, "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093"}
    ports = [port for service in services.values() for port in service["ports"]]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)
    tutorial = (ROOT / "docs/tutorial.md").read_text()
    assert f"postgres:{services['postgres']['environment']['POSTGRES_PASSWORD']}@localhost/postgres" in tutorial
