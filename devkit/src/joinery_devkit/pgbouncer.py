"""A real pgbouncer in transaction mode in front of a Postgres: each transaction may get another server connection."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from joinery_devkit.kubernetes import packages
from joinery_devkit.processes import ChildProcess, deadline_after, free_port
from joinery_runtime.errors import EnvironmentProblem

_START_SECONDS = 60.0

_SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
server_login_retry = 1
pool_mode = transaction
default_pool_size = {servers}
max_client_conn = 100
server_round_robin = 1
"""


@contextmanager
def pooled(dsn: str, servers: int = 3) -> Iterator[str]:
    """Yields the DSN that leads to a server with a Unix socket through the pooler, which has `servers` connections and
    hands them out in turn. Raises EnvironmentProblem."""
    packages.install(packages.POOLER)
    parameters = conninfo_to_dict(dsn)
    with TemporaryDirectory(prefix="joinery-pgbouncer-") as folder:
        listen, settings = free_port(), Path(folder) / "pgbouncer.ini"
        server = {name: parameters.get(name) or default for name, default in _DEFAULTS.items()}
        settings.write_text(_SETTINGS.format(**server, listen=listen, servers=servers))
        command = ["/usr/sbin/pgbouncer", "--quiet", str(settings)]
        if os.geteuid() == 0:  # it does not run as root, and only the server's user may open the server's socket
            owner = Path(str(server["host"])).stat().st_uid
            os.chown(folder, owner, -1)
            settings.chmod(0o644)
            command[1:1] = ["--user", pwd.getpwuid(owner).pw_name]
        process = ChildProcess(command, Path(folder) / "log")
        try:
            address = make_conninfo(dsn, host="127.0.0.1", port=listen)
            _wait_until_up(process, address)
            yield address
        finally:
            process.stop()


_DEFAULTS = {"host": "127.0.0.1", "port": "5432", "user": "postgres"}


def _wait_until_up(process: ChildProcess, address: str) -> None:
    deadline = deadline_after(_START_SECONDS)
    while True:
        try:
            psycopg.connect(address).close()
            return
        except psycopg.OperationalError as error:
            if not process.running() or time.monotonic() > deadline:
                raise EnvironmentProblem("pgbouncer does not start", facts=f"{error}; {process.log_tail()}") from error
        time.sleep(0.05)
