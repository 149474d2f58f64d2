import os
import signal
import subprocess
import sys

import psutil
import pytest

from joinery_devkit.spark_cluster import StandaloneCluster

pytestmark = [pytest.mark.services, pytest.mark.slow]

# A driver in a process of its own; each line it is sent runs one job and answers the sum.
DRIVER = """
import sys
from pyspark import SparkConf, SparkContext
conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.ui.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true", "spark.task.maxFailures": "20"}
context = SparkContext(conf=SparkConf().setMaster(sys.argv[1]).setAll(conf.items()))
for line in sys.stdin:
    print(context.parallelize(range(10), 4).map(lambda value: value * 2).sum(), flush=True)
"""


def test_jobs_run_through_killed_executors_and_python_workers():
    with StandaloneCluster(workers=2, cores=1, memory="1g") as cluster:
        assert len(cluster.worker_pids()) == 2
        assert cluster.executor_pids() == []
        command = [sys.executable, "-c", DRIVER, cluster.master_url]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=cluster.environment,
        ) as driver:

            def job() -> int:
                driver.stdin.write("go\n")
                driver.stdin.flush()
                return int(driver.stdout.readline())

            assert job() == 90
            os.kill(cluster.executor_pids()[0], signal.SIGKILL)
            assert job() == 90
            os.kill(cluster.python_worker_pids()[0], signal.SIGKILL)
            assert job() == 90
            pids = [*cluster.worker_pids(), *cluster.executor_pids(), *cluster.python_worker_pids()]
            running = [psutil.Process(pid) for pid in pids]
            driver.stdin.close()
            assert driver.wait(240) == 0
    _, alive = psutil.wait_procs(running, timeout=60)
    assert alive == []
    assert not cluster.directory.exists()
