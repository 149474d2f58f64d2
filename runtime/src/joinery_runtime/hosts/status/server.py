"""The HTTP server of a driver: the job's page at `/`, `/status` and `/history`, which the page reads, `/metrics`,
`/healthz` and `/readyz`. It answers from the board only. Before there is a driver, a migration answers `/status`.

A request must name this server: a web site could give its own name the address of the server, and then read the pages
in the browser of whoever visits the site (DNS rebinding). So the server answers to addresses, to names that nobody can
register (`localhost`, names without a dot, Services), to this machine's name and to those in JOINERY_STATUS_NAMES."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import IPv4Address, IPv6Address, ip_address
from socketserver import TCPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.status.board import Board
from joinery_runtime.hosts.status.document import driver_status, history_document
from joinery_runtime.hosts.status.metrics import registry_of
from joinery_runtime.job.crd import DriverStatus

REVISION = "JOINERY_REVISION"
REQUEST_TIMEOUT_S = 10.0
NAMES = "JOINERY_STATUS_NAMES"
_LOOPBACK = "127.0.0.1"
_MILLISECONDS = re.compile("[0-9]{1,15}", re.ASCII)
# No registry gives these names to anybody.
_OWN_NAMES = re.compile(r"[^.]+|(.+\.)?localhost|.+\.svc(\.cluster\.local)?")
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/uplot.css": ("uplot-1.6.32/uPlot.min.css", "text/css; charset=utf-8"),
    "/uplot.js": ("uplot-1.6.32/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
}
# Allows no content from other sites, no inline script, and no embedding in another page.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

Answer = tuple[int, str, bytes]  # status code, content type, body


class StatusAddress(NamedTuple):
    """Where the server listens."""

    port: int
    page: str  # the URL of the job's page, for a person


@contextmanager
def serve_status(board: Board, port: int, host: str = _LOOPBACK) -> Iterator[StatusAddress]:
    """Serve the board on one address and on loopback, to which `kubectl port-forward` connects in a pod. Port 0 asks
    for a free one. Raises EnvironmentProblem."""
    with _serve_answers(_Pages(board, os.environ.get(REVISION, "")).answer, port, host) as (address, opened):
        reachable_host = f"[{address}]" if address.version == 6 else str(address)
        if address.is_unspecified:  # every address of this machine: its name leads to one
            reachable_host = socket.gethostname()
        yield StatusAddress(opened, f"http://{reachable_host}:{opened}/")


@contextmanager
def migration_served() -> Iterator[Callable[[int], None]]:
    """Yield a function that takes how many segments a migration has written, and serve that number. Serves nothing if
    the environment names no port. Raises EnvironmentProblem."""
    port = os.environ.get("JOINERY_STATUS_PORT")
    done, revision = 0, os.environ.get(REVISION, "")

    def report(segments: int) -> None:
        nonlocal done
        done = segments

    def answer(path: str) -> Answer:
        if path.partition("?")[0] != "/status":
            return _text_answer(404, "/status")
        return _json_answer(DriverStatus(revision=revision, migrated=done))

    if port is None:
        yield report
        return
    with _serve_answers(answer, int(port), os.environ.get("JOINERY_STATUS_HOST", _LOOPBACK)):
        yield report


@contextmanager
def _serve_answers(
    answer: Callable[[str], Answer], port: int, host: str
) -> Iterator[tuple[IPv4Address | IPv6Address, int]]:
    with ExitStack() as stack:
        address, opened = stack.enter_context(_serve_at(answer, port, host))
        if str(address) not in {_LOOPBACK, "::1"} and not address.is_unspecified:
            stack.enter_context(_serve_at(answer, opened, _LOOPBACK))
        yield address, opened


@contextmanager
def _serve_at(answer: Callable[[str], Answer], port: int, host: str) -> Iterator[tuple[IPv4Address | IPv6Address, int]]:
    try:
        server = _Server(host, port, answer)
    except OSError as error:
        raise EnvironmentProblem(
            f"The status port {port} cannot be opened on {host}",
            facts=error.strerror or str(error),
            todo="Name another --status-port, or 0 for none, or another --status-host",
        ) from error
    # How long the end of a job waits for the server, at most.
    polled = {"poll_interval": 0.05}
    thread = threading.Thread(target=server.serve_forever, kwargs=polled, name="joinery-status", daemon=True)
    thread.start()
    try:
        yield ip_address(str(server.server_address[0])), server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Pages:
    def __init__(self, board: Board, revision: str) -> None:
        self._board, self._revision = board, revision
        self._registry: CollectorRegistry = registry_of(board, revision)

    def answer(self, path: str) -> Answer:
        path, _, query = path.partition("?")
        endpoint = path[path.rfind("/") :]  # serves under any path, since an Ingress has one per job
        match endpoint:
            case "/status":
                return _json_answer(driver_status(self._board, self._revision))
            case "/history":
                since = parse_qs(query).get("since", ["0"])[0]
                if not _MILLISECONDS.fullmatch(since):
                    return _text_answer(400, "since: milliseconds since 1970, at most 15 digits")
                return _json_answer(history_document(self._board, int(since)))
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
            case "/healthz":
                return _probe_answer(self._board.liveness.problem())
            case "/readyz":
                return _probe_answer(self._board.snapshot.not_ready)
            case _ if endpoint in _PAGE:
                name, content_type = _PAGE[endpoint]
                return 200, content_type, _read_page_file(name)
            case _:
                return _text_answer(404, "/ /status /history /metrics /healthz /readyz")


@cache
def _read_page_file(name: str) -> bytes:
    return files(__package__).joinpath("page", name).read_bytes()


def _json_answer(document: BaseModel) -> Answer:
    return 200, "application/json", document.model_dump_json(by_alias=True, exclude_none=True).encode()


def _probe_answer(problem: str | None) -> Answer:
    return _text_answer(200, "ok") if problem is None else _text_answer(503, problem)


def _text_answer(code: int, text: str) -> Answer:
    return code, "text/plain; charset=utf-8", f"{text}\n".encode()


def _names_this_server(host: str, own: str) -> bool:
    """Return whether a request with this Host header may be for this server, which has the name or address `own`."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    with suppress(ValueError):
        ip_address(name)
        return True
    named = {server_name.strip().lower() for server_name in os.environ.get(NAMES, "").split(",")}
    return bool(_OWN_NAMES.fullmatch(name)) or name in named | {own.lower(), socket.gethostname().lower()}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the library's five are fewer than the connections of one browser

    def __init__(self, host: str, port: int, answer: Callable[[str], Answer]) -> None:
        self.answer, self.host = answer, host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # Skips HTTPServer's own method, which asks the name service for this machine's name and may wait for it.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT_S  # a silent client does not hold its thread
    server_version = "joinery"
    sys_version = ""

    def do_GET(self) -> None:
        host = self.headers.get("Host")  # older protocols have none, and browsers do not speak them
        if host is None or _names_this_server(host, self.server.host):
            code, content_type, body = self.server.answer(self.path)
        else:
            code, content_type, body = _text_answer(
                421,
                f"This server does not answer to the name {host[:255]!r}. Ask for it by address or as localhost, or "
                f"name it in the driver's environment: {NAMES}=<name>,...",
            )
        with suppress(ConnectionError):  # the client has gone
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing: probes come every few seconds."""
