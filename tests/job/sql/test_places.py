"""A fault of types in SQL has line and column, and says what to write."""

from __future__ import annotations

import pytest

from job.sql_jobs import SEED_001
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JobError
from joinery_runtime.job import parse_job
from joinery_runtime.job.sql import placed

JOINED = (
    "SELECT o.order_id FROM orders o JOIN shipments s ON o.order_id = s.order_id\n"
    "  AND s.event_time BETWEEN o.event_time AND o.event_time + INTERVAL '1' HOUR"
)
GROUPED = "GROUP BY o.order_id, TUMBLE(o.event_time, INTERVAL '1' HOUR)"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            f"{JOINED} AND\n  o.amount > s.carrier",
            "line 3, column 3, `o.amount > s.carrier`: cannot evaluate 'orders.amount > shipments.carrier'",
        ),
        (
            JOINED.replace("ON o.order_id =", "ON o.amount ="),
            "line 1, column 53, `o.amount = s.order_id`: key types differ",
        ),
        (
            JOINED.replace("o.order_id = s.order_id", "LOWER(o.order_id) = LENGTH(s.order_id)"),
            "line 1, column 53, `LOWER(o.order_id) = LENGTH(s.order_id)`: key types differ",
        ),
        (
            f"{JOINED} WHERE o.amount > 1 AND UNIX_MILLIS(s.event_time) > TIMESTAMP '2026-01-01'",
            "int64 and timestamp do not go together; the time of a number of milliseconds is TIMESTAMP_MILLIS(number)",
        ),
        (
            f"{JOINED.replace('o.order_id FROM', 'SUM(s.carrier) AS n FROM')} {GROUPED}",
            "line 1, column 12, `s.carrier`: sum takes numbers, and column 'shipments.carrier' is string",
        ),
        (
            f"{JOINED.replace('o.order_id FROM', 'COUNT(*) AS n FROM')} {GROUPED}\nHAVING COUNT(*) > 'a'",
            "line 3, column 8, `COUNT(*) > 'a'`: cannot evaluate \"n > 'a'\"",
        ),
        (
            JOINED.replace("o.order_id FROM", "UPPER(o.amount) AS u FROM"),
            "line 1, column 8, `UPPER(o.amount)`: 'UPPER(orders.amount)': its text must be string, found double",
        ),
    ],
)
def test_a_fault_has_its_place(sql: str, message: str) -> None:
    with pytest.raises(JobError) as error:
        compile_job(parse_job(SEED_001.sql(sql), "job.yaml"))
    problems = [problem.message for problem in error.value.problems]
    assert len(problems) == 1
    assert message in problems[0], problems


def test_all_columns_of_one_input_are_told_at_once() -> None:
    text = SEED_001.sql("SELECT UPPER(amount) AS u,\n  LENGTH(amount) AS n,\n  LOWER(order_id) AS l FROM orders")
    one_input = text.replace(text[text.index("    - {name: shipments") : text.index("  sql:")], "")
    with pytest.raises(JobError) as error:
        compile_job(parse_job(one_input, "job.yaml"))
    first, second = (problem.message for problem in error.value.problems)
    assert first.startswith("line 1, column 8, `UPPER(amount)`: ")
    assert second.startswith("line 2, column 3, `LENGTH(amount)`: ")


@pytest.mark.parametrize("quoted", [r"'\xZZ'", "'a\nb'"])
def test_a_message_with_quotes_of_its_own_stays_as_it_is(quoted: str) -> None:
    message = f"the pattern {quoted} is wrong"
    assert placed(message, JOINED) == message
