"""`/metrics`: the board as Prometheus metrics. docs/status.md lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.engine.loop import ScalingCause
from joinery_runtime.engine.report import Totals
from joinery_runtime.hosts.status.board import Board
from joinery_runtime.hosts.status.document import place_of
from joinery_runtime.hosts.status.snapshot import JobSnapshot, behind_ms, watermark_of


def registry_of(board: Board, revision: str = "") -> CollectorRegistry:
    """Return a registry with the metrics of this board only."""
    registry = CollectorRegistry()
    registry.register(_Families(board, revision))
    registry.register(board.epoch_seconds)
    return registry


class _Families(Collector):
    """The board's metrics. A value that is not known yet is omitted: a 0 would look like a measurement."""

    def __init__(self, board: Board, revision: str) -> None:
        self._board, self._revision = board, revision

    def collect(self) -> Iterator[Metric]:
        board, snapshot = self._board, self._board.snapshot
        info = GaugeMetricFamily("joinery_info", "What runs here; always 1.", labels=["name", "revision", "version"])
        info.add_metric([self._board.job, self._revision, version("joinery-runtime")], 1)
        yield info
        yield _gauge_metric("start_timestamp_seconds", "When this driver began, as Unix time.", board.started_at)
        yield _gauge_metric("ready", "1 once the driver has recovered.", int(snapshot.ready))
        yield _counter_metric("epochs_committed", "Epochs that this driver has committed.", snapshot.committed)
        yield _counter_metric("troubles", "Troubles that this driver waited out.", snapshot.troubles)
        text = "How often this driver changed its shards or executors."
        rescales = CounterMetricFamily("joinery_rescales", text, labels=["cause"])
        for cause in get_args(ScalingCause):
            rescales.add_metric([cause], board.rescales[cause])
        yield rescales
        waited, outage = dict.fromkeys(("executors", "input", "output", "store"), 0.0), snapshot.waits_for
        if outage is not None:
            waited[outage.error.system] = max(0.0, board.wall() - outage.since)
        text = "For how long an outside system has been waited for, 0 while it is there."
        yield _gauge_by("waiting_seconds", text, waited, label="system")
        yield from _position_metrics(snapshot)
        yield from _input_metrics(board, snapshot)
        if snapshot.totals is not None:
            yield from _total_metrics(board, snapshot.totals)
            yield from _side_metrics(snapshot, snapshot.totals)


def _position_metrics(snapshot: JobSnapshot) -> Iterator[Metric]:
    state = snapshot.state
    asked_for = None if snapshot.scaling is None else snapshot.scaling[0].executors
    gauges = {
        "generation": ("The driver's fencing generation.", snapshot.generation),
        "epoch": ("The last committed epoch.", snapshot.epoch),
        "last_commit_timestamp_seconds": ("When it was committed, as Unix time.", snapshot.committed_at),
        "executors": ("Executors that run; missing where tasks run in the driver.", snapshot.executors),
        "executors_wanted": ("Executors that were asked for, once they have changed.", asked_for),
        "state_bytes": ("Stored bytes of the live segments.", None if state is None else state.bytes),
        "state_rows": ("Rows in the live segments.", None if state is None else state.rows),
        "state_segments": ("Live segments.", None if state is None else state.segments),
        "hottest_key_rows": ("Rows of the key with the most.", snapshot.hottest[0].rows if snapshot.hottest else None),
        "hot_keys": ("Keys with more rows than hotKeyWarning, ten at most.", len(snapshot.too_hot)),
        "rows_held": ("Rows of committed epochs that the output does not show yet.", snapshot.unpublished_rows),
        "amplification": ("Rows out per record in, of the newest epoch.", snapshot.amplification),
    }
    for name, (text, value) in gauges.items():
        if value is not None:
            yield _gauge_metric(name, text, value)


def _input_metrics(board: Board, snapshot: JobSnapshot) -> Iterator[Metric]:
    now = board.wall()
    watermarks = {name: at for name in board.inputs if (at := watermark_of(snapshot, name)) is not None}
    times = {name: at / 1000 for name, at in watermarks.items() if at != END_OF_TIME}
    delays = {name: ms / 1000 for name, at in watermarks.items() if (ms := behind_ms(at, now)) is not None}
    paused = {name: float(name in snapshot.paused) for name in board.inputs}
    ended = {name: float(state.progress.ended) for name, state in snapshot.inputs.items()}
    yield _gauge_by("lag_records", "Records that are there and not read yet.", snapshot.backlog)
    yield _gauge_by("watermark_seconds", "The watermark, as Unix time.", times)
    yield _gauge_by("watermark_delay_seconds", "How far the watermark is behind the clock.", delays)
    yield _gauge_by("input_idle", "1 while all partitions are idle.", snapshot.idle)
    yield _gauge_by("input_paused", "1 while a limit keeps it from being read.", paused)
    late = {name: float(name in snapshot.late_warnings) for name in board.inputs}
    yield _gauge_by("input_late", "1 while more rows are dropped as late than watermark.lateWarning allows.", late)
    yield _gauge_by("input_ended", "1 once it has been read to its end.", ended)


def _total_metrics(board: Board, totals: Totals) -> Iterator[Metric]:
    yield _counter_metric("rows_out", "Rows written since the state began.", totals.rows_out)
    yield _counter_metric("lost_records", "Records that the broker had deleted before they were read.", totals.lost)
    read = CounterMetricFamily("joinery_rows_in", "Records read since the state began.", labels=["input"])
    dead = CounterMetricFamily("joinery_dead_letters", "Records that could not be used.", labels=["input"])
    dropped = CounterMetricFamily("joinery_dropped", "Rows that went no further.", labels=["input", "reason"])
    after_eviction = CounterMetricFamily(
        "joinery_after_eviction", "Rows that came when partners of them may have left the state.", labels=["input"]
    )
    for name in board.inputs:
        after_eviction.add_metric([name], totals.after_eviction.get(name, 0))
        read.add_metric([name], totals.rows_in.get(name, 0))
        dead.add_metric([name], totals.dead.get(name, 0))
        for reason, count in ({"late": 0} | dict(totals.dropped.get(name, {}))).items():
            dropped.add_metric([name, reason], count)
    yield from (read, dead, dropped, after_eviction)


def _side_metrics(snapshot: JobSnapshot, totals: Totals) -> Iterator[Metric]:
    """Yield metrics of the state by step (1 is the first) and side; the side of sessions is `sessions`."""
    labels = ["step", "side"]
    sizes = {"rows": "Rows in the live segments.", "bytes": "Stored bytes of the live segments."}
    for name, text in sizes.items():
        gauge = GaugeMetricFamily(f"joinery_side_{name}", text, labels=labels)
        for part, size in snapshot.parts.items():
            gauge.add_metric(_label_values(part), getattr(size, name))
        yield gauge
    for name, text in _SIDE_COUNTS.items():
        counter = CounterMetricFamily(f"joinery_side_{name}", text, labels=labels)
        for part, counts in totals.parts.items():
            counter.add_metric(_label_values(part), getattr(counts, name))
        yield counter


_SIDE_COUNTS = {
    "stored": "Rows that have joined the state.",
    "expired": "Rows that have left it.",
    "lookups": "Arrivals of the other side that were looked up.",
    "matches": "Matches that the step has found.",
}


def _label_values(part: str) -> list[str]:
    return [str(name) for name in place_of(part)]


def _gauge_metric(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"joinery_{name}", text, value=value)


def _counter_metric(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"joinery_{name}", text, value=value)


def _gauge_by(name: str, text: str, values: Mapping[str, float], label: str = "input") -> Metric:
    """Return a gauge with a value for each of the label's values."""
    family = GaugeMetricFamily(f"joinery_{name}", text, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], value)
    return family
