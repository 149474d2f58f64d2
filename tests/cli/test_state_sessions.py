"""`joinery state show` and `stats` of sessions, on state that real epochs have left."""

from __future__ import annotations

from typing import Any

import pytest

from cli.session_jobs import REOPEN, epoch, row, run_epochs, session_job
from core.table.reference_keyhash import reference_hash
from joinery_runtime.core.pipeline.sides import COMPLETE, SESSIONS
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.state_show import show
from joinery_runtime.inspect.state_stats import stats
from joinery_runtime.job import SessionWindow
from joinery_runtime.state.memory import MemoryStore

JOB = session_job(**REOPEN)
ZERO = "1970-01-01T00:00:00"


def after(job: SessionWindow, *steps: Any) -> MemoryStore:
    store = MemoryStore()
    run_epochs(job, store, *steps)
    return store


def shown(store: MemoryStore, *key: str, job: SessionWindow = JOB) -> list[dict[str, Any]]:
    (step,) = show(job, store, key or ("k=x",)).document()["steps"]
    return list(step["rows"])


def lines(store: MemoryStore, job: SessionWindow = JOB) -> list[str]:
    return list(show(job, store, ["k=x"]).lines())


def planned(store: MemoryStore, sessions: int, complete: int) -> MemoryStore:
    """With a plan of an epoch that closes up to these, under a watermark of 100."""
    record = store.acquire("s")
    newest = store.epochs("s")[-1].plan
    times = {"watermarks": {"clicks": 100}, "horizons": {SESSIONS: [None, sessions], COMPLETE: [None, complete]}}
    store.write_plan("s", record.generation, {**newest, "epoch": record.epoch + 1, **times}, {})
    return store


class TestShow:
    def test_an_open_session_has_its_aggregates_so_far_and_its_times(self) -> None:
        store = after(JOB, epoch(row(100, v=3), row(105, v=4), row(103, "y")))
        assert shown(store) == [
            {
                **{"input": "clicks", "window_start": 100, "window_end": 105, "session_id": reference_hash(["x", 100])},
                **{"capped": False, "emitted": False, "until_input": "clicks", "until": 135, "goes_out": 115},
                "aggregates": {"events": 2, "total": 7},
            }
        ]
        first, session = lines(store)
        assert first == 'job s, step 1, key k "x": 1 session is kept after epoch 1'
        assert session == (
            f"session {ZERO}.100Z to {ZERO}.105Z, id {reference_hash(['x', 100])}: events 2, total 7; "
            f"is emitted when the watermark of clicks ({ZERO}.105Z) is above {ZERO}.115Z, unless it grows; "
            f"forgotten when the watermark of clicks ({ZERO}.105Z) is above {ZERO}.135Z"
        )

    def test_one_that_has_gone_out_stays_for_late_rows_and_then_goes(self) -> None:
        complete = epoch(row(100)), epoch(row(111, "y"))
        store = after(JOB, *complete)
        assert [(session["emitted"], session["goes_out"], session["until"]) for session in shown(store)] == [
            (True, None, 130)
        ]
        assert lines(store)[1].endswith(
            f"; has been emitted; forgotten when the watermark of clicks ({ZERO}.111Z) is above {ZERO}.130Z"
        )
        assert shown(after(JOB, *complete, epoch(row(131, "y")))) == []

    def test_one_that_went_out_and_grew_has_gone_out_as_it_is(self) -> None:
        store = after(JOB, epoch(row(100)), epoch(row(112, "y")), epoch(row(110)))
        (session,) = shown(store)
        assert (session["window_start"], session["window_end"], session["emitted"]) == (100, 110, True)
        assert session["aggregates"]["events"] == 2

    def test_what_a_later_row_has_replaced_is_not_there(self) -> None:
        job = session_job(**REOPEN, shards=1)
        store = after(job, epoch(row(100), row(104, "y")), epoch(row(105)))
        assert [session["aggregates"]["events"] for session in shown(store, job=job)] == [2]
        record = store.record("s") or pytest.fail("it ran")
        assert sum(meta.rows for meta in record.segments if meta.part == SESSIONS) > 2

    def test_what_the_next_epoch_does(self) -> None:
        rows = epoch(row(100))
        assert lines(planned(after(JOB, rows), sessions=90, complete=101))[1].endswith(
            "; is emitted with the next epoch; "
            f"forgotten when the watermark of clicks ({ZERO}.100Z) is above {ZERO}.130Z"
        )
        assert lines(planned(after(JOB, rows), sessions=101, complete=101))[1].endswith(
            "; is emitted with the next epoch; forgotten with the next epoch"
        )

    def test_with_late_data_dropped_a_session_goes_out_and_is_forgotten_at_once(self) -> None:
        job = session_job(allowedLateness="20ms")
        store = after(job, epoch(row(100)))
        assert [(session["goes_out"], session["until"]) for session in shown(store, job=job)] == [(130, 130)]
        assert lines(store, job)[1].endswith(
            f"; is emitted, and forgotten, when the watermark of clicks ({ZERO}.100Z) is above {ZERO}.130Z, "
            "unless it grows"
        )

    def test_a_mark_of_one_that_reached_the_cap(self) -> None:
        job = session_job(**REOPEN, maxDuration="20ms")
        store = after(job, epoch(row(100), row(109), row(118), row(127, v=None)))
        mark, session = shown(store, job=job)
        assert mark == {
            **{"input": "clicks", "window_start": 100, "window_end": 118, "session_id": reference_hash(["x", 100])},
            **{"capped": True, "emitted": True, "until_input": "clicks", "until": 148},
        }
        assert (session["window_start"], session["aggregates"]) == (127, {"events": 1, "total": None})
        first, of_mark, _ = lines(store, job)
        assert first.endswith(": 1 session and 1 mark of capped ones are kept after epoch 1")
        assert of_mark == (
            f"mark of a session that reached maxDuration, {ZERO}.100Z to {ZERO}.118Z, "
            f"id {reference_hash(['x', 100])}: it was emitted; rows inside it are dropped until "
            f"the watermark of clicks ({ZERO}.127Z) is above {ZERO}.148Z"
        )
        due = planned(after(job, epoch(row(100), row(109), row(118), row(127))), sessions=120, complete=120)
        assert lines(due, job)[1].endswith(": it was emitted; forgotten with the next epoch")

    def test_without_aggregates(self) -> None:
        job = session_job(aggregates=[])
        assert [session["aggregates"] for session in shown(after(job, epoch(row(1))), job=job)] == [{}]


class TestKeys:
    def test_a_group_without_a_value_is_the_column_alone(self) -> None:
        store = after(JOB, epoch(row(100, None), row(101)))
        (step,) = show(JOB, store, ["k"]).document()["steps"]
        assert (step["key"], step["hash"]) == ({"k": None}, reference_hash([None]))
        assert [session["window_start"] for session in step["rows"]] == [100]

    def test_computed_groups_of_other_types(self) -> None:
        compute = [{"expression": "v + 1", "as": "next"}, {"expression": "CAST(k AS DOUBLE)", "as": "number"}]
        job = session_job(groupBy=["next", "number"], compute=compute)
        store = after(job, epoch(row(100, "NaN", 0), row(101, "-0.0", 0), row(102, None, 0), row(103, "NaN", 5)))

        def starts(*key: str) -> list[int]:
            return [session["window_start"] for session in shown(store, *key, job=job)]

        assert starts("number=NaN", "next=1") == [100]
        assert starts("next=1", "number=0.0") == [101]
        assert starts("next=1", "number") == [102]
        assert starts("next=6", "number=NaN") == [103]
        assert starts("next=6", "number=0.0") == []

    def test_only_segments_that_cover_the_group_are_read(self) -> None:
        store = after(JOB, epoch(row(100)), epoch(row(100, "y")), epoch(row(100, "z")))
        (step,) = show(JOB, store, ["k=y"]).document()["steps"]
        assert len(step["rows"]) == 1
        assert 1 <= step["segments_read"] < len((store.record("s") or pytest.fail("it ran")).segments)

    @pytest.mark.parametrize("texts", [("v=1",), ("k=x", "k=y"), ("k=x", "v=1")])
    def test_what_is_no_group_is_refused(self, texts: tuple[str, ...]) -> None:
        with pytest.raises(JoineryError) as raised:
            show(JOB, after(JOB, epoch(row(100))), texts)
        assert str(raised.value) == (
            f"--key {' '.join(texts)} cannot be used: the rows of job s are grouped by k. "
            "Give --key COLUMN=VALUE once for each of these columns, or COLUMN alone where it has no value (NULL)"
        )

    def test_a_value_that_does_not_read(self) -> None:
        job = session_job(groupBy=["v"])
        with pytest.raises(JoineryError, match="The key v=one cannot be read: as input clicks declares it"):
            show(job, after(job, epoch(row(100))), ["v=one"])

    def test_there_is_one_step(self) -> None:
        with pytest.raises(JoineryError, match="Job s has no step 2: it has 1"):
            show(JOB, after(JOB, epoch(row(100))), ["k=x"], 2)


class TestStats:
    def test_sessions_are_counted_by_what_comes_of_them(self) -> None:
        job = session_job(**REOPEN, maxDuration="20ms")
        capped = row(100, "cap"), row(109, "cap"), row(118, "cap"), row(127, "cap")
        store = after(job, epoch(row(109), *capped), epoch(row(121, "y")), epoch(row(125, "y")))
        statistics = stats(job, store)
        assert statistics.document()["sessions"] == {
            **{"open": 2, "due": 0, "gone_out": 1, "marks": 1},
            **{"until_input": "clicks", "until": 135},
        }
        printed = list(statistics.lines())
        assert (
            "sessions: 2 open (0 to be emitted with the next epoch), 1 emitted and still open to late rows, "
            "1 marks of sessions that reached maxDuration"
        ) in printed
        assert f"  the first is emitted when the watermark of clicks is above {ZERO}.135Z" in printed
        (side,) = statistics.document()["sides"]
        assert (side["part"], side["side"], side["inputs"], side["step"]) == (SESSIONS, SESSIONS, ("clicks",), 1)
        assert any(line.startswith("rows of sessions (clicks): ") for line in printed)
        assert (
            f"  the next epoch emits those whose last row is before {ZERO}.117Z, "
            f"forgets sessions whose last row is before {ZERO}.097Z: 0 rows go"
        ) in printed

    def test_what_is_due_and_what_is_forgotten(self) -> None:
        store = planned(after(JOB, epoch(row(100), row(110, "y"))), sessions=90, complete=105)
        census = stats(JOB, store).document()["sessions"]
        assert (census["open"], census["due"], census["until"]) == (2, 1, 120)
        forgotten = after(JOB, epoch(row(100), row(300, "y")))
        census = stats(JOB, forgotten).document()["sessions"]
        assert (census["open"], census["gone_out"]) == (1, 0)

    def test_late_data_dropped(self) -> None:
        job = session_job(allowedLateness="20ms")
        statistics = stats(job, after(job, epoch(row(100))))
        assert statistics.sides[0].goes == f"forgets sessions whose last row is before {ZERO}.070Z"
        assert statistics.document()["sessions"]["until"] == 130

    def test_a_state_without_sessions(self) -> None:
        statistics = stats(JOB, after(JOB, epoch()))
        assert statistics.document()["sessions"]["open"] == 0
        assert not any("the first is emitted" in line for line in statistics.lines())
