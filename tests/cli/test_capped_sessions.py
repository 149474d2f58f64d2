"""A cap that is not longer than the gap is rejected where a person writes it, and rows that fall inside capped sessions
are told."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from cli.test_progress import json_lines, report
from job import sessions
from joinery_runtime.cli.progress import JsonProgress
from joinery_runtime.engine.late_rows import closed_words
from joinery_runtime.engine.loop import CommittedEpoch
from joinery_runtime.engine.report import Totals
from joinery_runtime.errors import JobError
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import explain, job_from, parse_job
from joinery_runtime.job.load import load_stored
from joinery_runtime.state.memory import MemoryStore

SQL = "SELECT user_id, COUNT(*) AS n FROM clicks GROUP BY user_id, SESSION(ts, INTERVAL '30' SECOND)"


@pytest.mark.parametrize("cap", ["30s", "29s", "1ms"])
@pytest.mark.parametrize("resource", [sessions.document, lambda **spec: sessions.in_sql(SQL, **spec)])
def test_a_cap_that_is_not_longer_than_the_gap_is_rejected_where_it_is_written(resource: Any, cap: str) -> None:
    document = resource(maxDuration=cap)
    for written in (lambda: parse_job(json.dumps(document), "job.yaml"), lambda: job_from(document)):
        with pytest.raises(JobError) as error:
            written()
        (problem,) = error.value.problems
        assert problem.path == "spec.maxDuration"
        assert "not longer than the gap of 30s" in problem.message
    assert load_stored(document).job.spec.max_duration < 30_001
    assert parse_job(json.dumps(resource(maxDuration="30001ms")), "job.yaml").spec.max_duration == 30_001


def test_the_first_row_inside_a_capped_session_is_warned_of_and_a_run_ends_with_their_number() -> None:
    words = closed_words("clicks", 87)
    assert words.startswith(
        "87 rows of clicks fell inside sessions that had reached maxDuration and were emitted, and "
    )
    text = io.StringIO()
    progress = JsonProgress(sessions.load(), text, "local[2]")
    totals = Totals(dropped={"clicks": {"closed": 87}})
    progress.listener.committed(CommittedEpoch(report(rows_in={"clicks": 9}, totals=totals), 0.25))
    progress.show_end("once")
    assert words in [line.get("message") for line in json_lines(text)]


def test_rows_on_time_are_closed_by_where_epochs_end_which_explain_says() -> None:
    on_time = sessions.CLICKS | {"watermark": {"delay": "1h"}}
    job = sessions.load(input=on_time, maxDuration="31s", stateStore={"memory": {}})
    rows = [{"user_id": "a", "ts": 1_000 * ts} for ts in (0, 20, 31, 10)]
    closed = []
    for steps in ([{"input": "clicks", "rows": rows}], [{"input": "clicks", "rows": [row]} for row in rows]):
        lines = list(run_trace(job, steps, MemoryStore()))
        closed.append(sum(line.get("dropped", {}).get("clicks", {}).get("closed", 0) for line in lines))
    assert closed == [0, 1]
    assert "how many depends on where epochs end" in explain(job).render()
