"""A store whose epoch log has lost its beginning, as retention leaves it, with a savepoint where the rest begins."""

from __future__ import annotations

from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import EpochCommit, EpochRecord

NOON = "noon"


class TrimmedStore(MemoryStore):
    """Makes savepoint `noon` on epoch `noon`. From `trim` on the log begins behind it."""

    def __init__(self, noon: int) -> None:
        super().__init__()
        self._noon, self._oldest = noon, 0

    def commit(self, job: str, generation: int, commit: EpochCommit) -> None:
        super().commit(job, generation, commit)
        if commit.epoch == self._noon:
            self.create_savepoint(job, NOON)

    def trim(self) -> None:
        self._oldest = self._noon + 1

    def epochs(self, job: str, after: int = 0, limit: int = 1000) -> list[EpochRecord]:
        return super().epochs(job, max(after, self._oldest - 1), limit)
