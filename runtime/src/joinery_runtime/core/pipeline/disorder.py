"""How far records are out of order: by as much `watermark.delay` none of them would be late."""

from __future__ import annotations

import numpy as np


def behind_highest(times: np.ndarray) -> np.ndarray:
    """How far each event time is behind the highest one up to it (int64[n], not negative), in order of arrival."""
    return np.asarray(np.maximum.accumulate(times) - times)
