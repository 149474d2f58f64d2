"""Short names for what the tests of stores are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joinery_runtime.state.store import EpochCommit, JobRecord, SegmentMeta, StateStore

DEFINITION = {"spec": {"inputs": ["orders"]}}


def segment(key: str, *, blob: bytes | None = None, epoch: int = 1, version: int = 1) -> tuple[SegmentMeta, bytes]:
    blob = f"blob of {key}".encode() if blob is None else blob
    return SegmentMeta(key, "left", 0, 2**64 - 1, -5, 2**53, 3, len(blob), epoch, version), blob


def commit_of(epoch: int, upserts: Sequence[str] = (), deletes: Sequence[str] = (), **changes: Any) -> EpochCommit:
    values: dict[str, Any] = {
        "plan": {"epoch": epoch, "ranges": [[0, 10 * epoch]]},
        "result": {"rows": epoch},
        "offsets": {},
        "signature": {"keys": ["id"]},
        "definition": DEFINITION,
    }
    return EpochCommit(epoch=epoch, upserts=upserts, deletes=deletes, **(values | changes))


def run_epoch(
    store: StateStore,
    record: JobRecord,
    epoch: int,
    keys: Sequence[str] = (),
    deletes: Sequence[str] = (),
    version: int = 1,
    **changes: Any,
) -> None:
    """Stages the keys and commits them."""
    store.stage(record.job, [segment(key, epoch=epoch, version=version) for key in keys])
    store.commit(record.job, record.generation, commit_of(epoch, keys, deletes, **changes))


def live_keys(store: StateStore, job: str) -> list[str]:
    record = store.record(job)
    assert record is not None
    return [meta.key for meta in record.segments]


def offsets_of(store: StateStore, job: str) -> Mapping[str, bytes]:
    record = store.record(job)
    assert record is not None
    return record.offsets
