"""Drivers that only pretend: one HTTP server that answers `/status` for every pod that the Kubelet says is running."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from joinery_runtime.job.crd import DriverStatus

Answer = Callable[[str], Mapping[str, Any] | None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """An operator that no longer waits for the answer is no error."""


class Drivers:
    """A context manager. `answer(address)` is what the driver at that address (127.x.y.z) says, in DriverStatus's
    fields; None: it is not there yet."""

    def __init__(self, answer: Answer) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = answer(self.headers["Host"].rpartition(":")[0]) if self.path == "/status" else None
                self.send_response(503 if found is None else 200)
                self.end_headers()
                if found is not None:
                    self.wfile.write(DriverStatus(**found).model_dump_json(by_alias=True).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("0.0.0.0", 0), Handler)
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
