"""Jobs of other kinds with the same name in the same namespace."""

from __future__ import annotations

from collections.abc import Iterator

from joinery_operator.shell.kinds import JOBS, Key
from joinery_operator.shell.store import Store


def namesakes(job: Key, store: Store) -> Iterator[Key]:
    """Those that there are."""
    for resource in JOBS:
        key = Key(resource.kind, job.namespace, job.name)
        if key != job and store.get(key) is not None:
            yield key
