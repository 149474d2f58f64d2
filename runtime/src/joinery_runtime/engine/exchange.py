"""What peers send each other between two stages: rows in parcels, one for each receiver, and reports one by one.

A reader makes a block per shard and chunk. Sent like that, an epoch of many shards or many peers would be mostly the
cost of its blocks: each is an Arrow file of its own, a pickle and a Java object. A *parcel* holds the rows of one side
of a step for all shards of one peer, with where each shard's rows are in it, so an epoch has about one parcel per pair
of peers and side.

Rows that a peer reads for its own shards need no transport. They stay on the disk of their executor, mostly in the page
cache, and only a *local parcel* travels, which names the file. Spark may run the step somewhere else than the read: as
a retry, as a speculative attempt, or because an executor is busy or gone. The file is not there then, and the step
reads the peer's ranges again: a plan fixes what they hold.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from joinery_runtime.core.table.segment import concat, decode, encode
from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.worker import RowBlock, Sent
from joinery_runtime.errors import explain_full_disk

PACKED_BYTES = 16 << 20
"""Rows that wait to be packed, of all receivers together."""
_ROWS = "rows between two tasks"


@dataclass(frozen=True, slots=True)
class ParcelHeader:
    """The side of a step to which a parcel's rows belong, whether they were `read` from an input, and where those of
    each shard are: `cuts` has (shard, first row, number of rows). Rows for every shard are stored once, and each
    shard's cut names them."""

    step: int
    side: int
    read: bool
    cuts: tuple[tuple[int, int, int], ...]

    def blocks(self, rows: pa.RecordBatch) -> Iterator[Sent]:
        for shard, first, count in self.cuts:
            yield shard, RowBlock(self.step, self.side, rows.slice(first, count), self.read)


@dataclass(frozen=True, slots=True)
class Parcel:
    """Rows for the shards of one peer. Pickles as an Arrow IPC file."""

    header: ParcelHeader
    rows: pa.RecordBatch

    def blocks(self) -> Iterator[Sent]:
        return self.header.blocks(self.rows)

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle_parcel, (self.header, encode(self.rows, compression=None))


def _unpickle_parcel(header: ParcelHeader, rows: bytes) -> Parcel:
    return Parcel(header, decode(rows))


@dataclass(frozen=True, slots=True)
class LocalParcel:
    """A parcel whose rows are in a file of the executor that has read them."""

    header: ParcelHeader
    path: Path

    def rows(self) -> pa.RecordBatch:
        """Map the file into memory. Raises OSError in another executor, and after the epoch."""
        with pa.memory_map(str(self.path)) as file:
            return decode(file.read_buffer())


@dataclass(slots=True)
class _Waiting:
    """Rows of one receiver and side that are not packed yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    cuts: list[tuple[int, int, int]] = field(default_factory=list)
    first_rows: dict[int, int] = field(default_factory=dict)  # of each batch, by its id
    rows: int = 0

    def add(self, shard: int, rows: pa.RecordBatch) -> int:
        """Return the bytes that this adds: none for rows that another shard gets, too."""
        first_row = self.first_rows.get(id(rows))
        self.cuts.append((shard, self.rows if first_row is None else first_row, rows.num_rows))
        if first_row is not None:
            return 0
        self.batches.append(rows)
        self.first_rows[id(rows)] = self.rows
        self.rows += rows.num_rows
        return int(rows.nbytes)


def pack_blocks(sent: Iterable[Sent], owner: Callable[[int], int]) -> Iterator[tuple[int, Parcel | Sent]]:
    """Pack blocks of rows into parcels, each for the `owner` of its shards, and pass everything else on to its shard's
    owner. Yields (receiver, parcel) and (receiver, (shard, report))."""
    waiting: dict[tuple[int, int, int, bool], _Waiting] = defaultdict(_Waiting)
    size = 0
    for shard, block in sent:
        receiver = owner(shard)
        if not isinstance(block, RowBlock):
            yield receiver, (shard, block)
            continue
        size += waiting[receiver, block.step, block.side, block.read].add(shard, block.rows)
        if size > PACKED_BYTES:
            yield from _flush_parcels(waiting)
            size = 0
    yield from _flush_parcels(waiting)


def _flush_parcels(waiting: dict[tuple[int, int, int, bool], _Waiting]) -> Iterator[tuple[int, Parcel]]:
    for receiver, step, side, read in list(waiting):
        rows = waiting.pop((receiver, step, side, read))
        yield receiver, Parcel(ParcelHeader(step, side, read, tuple(rows.cuts)), concat(rows.batches))


class LocalParcels:
    """Files of one read task. `folder` belongs to the executor and the job; `attempt` is unique."""

    def __init__(self, folder: Path, work: EpochWork, attempt: str) -> None:
        self._folder = folder / f"{work.generation}-{work.plan.epoch}"
        self._attempt, self._count = attempt, 0
        with explain_full_disk(_ROWS, self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        # Whoever still needs a file of an earlier epoch, a zombie for example, reads its rows again.
        for earlier in folder.iterdir():
            generation, epoch = map(int, earlier.name.split("-"))
            if (generation, epoch) < (work.generation, work.plan.epoch):
                shutil.rmtree(earlier, ignore_errors=True)

    def put(self, parcel: Parcel) -> LocalParcel:
        path = self._folder / f"{self._attempt}-{self._count}.arrow"
        self._count += 1
        with (
            explain_full_disk(_ROWS, self._folder),
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, parcel.rows.schema) as writer,
        ):
            writer.write_batch(parcel.rows)
        return LocalParcel(parcel.header, path)


def open_parcels(parcels: Iterable[LocalParcel]) -> list[Parcel] | None:
    """Return the parcels with their rows; None if a file is not here, or cannot be read."""
    try:
        return [Parcel(parcel.header, parcel.rows()) for parcel in parcels]
    except (OSError, pa.ArrowInvalid):
        return None
