"""Values that rows lack come from earlier rows of their keys: compared with a loop over the rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.core.kinds.as_of import sources_of

Row = tuple[int, bool, bool, bool]  # key, deleted, and which of two columns it lacks


def expected(rows: list[Row], ranks: list[int], column: int) -> list[int]:
    latest: dict[int, int] = {}
    sources = [-1] * len(rows)
    for at in sorted(range(len(rows)), key=ranks.__getitem__):
        key, deleted, *lacks = rows[at]
        if deleted or not lacks[column]:
            sources[at] = at
            latest[key] = -1 if deleted else at
        else:
            sources[at] = latest.get(key, -1)
    return sources


rows = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=20)


@given(rows.flatmap(lambda drawn_rows: st.tuples(st.just(drawn_rows), st.permutations(range(len(drawn_rows))))))
def test_sources_are_those_of_a_loop_over_the_rows(rows_and_ranks: tuple[list[Row], list[int]]) -> None:
    some, ranks = rows_and_ranks
    deleted = np.array([row[1] for row in some])
    lacking = {name: np.array([row[at] and not row[1] for row in some]) for name, at in (("a", 2), ("b", 3))}
    sources = sources_of(np.array([row[0] for row in some]), np.array(ranks), deleted, lacking)
    assert {name: positions.tolist() for name, positions in sources.items()} == {
        "a": expected(some, ranks, 0),
        "b": expected(some, ranks, 1),
    }
