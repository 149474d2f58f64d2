"""Servers that all processes of one test run share. Each is started once, when the first test asks for it.

pytest-xdist runs the tests in several worker processes. The process that started the run (`SharedServices`) owns the
servers; workers ask it for an address over a Unix socket (`address_of`), whose path they inherit in the environment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

Starter = Callable[[], AbstractContextManager[str]]
"""Starts a server and yields its address; leaving the context ends the server. It may ask for another's address."""

_SOCKET = "JOINERY_TEST_SERVICES"
_STOP = ""


class SharedServices:
    """Owns the servers named in `starters`; they end with `close`, the last one started first.

    Several can start at the same time.
    """

    def __init__(self, starters: Mapping[str, Starter]) -> None:
        self._starters = starters
        self._running = ExitStack()
        self._addresses: dict[str, str] = {}
        self._starting = {name: threading.Lock() for name in starters}
        self._folder = Path(tempfile.mkdtemp(prefix="joinery-services-"))
        self._listener = Listener(str(self._folder / "socket"), "AF_UNIX")
        os.environ[_SOCKET] = str(self._folder / "socket")
        self._thread = threading.Thread(target=self._accept_requests, name="shared services", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with Client(str(self._folder / "socket"), "AF_UNIX") as connection:
            connection.send(_STOP)
        self._thread.join()
        self._listener.close()
        self._running.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        del os.environ[_SOCKET]

    def _accept_requests(self) -> None:
        while True:
            connection = self._listener.accept()
            name = connection.recv()
            if name == _STOP:
                connection.close()
                return
            threading.Thread(target=self._answer_request, args=(connection, name), daemon=True).start()

    def _answer_request(self, connection: Connection, name: str) -> None:
        with connection:
            try:
                with self._starting[name]:
                    if name not in self._addresses:
                        self._addresses[name] = self._running.enter_context(self._starters[name]())
                connection.send((self._addresses[name], None))
            except Exception as error:  # goes to the test that asked
                connection.send(("", f"{type(error).__name__}: {error}"))


def address_of(name: str) -> str:
    """Return the address of the shared server `name`. Raises RuntimeError with the reason if it does not start."""
    with Client(os.environ[_SOCKET], "AF_UNIX") as connection:
        connection.send(name)
        address, problem = connection.recv()
    if problem is not None:
        raise RuntimeError(f"the shared {name} does not start: {problem}")
    return str(address)
