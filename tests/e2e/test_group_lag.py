"""What Kafka's own lag tool shows of a job's consumer groups, next to what the job says of itself."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.driver_process import caught_up
from e2e.kill_harness import INPUTS, Feeder, log_of, wait_until_read
from e2e.scene import PATIENCE_S, Scene
from joinery_devkit.kafka_admin import GroupRow, describe_groups
from joinery_devkit.topics import read_topic
from joinery_runtime.engine.job_state import input_offsets
from joinery_runtime.engine.plan import InputState

pytestmark = [pytest.mark.services, pytest.mark.slow]

EntryView = dict[str, list[GroupRow]]
Offsets = dict[str, dict[int, int | None]]


def test_lag_tools_see_what_the_job_has_read(scene: Scene) -> None:
    with Feeder(scene.job.bootstrap, scene.job.name, seed=8) as feeder:
        run = scene.start()
        run.wait_for_more_epochs(3)
        running = until(scene, lambda shown: all(_is_followed(row) for rows in shown.values() for row in rows))
        feeder.stop()
        with log_of(scene.job) as log:
            wait_until_read(run, log, scene.job)
        quiet = until(scene, lambda shown: set(_values(_lags(shown))) == {0})
        run.wait_for("it says so too", caught_up)  # the line of an epoch follows its commit
        backlog = run.epochs[-1]["backlog"]
        scene.settle(feeder, run)
        for _ in range(5):
            feeder.tick()
        waiting = shown_by_tool(scene)

    for name, partitions in INPUTS.items():
        assert [row.partition for row in running[name]] == list(range(partitions))
        assert len({row.member for row in running[name]}) == 1

    assert backlog == dict.fromkeys(INPUTS, 0)
    assert _offsets(quiet) == committed(scene) == listed(scene)

    # What came since then is lag to the tool, and to the job once it runs again.
    assert _offsets(waiting) == committed(scene)
    assert _lags(waiting) == behind(scene)
    assert all(any(lags.values()) for lags in _lags(waiting).values())
    again = scene.start()
    again.wait_for("the last record", caught_up)
    assert again.stop() == 0, again.last_words
    assert {n: sum(e["rows_in"][n] for e in again.epochs) for n in INPUTS} == {
        name: sum(lag or 0 for lag in lags.values()) for name, lags in _lags(waiting).items()
    }
    done = until(scene, lambda shown: set(_values(_lags(shown))) == {0})
    assert _offsets(done) == committed(scene)


def shown_by_tool(scene: Scene) -> EntryView:
    """By input, whose topic and group have the same name."""
    rows = describe_groups(scene.job.bootstrap, *(f"{scene.job.name}.{name}" for name in INPUTS))
    return {name: [row for row in rows if row.topic == f"{scene.job.name}.{name}"] for name in INPUTS}


def until(scene: Scene, ready: Callable[[EntryView], bool]) -> EntryView:
    """Offsets are published a moment after their commit."""
    deadline = time.monotonic() + PATIENCE_S
    while not ready(shown := shown_by_tool(scene)):
        assert time.monotonic() < deadline, str(shown)
    return shown


def _is_followed(row: GroupRow) -> bool:
    return None not in (row.current_offset, row.lag, row.member)


def _offsets(shown: EntryView) -> Offsets:
    return {name: {row.partition: row.current_offset for row in rows} for name, rows in shown.items()}


def _lags(shown: EntryView) -> Offsets:
    return {name: {row.partition: row.lag for row in rows} for name, rows in shown.items()}


def _values(offsets: Offsets) -> list[int | None]:
    return [value for values in offsets.values() for value in values.values()]


def committed(scene: Scene) -> Offsets:
    """By the state store."""
    with log_of(scene.job) as log:
        record = log.record()
    assert record is not None
    states = {name: InputState.from_bytes(name, data) for name, data in input_offsets(record).items()}
    return {name: {ref.partition: at for ref, at in state.positions.items()} for name, state in states.items()}


def listed(scene: Scene) -> Offsets:
    """By `joinery state ls`."""
    command = [str(Path(sys.executable).with_name("joinery")), "state", "ls", str(scene.file(0))]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    offsets: Offsets = {}
    for name, positions in re.findall(r"^input (\w+): .* next offsets (.*)$", text, re.MULTILINE):
        pairs = re.findall(r"/(\d+)@(\d+)", positions)
        offsets[name] = {int(partition): int(offset) for partition, offset in pairs}
    return offsets


def behind(scene: Scene) -> Offsets:
    """Records beyond what the store has, counted in the topics."""
    next_offsets = committed(scene)
    lags: Offsets = {name: dict.fromkeys(offsets, 0) for name, offsets in next_offsets.items()}
    for name, offsets in next_offsets.items():
        for record in read_topic(scene.job.bootstrap, f"{scene.job.name}.{name}"):
            lags[name][record.partition] = (lags[name][record.partition] or 0) + (
                record.offset >= (offsets[record.partition] or 0)
            )
    return lags
