"""Tasks that Spark runs again, with output in Kafka that is visible before the epoch's commit: rows come once whatever
became of the attempts before; and an epoch that is run again by a driver of an edited job."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.kill_harness import Feeder, dead_letter_rows, expected_epochs, read_inputs, repeated, topic_rows
from e2e.scene import Scene
from joinery_devkit.expectation import read
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.oracle import Oracle, Values, differences
from joinery_devkit.processes import ChildProcess
from joinery_devkit.spark_cluster import StandaloneCluster, spark_home
from joinery_runtime.engine.messages import TRANSACTION_POINTS
from joinery_runtime.job import load_job

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
}
OTHER_ADDRESS = "127.0.0.2"  # the same machine, but not to Spark, which speculates on another host only

pytestmark = [pytest.mark.services, pytest.mark.slow]


def test_a_worker_that_dies_in_its_transaction_or_after_it(scene: Scene) -> None:
    with Feeder(scene.job.bootstrap, scene.job.name, seed=5) as feeder:
        run = scene.start(" ".join(f"{point}@{4 + 2 * n}=SIGKILL" for n, point in enumerate(TRANSACTION_POINTS)))
        hurt = {point: scene.hurt_at(point) for point in TRANSACTION_POINTS}
        run.wait_for_more_epochs(3)
        entries = scene.finish(feeder, run)
    assert repeated(entries) == [hurt["transaction-committed"]]
    assert {entry["generation"] for entry in entries} == {1}


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """A cluster of two hosts with one core each."""
    with StandaloneCluster(workers=1) as cluster:
        command = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker",
                   "--host", OTHER_ADDRESS, "--webui-port", "0", "--cores", "1", "--memory", "1g",
                   "--work-dir", str(tmp_path / "other"), cluster.master_url]  # fmt: skip
        environment = {**cluster.environment, "SPARK_LOCAL_IP": OTHER_ADDRESS}
        other = ChildProcess(command, tmp_path / "other.log", environment)
        yield cluster
        other.stop()


def test_speculative_attempts_write_once(scene: Scene, two_hosts: StandaloneCluster) -> None:
    """The slow attempt has an open transaction, or has committed it, when the other one begins."""
    with Feeder(scene.job.bootstrap, scene.job.name, seed=6) as feeder:
        slow = "transaction-sent@4=SIGSTOP transaction-committed@7=SIGSTOP"
        run = scene.start(slow, two_hosts.master_url, SPECULATION, two_hosts.environment)
        scene.hurt_at("transaction-sent")
        epoch = scene.hurt_at("transaction-committed")
        run.wait_for_more_epochs(3)
        entries = scene.finish(feeder, run)
    assert epoch in repeated(entries)


def test_an_epoch_is_finished_by_the_job_that_began_it(scene: Scene, kafka_broker: KafkaAdmin) -> None:
    """Output topic, columns and predicate are changed while an epoch is half written."""
    later = f"{scene.job.name}.later"
    kafka_broker.create_topic(later, 2)
    with Feeder(scene.job.bootstrap, scene.job.name, seed=7) as feeder:
        first = scene.start(environment={"JOINERY_FAULT": "transaction-committed@5"})
        assert first.wait() == -signal.SIGKILL, first.last_words
        second = scene.start(
            output=f'{{kafka: {{bootstrapServers: "{scene.job.bootstrap}", topic: {later}}}}}',
            where="where: orders.amount <> payments.paid",
            extra="select: [{column: orders.id}, {column: payments.paid, as: payment}]",
        )
        second.wait_for_more_epochs(5)
        entries = scene.settle(feeder, second)
    edited_after = next(entry["epoch"] for entry in entries if entry["generation"] > 1)
    assert edited_after in repeated(entries)
    _judge(scene, entries, edited_after, later)


def _judge(scene: Scene, entries: list[dict[str, object]], edited_after: int, later: str) -> None:
    jobs = [load_job(scene.file(number)) for number in (0, 1)]
    records = read_inputs(jobs[0], scene.job.bootstrap)
    current = jobs[0]

    def at(epoch: int) -> object:
        nonlocal current
        current = jobs[epoch > edited_after]
        return current

    def residual(left: Values, right: Values) -> bool:
        return current is jobs[0] or left["amount"] != right["paid"]

    expected: dict[bool, list[dict[str, object]]] = {False: [], True: []}
    for epoch, rows in expected_epochs(Oracle.of_job(jobs[0], residual=residual), at, entries, records):
        expected[epoch > edited_after] += rows
    assert all(expected.values())
    for edited, topic in ((False, f"{scene.job.name}.out"), (True, later)):
        assert not differences(expected[edited], topic_rows(scene.job.bootstrap, topic))
    dead = dead_letter_rows(scene.job.bootstrap, f"{scene.job.name}.dead")
    positions = Counter((row["topic"], row["partition"], row["offset"]) for row in dead)
    assert positions == Counter(read(records, entries, jobs[0]).dead)
