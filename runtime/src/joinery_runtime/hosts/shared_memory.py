"""Serves a MemoryStore of the driver to task processes, on an authenticated socket."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.managers import BaseManager
from typing import Any, cast

from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import TaskStore

_PUBLIC = ("stage", "read_segments", "claim")  # the methods of `TaskStore`


@dataclass(frozen=True, slots=True)
class MemoryStoreAddress:
    host: str
    port: int
    key: bytes = field(repr=False)

    def connect(self) -> TaskStore:
        """A view for tasks: it can stage and read segments, and claim parts of the output; all else is the driver's."""

        class Client(BaseManager):
            pass

        Client.register("store", exposed=_PUBLIC)
        manager = Client((self.host, self.port), self.key)
        manager.connect()
        return cast(TaskStore, manager.store())  # type: ignore[attr-defined]


@contextmanager
def serve(store: MemoryStore) -> Iterator[tuple[MemoryStore, MemoryStoreAddress]]:
    class Server(BaseManager):
        pass

    def get() -> Any:
        return store

    Server.register("store", get, exposed=_PUBLIC)
    address = MemoryStoreAddress(_own_address(), 0, secrets.token_bytes(32))
    server = Server((address.host, 0), address.key).get_server()
    threading.Thread(target=server.serve_forever, daemon=True, name="joinery-memory-store").start()
    yield store, MemoryStoreAddress(address.host, cast(tuple[str, int], server.address)[1], address.key)


def _own_address() -> str:
    """The address that executors reach this machine by: loopback where it has no other name."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
