from __future__ import annotations

import pytest

from budget import LARGE
from joinery_runtime.core.table import blob


@pytest.fixture(autouse=True)
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the large budget segments of a simulation are stored as those with many rows are. In the small one only those
    of traces are (test_traces.py): to pack the few rows of a simulated segment takes a fifth of its time."""
    if LARGE:
        monkeypatch.setattr(blob, "FEW_ROWS", 0)
