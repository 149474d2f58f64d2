"""What the section on memory sends and looks at, and that a run that needed too much never passes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import psutil
import pytest
from bench.memory import LIMIT, Case, Peak, hot, large, memory_by_kind, problem


def records(case: Case, side: int) -> list[dict[str, object]]:
    return [json.loads(value) for partition in range(4) for _, value in case.make(side, partition)]


@pytest.mark.parametrize(
    ("case", "reach_ms"), [(large(8), 600_000), (large(8, one_key=True), 500), (hot(8), 3_600_000)]
)
def test_as_many_pairs_as_a_case_says_match(case: Case, reach_ms: int) -> None:
    orders, payments = records(case, 0), records(case, 1)
    assert len(orders) == len(payments) == case.records
    matches = [
        (order, payment)
        for order in orders
        for payment in payments
        if order["order_id"] == payment["order_id"]
        and 0 <= payment["ts"] - order["ts"] <= reach_ms  # type: ignore[operator]
        and order["customer"] != payment["method"]
    ]
    assert len(matches) == case.rows


def test_memory_is_what_a_process_cannot_give_back() -> None:
    (before,) = memory_by_kind(psutil.Process()).values()
    allocated = np.ones(64 << 20, np.uint8)
    (after,) = memory_by_kind(psutil.Process()).values()
    assert 60 << 20 < after - before < 80 << 20
    del allocated


ENDED = "ended with 0; see log"
PEAK = Peak("large", 4, 1.0, {"driver": LIMIT // 2, "workers": LIMIT // 2}, LIMIT, limited=True)


@pytest.mark.parametrize(
    ("peak", "ending", "text"),
    [
        (PEAK, ENDED, None),
        (PEAK, "ended with 1; see log", "ended with 1"),
        (replace(PEAK, rows=3), ENDED, "3 rows came out, not 4"),
        (replace(PEAK, killed=1), ENDED, "1 processes were killed"),
        # Without a control group the looks decide.
        (replace(PEAK, limited=False), ENDED, None),
        (replace(PEAK, limited=False, total=LIMIT + 1), ENDED, "more memory than the limit"),
        # In one the kernel does: a process may have ended while the others were looked at.
        (replace(PEAK, total=LIMIT + 1), ENDED, None),
        (PEAK, "was not killed half way: it ended with 0; see log", "the job was not killed half way: it ended with 0"),
    ],
)
def test_what_is_wrong_with_a_run(peak: Peak, ending: str, text: str | None) -> None:
    fault = problem(peak, large(8), ending)
    assert fault is None if text is None else fault is not None and text in fault
