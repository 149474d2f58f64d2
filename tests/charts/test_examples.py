"""The examples for a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from charts.rendering import ROOT
from joinery_runtime.job import load_job
from joinery_runtime.job.crd import KINDS
from joinery_runtime.job.model.secrets import SecretRef

EXAMPLES = ROOT / "examples" / "kubernetes"
JOBS = sorted(set(EXAMPLES.glob("*.yaml")) - {EXAMPLES / "secrets.yaml"})


def test_there_is_one_of_every_kind() -> None:
    assert {load_job(path).kind for path in JOBS} == {kind.name for kind in KINDS}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_job_is_valid_and_its_secrets_are_beside_it(path: Path) -> None:
    job = load_job(path)
    secrets = {
        each["metadata"]["name"]: set(each["stringData"])
        for each in yaml.safe_load_all((EXAMPLES / "secrets.yaml").read_text())
    }
    store = job.spec.state_store.postgres
    assert store is not None
    assert store.dsn_secret_ref is not None
    assert store.dsn_secret_ref.key in secrets[store.dsn_secret_ref.name]
    for side in job.inputs:
        assert side.kafka is not None
        assert isinstance(side.kafka.properties_secret_ref, SecretRef)
        assert "sasl.password" in secrets[side.kafka.properties_secret_ref.name]
