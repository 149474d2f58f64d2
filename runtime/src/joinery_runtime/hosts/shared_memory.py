"""Serves a MemoryStore of the driver to task processes of this machine, on an authenticated socket.

The socket listens on loopback, and its key is in a file that only this user may read. So a job needs no secret of
Spark's, and runs on every Spark whose tasks are on the driver's machine, also on a session that somebody else has
started (docs/decisions/0064).
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, cast

from joinery_runtime.errors import EnvironmentProblem, JobError, Problem, explain_full_disk
from joinery_runtime.hosts.scratch import scratch_folder
from joinery_runtime.hosts.spark_security import LOOPBACK, is_on_this_machine
from joinery_runtime.job import Job
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import TaskStore

_PUBLIC = ("stage", "read_segments", "claim")  # the methods of `TaskStore`


@dataclass(frozen=True, slots=True)
class MemoryStoreAddress:
    """The port of the socket, and the file with its key; pickles."""

    port: int
    key_file: Path

    def connect(self) -> TaskStore:
        """Return the store as tasks may use it: to stage and read segments, and to claim parts of the output. Raises
        EnvironmentProblem in a process that may not read the key."""

        class Client(BaseManager):
            pass

        Client.register("store", exposed=_PUBLIC)
        manager = Client((LOOPBACK, self.port), self._authentication_key())
        manager.connect()
        return cast(TaskStore, manager.store())  # type: ignore[attr-defined]

    def _authentication_key(self) -> bytes:
        try:
            return self.key_file.read_bytes()
        except OSError as error:
            raise EnvironmentProblem(
                "A worker cannot reach the state in the driver's memory",
                facts=f"only this job's user on the driver's machine may read {self.key_file}: {error.strerror}",
                todo="Keep the state in a Postgres: name it under stateStore.postgres",
            ) from error


@contextmanager
def serve(store: MemoryStore) -> Iterator[MemoryStoreAddress]:
    """Serve the store, and yield its address."""

    class Server(BaseManager):
        pass

    served = [store]

    def get() -> Any:
        return served[0]

    Server.register("store", get, exposed=_PUBLIC)
    key = secrets.token_bytes(32)
    with scratch_folder("memory-store") as folder:
        key_file = folder / "key"
        with (
            explain_full_disk("the key of the state in memory", folder),
            os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        ):
            file.write(key)
        server = Server((LOOPBACK, 0), key).get_server()
        threading.Thread(target=server.serve_forever, daemon=True, name="joinery-memory-store").start()
        try:
            yield MemoryStoreAddress(cast(tuple[str, int], server.address)[1], key_file)
        finally:
            # The server itself has no end that leaves this process's standard output alone. Without the store it is
            # only a port that knows nothing.
            served.clear()
            server.id_to_obj.clear()


def check_memory_store(job: Job, master: str) -> None:
    """Raise JobError for a job that keeps its state in the driver's memory on a master with other machines. `master`
    is "" while it is not known."""
    if master and job.spec.state_store.kind == "memory" and not is_on_this_machine(master):
        rule = (
            f"with the Spark master {master}, tasks run on other machines and cannot reach the state in the driver's "
            "memory; name a Postgres that they reach (stateStore.postgres), or run the job on one machine, as on "
            "local[*] or with `joinery run --local`"
        )
        raise JobError(f"job {job.name}", [Problem("spec.stateStore.memory", rule)])
