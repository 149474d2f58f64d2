"""A Spark worker process that runs several jobs of one session, one after the other, keeps open what the newest one
needs."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from joinery_devkit.kafka_admin import KafkaAdmin

RUNS = ("exactly-once", "at-least-once", "exactly-once")

# Runs jobs on a session as a notebook does, and prints after each how many threads its worker process has, and how many
# connections to Postgres are open, by name.
SESSION = """
import json, os, sys, time
from collections import Counter
from contextlib import suppress
import psutil, psycopg
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from joinery_runtime import run

dsn, bootstrap, topic, *runs = sys.argv[1:]
os.environ |= {"JOINERY_WAIT_FOR_SPARK": "1", "PYSPARK_PYTHON": sys.executable}
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
postgres = psycopg.connect(dsn, autocommit=True)

def job(name):
    kafka = {"bootstrapServers": bootstrap}
    schema = [{"name": "k", "type": "string"}, {"name": "ts", "type": "timestamp"}]
    inputs = [
        {"name": side, "kafka": kafka | {"topic": f"{topic}-{side}"}, "format": "json", "schema": schema, "eventTime": "ts"}
        for side in ("l", "r")
    ]
    interval = {"of": "l", "lower": "-10ms", "upper": "10ms"}
    outputs = {"table": {"postgres": {"table": topic}}, "topic": {"kafka": kafka | {"topic": f"{topic}-out"}}}
    return {
        "apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": name},
        "spec": {
            "inputs": inputs, "outputs": [{"name": output, **target} for output, target in outputs.items()],
            "joins": [{"right": "r", "keys": {"l.k": "r.k"}, "interval": interval}],
            "select": [{"column": "l.k", "as": "k"}],
            "delivery": "atLeastOnce" if name == "at-least-once" else "exactlyOnce",
            "stateStore": {"postgres": {"dsn": dsn, "schema": topic}},
        },
    }

def worker():
    # The daemon, which Java has started, forks it, and it has the daemon's command line. Processes
    # that have ended have none.
    of_daemons = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark.daemon" in " ".join(process.cmdline()):
                of_daemons.append(process)
    (forked,) = (process for process in of_daemons if process.parent() in of_daemons)
    return forked

def opened():
    process = worker()
    tasks = (open(f"/proc/{process.pid}/task/{thread.id}/comm").read().strip() for thread in process.threads())
    return Counter([*tasks, *connections()])

def connections():
    # Postgres may still be ending those that this process has closed.
    names = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    deadline = time.monotonic() + 10
    while len(rows := postgres.execute(names).fetchall()) > 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"Postgres, {name}" for (name,) in rows]

producer = Producer({"bootstrap.servers": bootstrap})
for number, name in enumerate(runs):
    for row in range(50):
        record = json.dumps({"k": str(row), "ts": 1_000 * number})
        for side in ("l", "r"):
            producer.produce(f"{topic}-{side}", record)
    assert not producer.flush(60)
    assert run(job(name), spark=session, once=True).rows_out, name
    print(json.dumps(opened()), flush=True)
"""  # noqa: E501


@pytest.mark.services
def test_a_process_has_open_what_its_newest_job_needs(
    kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path
) -> None:
    """On one core, a worker writes in a thread that outlives the worker."""
    topic = f"replaced_{uuid.uuid4().hex[:8]}"
    for name in ("l", "r", "out"):
        kafka_broker.create_topic(f"{topic}-{name}", 1)
    script = tmp_path / "session.py"
    script.write_text(SESSION)
    command = [sys.executable, str(script), postgres_dsn, kafka_broker.bootstrap, topic, *RUNS]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    # A client of Kafka has one thread `rdk:main`: two consumers and a producer.
    most = {"Postgres, joinery": 1, "Postgres, joinery output": 1, "rdk:main": 3}
    for opened in map(json.loads, ran.stdout.splitlines()[-len(RUNS) :]):
        assert opened["rdk:main"] == 3
        assert {name: count for name, count in opened.items() if count > most.get(name, count)} == {}
