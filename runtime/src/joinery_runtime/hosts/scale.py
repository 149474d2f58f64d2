"""A running job becomes wider or narrower: shards with the next plan, executors between two epochs.

State is addressed by ranges of the key's hash, so an epoch may have any number of shards, whatever the one before had
(docs/decisions/0040). What is asked for stands in a file that changes under the job: in a pod, the operator's
annotation, which the kubelet writes into a volume. An executor that goes has nothing that is not in the store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pydantic import ValidationError
from pyspark import SparkContext

from joinery_runtime.engine.loop import JobListener
from joinery_runtime.engine.planner import Planner
from joinery_runtime.hosts.spark_places import ids_of
from joinery_runtime.hosts.spark_security import is_local
from joinery_runtime.job.crd import SCALE_FILE, Scale

_LOOK_SECONDS = 1.0


class ScaleFile:
    """The file that JOINERY_SCALE_FILE names; without it nothing is ever asked for. `say` hears of one that cannot be
    used, once. `clock` is in seconds."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._looked, self._text, self._asked = float("-inf"), "", Scale()

    def asked(self) -> Scale:
        """The newest that could be read; looks once a second."""
        place = os.environ.get(SCALE_FILE)
        if place and self._clock() - self._looked >= _LOOK_SECONDS:
            self._looked = self._clock()
            with suppress(OSError):  # it is being replaced, or not there yet
                self._read(Path(place))
        return self._asked

    def _read(self, place: Path) -> None:
        text = place.read_text(encoding="utf-8")
        if text == self._text or not text.strip():
            return
        self._text = text
        try:
            self._asked = Scale.model_validate_json(text)
        except ValidationError as error:
            self._say(
                f"{place} asks for no usable scale, and is not followed: {error.errors()[0]['msg']}: {text[:200]}"
            )


class Rescaler:
    """Follows a `ScaleFile`. `context` gives the Spark context once there is one."""

    def __init__(
        self, file: ScaleFile, planner: Planner, context: Callable[[], SparkContext | None], listener: JobListener
    ) -> None:
        self._file, self._planner, self._context, self._listener = file, planner, context, listener
        # What is asked for at the start is no change of it.
        planner.rescale(file.asked().shards or planner.shards)
        self._shards = planner.shards
        self._instances: int | None = None

    def listening(self) -> JobListener:
        """The listener, which looks at the file at each poll of the loop: then no task runs."""

        def polled(driver: Any) -> None:
            self.follow()
            self._listener.polled(driver)

        return replace(self._listener, polled=polled)

    def follow(self) -> None:
        asked = self._file.asked()
        if asked.shards is not None and asked.shards != self._shards:
            self._planner.rescale(asked.shards)
            self._listener.noticed(f"Rescaled: {asked.shards} shards instead of {self._shards} from the next plan on")
            self._shards = asked.shards
        context = self._context()
        if asked.instances is None or asked.instances == self._instances or context is None:
            return
        if is_local(context.master):
            self._instances = asked.instances  # the driver's own threads are all that there is
            return
        # Left to the next look when the Java process does not answer: the epoch says so if it is gone.
        with suppress(Py4JError, ConnectionError):
            gone = request_executors(context, asked.instances)
            if self._instances is not None:
                lost = f"; {gone} of the running ones end now" if gone else ""
                self._listener.noticed(f"Rescaled: {asked.instances} executors instead of {self._instances}{lost}")
            self._instances = asked.instances


def request_executors(context: SparkContext, count: int) -> int:
    """Has Spark keep this many executors. Ends the newest of those that run beyond them, and says how many. No task may
    be running. Raises Py4JError and ConnectionError."""
    jvm: Any = context._jvm
    spark: Any = context._jsc.sc()
    surplus = ids_of(context)[count:]
    if surplus:
        spark.killExecutors(jvm.PythonUtils.toSeq(surplus))
    nowhere = getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
    spark.requestTotalExecutors(count, 0, nowhere)
    return len(surplus)
