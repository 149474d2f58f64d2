"""A schema registry that goes away while a job runs: the job says so, waits, and goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest

from e2e.jobs import fresh_name, json_rows, produce
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.engine.loop import CommittedEpoch, JobListener, Outage
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import load_job
from sources.registry import registry
from sources.test_avro import avro

pytestmark = pytest.mark.services

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: {name}}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: {name}}}
      format: avro
      schemaRegistry: {{url: "{url}", properties: {{max.retries: "0"}}}}
      schema: [{{name: id, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
    - name: payments
      file: {{path: payments.jsonl}}
      format: json
      schema: [{{name: order, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
  joins: [{{right: payments, keys: {{orders.id: payments.order}}, interval: {{of: orders, lower: 0s, upper: 1h}}}}]
  select: [{{column: orders.id}}]
  output: {{file: {{path: out}}, format: json}}
  stateStore: {{memory: {{}}}}
"""
FIELDS = [{"name": "id", "type": "string"}, {"name": "ts", "type": "long"}]
FIRST = {"type": "record", "name": "Order", "fields": FIELDS}
SECOND = {"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}, *FIELDS]}
ORDERS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"status": 503}, "Input orders: the schema registry does not answer"),
        ({"page": "<html>no such host</html>", "page_status": 404}, "Input orders: no schema registry answers"),
    ],
    ids=["it is down", "a proxy answers"],
)
def test_a_job_waits_for_its_registry_and_loses_nothing(
    kafka_broker: KafkaAdmin, tmp_path: Path, answers: dict[str, object], says: str
) -> None:
    name, stop = fresh_name(), Event()
    kafka_broker.create_topic(name)
    path = tmp_path / "job.yaml"
    payments = [{"order": order, "ts": 1_000} for order in ORDERS]
    (tmp_path / "payments.jsonl").write_text("".join(json.dumps(payment) + "\n" for payment in payments))
    said: list[str] = []
    rows = 0

    with registry() as served:
        first, second = served.add(FIRST), served.add(SECOND)
        healthy = {setting: getattr(served, setting) for setting in answers}

        def become(settings: dict[str, object]) -> None:
            for setting, value in settings.items():
                setattr(served, setting, value)

        def committed(epoch: CommittedEpoch) -> None:
            nonlocal rows
            if not rows and epoch.report.rows_out:
                become(answers)
                unknown = avro(SECOND, {"id": "b", "ts": 1_000, "note": "new"}, second)
                produce(kafka_broker.bootstrap, name, [unknown, avro(FIRST, {"id": "c", "ts": 1_000}, first)])
            rows += epoch.report.rows_out
            if rows == len(ORDERS):
                stop.set()

        def waiting(outage: Outage) -> None:
            said.append(str(outage.error))
            if len(said) == 2:
                become(healthy)

        path.write_text(JOB.format(name=name, bootstrap=kafka_broker.bootstrap, url=served.url))
        produce(kafka_broker.bootstrap, name, [avro(FIRST, {"id": "a", "ts": 1_000}, first)])
        listener = JobListener(lambda _: None, committed, lambda *_: None, waiting=waiting)
        run_job(load_job(path), listener, stop, warn=lambda _: None)
    assert all(text.startswith(says) and f"{served.url} was asked for schema {second}" in text for text in said)
    assert len(said) >= 2
    assert sorted(row["id"] for row in json_rows(tmp_path / "out")) == ORDERS
