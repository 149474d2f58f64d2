"""A pytest plugin: no test takes longer than LIMIT_S, and the end of a run names the slowest tests and set-ups.

The limit is one of design, not of patience: a test that takes longer tests too much at once, or waits for nothing. It
applies to the test itself; set-ups, which tests share, are listed separately. pytest-timeout ends tests that hang. A
busy machine may set another limit in JOINERY_TEST_SECONDS.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

LIMIT_S = float(os.environ.get("JOINERY_TEST_SECONDS", "60"))
SLOWEST = 20
SLOWEST_SET_UPS = 10
TOOK = "took"
"""The property of a test (`record_property`) whose text the end of a run shows, whether the test is slow or not."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    unlimited = item.get_closest_marker("soak") is not None
    if report.when == "call" and report.passed and report.duration > LIMIT_S and not unlimited:
        report.outcome = "failed"
        report.longrepr = (
            f"It passed, but took {report.duration:.0f} s: more than the {LIMIT_S:.0f} s of a test (the machine's load "
            f"was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores). Make it prove less, or wait for less; where "
            "others keep the machine busy, set JOINERY_TEST_SECONDS"
        )
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    listed = (report for reports in terminalreporter.stats.values() for report in reports)
    timed = sorted(
        (report for report in listed if isinstance(report, pytest.TestReport)), key=lambda report: -report.duration
    )
    tests = [report for report in timed if report.when == "call"]
    shared = [report for report in timed if report.when != "call"]
    for duration in (text for report in tests for name, text in report.user_properties if name == TOOK):
        terminalreporter.write_line(str(duration))
    for title, slowest in (("tests", tests[:SLOWEST]), ("set-ups and clean-ups", shared[:SLOWEST_SET_UPS])):
        terminalreporter.write_sep("=", f"slowest {title}")
        for report in slowest:
            terminalreporter.write_line(f"{report.duration:7.2f} s {report.when:8} {report.nodeid}")
