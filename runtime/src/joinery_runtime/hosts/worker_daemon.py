"""PySpark's daemon, with what a worker imports loaded before it forks them: else each of them spends two seconds of its
own on that, and the first epoch of a job waits for it.

PySpark imports nothing before it forks, for the sake of libraries that start threads, which do not live on in a fork.
pyarrow and polars start some when they are imported: those of jemalloc, which knows of forks and starts them again, and
one of polars that cleans up after what it has spilled to disk, which it does not here. No thread pool runs before the
fork: those of both libraries begin with their first use.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import joinery_runtime.hosts.spark
import joinery_runtime.hosts.worker_builder  # noqa: F401

if __name__ == "__main__":
    # Before a fork: a worker's collector would write to, and so copy, the pages that it shares with the others.
    gc.freeze()
    manager()
