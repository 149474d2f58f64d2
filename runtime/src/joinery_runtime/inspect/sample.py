"""Reads a sample of a job's inputs and says how far records are out of order, from which a `watermark.delay` follows.
Joins no consumer group, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from joinery_runtime.connectors.inputs import decoder_for, planner_for, reader_for, with_record_boundary
from joinery_runtime.connectors.kafka.planner import newest_ranges
from joinery_runtime.connectors.source import StoredOffsets, StoreIdentity
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.lateness import FutureRows, Timestamps, behind_highest
from joinery_runtime.core.pipeline.prepare import usable_times
from joinery_runtime.core.pipeline.sides import Intake
from joinery_runtime.engine.late_rows import format_percent
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job import Job, format_duration
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.wording import counted

SAMPLED = 100_000
"""The most records of an input that are read."""

MOST = 0.999
"""The share of records that a shorter delay is proposed for, where few records are far behind the others."""


@dataclass(frozen=True, slots=True)
class Disorder:
    """How far the sampled records of an input are behind the highest event time before them in their partition (ms,
    ascending). `delay_ms` is the job's `watermark.delay`."""

    input: str
    behind: np.ndarray
    delay_ms: int

    @property
    def needed_ms(self) -> int:
        """The delay under which none of the records is late."""
        return int(self.behind[-1]) if len(self.behind) else 0

    def words(self) -> str:
        records = counted(len(self.behind), "sampled record")
        if not len(self.behind):
            return f"{self.input}: no record with an event time was there to sample"
        late = int((self.behind > 0).sum())
        if not late:
            return f"{self.input}: {records} are in order; watermark.delay: 0s keeps them all"
        share = format_percent(late / len(self.behind))
        text = f"{self.input}: of {records}, {late:,} ({share}) come after a later one"
        most = int(self.behind[round(MOST * (len(self.behind) - 1))])
        proposal = f"watermark.delay: {format_duration(self.needed_ms)} keeps them all"
        if 2 * most < self.needed_ms:
            proposal += f", {format_duration(most)} keeps {100 * MOST:g} %"
        enough = "is enough" if self.delay_ms >= self.needed_ms else "is not enough"
        now = f"now {format_duration(self.delay_ms)}, which {enough}"
        return f"{text}, by up to {format_duration(self.needed_ms)}; {proposal} ({now})"


def sample(job: Job) -> Iterator[Disorder]:
    """Sample each input: the newest records of topics, the first ones of files. `job` has its secrets filled in. Raises
    SourceError if an input cannot be read."""
    pipeline = compile_job(job)
    for side in job.inputs:
        for part in side.parts:
            topics = part.model_copy(update={"history": None})
            intake = replace(pipeline.intake(side.name), event_time=part.event_time)
            yield Disorder(part.name, _measure_delays(topics, intake, job.name), part.watermark.delay)


def _measure_delays(side: Input, intake: Intake, job: str) -> np.ndarray:
    reader, decoder = reader_for(side), with_record_boundary(side, decoder_for(side))
    most = side.watermark.max_future
    future = None if most is None else FutureRows(most, time.time_ns() // 1_000_000)
    times: dict[PartitionRef, list[np.ndarray]] = {}
    if side.kafka is not None:
        ranges = newest_ranges(side.name, side.kafka, SAMPLED)
    else:
        ranges, rest = [], SAMPLED
        with closing(planner_for(side, job, StoreIdentity("", ""), once=True)) as planner:
            for bounds in planner.bounds(StoredOffsets()):
                if rest > 0 and bounds.start < bounds.end_exclusive:
                    ranges.append(planner.cut(bounds, rest))
                    rest -= planner.records(ranges[-1], 100)
    try:
        for raw in reader.read(*ranges):
            decoded = decoder.decode_batch(raw)
            timestamps = None if raw.timestamps is None else partial(_of_rows, raw.timestamps, decoded.index)
            for batch in decoded.rows.combine_chunks().to_batches():
                times.setdefault(raw.partition, []).append(usable_times(intake, batch, future, timestamps))
    finally:
        reader.close()
    in_order = [np.concatenate(times[planned.partition]) for planned in ranges if planned.partition in times]
    if side.kafka is None and in_order:  # files are read one after the other
        in_order = [np.concatenate(in_order)]
    behind = [behind_highest(of_partition) for of_partition in in_order]
    return np.sort(np.concatenate(behind)) if behind else np.zeros(0, dtype=np.int64)


def _of_rows(of_records: Timestamps, index: np.ndarray, at: np.ndarray) -> np.ndarray:
    return of_records(index[at])
