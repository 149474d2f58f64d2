"""PySpark's daemon, with what a worker imports loaded before it forks them: else each of them spends two seconds of its
own on that, and the first epoch of a job waits for it.

PySpark imports nothing before it forks, for the sake of libraries that start threads, which do not live on in a fork.
pyarrow and polars start some when they are imported: those of jemalloc, which knows of forks and starts them again, and
one of polars that cleans up after what it has spilled to disk, which it does not here. No thread pool runs before the
fork: those of both libraries begin with their first use.
"""

from __future__ import annotations

import gc
import socket
import sys
from pathlib import PurePath


def load() -> None:
    """Imports all that a worker needs."""
    # Spark puts archives of its Python packages first, and Python compiles what it finds in an archive, each time.
    sys.path.sort(key=_is_archive_of_spark)

    import numpy.ma  # noqa: F401, PLC0415 - pyarrow asks for it with the first array of numpy's
    import pyspark.worker  # noqa: F401, PLC0415

    import joinery_runtime.hosts.spark  # noqa: PLC0415
    import joinery_runtime.hosts.stores  # noqa: PLC0415 - what the driver pickles is an address of one
    import joinery_runtime.hosts.worker_builder  # noqa: F401, PLC0415


def _is_archive_of_spark(entry: str) -> bool:
    place = PurePath(entry)
    return place.suffix == ".zip" and place.name.startswith(("pyspark", "py4j"))


def main() -> None:
    load()
    # Before a fork: a worker's collector would write to, and so copy, the pages that it shares with the others.
    gc.freeze()
    import pyspark.daemon  # noqa: PLC0415

    run_task = pyspark.daemon.worker

    def run_task_while_spark_listens(sock: socket.socket, authenticated: bool) -> int:
        """PySpark prints a stack of its own when Spark closes the connection in the middle of a task. Spark does so
        whenever it cancels a task or stops; a job that was stopped in order would end with that stack on its terminal.
        """
        try:
            return int(run_task(sock, authenticated))
        except (ConnectionError, EOFError):
            return 1  # the process ends: this connection has no further tasks

    pyspark.daemon.worker = run_task_while_spark_listens
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
