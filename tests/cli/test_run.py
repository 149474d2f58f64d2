from __future__ import annotations

import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cli.commands import Joinery
from job.resources import edited
from joinery_devkit.processes import free_port
from joinery_runtime.cli.app import main
from joinery_runtime.cli.ending import Stopped
from joinery_runtime.cli.progress import JsonProgress
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputProgress
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.loop import JobListener
from joinery_runtime.engine.plan import InputState
from joinery_runtime.hosts.status.board import Board


class _Driver:
    generation, epoch, pending = 3, 7, False
    state = JobState(Pipeline((), ()), {"orders": InputState(progress=InputProgress().raised(END_OF_TIME))})


KAFKA = "      kafka:\n        bootstrapServers: kafka:9092\n        topic: {}\n"


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here needs the embedded Postgres of whoever runs it."""
    monkeypatch.setattr("joinery_runtime.cli.app.start_ahead", lambda _: nullcontext())


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[JobListener, Event], None]], None]:
    """Puts `body` in the place of the run itself."""

    def replace(body: Callable[[JobListener, Event], None]) -> None:
        def run_job(_job: Any, listener: JobListener, stop: Event, **_: Any) -> None:
            body(listener, stop)

        monkeypatch.setattr("joinery_runtime.cli.run.run_job", run_job)

    return replace


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("typo.jsonl", "the input file {} cannot be read: No such file or directory"),
        ("typo/*", "there is no input file in {}"),
    ],
)
def test_a_path_that_leads_nowhere_is_found_in_the_job_file(
    joinery: Joinery, job_file: Path, path: str, says: str
) -> None:
    (job_file.parent / "orders.jsonl").write_text("")
    file = "      file:\n        path: {}\n"
    job_file.write_text(
        edited(
            (KAFKA.format("orders"), file.format("orders.jsonl")),
            (KAFKA.format("payments"), file.format(path)),
            ("postgres: {table: joined}", "console: {}\n  stateStore: {memory: {}}"),
        )
    )
    ended = joinery("run", job_file)
    line = next(n for n, text in enumerate(job_file.read_text().splitlines(), 1) if f"path: {path}" in text)
    wrong = says.format(job_file.parent / path)
    assert ended.err == f"joinery: {job_file}: line {line}: input payments: {wrong}. Check file.path in the job\n"


def test_no_signal_leaves_a_java_that_is_being_started(
    joinery: Joinery, job_file: Path, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions: list[str] = []
    monkeypatch.setattr("joinery_runtime.cli.run.kill_starts", lambda: actions.append("Java is killed"))
    monkeypatch.setattr("joinery_runtime.cli.run._end_at_once", lambda number: actions.append(f"ended by {number}"))

    def body(listener: JobListener, stop: Event) -> None:
        with pytest.raises(Stopped):
            interrupted()
        assert actions == ["Java is killed"]
        interrupted()

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        Event().wait(10)

    running(body)
    assert joinery("run", job_file).code == 0
    assert actions == ["Java is killed", "Java is killed", f"ended by {signal.SIGTERM.value}"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handler", ["ours", "Spark's"])
def test_a_signal_ends_a_start_at_once(
    joinery: Joinery, job_file: Path, running: Any, number: signal.Signals, handler: str
) -> None:
    passed: list[str] = []

    def body(listener: JobListener, stop: Event) -> None:
        if handler == "Spark's":
            signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), number)
        Event().wait(10)
        passed.append("the start went on")

    running(body)
    ended = joinery("run", job_file)
    assert (ended.code, ended.err, passed) == (0, "", [])
    assert ended.lines[-1]["event"] == "ended"
    assert ended.lines[-1]["reason"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_epoch_end(joinery: Joinery, job_file: Path, running: Any, number: signal.Signals) -> None:
    def body(listener: JobListener, stop: Event) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as the Spark context does
        listener.started(_Driver())  # type: ignore[arg-type]
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.wait(10)

    running(body)
    ended = joinery("run", job_file)
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[-1]["event"] == "ended"
    assert ended.lines[-1]["reason"] == "stopped"


def test_a_run_once_says_what_ended_it(joinery: Joinery, job_file: Path, running: Any) -> None:
    running(lambda listener, _stop: listener.started(_Driver()))
    ended = joinery("run", job_file, "--once")
    assert ended.lines[-1]["reason"] == "read to the ends of now"


def test_inputs_that_had_ended_are_why_nothing_is_read(joinery: Joinery, job_file: Path, running: Any) -> None:
    running(lambda listener, _stop: listener.started(_Driver()))
    note = joinery("run", job_file).lines[-1]["note"]
    assert "orders ended in an earlier run" in note
    assert "joinery run --once" in note


def test_the_second_signal_ends_the_job_at_once(joinery: Joinery, job_file: Path, running: Any) -> None:
    def body(listener: JobListener, stop: Event) -> None:
        listener.started(_Driver())  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)
        # What is there by default would end this process.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        handler = signal.getsignal(signal.SIGTERM)
        with pytest.MonkeyPatch.context() as patch:
            raised: list[int] = []
            patch.setattr(signal, "raise_signal", raised.append)
            assert callable(handler)
            handler(signal.SIGTERM, None)
        assert raised == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    running(body)
    assert joinery("run", job_file).code == 0


# --- the embedded Postgres --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("embedded", [True, False])
def test_an_embedded_server_starts_before_the_engine_is_loaded(
    joinery: Joinery, job_file: Path, monkeypatch: pytest.MonkeyPatch, embedded: bool
) -> None:
    order: list[str] = []

    @contextmanager
    def started_ahead(directory: Path) -> Iterator[None]:
        assert directory == job_file.parent / "home" / "postgres"
        order.append("starts")
        yield
        order.append("is left")

    monkeypatch.setenv("JOINERY_HOME", str(job_file.parent / "home"))
    monkeypatch.setattr("joinery_runtime.cli.app.start_ahead", started_ahead)
    monkeypatch.setattr("joinery_runtime.cli.app.stored_by", lambda *_: order.append("the engine is loaded"))
    monkeypatch.setattr("joinery_runtime.cli.run.run_job", lambda *_, **__: order.append("the job runs"))
    store = "" if embedded else "  stateStore: {postgres: {dsn: postgresql://127.0.0.1/db}}\n"
    job_file.write_text(edited() + store)
    assert joinery("run", job_file).code == 0
    runs = ["the engine is loaded", "the job runs"]
    assert order == (["starts", *runs, "is left"] if embedded else runs)


def test_a_sigterm_before_the_engine_is_loaded_leaves_no_embedded_server(
    job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a handler the process would be gone at once, and the server not."""
    ran: list[str] = []

    @contextmanager
    def server(_: Path) -> Iterator[None]:
        ran.append("started")
        try:
            yield
        finally:
            ran.append("stopped")

    def told_to_end(*_: object) -> None:
        assert signal.getsignal(signal.SIGTERM) not in (before, signal.SIG_DFL), "it would end this process"
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("joinery_runtime.cli.app.start_ahead", server)
    monkeypatch.setattr("joinery_runtime.cli.app.stored_by", told_to_end)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(job_file)])
    assert ended.value.code == 128 + signal.SIGTERM
    assert ran == ["started", "stopped"]
    assert signal.getsignal(signal.SIGTERM) == before


# --- the status port --------------------------------------------------------------------------------------------------


def test_the_page_is_at_a_free_port_of_loopback_unless_told_otherwise(
    joinery: Joinery, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []
    boards: list[tuple[object, bool]] = []

    def run_job(*_: object, board: Board | None, patient: bool, **__: object) -> None:
        boards.append((board is not None, patient))
        for page in pages:
            with urllib.request.urlopen(page, timeout=60) as answer:
                assert b"<title>" in answer.read()

    monkeypatch.setattr("joinery_runtime.cli.run.run_job", run_job)
    monkeypatch.setattr(JsonProgress, "show_page", lambda _, page: pages.append(page))
    assert joinery("run", job_file).code == 0
    (page,) = pages
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", page)
    pages.clear()
    assert joinery("run", job_file, "--status-host", "127.0.0.2").code == 0
    (page,) = pages
    assert re.fullmatch(r"http://127\.0\.0\.2:\d+/", page)
    pages.clear()
    assert joinery("run", job_file, "--status-port", 0).code == 0
    assert (pages, boards) == ([], [(True, False), (True, False), (False, False)])


def test_status_is_served_before_anything_of_the_job_begins_and_while_it_runs(
    joinery: Joinery, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, answers = free_port(), []

    def run_job(*_: object, board: Board, **__: object) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            answers.append(answer.status)

    monkeypatch.setattr("joinery_runtime.cli.run.run_job", run_job)
    assert joinery("run", job_file, "--status-port", port).code == 0
    assert answers == [200]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60)


def test_a_port_that_is_taken_is_named(joinery: Joinery, job_file: Path) -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        ended = joinery("run", job_file, "--status-port", port)
    assert ended.code == 3
    assert (
        f"The status port {port} cannot be opened on 127.0.0.1: Address already in use. Name another --status-port"
        in ended.err
    )


def test_how_long_a_stall_may_be_is_a_duration(joinery: Joinery, job_file: Path) -> None:
    ended = joinery("run", job_file, "--status-port", free_port(), "--stalled-after", "soon")
    assert ended.code == 1
    assert "--stalled-after soon: 'soon' is not a duration" in ended.err


# --- where epochs run -------------------------------------------------------------------------------------------------

FIRST = Path(__file__).parents[2] / "examples" / "first.yaml"


def test_a_local_run_needs_no_java_and_says_where_its_epochs_run(
    joinery: Joinery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    ended = joinery("run", "--local", FIRST)
    assert ended.code == 0, ended.err
    lines = [line for line in ended.lines if "event" in line]
    assert [line["master"] for line in lines if line["event"] == "started"] == ["this process (--local)"]
    assert {line["runs_on"] for line in lines if line["event"] == "epoch"} == {"driver"}
    assert [line["id"] for line in ended.lines if "id" in line][-1] == "o-3"


def test_a_local_run_has_no_master(joinery: Joinery) -> None:
    ended = joinery("run", "--local", FIRST, "--master", "local[2]")
    assert ended.code == 3
    assert "--local and --master: with --local, all epochs run in this process and not on local[2]" in ended.err


def test_a_memory_store_on_several_machines_is_rejected_with_its_line(joinery: Joinery) -> None:
    ended = joinery("run", FIRST, "--master", "spark://there:7077")
    assert ended.code == 2
    assert "line 16: spec.stateStore.memory: with the Spark master spark://there:7077" in ended.err
    assert "stateStore.postgres" in ended.err
