"""The values of groups without their NULLs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates.base import Groups


@dataclass(frozen=True, slots=True)
class Present:
    """The n values that are not NULL, and the k groups that have one. `groups` gives where each begins among `values`.
    `rows` (int64[n] or slice) gives the values' positions among all rows. `which` (int64[k]) gives the number of each
    of the k among all `given` groups."""

    values: pa.Array
    rows: np.ndarray | slice
    groups: Groups
    which: np.ndarray
    given: int

    @classmethod
    def of(cls, values: pa.Array, groups: Groups) -> Present:
        if not values.null_count:
            return cls(values, slice(None), groups, np.arange(groups.count), groups.count)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        sizes = np.add.reduceat(valid, groups.starts, dtype=np.int64)
        which = np.flatnonzero(sizes)
        starts = np.cumsum(sizes[which]) - sizes[which]
        found = values.drop_null()
        return cls(found, np.flatnonzero(valid), Groups(starts, len(found)), which, groups.count)

    def scatter(self, found: pa.Array) -> pa.Array:
        """Spreads k values, one per group that has any, over all given groups: NULL for the others."""
        if len(self.which) == self.given:
            return found
        at = np.zeros(self.given, dtype=np.int64)
        at[self.which] = np.arange(len(self.which))
        absent = np.ones(self.given, dtype=bool)
        absent[self.which] = False
        return found.take(pa.array(at, mask=absent))
