"""Small epochs against the oracle: several peers each read all records of random histories, and keep the rows of their
own shards. Rows, drops, late records and dead letters are those of one process."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples, rest_in_search
from core import harness
from core.cases import HISTORIES, Case, cases, unedited_cases
from core.harness import PeersHost, check_against_oracle, few_hashes, merge_early
from core.random_composed import composed_jobs
from core.random_sessions import session_cases

CASES = {
    "interval": cases("interval"),
    "broadcast": cases("broadcast"),
    "asof": cases("asof"),
    "chain": cases("chain"),
    "sessions": session_cases(),
    "aggregates": unedited_cases(composed_jobs("interval")),
}


@pytest.fixture(autouse=True)
def eager_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    merge_early(monkeypatch)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[PeersHost]:
    """The hosts that a test has made."""
    hosts: list[PeersHost] = []
    monkeypatch.setattr(harness, "PeersHost", lambda workers: hosts.append(PeersHost(workers)) or hosts[-1])
    return hosts


@pytest.mark.parametrize("kind", rest_in_search(CASES, ("chain",)))
def test_peers_that_each_read_all_give_the_oracles_rows_and_counts(kind: str, hosts: list[PeersHost]) -> None:
    seen: Counter[str] = Counter()

    @settings(HISTORIES, max_examples=examples(10))
    @given(case=CASES[kind], peers=st.sampled_from([2, 3]))
    def every(case: Case, peers: int) -> None:
        seen["rows"] += sum(len(result.rows) for result in check_against_oracle(case, peers=peers))

    every()
    assert sum(host.reading_all for host in hosts) > 0
    assert seen["rows"] > 0


@pytest.mark.search
def test_colliding_hashes_change_nothing(hosts: list[PeersHost]) -> None:
    @settings(HISTORIES, max_examples=examples(10))
    @given(case=CASES["interval"])
    def every(case: Case) -> None:
        check_against_oracle(case, few_hashes(2), peers=2)

    every()
    assert sum(host.reading_all for host in hosts) > 0
