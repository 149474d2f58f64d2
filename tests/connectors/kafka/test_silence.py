"""Asking whether the brokers answer must not end the process that asks: librdkafka may abort it when a request of its
Admin API times out at a broker that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from joinery_devkit.kafka import KafkaBroker
from joinery_runtime.connectors.kafka.errors import LastError, silence_reason

ASKING = """
import sys
from confluent_kafka.admin import AdminClient
from joinery_runtime.connectors.kafka.errors import LastError, silence_reason

errors = LastError()
admin = AdminClient({"bootstrap.servers": sys.argv[1], "error_cb": errors, "log_level": 0})
for line in sys.stdin:
    why = silence_reason(admin, errors, float(line))
    print("answers" if why is None else "away", flush=True)
"""


def test_a_broker_that_hangs_does_not_end_the_process_that_asks_for_it() -> None:
    with (
        KafkaBroker() as broker,
        subprocess.Popen(
            [sys.executable, "-c", ASKING, broker.bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as asking,
    ):
        stdin, stdout = asking.stdin, asking.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(seconds: float) -> str:
            print(seconds, file=stdin, flush=True)
            return stdout.readline().strip()

        try:
            assert ask(30) == "answers"
            os.kill(broker.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, broker.pid, os.WSTOPPED)
            assert [ask(seconds) for seconds in (0.3, 0.5, 1, 0.1, 0.7, 1, 2)] == ["away"] * 7
            os.kill(broker.pid, signal.SIGCONT)
            assert ask(30) == "answers"
        finally:
            os.kill(broker.pid, signal.SIGCONT)
            stdin.close()
        assert asking.wait() == 0


def test_no_request_of_the_admin_api_asks_whether_brokers_answer() -> None:
    timeouts: list[float] = []
    admin: Any = SimpleNamespace(list_topics=lambda *, timeout: timeouts.append(timeout))
    assert silence_reason(admin, LastError(), 2.0) is None
    assert timeouts == [2.0]
