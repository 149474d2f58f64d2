"""What the board makes of what it hears, as the status document, as metrics and as probes; clocks are passed in."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.session_jobs import session_job
from job.resources import job
from joinery_runtime.core.compile.jobs import compile_job, compile_join
from joinery_runtime.core.pipeline.sides import SideSpec
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputProgress
from joinery_runtime.engine.hot_keys import KeyRows
from joinery_runtime.engine.loop import CommittedEpoch, JobListener, Outage, Scaling
from joinery_runtime.engine.plan import InputState
from joinery_runtime.engine.report import EpochReport, PartTotals, StateSize, Totals
from joinery_runtime.errors import OutputUnavailable, PartitionsLost, SourceUnavailable, StoreUnavailable, Unavailable
from joinery_runtime.hosts.status.board import RATE_WINDOW_S, REFRESH_EVERY_S, SAVEPOINTS_EVERY_S, Board, Liveness
from joinery_runtime.hosts.status.document import driver_status
from joinery_runtime.hosts.status.executors import NoExecutors
from joinery_runtime.hosts.status.server import serve_status
from joinery_runtime.job.crd import DriverStatus, HotKey, SavepointStatus
from joinery_runtime.job.crd.driver import HotKeyWarning, Paused, SideStatus
from joinery_runtime.state.store import StoredSavepoint

SYSTEMS = ("executors", "input", "output", "store")
NOW = 1_700_000_100.0  # seconds, on the wall
MARK = 1_700_000_000_000  # milliseconds: 100 s before
STALLED_AFTER = 600.0


@dataclass
class FakeState:
    epoch: int = 6
    committed_at_ms: int | None = 1_700_000_050_000
    totals: Totals = field(default_factory=lambda: Totals({"orders": 10}, 4, {"orders": {"late": 2, "filtered": 1}}))
    size: StateSize = field(default_factory=lambda: StateSize(2, 10, 1_000))
    sides: Mapping[str, SideSpec] = field(default_factory=lambda: compile_join(job()).parts())
    part_sizes: dict[str, StateSize] = field(
        default_factory=lambda: dict.fromkeys(("left", "right"), StateSize(1, 5, 500))
    )
    inputs: dict[str, InputState] = field(
        default_factory=lambda: {
            "orders": InputState(progress=InputProgress({"o/0": MARK, "o/1": MARK}, MARK)),
            "payments": InputState(progress=InputProgress({"p/0": None})),
        }
    )


@dataclass
class FakeDriver:
    generation: int = 3
    state: FakeState = field(default_factory=FakeState)
    planned: bool = False
    paused: dict[str, str] = field(default_factory=dict)
    backlog: dict[str, int] = field(default_factory=lambda: {"orders": 0, "payments": 0})


def report(**changes: Any) -> EpochReport:
    values: dict[str, Any] = {
        "epoch": 7,
        "rows_in": {"orders": 300, "payments": 150},
        "rows_out": 40,
        "dropped": {},
        "dead": {},
        "watermarks": {"orders": None, "payments": None},
        "backlog": {"orders": 12, "payments": 0},
        "lost": {},
        "segments": 3,
        "state_rows": 20,
        "state_bytes": 2_000,
        "totals": Totals(
            {"orders": 310, "payments": 150},
            44,
            {"orders": {"late": 3}},
            {"payments": 2},
            5,
            {"left": PartTotals(310, 297, 150, 44, 120), "right": PartTotals(150, 143, 310, 44, 60)},
        ),
        "parts": {"left": StateSize(2, 13, 1_400), "right": StateSize(1, 7, 600)},
        "hottest": (KeyRows("id=a", 9), KeyRows("id=b", 4)),
        "too_hot": (KeyRows("id=a", 9),),
    }
    return EpochReport(**(values | changes))


class Scene:
    """A board with its listener and what the listener behind it heard."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.liveness = Liveness(STALLED_AFTER, lambda: self.now)
        self.board = Board("job", ["orders", "payments"], self.liveness, lambda: NOW, lambda: self.now)
        self.driver: Any = FakeDriver()
        self.idle: dict[str, tuple[str, ...]] = {}
        self.savepoints: list[StoredSavepoint] = []
        self.savepoint_queries = 0
        self.heard: list[str] = []
        behind = JobListener(
            lambda _: self.heard.append("started"),
            lambda _: self.heard.append("committed"),
            lambda *_: self.heard.append("trouble"),
            lambda _: self.heard.append("polled"),
            self.heard.append,
            lambda _: self.heard.append("waiting"),
            lambda _: self.heard.append("back"),
        )
        outage_listener = self.board.outage_listener(behind)
        self.listener = self.board.recording_listener(
            outage_listener, idle=lambda: self.idle, savepoints=self._savepoints
        )

    def _savepoints(self) -> list[StoredSavepoint]:
        self.savepoint_queries += 1
        return self.savepoints

    def commit(self, **changes: Any) -> None:
        self.listener.committed(CommittedEpoch(report(**changes), 0.5))

    @property
    def status(self) -> DriverStatus:
        return driver_status(self.board, "rev")


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- the document -----------------------------------------------------------------------------------------------------


def test_before_recovery_only_the_revision_and_the_trouble_are_known(scene: Scene) -> None:
    scene.listener.waiting(Outage(StoreUnavailable("the store is away"), NOW - 30, 0.5))
    document = json.loads(scene.status.model_dump_json(by_alias=True, exclude_none=True))
    assert document == {
        "revision": "rev",
        "ready": False,
        "committed": 0,
        "inputs": [{"name": "orders"}, {"name": "payments"}],
        "sides": [],
        "hottestKeys": [],
        "tooHot": [],
        "paused": [],
        "waiting": {"system": "store", "since": "2023-11-14T22:14:30Z", "reason": "the store is away"},
        "lastError": "the store is away",
    }


def test_recovery_tells_what_the_state_holds(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    scene.listener.polled(scene.driver)
    status = scene.status
    assert (status.ready, status.job_generation, status.epoch, status.committed) == (True, 3, 6, 0)
    assert (status.rows_in, status.rows_out, status.late, status.state_bytes) == (10, 4, 2, 1_000)
    orders, payments = status.inputs
    assert orders.watermark == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert orders.watermark_delay == "1m40s"
    assert (payments.watermark, payments.watermark_delay, payments.ended) == (None, None, False)


def test_the_newest_epoch_tells_where_it_ran(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    assert scene.status.runs_on is None
    scene.commit()
    scene.commit(epoch=8, runs_on="spark")
    assert scene.status.runs_on == "spark"
    assert [epoch.runs_on for epoch in scene.board.history.epochs(0)] == ["driver", "spark"]


def test_an_epoch_tells_its_numbers(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    scene.now += 10
    scene.commit()
    status = scene.status
    assert (status.epoch, status.committed, status.rows_in, status.rows_out, status.late) == (7, 1, 460, 44, 3)
    assert [i.lag for i in status.inputs] == [12, 0]
    assert status.state_bytes == 2_000
    assert status.hottest_keys == (HotKey(key="id=a", rows=9), HotKey(key="id=b", rows=4))
    assert status.runs_on == "driver"
    assert (status.rows_per_second, [i.rows_per_second for i in status.inputs]) == (45, [30, 15])
    scene.now += RATE_WINDOW_S + 1
    assert scene.status.rows_per_second == 0


def test_each_side_tells_its_size_and_its_statistics(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    left, _ = scene.status.sides
    assert left == SideStatus(step=1, side="left", inputs=("orders",), rows=5, bytes=500)
    scene.commit()
    left, right = scene.status.sides
    counts = {"stored": 310, "expired": 297, "lookups": 150, "matches": 44, "peak": 120}
    assert left == SideStatus(step=1, side="left", inputs=("orders",), rows=13, bytes=1_400, **counts)
    assert (right.side, right.inputs, right.rows, right.stored) == ("right", ("payments",), 7, 150)


def test_the_sides_of_a_later_step(scene: Scene) -> None:
    scene.driver.state.sides = {"right.12": scene.driver.state.sides["right"]}
    scene.driver.state.part_sizes = {"right.12": StateSize(1, 5, 500)}
    scene.listener.started(scene.driver)
    assert [(side.step, side.side) for side in scene.status.sides] == [(12, "right")]


def test_sessions_are_a_part_with_a_name_of_its_own(scene: Scene, site: Site) -> None:
    size, counts = StateSize(2, 20, 900), PartTotals(stored=30, expired=9, lookups=100, peak=21)
    scene.driver.state.sides = compile_job(session_job()).parts()
    scene.driver.state.part_sizes = {"sessions": size}
    scene.driver.state.totals = Totals(parts={"sessions": counts})
    scene.listener.started(scene.driver)
    side_status = SideStatus(
        step=1, side="sessions", inputs=("clicks",), rows=20, bytes=900, stored=30, expired=9, lookups=100, peak=21
    )
    assert scene.status.sides == (side_status,)
    assert DriverStatus.model_validate_json(scene.status.model_dump_json(by_alias=True)).sides == (side_status,)
    samples = metrics(site)
    assert samples['joinery_side_rows{side="sessions",step="1"}'] == 20
    assert samples['joinery_side_stored_total{side="sessions",step="1"}'] == 30


def test_the_amplification_is_of_the_newest_epoch_that_read_something(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    assert scene.status.amplification is None
    scene.commit(rows_out=1_350)
    assert scene.status.amplification == 3
    scene.commit(rows_in={"orders": 0, "payments": 0}, rows_out=7)
    assert scene.status.amplification == 3


def test_hot_keys_and_paused_inputs_are_told_while_they_last(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    scene.commit()
    assert scene.status.too_hot == (HotKeyWarning(step=1, key="id=a", rows=9),)
    scene.driver.paused = {"orders": "the left side is full"}
    scene.listener.polled(scene.driver)
    assert scene.status.paused == (Paused(name="orders", reason="the left side is full"),)
    scene.driver.paused = {}
    scene.now += REFRESH_EVERY_S
    scene.listener.polled(scene.driver)
    scene.commit(too_hot=())
    assert (scene.status.too_hot, scene.status.paused) == ((), ())


def test_what_looks_wrong_with_an_input_is_told_while_it_does(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    scene.commit(input_warnings={"orders": "Input orders: " + "x" * 600})
    orders, payments = scene.status.inputs
    assert orders.warning == "Input orders: " + "x" * 498
    assert payments.warning is None

    scene.commit(input_warnings={})
    assert [input_status.warning for input_status in scene.status.inputs] == [None, None]


def test_rows_that_the_output_does_not_show_yet_are_told(scene: Scene, site: Site) -> None:
    scene.listener.started(scene.driver)
    assert scene.status.rows_held is None
    scene.commit(unpublished_rows=12)
    assert scene.status.rows_held == 12
    assert metrics(site)["joinery_rows_held"] == 12


def test_everything_is_passed_on(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    scene.listener.polled(scene.driver)
    scene.commit()
    scene.listener.retrying(PartitionsLost("taken"), 0.25)
    scene.listener.warned("hot")
    assert scene.heard == ["started", "polled", "committed", "trouble", "hot"]


def test_an_ended_input_has_no_watermark_to_be_behind(scene: Scene) -> None:
    scene.driver.state.inputs["orders"] = InputState(progress=InputProgress({"o/0": MARK}, END_OF_TIME))
    scene.listener.started(scene.driver)
    (orders, _) = scene.status.inputs
    assert (orders.ended, orders.watermark, orders.watermark_delay) == (True, None, None)


@pytest.mark.parametrize("mark", [-(2**62), 2**62])
def test_a_watermark_that_no_calendar_has_is_left_out(scene: Scene, mark: int) -> None:
    scene.driver.state.inputs["orders"] = InputState(progress=InputProgress({"o/0": mark}, mark))
    scene.listener.started(scene.driver)
    assert scene.status.inputs[0].watermark is None


@pytest.mark.parametrize("kind", [StoreUnavailable, SourceUnavailable, OutputUnavailable])
def test_a_system_that_is_away_takes_the_readiness_until_it_is_back(
    scene: Scene, site: Site, kind: type[Unavailable]
) -> None:
    error = kind("away")
    scene.listener.started(scene.driver)
    scene.listener.polled(scene.driver)
    outage = Outage(error, NOW - 30, 0.5)
    scene.listener.waiting(outage)
    status = scene.status
    assert (status.ready, status.last_error) == (False, "away")
    assert status.waiting is not None
    assert (status.waiting.system, status.waiting.since.timestamp()) == (error.system, NOW - 30)
    samples = metrics(site)
    seconds = {system: samples[f'joinery_waiting_seconds{{system="{system}"}}'] for system in SYSTEMS}
    assert seconds == {system: 30.0 if system == error.system else 0.0 for system in SYSTEMS}
    scene.listener.started(scene.driver)  # a driver that recovers has not asked the input or the output yet
    assert (scene.status.ready, scene.status.last_error) == (False, "away")
    scene.listener.polled(scene.driver)
    scene.listener.recovered(outage)
    assert (scene.status.ready, scene.status.last_error, scene.status.waiting) == (True, None, None)
    assert scene.heard == ["started", "polled", "waiting", "started", "polled", "back"]


def test_other_troubles_leave_it_ready_and_an_epoch_ends_them(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    scene.listener.polled(scene.driver)
    scene.listener.retrying(PartitionsLost("taken"), 0.25)
    assert (scene.status.ready, scene.status.last_error) == (True, "taken")
    scene.commit()
    assert scene.status.last_error is None


def test_a_job_with_a_backlog_is_ready_once_it_has_committed(scene: Scene, site: Site) -> None:
    scene.driver.backlog, scene.driver.planned = {"orders": 1_000, "payments": 7}, True
    scene.listener.started(scene.driver)
    scene.listener.polled(scene.driver)
    assert site.get("/readyz")[::2] == (503, "no epoch has been committed yet, and 1007 records wait\n")
    scene.commit()
    assert scene.status.ready


def test_records_that_no_plan_may_read_are_not_waited_for(scene: Scene) -> None:
    """Another member of the group has their partition, say, for as long as it likes."""
    scene.driver.backlog = {"orders": 1_000, "payments": 0}
    scene.listener.started(scene.driver)
    scene.listener.polled(scene.driver)
    assert scene.status.ready
    scene.driver.planned = True  # the partition has come
    scene.listener.polled(scene.driver)
    assert not scene.status.ready, "told at once, though the lag is asked for once in a while"


def test_a_restarted_driver_looks_at_the_inputs_first(scene: Scene) -> None:
    """What the driver before it has seen may be of an earlier definition of the job."""
    scene.listener.started(scene.driver)
    scene.listener.polled(scene.driver)
    scene.listener.started(scene.driver)
    assert scene.board.snapshot.not_ready == "the inputs have not been read yet"


def test_tasks_count_those_of_committed_epochs_and_of_the_running_one(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    assert scene.status.tasks is None
    tasks = []
    for done in (3, 5, 2):  # an epoch that is run again after an error starts at 0
        scene.board.note_tasks(done)
        tasks.append(scene.status.tasks)
    scene.commit()
    for done in (0, 4):
        scene.board.note_tasks(done)
        tasks.append(scene.status.tasks)
    assert tasks == [3, 5, 2, 2, 6]


def test_a_job_whose_tasks_run_on_executors_is_ready_once_one_has_run_a_task(scene: Scene, site: Site) -> None:
    scene.board.note_workers(ran=False)
    scene.listener.started(scene.driver)
    scene.listener.polled(scene.driver)
    assert site.get("/readyz")[::2] == (503, "no executor has run a task yet\n")
    scene.board.note_workers(ran=True)
    assert scene.status.ready


def test_a_job_that_lost_its_executors_waits_for_them(scene: Scene, site: Site) -> None:
    scene.listener.started(scene.driver)
    scene.commit()
    scene.board.note_starvation(Outage(NoExecutors("No executor runs"), NOW - 30, 5.0))
    status = scene.status
    assert (status.ready, status.waiting and status.waiting.system) == (False, "executors")
    assert metrics(site)['joinery_waiting_seconds{system="executors"}'] == 30
    assert site.get("/readyz")[::2] == (503, "No executor runs\n")
    scene.board.note_starvation(None)
    assert (scene.status.ready, scene.status.waiting) == (True, None)


def test_a_job_that_is_edited_is_not_ready_until_its_own_driver_has_recovered(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    scene.board.recording_listener(scene.listener, idle=dict, savepoints=list)
    assert not scene.status.ready


def test_an_epoch_of_an_earlier_definition_shows_nothing_of_the_present_one(scene: Scene) -> None:
    behind = JobListener(lambda _: None, lambda _: None, lambda *_: None)
    settling = scene.board.recording_listener(behind, idle=dict, savepoints=list, settle=True)
    settling.started(scene.driver)
    assert (scene.status.ready, scene.board.snapshot.ready) == (False, False)
    settling.committed(CommittedEpoch(report(epoch=7), 0.5))
    status = scene.status
    assert (status.ready, status.epoch, status.committed) == (False, 7, 0)
    assert scene.board.snapshot.committed == 1  # the metric is of all that this process did
    own = scene.board.recording_listener(behind, idle=dict, savepoints=list)
    own.started(scene.driver)
    assert (scene.status.ready, scene.status.committed) == (False, 0)
    own.committed(CommittedEpoch(report(epoch=8), 0.5))
    assert (scene.status.ready, scene.status.epoch, scene.status.committed) == (True, 8, 1)


def test_lag_and_idleness_follow_the_loop_also_without_epochs(scene: Scene) -> None:
    scene.listener.started(scene.driver)
    scene.listener.polled(scene.driver)
    assert [(i.lag, i.idle) for i in scene.status.inputs] == [(0, False), (0, False)]
    scene.driver.backlog["orders"] = 5
    scene.idle = {"orders": ("o/0",), "payments": ("p/0",)}
    scene.listener.polled(scene.driver)
    assert scene.status.inputs[0].lag == 0, "an idle loop turns often, and asks for the lag once in a while"
    scene.now += REFRESH_EVERY_S
    scene.listener.polled(scene.driver)
    assert [(i.lag, i.idle) for i in scene.status.inputs] == [(5, False), (0, True)]
    scene.idle["orders"] = ("o/0", "o/1")
    scene.now += REFRESH_EVERY_S
    scene.listener.polled(scene.driver)
    assert scene.status.inputs[0].idle is True


def test_the_newest_savepoint_is_asked_for_once_in_a_while(scene: Scene) -> None:
    old = StoredSavepoint(name="old", epoch=2, created_at=MARK, rows=1, bytes=1, committed=2, incarnation="life")
    scene.savepoints = [replace(old, name="new", epoch=9, committed=7, created_at=MARK + 5), old]
    for _ in range(3):
        scene.listener.polled(scene.driver)
    assert scene.savepoint_queries == 1
    created = datetime(2023, 11, 14, 22, 13, 20, 5_000, tzinfo=UTC)
    assert scene.status.last_savepoint == SavepointStatus(name="new", epoch=7, time=created), (
        "of the epoch it stands on"
    )
    scene.now += SAVEPOINTS_EVERY_S
    scene.savepoints = []
    scene.listener.polled(scene.driver)
    assert (scene.savepoint_queries, scene.status.last_savepoint) == (2, None)


def test_a_savepoint_with_a_name_that_is_too_long_does_not_break_the_status(scene: Scene) -> None:
    scene.savepoints = [
        StoredSavepoint("x" * 300, epoch=2, created_at=MARK, rows=1, bytes=1, committed=2, incarnation="life")
    ]
    scene.listener.polled(scene.driver)
    assert scene.status.last_savepoint is not None
    assert scene.status.last_savepoint.name == "x" * 253


def test_a_long_error_is_cut_to_what_the_status_holds(scene: Scene) -> None:
    scene.listener.waiting(Outage(StoreUnavailable("x" * 10_000), NOW, 0.5))
    assert len(scene.status.last_error or "") == 4096


# --- signs of life ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["turn", "epoch", "trouble", "outage", "spark"])
def test_signs_of_life(scene: Scene, sign: str) -> None:
    scene.listener.started(scene.driver)
    scene.now += STALLED_AFTER + 1
    assert scene.liveness.problem() == "nothing has moved for 601 s"
    if sign == "turn":
        scene.listener.polled(scene.driver)
    elif sign == "epoch":
        scene.commit()
    elif sign == "trouble":
        scene.listener.retrying(PartitionsLost("away"), 30)
    elif sign == "outage":
        scene.listener.waiting(Outage(StoreUnavailable("away"), NOW, 30))
    else:
        scene.board.note_executors(2)
    assert scene.liveness.problem() is None
    scene.now += STALLED_AFTER
    assert scene.liveness.problem() is None


def test_a_loop_whose_thread_has_ended_is_not_alive() -> None:
    created: list[Liveness] = []
    thread = threading.Thread(target=lambda: created.append(Liveness(STALLED_AFTER)))
    thread.start()
    thread.join()
    assert created[0].problem() == "the loop's thread has ended"


# --- over HTTP --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    port: int

    def get(self, page: str, host: str = "127.0.0.1", name: str | None = None) -> tuple[int, str, str]:
        """Status code, content type, body. `name` is what the request calls the server."""
        request = urllib.request.Request(f"http://{host}:{self.port}{page}", headers={"Host": name} if name else {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()


@pytest.fixture
def site(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("JOINERY_REVISION", "abc")
    with serve_status(scene.board, 0) as address:
        yield Site(address.port)


def metrics(site: Site) -> dict[str, float]:
    """By name, with labels as Prometheus writes them."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(site.get("/metrics")[2]):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def test_status_is_the_document(scene: Scene, site: Site) -> None:
    scene.listener.started(scene.driver)
    code, kind, body = site.get("/status?pretty")
    assert (code, kind) == (200, "application/json")
    assert DriverStatus.model_validate_json(body) == driver_status(scene.board, "abc")
    assert json.loads(body)["inputs"][0]["watermarkDelay"] == "1m40s"


def test_probes(scene: Scene, site: Site) -> None:
    assert site.get("/healthz")[::2] == (200, "ok\n")
    assert site.get("/readyz")[::2] == (503, "the driver has not recovered\n")
    scene.listener.started(scene.driver)
    assert site.get("/readyz")[::2] == (503, "the inputs have not been read yet\n")
    scene.listener.polled(scene.driver)
    assert site.get("/readyz")[::2] == (200, "ok\n")
    scene.now += STALLED_AFTER + 1
    assert site.get("/healthz")[::2] == (503, "nothing has moved for 601 s\n")
    assert site.get("/else")[::2] == (404, "/ /status /history /metrics /healthz /readyz\n")


def test_before_recovery_metrics_leave_out_what_is_not_known(site: Site) -> None:
    samples = metrics(site)
    assert samples["joinery_ready"] == 0
    assert not [name for name in samples if name.startswith(("joinery_rows", "joinery_epoch{", "joinery_lag"))]
    assert "joinery_epoch" not in samples


def test_metrics(scene: Scene, site: Site) -> None:
    scene.listener.started(scene.driver)
    scene.commit()
    scene.driver.paused = {"orders": "full"}
    scene.listener.polled(scene.driver)
    scene.listener.retrying(PartitionsLost("taken"), 0.25)
    scene.board.note_executors(2)
    scene.listener.scaled(Scaling(8, 4, "4 executors instead of 2", "load"))
    expected = {
        'joinery_info{name="job",revision="abc",version="0.1.0"}': 1,
        "joinery_ready": 1,
        "joinery_generation": 3,
        "joinery_epoch": 7,
        "joinery_epochs_committed_total": 1,
        "joinery_last_commit_timestamp_seconds": NOW,
        "joinery_troubles_total": 1,
        "joinery_executors": 2,
        "joinery_executors_wanted": 4,
        'joinery_rescales_total{cause="load"}': 1,
        'joinery_rescales_total{cause="asked"}': 0,
        "joinery_state_bytes": 2_000,
        "joinery_state_rows": 20,
        "joinery_state_segments": 3,
        "joinery_hottest_key_rows": 9,
        "joinery_hot_keys": 1,
        "joinery_amplification": 40 / 450,
        'joinery_side_rows{side="left",step="1"}': 13,
        'joinery_side_bytes{side="right",step="1"}': 600,
        'joinery_side_stored_total{side="left",step="1"}': 310,
        'joinery_side_expired_total{side="left",step="1"}': 297,
        'joinery_side_lookups_total{side="right",step="1"}': 310,
        'joinery_side_matches_total{side="left",step="1"}': 44,
        'joinery_input_paused{input="orders"}': 1,
        'joinery_input_paused{input="payments"}': 0,
        'joinery_rows_in_total{input="orders"}': 310,
        'joinery_rows_in_total{input="payments"}': 150,
        "joinery_rows_out_total": 44,
        'joinery_dropped_total{input="orders",reason="late"}': 3,
        'joinery_dropped_total{input="payments",reason="late"}': 0,
        'joinery_dead_letters_total{input="orders"}': 0,
        'joinery_dead_letters_total{input="payments"}': 2,
        "joinery_lost_records_total": 5,
        'joinery_lag_records{input="orders"}': 0,
        'joinery_watermark_seconds{input="orders"}': MARK / 1000,
        'joinery_watermark_delay_seconds{input="orders"}': 100,
        'joinery_input_idle{input="orders"}': 0,
        'joinery_input_ended{input="payments"}': 0,
        'joinery_epoch_seconds_bucket{le="0.25"}': 0,
        'joinery_epoch_seconds_bucket{le="0.5"}': 1,
        "joinery_epoch_seconds_count": 1,
        "joinery_epoch_seconds_sum": 0.5,
    }
    samples = metrics(site)
    assert {name: samples.get(name) for name in expected} == expected
    assert 'joinery_watermark_seconds{input="payments"}' not in samples


def test_only_this_machine_is_answered_unless_another_address_is_named(scene: Scene) -> None:
    for address, reachable in (("127.0.0.1", False), ("127.0.0.2", True)):
        with serve_status(scene.board, 0, address) as opened, socket.socket() as asking:
            assert (asking.connect_ex(("127.0.0.2", opened.port)) == 0) is reachable


OWN_NAMES = (
    "localhost:1", "LOCALHOST", "127.0.0.1", "10.1.2.3:8998", "[::1]:8998", "j.localhost", "j-driver",
    "j-driver.jobs.svc", "j-driver.jobs.svc.cluster.local:8998", socket.gethostname(),
)  # fmt: skip
OTHER_NAMES = ("evil.example", "evil.example:8998", "127.0.0.1.evil.example", "svc.evil.example", "[", "a b.example")


@pytest.mark.parametrize("page", ["/", "/status", "/history", "/metrics", "/healthz", "/nothing"])
@pytest.mark.parametrize("name", [*OWN_NAMES, *OTHER_NAMES])
def test_a_name_that_somebody_else_can_own_gets_nothing(site: Site, name: str, page: str) -> None:
    """A web site can have its own name lead here (DNS rebinding)."""
    code, _, body = site.get(page, name=name)
    assert (code == 421) is (name in OTHER_NAMES)
    assert ("JOINERY_STATUS_NAMES" in body) is (name in OTHER_NAMES)


def test_the_name_of_status_host_is_answered(scene: Scene) -> None:
    name = socket.getfqdn("127.0.0.1")
    with serve_status(scene.board, 0, name) as (port, _):
        assert Site(port).get("/healthz", name=f"{name.upper()}:{port}")[0] == 200


def test_a_name_in_the_environment_is_answered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOINERY_STATUS_NAMES", "jobs.example.org, Pages.example.org")
    for name in ("jobs.example.org", "pages.example.org:8443", "JOBS.example.org."):
        assert site.get("/healthz", name=name)[0] == 200
    assert site.get("/healthz", name="other.example.org")[0] == 421


@pytest.mark.parametrize("since", ["9" * 5_000, "9" * 16, "-1", "1.5", "x", "\u0663", "%d9%a3", ""])
def test_a_moment_that_is_no_number_of_milliseconds_is_refused(site: Site, since: str) -> None:
    code, _, body = site.get(f"/history?since={urllib.parse.quote(since, safe='%')}")
    assert (code, body) == ((200, body) if not since else (400, "since: milliseconds since 1970, at most 15 digits\n"))
    assert site.get("/healthz")[0] == 200


def test_a_burst_of_connections_is_accepted(site: Site) -> None:
    """More than a browser and several probes open at a time; the sixth had to wait a second."""
    with ExitStack() as stack:
        begun = monotonic()
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", site.port), timeout=60))
        assert site.get("/healthz")[0] == 200
        assert monotonic() - begun < 60


@pytest.mark.parametrize("address", ["127.0.0.2", "0.0.0.0"])
def test_another_address_is_beside_loopback_where_a_forwarded_port_arrives(scene: Scene, address: str) -> None:
    with (
        serve_status(scene.board, 0, address) as opened,
        socket.create_connection(("127.0.0.1", opened.port), timeout=60),
    ):
        pass


@pytest.mark.parametrize(
    ("host", "page_host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("0.0.0.0", socket.gethostname()),
        ("::1", "[::1]"),
        ("::", socket.gethostname()),
    ],
)
def test_the_page_s_address_is_the_one_that_is_served(scene: Scene, host: str, page_host: str) -> None:
    with serve_status(scene.board, 0, host) as (port, page):
        assert page == f"http://{page_host}:{port}/"
        with urllib.request.urlopen(page, timeout=60) as answer:
            assert answer.status == 200


def test_two_boards_in_one_process_do_not_meet(site: Site) -> None:
    other = Board("other", ["a"], Liveness(STALLED_AFTER))
    with serve_status(other, 0) as address:
        assert 'joinery_info{name="other",revision="abc",version="0.1.0"}' in metrics(Site(address.port))
        assert 'joinery_info{name="job",revision="abc",version="0.1.0"}' in metrics(site)
