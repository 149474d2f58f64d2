"""Shows committed epochs where users of Spark look for rates: on the page "Structured Streaming" of the UI and of the
history server, in the event log, and in what a SparkListener hears.

An epoch is posted as the progress of a streaming query: the job is the query, a start of the job is a run of it, an
epoch is a batch. Spark has no other place for figures that come from Python: a task's own metrics and accumulators are
Java's (docs/decisions/0065). The events are posted from a thread of their own, so no epoch waits for them, and a job
continues if they cannot be posted.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Thread
from typing import Any, Self

from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.engine.loop import CommittedEpoch, JobListener
from joinery_runtime.engine.report import EpochReport
from joinery_runtime.job import Job, format_time
from joinery_runtime.job.explain import outputs_place

_EVENT = "org.apache.spark.sql.streaming.StreamingQueryListener$Query{}Event"
_LAST_CALENDAR_MS = 253_402_300_799_999  # the end of the year 9999, behind which Spark reads no time
_PATIENCE_S = 5.0

GetContext = Callable[[], Any]
"""Returns the job's SparkContext; None before there is one. PySpark is imported only if there is one."""


@dataclass(frozen=True, slots=True)
class QueryNames:
    """What Spark's page calls a job, its inputs (by name), and its output."""

    job: str
    sources: Mapping[str, str]
    sink: str

    @classmethod
    def of(cls, job: Job) -> Self:
        sources = {side.name: f"{side.name}: {side.source_name}" for side in job.inputs}
        return cls(job.name, sources, outputs_place(job))


class QueryEvents:
    """Writes the events of one start of a job as Spark's event log does. `store` tells jobs of one name apart."""

    def __init__(self, names: QueryNames, store: str, run: uuid.UUID | None = None) -> None:
        self._names = names
        self._ids = {
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"joinery:{store}:{names.job}")),
            "runId": str(run or uuid.uuid4()),
        }
        self._committed_at: float | None = None

    def started_event(self, now: float) -> str:
        return _event_json(
            "Started", {**self._ids, "name": self._names.job, "timestamp": _time_text(now * 1000), "jobTags": []}
        )

    def progress_event(self, epoch: CommittedEpoch, now: float) -> str:
        """Return the event of an epoch that was committed `now` (seconds since 1970)."""
        report, seconds = epoch.report, max(epoch.seconds, 0.001)
        since_last = seconds if self._committed_at is None else max(now - self._committed_at, seconds)
        self._committed_at = now
        total, ran, committing = (round(1000 * part) for part in (epoch.seconds, epoch.ran, epoch.committing))
        planning = max(0, total - ran - committing)
        # 0 before every input has a watermark and once all have ended, as in Structured Streaming: the UI draws no such
        # watermark, and its page fails if one epoch has a watermark and another has none.
        watermarks = [at for at in report.watermarks.values() if at is not None]
        unknown = len(watermarks) < len(report.watermarks) or not watermarks or min(watermarks) == END_OF_TIME
        return _event_json("Progress", {"progress": {
            **self._ids,
            "name": self._names.job,
            "timestamp": _time_text((now - epoch.seconds) * 1000),
            "batchId": report.epoch,
            "batchDuration": round(1000 * epoch.seconds),
            "durationMs": {
                "triggerExecution": total, "queryPlanning": planning, "addBatch": ran, "commitOffsets": committing,
            },
            "eventTime": {"watermark": _time_text(0 if unknown else min(watermarks))},
            "stateOperators": [_state_fields(report)],
            "sources": [self._source_progress(name, report, seconds, since_last) for name in report.rows_in],
            "sink": {"description": self._names.sink, "numOutputRows": report.rows_out, "metrics": {}},
            "observedMetrics": {},
        }})  # fmt: skip

    def terminated_event(self, error: Exception | None) -> str:
        return _event_json("Terminated", {**self._ids, "exception": None if error is None else str(error)})

    def _source_progress(self, name: str, report: EpochReport, seconds: float, since_last: float) -> dict[str, Any]:
        rows = report.rows_in[name]
        metrics = {
            "bytesRead": report.bytes_in.get(name, 0),
            "recordsBehind": report.backlog.get(name, 0),
            "lateRows": report.dropped.get(name, {}).get("late", 0),
            "deadLetters": report.dead.get(name, 0),
        }
        return {
            "description": self._names.sources.get(name, name),
            "startOffset": None,
            "endOffset": None,
            "latestOffset": None,
            "numInputRows": rows,
            "inputRowsPerSecond": rows / since_last,
            "processedRowsPerSecond": rows / seconds,
            "metrics": {metric: str(value) for metric, value in metrics.items()},
        }


def _state_fields(report: EpochReport) -> dict[str, Any]:
    return {
        "operatorName": "joinery",
        "numRowsTotal": report.state_rows,
        "numRowsUpdated": 0,
        "allUpdatesTimeMs": 0,
        "numRowsRemoved": 0,
        "allRemovalsTimeMs": 0,
        "commitTimeMs": 0,
        "memoryUsedBytes": report.state_bytes,
        "numRowsDroppedByWatermark": sum(counts.get("late", 0) for counts in report.dropped.values()),
        "numShufflePartitions": 0,
        "numStateStoreInstances": report.segments,
        "customMetrics": {f"rows of {part}": size.rows for part, size in report.parts.items()},
    }


def _event_json(kind: str, fields: Mapping[str, Any]) -> str:
    return json.dumps({"Event": _EVENT.format(kind), **fields})


def _time_text(ms: float) -> str:
    return format_time(round(min(max(ms, 0), _LAST_CALENDAR_MS)))


class EventPoster:
    """Posts events from a thread of its own. What keeps it from posting is passed to `warn`, once, and no other event
    is posted then."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._events: SimpleQueue[str | None] = SimpleQueue()
        self._thread: Thread | None = None

    def post(self, context: Any, event: str) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._post_events, args=(context,), name="joinery-spark-progress", daemon=True)
            self._thread.start()
        if self._thread.is_alive():
            self._events.put(event)

    def close(self) -> None:
        """Wait until the events are posted, but not for a Java that does not answer."""
        if self._thread is not None:
            self._events.put(None)
            self._thread.join(_PATIENCE_S)

    def _post_events(self, context: Any) -> None:
        from joinery_runtime.hosts.spark_internals import (  # noqa: PLC0415
            add_streaming_page,
            has_listeners,
            post_event,
        )

        try:
            listened_to = False
            while (event := self._events.get()) is not None:
                if not listened_to and has_listeners(context):
                    add_streaming_page(context)
                    listened_to = True
                if listened_to:
                    post_event(context, event)
        except ConnectionError:
            return  # Java is gone, which the loop meets too, and reports
        except Exception as error:
            self._warn(
                f"Spark's UI, history and listeners get no rates of epochs: {type(error).__name__}: {error}. The job's "
                "own page has them (docs/status.md)"
            )


@contextmanager
def spark_listener(
    names: QueryNames,
    store: str,
    context: GetContext,
    listener: JobListener,
    warn: Callable[[str], None],
    wall: Callable[[], float] = time.time,
) -> Iterator[JobListener]:
    """Yield a listener that posts committed epochs to Spark once there is a context, and pass everything on. When
    the block ends, so does the query that Spark shows."""
    events, poster = QueryEvents(names, store), EventPoster(warn)
    started = False

    def committed(epoch: CommittedEpoch) -> None:
        nonlocal started
        running = context()
        if running is not None:
            if not started:
                poster.post(running, events.started_event(wall() - epoch.seconds))
                started = True
            poster.post(running, events.progress_event(epoch, wall()))
        listener.committed(epoch)

    ended_by: Exception | None = None  # an interrupt is no failure
    try:
        yield replace(listener, committed=committed)
    except Exception as error:
        ended_by = error
        raise
    finally:
        if started:
            poster.post(context(), events.terminated_event(ended_by))
        poster.close()
