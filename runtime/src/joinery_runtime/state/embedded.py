"""An embedded Postgres for a laptop: the server is a Python package, and its data directory stays between runs."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from joinery_runtime.errors import EnvironmentProblem, NoRoom, says_full
from joinery_runtime.state import postgres_server
from joinery_runtime.state.postgres_server import ServerUser

MIB = 1 << 20
# A sixteenth of the memory caches tables: with 2 GB that is 128 MB, Postgres's default.
_CACHE_LEAST, _CACHE_MOST = 128 * MIB, 1024 * MIB
# After a checkpoint, the first change of each page logs the whole page. Postgres's default, a GB of log, is one large
# epoch.
_LOG_MOST = "4GB"

_LOOK_SECONDS = 0.2
_USERS = ".handle_pids.json"  # in the data folder; earlier releases count their processes there too

logger = logging.getLogger("joinery.postgres")
_this_process = threading.Lock()
_uses: Counter[Path] = Counter()  # of this process, by data folder


def embedded_directory() -> Path:
    """Where the embedded Postgres of this user keeps its data: `$JOINERY_HOME/postgres`, else `~/.joinery/postgres`."""
    return Path(os.environ.get("JOINERY_HOME", Path.home() / ".joinery")) / "postgres"


@dataclass(frozen=True, slots=True)
class StartAhead:
    """A start of the server in a `thread`. Once it is `settled`, the server runs or does not start, and the thread only
    waits for the end of the block."""

    thread: threading.Thread
    settled: threading.Event


@contextmanager
def start_ahead(directory: Path) -> Iterator[StartAhead]:
    """Start the server in a thread while the caller does something else. If the server does not start, the caller gets
    the error when it opens the server itself. Leaving the block does not wait for a server that is recovering."""
    over, settled = threading.Event(), threading.Event()

    def pause(seconds: float) -> None:
        if over.wait(seconds):
            raise _Abandoned

    def hold_open() -> None:
        try:
            with suppress(EnvironmentProblem, _Abandoned), embedded_postgres(directory, pause):
                settled.set()
                over.wait()
        finally:
            settled.set()

    thread = threading.Thread(target=hold_open, name="joinery-postgres-start", daemon=True)
    thread.start()
    try:
        yield StartAhead(thread, settled)
    finally:
        over.set()
        thread.join()


class _Abandoned(Exception):
    """Raised in the starting thread once nobody waits for the server any more."""


@contextmanager
def embedded_postgres(directory: Path, pause: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield the DSN of a server whose data is in `directory`, which is created if it does not exist.

    All users of one directory, threads and processes, share one server: the first starts it, the last stops it. A user
    that was killed does not count. `pause(seconds)` waits for a server that is not ready; an exception from `pause`
    ends the start. Raises EnvironmentProblem if the package is missing or the server does not start.
    """
    directory = directory.expanduser().resolve()
    if bad := sorted(set(re.findall(r"[\x00-\x1f]", str(directory)))):
        raise EnvironmentProblem(
            f"The embedded Postgres cannot keep its data in {directory}",
            facts=f"the path has characters that it does not take: {bad}",
            todo="Choose another directory, or name a Postgres in spec.stateStore.postgres",
        )
    data = directory / "data"
    with _hold_lock(directory):
        _open_server(data, pause)
    try:
        yield postgres_server.server_dsn(data)
    finally:
        with _hold_lock(directory):
            _uses[data] -= 1
            if not _uses[data]:
                users = [pid for pid in _living_users(data) if pid != os.getpid()]
                _write_users(data, users, postgres_server.server_user(data))
                if not users:
                    postgres_server.stop(data)


@contextmanager
def _hold_lock(directory: Path) -> Iterator[None]:
    """Hold the lock under which one user at a time starts or stops the server of this directory."""
    with _this_process, ExitStack() as stack:
        try:
            # Whatever the umask: who may write to a folder above the data could put other data in their place.
            for folder in reversed([directory, *directory.parents]):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            lock = stack.enter_context(os.fdopen(os.open(directory / "lock", flags, 0o600), "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise EnvironmentProblem(
                f"The embedded Postgres cannot keep its data in {directory}",
                facts=error.strerror or str(error),
                todo="Let JOINERY_HOME name a folder that can be written, or name a Postgres in "
                "spec.stateStore.postgres",
            ) from error
        yield


def _open_server(data: Path, pause: Callable[[float], None]) -> None:
    """Start the server unless it runs, admit this user to it, and count this process as one that uses it."""
    directory = data.parent
    try:
        user = postgres_server.server_user(data)
        programs = postgres_server.find_programs(data, user)
        if user.stands_in:  # who enters this folder to its own; no folder above it
            directory.chmod(directory.stat().st_mode | 0o011)
        _drop_stale_pid(data)
        if not (data / "PG_VERSION").exists():
            postgres_server.create_cluster(programs, data, user, _server_settings())
        postgres_server.take_over(data, user)
        users = _living_users(data)
        admitted = postgres_server.admit_user(data, user)
        _await_ready(data, pause)
        if not postgres_server.is_ready(data):
            postgres_server.start(programs, data, user, pause)
        elif admitted:
            postgres_server.reload_settings(data)
        _write_users(data, [*users, os.getpid()], user)
        _uses[data] += 1
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        if says_full(str(reason)):
            folder = Path(error.filename).parent if isinstance(error, OSError) and error.filename else directory
            raise NoRoom(
                f"There is no room in {folder} for the embedded Postgres",
                facts=" ".join(str(reason).split()),
                todo="Make room there and start again: nothing is lost. JOINERY_HOME names another folder for its data",
            ) from error
        raise EnvironmentProblem(
            "The embedded Postgres did not start",
            facts=f"{reason}; its log is {data / 'log'}",
            todo="Read the log, or name a Postgres in spec.stateStore.postgres",
        ) from error


def _living_users(data: Path) -> list[int]:
    """List the processes that use the server. A process that was killed has not taken itself off the list."""
    import psutil  # noqa: PLC0415  # comes with the package

    text = postgres_server.read_own(data / _USERS)
    return [int(pid) for pid in re.findall(r"\d+", text) if psutil.pid_exists(int(pid))]


def _write_users(data: Path, pids: Sequence[int], user: ServerUser) -> None:
    postgres_server.replace_own(data / _USERS, json.dumps(sorted(set(pids))), user)


def _server_settings() -> list[str]:
    """List the settings of a new server; from then on postgresql.conf is the user's to edit."""
    cache = min(max(_available_memory() // 16, _CACHE_LEAST), _CACHE_MOST) // MIB
    return [f"shared_buffers={cache}MB", f"max_wal_size={_LOG_MOST}"]


def _available_memory() -> int:
    """Return bytes of memory that this process may use: the machine's, or the limit of its control group."""
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
    """Remove a dead server's pid file: after a crash of the machine or container another process may have that pid."""
    pid_file = data / "postmaster.pid"
    if pid_file.exists() and not postgres_server.is_postgres(int(pid_file.read_text().split()[0])):
        pid_file.unlink()


def _await_ready(data: Path, pause: Callable[[float], None] = time.sleep) -> None:
    """Wait as long as a server of this directory runs without taking connections, because it is starting, recovering
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
    return not postgres_server.is_ready(data) and bool(lines) and postgres_server.is_postgres(int(lines[0]))
