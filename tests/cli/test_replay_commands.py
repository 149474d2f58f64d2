"""`joinery why` and `joinery verify` of a job that has read topics and keeps its state in Postgres."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from cli.commands import Joinery
from e2e.jobs import Job, fresh_name, joined, order, payment, produce, table_rows
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.hosts.driver_epochs import WAIT_FOR_SPARK

pytestmark = pytest.mark.services


def test_a_job_that_has_read_topics_is_explained_and_verified(
    joinery: Joinery, kafka_broker: KafkaAdmin, postgres_dsn: str, schema: str, tmp_path: Path
) -> None:
    name, table = fresh_name(), f"joined_{schema}"
    store = f'{{postgres: {{dsn: "{postgres_dsn}", schema: "{schema}"}}}}'
    job = Job(name, kafka_broker.bootstrap, store, f"{{postgres: {{table: {table}}}}}")
    for topic in ("orders", "payments"):
        kafka_broker.create_topic(f"{name}.{topic}")
    path = job.write(tmp_path, stop_at="NEVER")
    path.write_text(path.read_text().replace(", stopAt: NEVER", "").replace("stopAt: NEVER", ""))
    run = [sys.executable, "-m", "joinery_runtime", "run", str(path), "--once", "--status-port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != WAIT_FOR_SPARK}
    for numbers in ((1, 2), (3, 4), (5, 6)):  # each of them but the first one is read after a restart
        produce(job.bootstrap, f"{name}.orders", [order(number) for number in numbers])
        produce(job.bootstrap, f"{name}.payments", [payment(number) for number in numbers if number != 4])
        subprocess.run(run, env=environment, check=True, capture_output=True)
    produced = joined(1, 2, 3, 5, 6)
    assert table_rows(postgres_dsn, table) == produced

    (answer,) = joinery("why", path, "--record", f"{name}.orders:0=2").lines
    (record,) = answer["records"]
    assert (record["columns"]["id"], record["epoch"]) == ("o3", 2)
    assert record["made"] == [{"epoch": 2, "row": {"id": "o3", "amount": 3, "paid": 30}}]
    (alone,) = joinery("why", path, "--key", "id=o4").lines[0]["records"]
    assert (alone["offset"], alone["made"], alone["state"]["kept"], alone["nearest"]) == (3, [], True, None)

    verified = joinery("verify", path, "--epochs", "2..3")
    assert (verified.code, verified.lines[0]["differences"]) == (0, [])
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(f"UPDATE \"{table}\" SET paid = 31 WHERE id = 'o3'").rowcount == 1
    spoilt = joinery("verify", path, "--epochs", "2..3")
    assert spoilt.code == 1
    (difference,) = spoilt.lines[0]["differences"]
    assert (difference["epoch"], difference["what"]) == (2, "different")
    assert (difference["expected"]["paid"], difference["found"]["paid"]) == (30, 31)
