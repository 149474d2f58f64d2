"""A TCP proxy on loopback whose connections can be cut, so that one client loses its server while others keep
theirs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from joinery_devkit.processes import free_port

_CHUNK = 64 * 2**10
_POLL_SECONDS = 0.05  # how often the thread that accepts connections checks whether it must end


class TcpProxy:
    """Passes bytes between clients of `port` and a server on `target_port`, or on a Unix socket if that is given; use
    it as a context manager."""

    def __init__(self, target_port: int = 0, *, target_socket: Path | None = None) -> None:
        self.target_port, self.port = target_port, free_port()
        self._target_socket = target_socket
        self._blocked: Callable[[int], bool] = lambda _: False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._passing = threading.Event()
        self._passing.set()
        self._listening = threading.Event()
        self._acceptor: threading.Thread | None = None
        self._pumps: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start to listen; do nothing if it already does."""
        if self._acceptor is None:
            door = socket.create_server(("127.0.0.1", self.port))
            self._listening.set()
            self._acceptor = _start_thread(self._accept_clients, door)

    def cut(self, *, silent: bool = False) -> None:
        """Drop every connection and accept no new ones, as if the host were down. `silent`: connections stay, and new
        ones succeed, but not a byte passes, as if the network dropped packets; `restore` lets pending bytes through."""
        if silent:
            self._passing.clear()
        else:
            self._hang_up_all()

    def block(self, client: Callable[[int], bool]) -> None:
        """Cut off only the clients whose own port `client` accepts, including those that connect later."""
        with self._lock:
            self._blocked = client
            for connection in self._open:
                if client(_peer_port(connection)):
                    _hang_up(connection)

    def restore(self) -> None:
        """Undo `cut` and `block`. Dropped connections stay dropped."""
        self._blocked = lambda _: False
        self._passing.set()
        self.start()

    def close(self) -> None:
        """End all connections and threads."""
        self._hang_up_all()
        self._passing.set()
        while self._pumps:
            self._pumps.pop().join()

    def _hang_up_all(self) -> None:
        self._listening.clear()
        if self._acceptor is not None:
            self._acceptor.join()
            self._acceptor = None
        with self._lock:
            for connection in self._open:
                _hang_up(connection)

    def _accept_clients(self, door: socket.socket) -> None:
        door.settimeout(_POLL_SECONDS)
        with door:
            while self._listening.is_set():
                try:
                    client, _ = door.accept()
                except TimeoutError:
                    continue
                client.settimeout(None)
                try:
                    server = self._reach_server()
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._open |= {client, server}
                    if self._blocked(_peer_port(client)):
                        _hang_up(client)
                self._pumps = [thread for thread in self._pumps if thread.is_alive()]
                self._pumps.append(_start_thread(self._pass_both_ways, client, server))

    def _reach_server(self) -> socket.socket:
        if self._target_socket is None:
            return socket.create_connection(("127.0.0.1", self.target_port))
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(self._target_socket))
        except OSError:
            server.close()
            raise
        return server

    def _pass_both_ways(self, client: socket.socket, server: socket.socket) -> None:
        back = _start_thread(self._pass_bytes, server, client)
        self._pass_bytes(client, server)
        back.join()
        with self._lock:
            self._open -= {client, server}
            client.close()
            server.close()

    def _pass_bytes(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._passing.wait()
                target.sendall(data)
        _hang_up(source)
        _hang_up(target)


def _start_thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _peer_port(connection: socket.socket) -> int:
    """Return the client's port; 0 if the socket has no ports, or the client has gone."""
    with contextlib.suppress(OSError):
        if connection.family == socket.AF_INET:
            port: int = connection.getpeername()[1]
            return port
    return 0


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def before_postgres(dsn: str) -> Iterator[tuple[TcpProxy, str]]:
    """Yield a proxy in front of a Postgres that listens on a Unix socket, and the DSN that leads through it."""
    parameters = conninfo_to_dict(dsn)
    with TcpProxy(target_socket=Path(str(parameters["host"])) / f".s.PGSQL.{parameters.get('port') or 5432}") as proxy:
        yield proxy, make_conninfo(dsn, host="127.0.0.1", port=proxy.port)
