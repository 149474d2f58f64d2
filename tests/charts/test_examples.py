"""The examples for a cluster."""

from __future__ import annotations

import yaml

from charts.rendering import ROOT
from joinery_runtime.job import load_job
from joinery_runtime.job.secrets import SecretRef

EXAMPLES = ROOT / "examples" / "kubernetes"


def test_the_job_is_valid_and_its_secrets_are_beside_it() -> None:
    job = load_job(EXAMPLES / "orders-payments.yaml")
    secrets = {
        each["metadata"]["name"]: set(each["stringData"])
        for each in yaml.safe_load_all((EXAMPLES / "secrets.yaml").read_text())
    }
    store = job.spec.state_store.postgres
    assert store is not None
    assert store.dsn_secret_ref is not None
    assert store.dsn_secret_ref.key in secrets[store.dsn_secret_ref.name]
    for side in job.spec.inputs:
        assert side.kafka is not None
        assert isinstance(side.kafka.properties_secret_ref, SecretRef)
        assert "sasl.password" in secrets[side.kafka.properties_secret_ref.name]
