"""A fork of the driver's process, made before the job starts, that becomes PySpark's daemon on the driver's machine.

A daemon of its own imports again what the driver has imported: a second of CPU with the compiled kernels, while the
driver's first epochs need the cores. So `joinery run` forks once the imports are done, and the fork waits at a socket.
Spark starts `hosts.worker_daemon` as ever. That process hands its streams, environment and folder over to the fork, and
waits until the daemon that came of them has ended, because Spark ends a daemon by its process and its standard input.
Whoever cannot have a fork, or is not answered by it, imports everything, as before.

A fork has one thread. What other threads hold at that moment, such as the lock of an import, stays locked in it. So the
driver forks before it has threads that could hold anything, or not at all.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

ADDRESS = "JOINERY_DAEMON_FORK"
"""The environment variable that leads Spark's daemon to the fork: the path of its socket."""

PROCESS_NAME = "joinery-daemon"
"""What the operating system calls the fork, its daemon and the workers. They have the command line of the driver."""

_STREAMS = (0, 1, 2)
_LENGTH = struct.Struct("!Q")
_TAKEN, _DECLINED = b"y", b"n"
_OF_IMPORTS = {"jemalloc_bg_thd", "polars-ooc-clea"}
"""Native threads that an import starts, and that nobody misses in a fork (`hosts.worker_daemon`)."""


# --- in the driver ----------------------------------------------------------------------------------------------------


@contextmanager
def daemon_fork(folder: Path, parked: threading.Thread | None = None) -> Iterator[None]:
    """Fork this process, and name the fork in the environment, which Java and its children inherit. It ends with the
    block, or with this process. `folder` is one that this user alone may read.

    There is no fork in a process that has threads, but for `parked`, which waits for an event and holds no lock; nor
    where the system denies it."""
    fork = None
    if set(threading.enumerate()) <= {threading.current_thread(), parked}:
        with suppress(OSError):
            fork = _fork_at(str(folder / "socket"))
    try:
        yield
    finally:
        if fork is not None:
            pid, alive = fork
            os.environ.pop(ADDRESS, None)
            os.close(alive)
            os.waitpid(pid, 0)


def _fork_at(address: str) -> tuple[int, int] | None:
    """Return the fork's process id, and the pipe at whose end it ends. None where native threads would be missed."""
    # Threads without a name of their own are Python's, those of NumPy's OpenBLAS, which handles forks and has one for
    # each further core, or else those of a pool.
    names = [(task / "comm").read_text(encoding="utf-8").strip() for task in Path("/proc/self/task").iterdir()]
    own = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
    unnamed = threading.active_count() + (os.cpu_count() or 1) - 1
    if not set(names) <= {own, *_OF_IMPORTS} or names.count(own) > unnamed:
        return None
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else the fork would have the buffered text too
    gc.freeze()  # else collecting garbage would copy the pages that both share
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen()
        ended, alive = os.pipe()
        pid = os.fork()
        if pid == 0:
            _end_with(partial(_wait_for_handovers, listener, ended))
    os.close(ended)
    os.environ[ADDRESS] = address
    return pid, alive


# --- in the fork ------------------------------------------------------------------------------------------------------


def _end_with(run: Callable[[], object]) -> NoReturn:
    """Run, and end the process without the cleanup of the driver, whose stack this is."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _wait_for_handovers(listener: socket.socket, ended: int) -> None:
    """Fork a daemon for each process that connects, until the driver has ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Whoever waits for the end of a stream of the driver's would else wait for the fork too. The numbers stay in use:
    # an object of the driver's that goes later would else close another file.
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in list(Path("/proc/self/fd").iterdir()):
        if (number := int(name.name)) not in (*_STREAMS, listener.fileno(), ended, nothing):
            os.dup2(nothing, number, inheritable=False)
    Path("/proc/self/comm").write_text(PROCESS_NAME, encoding="ascii")
    while ended not in select.select([listener.fileno(), ended], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(ended)
            _end_with(partial(_become_daemon, connection))
        connection.close()


def _become_daemon(connection: socket.socket) -> None:
    """Be the process that has connected: PySpark's daemon. The connection closes when the daemon ends."""
    size, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, len(_STREAMS))
    request: dict[str, Any] = json.loads(connection.makefile("rb").read(_LENGTH.unpack(size)[0]))
    if request["python"] != _python():
        connection.sendall(_DECLINED)
        return
    for number, stream in zip(_STREAMS, streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    connection.sendall(_TAKEN)
    os.register_at_fork(after_in_child=connection.close)  # a worker may outlive its daemon
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:], sys.argv = request["path"], request["arguments"]
    # Python's own streams may have been replaced, and have buffers.
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode, closefd=False) for n, mode in zip(_STREAMS, "rww", strict=True))  # noqa: SIM115
    from joinery_runtime.hosts.worker_daemon import serve  # noqa: PLC0415

    serve()


def _python() -> list[str]:
    """Return what has to be the same for both: another Python has other modules."""
    return [sys.executable, sys.version, __file__]


# --- in the process that Spark starts ---------------------------------------------------------------------------------


def hand_over(address: str) -> bool:
    """Hand this process over to the fork, and wait until the daemon has ended. Returns False if the fork has not taken
    it."""
    request = {
        "python": _python(),
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
        "path": sys.path,
        "arguments": sys.argv,
    }
    text = json.dumps(request).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(address)
            socket.send_fds(connection, [_LENGTH.pack(len(text))], _STREAMS)
            connection.sendall(text)
            if connection.recv(1) != _TAKEN:
                return False
            connection.recv(1)
            return True
    except OSError:
        return False
