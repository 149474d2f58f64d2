"""The benchmark's own arithmetic: rates from what was seen, and that wrong rows never look like a figure."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from bench.outputs import Ends, FileOutput, Fingerprint, fingerprint
from bench.peer import Figures, Look, Looks, Peer, figures, measure, typical
from bench.section import FILES, epoch_rows

PEER = Peer("Joinery", "two cores", ["false"], Path("nowhere"))


def seen(*looks: tuple[float, float, int]) -> list[Look]:
    return [Look(seconds, {"java": cpu}, {0: visible}) for seconds, cpu, visible in looks]


def counted(*looks: tuple[float, float, int], rows: int = 2000, expected: int = 1000) -> Figures:
    expected_fingerprint = Fingerprint(expected, 7)
    return figures(PEER, rows, expected_fingerprint, expected_fingerprint, seen(*looks), peak=5)


def test_the_cold_rate_counts_from_the_start_and_the_warm_one_from_a_quarter_of_the_rows() -> None:
    measured = counted((1, 1.0, 0), (5, 4.0, 100), (6, 5.0, 400), (7, 6.0, 700), (8, 7.0, 1000))
    assert (measured.cold_rate, measured.cold_cpu_us) == (250, 3500)
    # From 400 of 1,000 rows out on: 1,200 of 2,000 rows in, in 2 s of the clock and of CPU.
    assert (measured.warm_rate, measured.warm_cpu_us) == pytest.approx((600, 1e6 * 2 / 1200))
    assert measured.cold_cpu_by_kind == {"java": 3500}
    assert measured.warm_cpu_by_kind == {"java": pytest.approx(1e6 * 2 / 1200)}
    assert measured.problem is None


@pytest.mark.parametrize("looks", [[(9, 9.0, 1000)], [(5, 4.0, 300), (9, 9.0, 1000)], [(1, 1.0, 950), (9, 9.0, 1000)]])
def test_rows_that_come_in_few_steps_say_nothing_of_a_warm_rate(looks: list[tuple[float, float, int]]) -> None:
    measured = counted(*looks)
    assert (measured.warm_rate, measured.warm_cpu_us) == (None, None)
    assert measured.cold_rate == pytest.approx(2000 / 9)


def test_rows_that_are_not_the_expected_ones_are_a_problem() -> None:
    measured = figures(PEER, 10, Fingerprint(3, 7), Fingerprint(3, 8), seen((1, 1, 3)), peak=0)
    assert measured.problem == "wrong rows: 3 with checksum 8, not 3 with 7"


def test_a_fingerprint_is_of_the_multiset_of_rows() -> None:
    rows = pl.DataFrame({"key": ["a", "b", "b"], "amount": [1.5, 2.0, None]})
    assert fingerprint(rows) == fingerprint(rows.reverse())
    for other in (rows.head(2), pl.concat([rows, rows.head(1)]), rows.with_columns(amount=pl.lit(1.5))):
        assert fingerprint(rows) != fingerprint(other)


def test_columns_do_not_run_into_each_other() -> None:
    assert fingerprint(pl.DataFrame({"a": ["x", "xy"], "b": ["yz", "z"]})) != fingerprint(
        pl.DataFrame({"a": ["xy", "x"], "b": ["yz", "z"]})
    )


class Grows:
    """An output whose ends are those of one look after the other."""

    def __init__(self, *ends: Ends) -> None:
        self._ends = list(ends)

    def ends(self) -> Ends:
        return self._ends[0] if len(self._ends) == 1 else self._ends.pop(0)

    def last(self, rows: int) -> Ends | None:
        raise AssertionError("not read")

    def read(self) -> pl.DataFrame:
        raise AssertionError("not read")


def test_the_clock_stops_with_the_look_that_saw_the_last_row_of_every_partition() -> None:
    looks = Looks(Grows({0: 0}))
    looks.looks = [
        Look(at, {}, ends) for at, ends in enumerate([{0: 5, 1: 0}, {0: 5, 1: 4}, {0: 6, 1: 5}, {0: 9, 1: 9}])
    ]
    assert looks.until({0: 6, 1: 4})[-1].seconds == 2


def test_a_row_that_no_look_has_seen_yet_is_waited_for() -> None:
    with Looks(Grows({0: 1}, {0: 1}, {0: 2})) as looks:
        assert [look.visible for look in looks.until({0: 2})] == [1, 1, 2]


def test_looks_that_ended_are_not_waited_for() -> None:
    with Looks(Grows({0: 1})) as looks:
        pass
    with pytest.raises(RuntimeError, match="nobody looks"):
        looks.until({0: 2})


WRITES = """
import json, pathlib, sys, time
folder = pathlib.Path("rows"); folder.mkdir()
while time.process_time() < 0.5: pass  # it is looked at five times a second
for number in range(int(sys.argv[1])):
    (folder / "next").write_text(json.dumps({"n": number}) + "\\n")
    (folder / "next").rename(folder / f"{number}.jsonl")
if sys.argv[2] == "stay": time.sleep(60)
sys.exit(3)
"""
SCHEMA: Mapping[str, type[pl.DataType]] = {"n": pl.Int64}


def write(tmp_path: Path, rows: int, then: str) -> Figures:
    peer = Peer("writer", "", [sys.executable, "-c", WRITES, str(rows), then], tmp_path)
    expected = fingerprint(pl.DataFrame({"n": range(4)}))
    return measure(peer, FileOutput(tmp_path / "rows", dict(SCHEMA)), 8, expected)


def test_a_peer_is_stopped_once_its_rows_are_there(tmp_path: Path) -> None:
    measured = write(tmp_path, 4, "stay")
    assert (measured.rows_out, measured.problem) == (4, None)
    assert measured.cold_rate is not None
    assert measured.cold_cpu_us is not None
    assert measured.cold_cpu_us > 0


def test_a_peer_that_ends_too_early_is_a_problem_that_says_where_its_log_is(tmp_path: Path) -> None:
    measured = write(tmp_path, 2, "go")
    assert measured.problem == f"ended with 3; see {tmp_path / 'log'}: 2 of 4 rows are visible"
    assert measured.cold_rate is None


def test_a_peer_with_rows_too_many_is_a_problem(tmp_path: Path) -> None:
    assert str(write(tmp_path, 5, "stay").problem).startswith("wrong rows: 5 ")


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "other": "x"}\n{"n": 2}\n')
    (tmp_path / "b.jsonl").write_text("")
    output = FileOutput(tmp_path, dict(SCHEMA))
    assert output.ends() == {0: 2}
    assert json.loads(output.read().write_json()) == [{"n": 1}, {"n": 2}]


def test_a_small_run_has_several_epochs() -> None:
    assert epoch_rows(200_000) == 40_000
    assert epoch_rows(6_000_000) == 800_000
    assert FILES.startswith("-")  # what goes before it names the peer


@pytest.mark.parametrize(("seconds", "shown"), [([30, 10, 20], 20), ([10, 20, 70], 20), ([70], 70), ([50, 80], 50)])
def test_of_short_runs_the_median_is_shown_and_a_long_run_is_the_last(seconds: list[int], shown: int) -> None:
    numbers: list[int] = []

    def run(number: int) -> Figures:
        numbers.append(number)
        return Figures("Joinery", "two cores", 600, cold_rate=600 / seconds[number - 1])

    measured = typical(run, 3)
    assert measured.cold_rate == 600 / shown
    assert numbers == list(range(1, len(seconds) + 1))


def test_a_run_with_a_problem_is_shown_instead_of_a_median() -> None:
    runs = [Figures("Joinery", "", 600, cold_rate=60.0), Figures("Joinery", "", 600, problem="wrong rows")]
    assert typical(lambda number: runs[number - 1], 3).problem == "wrong rows"
