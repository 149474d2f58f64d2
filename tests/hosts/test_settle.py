"""What is said when an edited job cannot end what was planned before the edit."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Event

import pytest

from joinery_runtime.engine.loop import JobListener, Outages
from joinery_runtime.errors import AggregateError, ExpressionError, JoineryError, RecordError
from joinery_runtime.hosts.run import _Caller, _JobRun
from joinery_runtime.hosts.stores import OpenStore
from joinery_runtime.job import Job, parse_job
from joinery_runtime.state.memory import MemoryStore

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {name: visits}
spec:
  input:
    name: clicks
    file: {path: clicks.jsonl}
    format: json
    schema: [{name: user, type: string}, {name: ts, type: timestamp}]
    eventTime: ts
  groupBy: [user]
  gap: 30s
  maxDuration: 1h
  output: {file: {path: out}}
"""


@pytest.mark.parametrize("kind", [AggregateError, ExpressionError, RecordError])
def test_it_names_the_way_out_and_whether_trying_again_helps(kind: type[JoineryError]) -> None:
    class Failing(_JobRun):
        def go(self, referring: Job, *, settle: bool) -> None:
            assert settle
            raise kind("An aggregate of a session has no value", facts="sum(amount)")

    store = MemoryStore()
    generation = store.acquire("visits").generation
    store.write_plan("visits", generation, {"epoch": 1}, {})
    known = store.record("visits")
    assert known is not None
    listener, stop = JobListener(print, print, print), Event()
    caller = _Caller(listener, stop, Outages(listener, stop), print, None)
    run = Failing(OpenStore(store, None), ExitStack(), None, caller)
    with pytest.raises(JoineryError) as caught:
        run.settle(parse_job(JOB, "visits.yaml"), known)
    assert "sum(amount)" in caught.value.facts
    assert "--drop-planned" in caught.value.todo
    assert type(caught.value) is (kind if kind is not RecordError else JoineryError)
