"""What PySpark's daemon loads before it forks workers."""

from __future__ import annotations

import subprocess
import sys

from joinery_runtime.hosts.spark import DEFAULT_CONF, WORKER_ENVIRONMENT

MODULE = DEFAULT_CONF["spark.python.daemon.module"]

LOOK = f"""
import os, sys
import {MODULE}
import joinery_runtime.job
assert len(os.listdir("/proc/self/task")) == 1, "threads do not live on in a fork"
assert not {{"pyarrow", "polars"}} & set(sys.modules), "they start threads"
assert {{"pyspark.worker", "psycopg", "confluent_kafka", "numpy", "pydantic"}} <= set(sys.modules)
"""


def test_it_starts_no_thread() -> None:
    subprocess.run([sys.executable, "-c", LOOK], check=True, env=WORKER_ENVIRONMENT)
