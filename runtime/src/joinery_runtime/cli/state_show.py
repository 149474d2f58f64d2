"""`joinery state show`: the rows that are kept for one key, and when each will go."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.cli.common import time_text
from joinery_runtime.cli.state import known
from joinery_runtime.cli.state_stats import next_watermarks
from joinery_runtime.core.columns import OFFSET, PARTITION, TS
from joinery_runtime.core.compile import compile_join
from joinery_runtime.core.keyhash import key_hash
from joinery_runtime.core.schema import arrow_schema
from joinery_runtime.core.segment import Run, SegmentMeta, decode
from joinery_runtime.core.shards import HashRange
from joinery_runtime.core.spec import PARTS, JoinSpec, SideSpec, Watermark
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import Input, StreamJoin
from joinery_runtime.sinks.encode import rows_to_json
from joinery_runtime.sources import JsonDecoder
from joinery_runtime.state import migrations
from joinery_runtime.state.store import JobRecord, StateStore
from joinery_runtime.state.upgrade import read_live

_BARE = {"boolean", "int32", "int64", "float", "double"}  # JSON values without quotes


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A row that is kept. It goes once the watermark of `until_input` is above `until` (J3).

    `may_match`: rows of the other input that are still to come: "on time", "late" (only rows behind their watermark),
    or "no": it goes with the next epoch. Times are milliseconds.
    """

    input: str
    ts: int
    partition: int
    offset: int
    columns: Mapping[str, Any]
    until_input: str
    until: int
    may_match: str

    def line(self, watermark: Watermark) -> str:
        columns = ", ".join(f"{name} {json.dumps(value)}" for name, value in self.columns.items())
        place = f"{self.partition}/{self.offset}"
        goes = (
            f"goes when the watermark of {self.until_input} ({time_text(watermark)}) is above {time_text(self.until)}"
        )
        matches = {"on time": "may still match", "late": "may match late rows only", "no": "matches nothing any more"}
        return f"{self.input} {place} at {time_text(self.ts)}: {columns}; {goes}; {matches[self.may_match]}"


@dataclass(frozen=True, slots=True)
class Shown:
    job: str
    key: Mapping[str, Any]
    hash: int
    epoch: int
    watermarks: Mapping[str, Watermark]
    segments_read: int
    rows: Sequence[KeptRow]

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        key = ", ".join(f"{name} {json.dumps(value)}" for name, value in self.key.items())
        yield f"job {self.job}, key {key}: {len(self.rows)} rows are kept after epoch {self.epoch}"
        for row in self.rows:
            yield row.line(self.watermarks.get(row.until_input))


def show(job: StreamJoin, store: StateStore, texts: Sequence[str]) -> Shown:
    """`texts` are COLUMN=VALUE, one for each column of the key. Raises JoineryError naming what is wrong with them."""
    spec, named = compile_join(job), _by_left_name(job, texts)
    keys = [_decoded(job, side, named) for side in (job.left, job.right)]
    found = int(key_hash([keys[0].column(pair.left) for pair in job.key_pairs])[0])
    record = known(job, store)
    by_segment: dict[str, list[KeptRow]] = {}

    def covering(now: JobRecord) -> list[SegmentMeta]:
        nonlocal record
        record = now
        return _covering(now, found)

    for now, blobs in read_live(store, record, covering):
        metas = {meta.key: meta for meta in now.segments}
        watermarks = spec.watermarks(next_watermarks(job, now))
        for key, blob in blobs.items():
            by_segment[key] = list(_rows_of(spec, metas[key], blob, found, keys, watermarks))
    # A segment that was replaced while it was read is not live any more; what replaced it has its rows.
    live = [by_segment[meta.key] for meta in _covering(record, found)]
    rows = sorted(
        (row for rows in live for row in rows), key=lambda row: (row.input, row.ts, row.partition, row.offset)
    )
    shown = json.loads(rows_to_json(pa.table(keys[0].select([pair.left for pair in job.key_pairs])))[0])
    return Shown(job.name, shown, found, record.committed, next_watermarks(job, record), len(live), rows)


def _by_left_name(job: StreamJoin, texts: Sequence[str]) -> dict[str, str]:
    """The values by the left input's names of the key columns; the right one's names, and input.column, do as well."""
    names: dict[str, str] = {}
    for pair in reversed(job.key_pairs):
        for side, column in ((job.right, pair.right), (job.left, pair.left)):
            names |= {column: pair.left, f"{side.name}.{column}": pair.left}
    columns = [pair.left for pair in job.key_pairs]
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in names or names[name] in values:
            raise JoineryError(
                f"--key {text} cannot be used",
                facts=f"the key of job {job.name} is {', '.join(columns)}",
                todo="Give --key COLUMN=VALUE once for each of these columns",
            )
        values[names[name]] = value
    missing = [column for column in columns if column not in values]
    if missing:
        raise JoineryError(
            f"The key of job {job.name} is not complete",
            facts=f"{', '.join(missing)} is missing",
            todo="Give --key COLUMN=VALUE for each column of it",
        )
    return values


def _decoded(job: StreamJoin, side: Input, values: Mapping[str, str]) -> pa.RecordBatch:
    """The key as a row of that input, read as a JSON record of it would be (V3)."""
    columns = {(pair.left if side is job.left else pair.right): values[pair.left] for pair in job.key_pairs}
    document = ",".join(f"{json.dumps(name)}:{_json(side, name, text)}" for name, text in columns.items())
    schema = arrow_schema(column for column in side.columns if column.name in columns)
    decoded = JsonDecoder(schema).decode(pa.array([f"{{{document}}}".encode()], pa.binary()))
    rows = decoded.rows.combine_chunks()
    if decoded.bad or any(rows.column(name).null_count for name in columns):
        reason = decoded.bad[0].reason if decoded.bad else "it is null"
        raise JoineryError(
            f"The key {', '.join(f'{name}={text}' for name, text in columns.items())} cannot be read",
            facts=f"as input {side.name} declares it: {reason}",
            todo="Write the values as they are in the records",
        )
    return rows.to_batches()[0]


def _json(side: Input, name: str, text: str) -> str:
    return text if side.types[name].name in _BARE else json.dumps(text)


def _covering(record: JobRecord, found: int) -> list[SegmentMeta]:
    return [meta for meta in record.segments if meta.hash_min <= found <= meta.hash_max]


def _rows_of(
    spec: JoinSpec,
    meta: SegmentMeta,
    blob: bytes,
    found: int,
    keys: Sequence[pa.RecordBatch],
    watermarks: tuple[Watermark, Watermark],
) -> Iterator[KeptRow]:
    side = PARTS.index(meta.part)
    current = migrations.migrate(blob, meta.state_version, migrations.CURRENT_STATE_VERSION, migrations.MIGRATIONS)
    batch = Run.view(decode(current)).within(HashRange(found, found)).batch
    same = np.ones(batch.num_rows, dtype=bool)
    for name in spec.sides[side].keys:  # two keys may have one hash
        value = keys[side].column(name)[0]
        same &= pc.equal(batch.column(name), value).to_numpy(zero_copy_only=False)
    kept = batch.filter(pa.array(same))
    documents = rows_to_json(pa.table(kept.select(list(spec.sides[side].stored))))
    places = zip(*(kept.column(name).to_pylist() for name in (TS, PARTITION, OFFSET)), strict=True)
    for (ts, partition, offset), document in zip(places, documents, strict=True):
        yield _kept(spec, side, ts, partition, offset, json.loads(document), watermarks)


def _kept(
    spec: JoinSpec,
    side: int,
    ts: int,
    partition: int,
    offset: int,
    columns: Mapping[str, Any],
    watermarks: tuple[Watermark, Watermark],
) -> KeptRow:
    own: SideSpec = spec.sides[side]
    last_partner = ts + own.partner_upper_ms
    return KeptRow(
        input=own.input,
        ts=ts,
        partition=partition,
        offset=offset,
        columns=columns,
        until_input=spec.sides[1 - side].input,
        until=last_partner + spec.allowed_lateness_ms,
        may_match=_may_match(spec, side, ts, watermarks),
    )


def _may_match(spec: JoinSpec, side: int, ts: int, watermarks: tuple[Watermark, Watermark]) -> str:
    keep_from = spec.keep_from(side, watermarks)
    if keep_from is not None and ts < keep_from:
        return "no"
    other = watermarks[1 - side]
    return "on time" if other is None or ts + spec.sides[side].partner_upper_ms >= other else "late"
