"""Serves a MemoryStore of the driver to task processes, on an authenticated socket."""

from __future__ import annotations

import hmac
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.managers import BaseManager
from typing import Any, cast

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.spark_security import ENV_SECRET
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import TaskStore

_PUBLIC = ("stage", "read_segments", "claim")  # the methods of `TaskStore`


@dataclass(frozen=True, slots=True)
class MemoryStoreAddress:
    """The address of the socket; pickles. The socket's key is made from the application's secret, which a worker gets
    from Spark."""

    host: str
    port: int

    def connect(self) -> TaskStore:
        """Returns the store as tasks may use it: to stage and read segments, and to claim parts of the output. Raises
        EnvironmentProblem in a process that does not have the application's secret."""

        class Client(BaseManager):
            pass

        Client.register("store", exposed=_PUBLIC)
        manager = Client((self.host, self.port), _key(os.environ.get(ENV_SECRET)))
        manager.connect()
        return cast(TaskStore, manager.store())  # type: ignore[attr-defined]


@contextmanager
def serve(store: MemoryStore, secret: str | None) -> Iterator[MemoryStoreAddress]:
    """Serves the store, and yields its address. `secret` is the application's; raises EnvironmentProblem without it."""

    class Server(BaseManager):
        pass

    def get() -> Any:
        return store

    Server.register("store", get, exposed=_PUBLIC)
    host = _own_address()
    server = Server((host, 0), _key(secret)).get_server()
    threading.Thread(target=server.serve_forever, daemon=True, name="joinery-memory-store").start()
    yield MemoryStoreAddress(host, cast(tuple[str, int], server.address)[1])


def _key(secret: str | None) -> bytes:
    if not secret:
        raise EnvironmentProblem(
            "Workers cannot reach the state in the driver's memory",
            facts=f"only who knows Spark's secret is let in, and there is none in {ENV_SECRET}: spark.authenticate is "
            "off, or somebody else (spark-submit, a notebook's session) has started a Spark whose tasks run in its own "
            "processes",
            todo="Leave spark.authenticate on and start the job with `joinery run`, or leave stateStore.memory out",
        )
    return hmac.digest(secret.encode(), b"joinery memory store", "sha256")


def _own_address() -> str:
    """The address at which executors reach this machine: loopback if it has no other name."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
