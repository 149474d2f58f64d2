"""PySpark's daemon, which loads a worker's imports before it forks workers. Otherwise each worker would spend two
seconds on them, and the first epoch of a job would wait for that. Where the driver has made a fork for this purpose
(`hosts.daemon_fork`), nothing is loaded here: the fork becomes the daemon.

PySpark imports nothing before it forks, because threads that a library starts do not survive a fork. pyarrow and polars
start some when they are imported: those of jemalloc, which handles forks and starts them again, and one of polars that
cleans up after spilling to disk, which does not happen here. No thread pool runs before the fork: the pools of both
libraries start with their first use.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from pathlib import PurePath

from joinery_runtime.hosts.daemon_fork import ADDRESS, hand_over


def load() -> None:
    """Import everything that a worker needs."""
    # Spark puts archives of its Python packages first, and Python compiles modules in an archive at each import.
    sys.path.sort(key=_is_archive_of_spark)

    import numpy.ma  # noqa: F401, PLC0415 - pyarrow asks for it with the first array of numpy's
    import pyspark.worker  # noqa: F401, PLC0415

    import joinery_runtime.hosts.spark  # noqa: PLC0415
    import joinery_runtime.hosts.stores  # noqa: PLC0415 - what the driver pickles is an address of one
    import joinery_runtime.hosts.worker_builder  # noqa: F401, PLC0415


def _is_archive_of_spark(entry: str) -> bool:
    path = PurePath(entry)
    return path.suffix == ".zip" and path.name.startswith(("pyspark", "py4j"))


def main() -> None:
    address = os.environ.pop(ADDRESS, None)
    if address is None or not hand_over(address):
        serve()


def serve() -> None:
    """Load what is missing, and fork workers until Spark ends this process."""
    gc.disable()  # what is imported stays: looking for garbage in it takes a tenth of the start
    load()
    # Freezes objects before a fork: a worker's garbage collector would write to, and so copy, the pages shared with the
    # other workers.
    gc.freeze()
    gc.enable()
    import pyspark.daemon  # noqa: PLC0415

    run_task = pyspark.daemon.worker

    def run_task_while_spark_listens(sock: socket.socket, authenticated: bool) -> int:
        """Run a task without the stack trace that PySpark prints when Spark closes the connection in the middle of it.
        Spark does so whenever it cancels a task or stops, so a job that stops in order would end with that trace on its
        terminal."""
        try:
            return int(run_task(sock, authenticated))
        except (ConnectionError, EOFError):
            return 1  # ends the process: this connection brings no further tasks

    pyspark.daemon.worker = run_task_while_spark_listens
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
