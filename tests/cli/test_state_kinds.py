"""`joinery state show` and `stats` of every kind of step, on state that real epochs have left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.state_show import show
from joinery_runtime.inspect.state_stats import stats
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import StreamJoin, parse_job
from joinery_runtime.state.memory import MemoryStore

Step = Mapping[str, Any]
INTERVAL = {"of": "a", "lower": "-10ms", "upper": "10ms"}
COLUMNS = [{"name": "k", "type": "string"}, {"name": "v", "type": "int32"}, {"name": "ts", "type": "timestamp"}]


def job_of(*steps: Step, tables: Sequence[str] = (), **keys: str) -> StreamJoin:
    names = ["a", *(step["right"] for step in steps)]
    spec = {
        "inputs": [
            {
                "name": name,
                "file": {"path": f"{name}.jsonl"},
                "format": "json",
                "schema": COLUMNS,
                "eventTime": "ts",
                "watermark": {"delay": 0},
                **({"table": {"key": ["k"]}} if name in tables else {}),
            }
            for name in names
        ],
        "joins": [{"keys": {"a.k": f"{step['right']}.k"}, **step} for step in steps],
        "output": {"file": {"path": "out.jsonl"}, "format": "json"},
    }
    resource = {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": "j"}, "spec": spec}
    return parse_job(json.dumps(resource), "job.json")


def row(ts: int, k: str = "x", **more: Any) -> dict[str, Any]:
    return {"k": k, "v": ts, "ts": ts, **more}


def after(job: StreamJoin, *steps: Step) -> MemoryStore:
    store = MemoryStore()
    list(run_trace(job, steps, store))
    return store


def rows_of(job: StreamJoin, store: MemoryStore, *key: str, step: int | None = None) -> list[dict[str, Any]]:
    (shown,) = show(job, store, key or ("k=x",), step).document()["steps"]
    return list(shown["rows"])


def words_of(job: StreamJoin, store: MemoryStore) -> list[str]:
    return [line.partition("; ")[2] for line in list(show(job, store, ["k=x"]).lines())[1:]]


class TestOuterJoin:
    JOB = job_of({"right": "b", "type": "full", "interval": INTERVAL})
    STORE = after(
        JOB, {"rows": {"a": [row(100), row(103), row(103, "y")], "b": [row(112)]}}, {"input": "b", "rows": []}
    )

    def test_flags_say_whether_a_row_has_matched(self) -> None:
        rows = rows_of(self.JOB, self.STORE)
        assert [(stored["input"], stored["ts"], stored["matched"], stored["may_match"]) for stored in rows] == [
            ("a", 100, False, "no"),
            ("a", 103, True, "on time"),
            ("b", 112, True, "on time"),
        ]
        padded, *matched = words_of(self.JOB, self.STORE)
        assert padded.endswith("; matches nothing any more; has not matched and was emitted padded")
        assert [words.endswith("; may still match; has matched") for words in matched] == [True, True]

    def test_a_row_that_the_next_epoch_closes(self) -> None:
        store = after(self.JOB, {"input": "a", "rows": [row(100)]})
        record = store.acquire("j")
        plan = {**store.epochs("j")[-1].plan, "epoch": 2, "horizons": {"left": [None, 101], "right": [None, None]}}
        store.write_plan("j", record.generation, plan, {})
        (words,) = words_of(self.JOB, store)
        assert words.endswith("; has not matched: is emitted padded with the next epoch")

    def test_flags_of_rows_that_matched_in_a_later_epoch(self) -> None:
        store = after(self.JOB, {"input": "a", "rows": [row(100), row(101)]}, {"input": "b", "rows": [row(91)]})
        assert [(stored["ts"], stored["matched"]) for stored in rows_of(self.JOB, store)] == [
            (100, True),
            (101, True),
            (91, True),
        ]
        assert any(meta.part == "left.marks" for meta in (store.record("j") or pytest.fail("it ran")).segments)
        unmatched = after(self.JOB, {"input": "a", "rows": [row(100)]})
        (words,) = words_of(self.JOB, unmatched)
        assert words.endswith("may still match; has not matched: is emitted padded unless it still does")

    def test_statistics_and_what_goes(self) -> None:
        document = stats(self.JOB, self.STORE).document()
        assert "sessions" not in document
        left, right = document["sides"]
        assert (left["part"], left["step"], left["side"], left["inputs"]) == ("left", 1, "left", ("a",))
        assert left["goes"].startswith("keeps rows from 1970-01-01T00:00:00.102Z, unmatched rows older than that are")
        assert left["totals"] == {"stored": 3, "expired": 0, "lookups": 1, "matches": 1, "peak": 3}
        assert (left["rows"], left["expired"], left["expiring"]) == (3, 0, 2)
        assert right["totals"]["lookups"] == 3
        lines = list(stats(self.JOB, self.STORE).lines())
        assert "watermark of b: 1970-01-01T00:00:00.112Z" in lines
        assert any("so far 3 rows stored, " in line and "1 matches, at most 3 rows at a time" in line for line in lines)


class TestWindows:
    def test_a_row_is_in_the_windows_that_are_open(self) -> None:
        window = {"hopping": {"size": "20ms", "slide": "10ms"}}
        job = job_of({"right": "b", "window": window, "allowedLateness": "5ms"})
        store = after(job, {"rows": {"a": [row(115)], "b": [row(126)]}})
        on_left, on_right = rows_of(job, store)
        # The lower watermark is 115, lateness 5: [90, 110) is closed, [100, 120) and [110, 130) are not.
        assert on_left["windows"] == [[100, 120], [110, 130]]
        assert on_right["windows"] == [[110, 130], [120, 140]]
        assert words_of(job, store)[0].endswith(
            "goes when the lower watermark of a and b - 5 ms is at the end of the last one"
        )
        assert "closes windows that end at 1970-01-01T00:00:00.110Z or before" in "\n".join(stats(job, store).lines())

    def test_a_row_is_in_the_session_of_both_sides(self) -> None:
        job = job_of({"right": "b", "type": "left", "window": {"session": {"gap": "10ms"}}})
        store = after(job, {"rows": {"a": [row(100), row(150)], "b": [row(151, "y")]}})
        assert [(stored["session"], stored["closed"]) for stored in rows_of(job, store)] == [
            ([100, 100], True),
            ([150, 150], False),
        ]
        assert words_of(job, store)[0].endswith("which is closed")
        open_ = after(job, {"rows": {"a": [row(100)], "b": [row(108)]}})
        assert [stored["session"] for stored in rows_of(job, open_)] == [[100, 108], [100, 108]]
        assert words_of(job, open_)[0].endswith(
            "goes when the lower watermark of a and b is above 1970-01-01T00:00:00.118Z, unless it grows"
        )
        assert "closes sessions whose last row is before 1970-01-01T00:00:00.090Z" in "\n".join(
            stats(job, open_).lines()
        )


class TestAsOf:
    JOB = job_of({"right": "b", "type": "left", "asOf": {"historyRetention": "100ms", "grace": "20ms"}}, tables=["b"])
    STORE = after(
        JOB,
        {"input": "b", "rows": [row(10), row(50), row(250), {"k": "x", "ts": 260, "$delete": True}]},
        {"input": "a", "rows": [row(255)]},
    )

    def test_stream_rows_wait_and_versions_are_superseded(self) -> None:
        rows = rows_of(self.JOB, self.STORE)
        assert rows[0] == {
            **{"input": "a", "ts": 255, "partition": 0, "offset": 0, "columns": {"k": "x", "v": 255}},
            **{"until_input": "a", "until": 275},
        }
        assert [(stored["ts"], stored["valid_until"], stored["deleted"]) for stored in rows[1:]] == [
            (10, 50, False),
            (50, 250, False),
            (250, 260, False),
            (260, None, True),
        ]
        words = words_of(self.JOB, self.STORE)
        assert words[0] == "waits until the highest event time of a is 1970-01-01T00:00:00.275Z"
        assert words[1].endswith("needed no more, goes when its segment is merged")
        assert words[2:] == [
            "version, superseded at 1970-01-01T00:00:00.250Z: stays for the history retention",
            "version, superseded at 1970-01-01T00:00:00.260Z: stays for the history retention",
            "deletion, the newest one: stays",
        ]

    def test_what_goes(self) -> None:
        left, right = stats(self.JOB, self.STORE).sides
        assert left.goes == "joins waiting rows up to 1970-01-01T00:00:00.235Z and lets them go"
        assert right.goes == "needs no version that was superseded at 1970-01-01T00:00:00.160Z or before"


class TestChain:
    JOB = job_of(
        {"right": "b", "interval": INTERVAL},
        {"right": "c", "keys": {"b.v": "c.v"}, "interval": {"of": "b", "lower": 0, "upper": "30ms"}},
    )
    STORE = after(JOB, {"rows": {"a": [row(100)], "b": [row(105)], "c": [row(105, "z")]}})

    def test_each_key_is_of_the_steps_whose_columns_it_names(self) -> None:
        assert [stored["ts"] for stored in rows_of(self.JOB, self.STORE, "k=x")] == [100, 105]
        left, right = rows_of(self.JOB, self.STORE, "v=105")
        assert (left["input"], right["input"]) == ("a + b", "c")
        assert left["columns"]["a.k"] == "x"
        assert (left["until_input"], left["until"]) == ("c", 135)
        assert rows_of(self.JOB, self.STORE, "b.v=105", step=2) == [left, right]

    def test_a_key_of_several_steps_shows_them_all_unless_one_is_asked_for(self) -> None:
        same = job_of({"right": "b", "interval": INTERVAL}, {"right": "c", "interval": INTERVAL})
        store = after(same, {"rows": {"a": [row(100)], "b": [row(100)], "c": [row(100)]}})
        steps = show(same, store, ["k=x"]).document()["steps"]
        assert [(step["step"], len(step["rows"])) for step in steps] == [(1, 2), (2, 2)]
        assert [step["step"] for step in show(same, store, ["k=x"], 2).document()["steps"]] == [2]
        lines = list(show(same, store, ["k=x"]).lines())
        assert lines[0] == 'job j, step 1, key k "x": 2 rows are kept after epoch 1'
        assert lines[3] == 'job j, step 2, key a.k "x": 2 rows are kept after epoch 1'
        assert "goes when what step 1 hands on of the watermark of a is above" in lines[5]

    def test_what_is_the_key_of_no_step(self) -> None:
        with pytest.raises(JoineryError) as raised:
            show(self.JOB, self.STORE, ["k=x", "v=1"])
        assert str(raised.value) == (
            "--key k=x v=1 cannot be used: the keys of job j are of step 1 k; of step 2 b.v. "
            "Give --key COLUMN=VALUE for each column of one of these keys"
        )

    def test_parts_of_all_steps(self) -> None:
        sides = stats(self.JOB, self.STORE).sides
        assert [side.part for side in sides] == ["left", "right", "left.2", "right.2"]
        assert [side.inputs for side in sides] == [("a",), ("b",), ("a", "b"), ("c",)]
        assert [side.rows for side in sides] == [1, 1, 1, 1]


def test_a_join_on_time_only_has_no_key_to_show() -> None:
    job = job_of({"right": "b", "keys": {}, "broadcast": "b", "interval": INTERVAL})
    store = after(job, {"rows": {"a": [row(100)], "b": [row(100)]}})
    with pytest.raises(JoineryError, match="has no such key: it joins on time only"):
        show(job, store, ["k=x"])
    assert [side.rows for side in stats(job, store).sides] == [1, 1]


def test_a_side_that_is_over_its_limit_is_named() -> None:
    limits = {"maxRecords": 1, "onLimit": "pause"}
    job = job_of({"right": "b", "interval": INTERVAL, "limits": limits})
    store = after(job, {"input": "a", "rows": [row(100), row(101)]})
    assert stats(job, store).sides[0].over == ("maxRecords is 1, it has 2",)
    assert "  over its limit: maxRecords is 1, it has 2" in list(stats(job, store).lines())
