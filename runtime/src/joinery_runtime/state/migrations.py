"""Forward-only migrations of segment blobs (rule M1).

Each step is a pure function that turns a blob of one `state_version` into a blob of the next. Steps stay for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from joinery_runtime.core.table.segment import MIGRATED, STATE_VERSION
from joinery_runtime.errors import IncompatibleState
from joinery_runtime.state.store import Migration, SegmentMeta

CURRENT_STATE_VERSION = STATE_VERSION
"""The `state_version` that this release writes."""


def unchanged(blob: bytes) -> bytes:
    """The step to a version whose readers also read blobs of the version before: no segment is rewritten for it. Old
    segments are read as they are, and compaction writes its results in the new version."""
    return blob


MIGRATIONS: Mapping[int, Migration] = {1: unchanged, 2: unchanged, 3: unchanged}
"""`{n: step}` takes a blob from version n to n + 1. A step keeps rows and their order: flags name rows by number."""


def readable_from(target: int, chain: Mapping[int, Migration]) -> int:
    """The oldest version whose blobs a release that writes `target` reads without a migration."""
    version = target
    while chain.get(version - 1) is unchanged:
        version -= 1
    return version


def check_chain(versions: Iterable[int], target: int, chain: Mapping[int, Migration]) -> None:
    """Raises IncompatibleState if a blob of one of `versions` cannot be brought to `target`."""
    stored_versions = set(versions)
    if stored_versions and max(stored_versions) > target:
        raise IncompatibleState(
            f"The stored state is newer than this release: it has state_version {max(stored_versions)}",
            facts=f"this release reads up to {target}",
            todo="Run the release that wrote it or a later one, or restore a savepoint from before the upgrade",
        )
    missing = [step for step in range(min(stored_versions, default=target), target) if step not in chain]
    if missing:
        raise IncompatibleState(
            f"There is no migration from state_version {missing[0]} to {missing[0] + 1}",
            facts=f"the stored state has versions {sorted(stored_versions)}, this release needs {target}",
            todo="Upgrade through a release that has this step, or start without state",
        )


def migrate(blob: bytes, from_version: int, to_version: int, chain: Mapping[int, Migration] = MIGRATIONS) -> bytes:
    """Returns the blob at `to_version`. Raises IncompatibleState for a missing or failing step, or a newer blob."""
    check_chain([from_version], to_version, chain)
    for step in range(from_version, to_version):
        blob = _apply_step(chain[step], blob, step)
    return blob


def migrate_segment(
    meta: SegmentMeta, blob: bytes, target: int, chain: Mapping[int, Migration], generation: int
) -> tuple[SegmentMeta, bytes]:
    """Returns the segment at `target` under a new key, `<old key>~<target>.<generation>`.

    The old key keeps its bytes: savepoints pin it for a rollback, and executors cache blobs by key. Flags still name
    the segment by its old key (`core.table.segment.first_key`).
    """
    rewritten = migrate(blob, meta.state_version, target, chain)
    key = f"{meta.key}{MIGRATED}{target}.{generation}"
    return replace(meta, key=key, bytes=len(rewritten), state_version=target), rewritten


def _apply_step(step: Migration, blob: bytes, version: int) -> bytes:
    try:
        return step(blob)
    except Exception as error:
        raise IncompatibleState(
            f"The migration from state_version {version} to {version + 1} failed",
            facts=f"{type(error).__name__}: {error}",
            todo="Nothing was changed: keep running the release that wrote this state, and report this",
        ) from error
