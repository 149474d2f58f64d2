"""What `joinery state check` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from joinery_runtime.inspect.admin.check import check_lines
from joinery_runtime.job import load_job
from joinery_runtime.job.crd.driver import StateCheck

FIRST = Path(__file__).parents[2] / "examples" / "first.yaml"


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (StateCheck(target_version=5, fits=True), "fits its state"),
        (StateCheck(target_version=5, fits=False, refused=("keys",)), "does not fit its state"),
        (
            StateCheck(target_version=5, fits=False, rows_differ=True, refused=("keys",)),
            "fits its state, and its rows differ from those of the job that runs",
        ),
    ],
)
def test_the_verdict_tells_other_rows_from_state_that_does_not_fit(answer: StateCheck, verdict: str) -> None:
    job = load_job(FIRST)
    first, *rest = check_lines(job, answer)
    assert first == f"job {job.name}: {verdict}"
    assert rest == [f"  rejected: {text}" for text in answer.refused]
