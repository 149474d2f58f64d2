"""PySpark's daemon, with a good part of what a worker imports loaded before it forks them: else each of them spends
those seconds on its own, and the first epoch of a job waits for it.

Nothing that starts threads may be among it, which pyarrow and polars do: threads do not live on in a fork.
"""

from __future__ import annotations

import gc

import confluent_kafka.admin  # noqa: F401
import numpy as np  # noqa: F401
import psycopg  # noqa: F401
import pyspark.worker  # noqa: F401
import stamina  # noqa: F401
from pyspark.daemon import manager

import joinery_runtime.job  # noqa: F401

if __name__ == "__main__":
    # PySpark collects after every task, which would go over all that was imported.
    gc.freeze()
    manager()
