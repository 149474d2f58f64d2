"""Who runs an embedded Postgres, who may log in, and what becomes of folders: with root, and with another user."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.state import postgres_server
from joinery_runtime.state.embedded import embedded_directory, embedded_postgres

pytestmark = pytest.mark.services
NOBODY = 65534


def another_user_can_run_python() -> bool:
    """Whether another user may enter the folders above this Python, which may be in root's home."""
    try:
        return subprocess.run([sys.executable, "-c", ""], check=False, user=NOBODY, cwd="/").returncode == 0
    except PermissionError:
        return False


AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not another_user_can_run_python(), reason="only root can be two users, of one Python"
)

COUNT = """
import pathlib, sys, psycopg
from joinery_runtime.state.embedded import embedded_postgres
with embedded_postgres(pathlib.Path(sys.argv[1])) as dsn, psycopg.connect(dsn) as connection:
    print(connection.execute("SELECT count(*) FROM kept").fetchone()[0], connection.info.host)
"""
LOG_IN = "import sys, psycopg; psycopg.connect(sys.argv[1])"


@pytest.fixture
def folder(cluster: Path) -> Iterator[Path]:
    """A folder that others may enter, with a cluster. Pytest's own folders are closed to them."""
    with tempfile.TemporaryDirectory(prefix="joinery-users-") as name:
        Path(name).chmod(0o755)
        shutil.copytree(cluster, Path(name) / "postgres" / "data")
        yield Path(name) / "postgres"


def run_as(uid: int, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=False, user=uid, group=uid, extra_groups=[], capture_output=True, text=True, cwd="/",
    )  # fmt: skip


def fill(folder: Path) -> None:
    with embedded_postgres(folder) as dsn, psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 7)")


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in [folder, *folder.rglob("*")]}


def test_the_folder_of_the_socket_and_the_data_are_closed_and_nothing_above_is_opened(folder: Path) -> None:
    folder.parent.chmod(0o700)
    before = [path.stat().st_mode for path in folder.parents]
    with embedded_postgres(folder) as dsn, psycopg.connect(dsn) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert Path(conninfo_to_dict(dsn)["host"]) == folder / "socket"
        for name in ("data", "socket"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o700
    assert [path.stat().st_mode for path in folder.parents] == before


def test_a_new_folder_is_closed_to_others_whatever_the_umask(cluster: Path, tmp_path: Path) -> None:
    home = tmp_path / "user" / ".joinery"
    before = os.umask(0)
    try:
        with embedded_postgres(home / "postgres"):
            pass
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) & 0o066 for path in (home.parent, home, home / "postgres")] == [0, 0, 0]


def test_a_folder_of_an_earlier_release_that_let_everybody_in_is_taken_over(folder: Path) -> None:
    fill(folder)
    (folder / "data" / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")
    (folder / "data" / "pg_ident.conf").unlink()
    with embedded_postgres(folder) as dsn, psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (7,)
        rules = connection.execute("SELECT type, auth_method FROM pg_hba_file_rules").fetchall()
        assert rules == [("local", "peer")]
    assert "trust" in (folder / "data" / "pg_hba.conf.before").read_text()


def test_what_a_user_adds_to_the_logins_stays(folder: Path) -> None:
    logins = folder / "data" / "pg_hba.conf"
    logins.write_text(logins.read_text() + "local all report scram-sha-256\n")
    with embedded_postgres(folder):
        assert "local all report scram-sha-256\n" in logins.read_text()


def test_another_role_may_be_logged_in_as(folder: Path) -> None:
    with embedded_postgres(folder) as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE ROLE writer LOGIN")
        with psycopg.connect(make_conninfo(dsn, user="writer")) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("writer",)


def test_an_interrupted_first_start_leaves_no_half_cluster(tmp_path: Path) -> None:
    (tmp_path / "data.new").mkdir()
    (tmp_path / "data.new" / "PG_VERSION").write_text("18\n")
    with embedded_postgres(tmp_path) as dsn:
        psycopg.connect(dsn).close()
    assert not (tmp_path / "data.new").exists()


@AS_ROOT
def test_roots_server_is_another_users_who_owns_its_files(folder: Path) -> None:
    with embedded_postgres(folder) as dsn, psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("postgres",)
        server = psutil.Process(int((folder / "data" / "postmaster.pid").read_text().split()[0]))
        assert server.username() == postgres_server.ROOTS_USER
        assert set(server.gids()[:3]) == {pwd.getpwnam(postgres_server.ROOTS_USER).pw_gid}
        assert owners(folder / "data") | owners(folder / "socket") == {server.uids().real}
        assert conninfo_to_dict(dsn)["requirepeer"] == server.username()
    assert (folder.stat().st_uid, (folder / "lock").stat().st_uid) == (0, 0)


@AS_ROOT
def test_another_user_does_not_get_in_not_even_through_an_open_folder(folder: Path) -> None:
    with embedded_postgres(folder) as dsn:
        refused = run_as(NOBODY, LOG_IN, dsn)
        assert "Permission denied" in refused.stderr
        (folder / "socket").chmod(0o777)
        (folder / "socket" / ".s.PGSQL.5432").chmod(0o777)
        refused = run_as(NOBODY, LOG_IN, dsn)
        assert "Peer authentication failed" in refused.stderr


@AS_ROOT
@pytest.mark.parametrize("owner", ["nobody", 424_242, "root"], ids=["a user", "no user of this machine", "root"])
def test_root_takes_over_data_of_any_owner(folder: Path, owner: str | int) -> None:
    """A user's data stay with that user; what is nobody's any more, or root's, goes to the user who stands in for
    root."""
    fill(folder)
    uid = owner if isinstance(owner, int) else pwd.getpwnam(owner).pw_uid
    for path in [folder / "data", *(folder / "data").rglob("*")]:
        os.chown(path, uid, -1, follow_symlinks=False)
    with embedded_postgres(folder) as dsn, psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (7,)
    heir = uid if owner == "nobody" else pwd.getpwnam(postgres_server.ROOTS_USER).pw_uid
    assert owners(folder / "data") - {0} == {heir}


@AS_ROOT
def test_a_link_in_place_of_a_file_is_not_followed(folder: Path) -> None:
    """The data folder belongs to another user, who could have put it there for root."""
    target = folder / "of root"
    target.write_text("unchanged")
    for name in ("pg_hba.conf", "pg_ident.conf", ".handle_pids.json"):
        (folder / "data" / name).unlink(missing_ok=True)
        (folder / "data" / name).symlink_to(target)
    with pytest.raises(EnvironmentProblem, match="symbolic links"), embedded_postgres(folder):
        raise AssertionError("it started")
    assert target.read_text() == "unchanged"


@AS_ROOT
def test_a_user_and_root_share_a_users_server(folder: Path) -> None:
    fill(folder)
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, NOBODY, -1, follow_symlinks=False)
    assert "7" in run_as(NOBODY, COUNT, str(folder)).stdout
    with embedded_postgres(folder) as dsn, psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (7,)


@AS_ROOT
@pytest.mark.parametrize("path", ["postgres", "x" * 100])
def test_a_second_user_of_the_machine_has_a_server_of_its_own(folder: Path, path: str) -> None:
    """Nothing of the first one's is in the way, wherever the socket is."""
    fill(folder)
    own = folder / path
    shutil.copytree(folder / "data", own / "data")
    for name in [folder, own, *own.rglob("*")]:
        os.chown(name, NOBODY, -1)
    with embedded_postgres(folder):
        seen = run_as(NOBODY, COUNT, str(own))
    assert seen.stdout.split()[:1] == ["7"], seen.stderr


@AS_ROOT
def test_programs_that_the_server_may_not_run_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = folder / "closed"
    (closed / "package" / "pginstall18" / "bin").mkdir(parents=True)
    closed.chmod(0o700)
    spec = SimpleNamespace(submodule_search_locations=[str(closed / "package")])
    monkeypatch.setattr(postgres_server, "find_spec", lambda _: spec)
    with pytest.raises(EnvironmentProblem, match=f"{closed} is closed to other users.*/opt"), embedded_postgres(folder):
        raise AssertionError("it started")
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_a_user_without_a_name_is_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 424_242)
    with pytest.raises(EnvironmentProblem, match="number 424242 has no name"), embedded_postgres(folder):
        raise AssertionError("it started")


def test_the_default_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JOINERY_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert embedded_directory() == tmp_path / ".joinery" / "postgres"
