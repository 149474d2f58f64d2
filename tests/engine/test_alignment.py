from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.engine.epoch_budget import PROBE_RECORDS, Backlog, Budget, EventTimeRates, allocate

BUDGET = 500_000
PLENTY = 2**60  # bytes


def backlog(partition: str, records: int, highest: int | None, density: float | None, size: float = 1) -> Backlog[str]:
    return Backlog(partition, records, highest, density, size)


def test_partitions_of_unknown_density_give_no_more_than_the_budget_of_a_process() -> None:
    several = Budget(100_000, 64 << 20, bytes_per_process=True).for_processes(10)
    few_large = [backlog("a", 5_000, None, None, 1 << 20)]
    assert allocate(few_large, several) == {"a": 64}, "fewer records than a probe"
    assert allocate([*few_large, backlog("b", 10**6, 0, 1.0, 100)], several)["a"] == 64


def test_no_partition_gives_more_than_the_budget_of_a_process() -> None:
    """Its rows may be of one key. The others stay aligned with it."""
    several = Budget(100_000, PLENTY, records_per_process=True).for_processes(4)
    backlogs = [backlog("a", 10**6, 0, 10.0), backlog("b", 10**6, 0, 1.0), backlog("c", 10**6, 0, 1.0)]
    assert allocate(backlogs, several) == {"a": 100_000, "b": 10_000, "c": 10_000}


def test_everything_is_taken_when_it_fits() -> None:
    backlogs = [backlog("a", 10, 0, 1.0), backlog("b", 300_000, 10**9, 0.001), backlog("c", 0, 5, 1.0)]
    assert allocate(backlogs, Budget(BUDGET, PLENTY)) == {"a": 10, "b": 300_000}


def test_a_small_backlog_is_taken_whole_also_when_nothing_is_known() -> None:
    assert allocate([backlog("a", 10, None, None), backlog("b", 7, None, None)], Budget(BUDGET, PLENTY)) == {
        "a": 10,
        "b": 7,
    }


def test_unknown_partitions_share_a_probe() -> None:
    backlogs = [backlog("a", 10**6, None, None), backlog("b", 10**6, 5, None)]
    assert allocate(backlogs, Budget(BUDGET, PLENTY)) == {"a": PROBE_RECORDS // 2, "b": PROBE_RECORDS // 2}


def test_a_partition_that_stays_unknown_does_not_hold_the_others_up() -> None:
    """Its records may be such that no event time can be read from them."""
    share = allocate([backlog("poison", 10**6, None, None), backlog("good", 10**6, 0, 1.0)], Budget(40_000, PLENTY))
    assert share["poison"] == 10_000
    assert abs(share["good"] - 30_000) <= 1


def test_the_one_behind_catches_up_before_the_other_goes_on() -> None:
    backlogs = [backlog("behind", 10**6, 0, 1.0), backlog("ahead", 10**6, 10**6, 1.0)]
    share = allocate(backlogs, Budget(100_000, PLENTY))
    assert set(share) == {"behind"}
    assert abs(share["behind"] - 100_000) <= 1


def test_a_one_sided_backlog_gets_the_whole_budget() -> None:
    share = allocate([backlog("a", 10**7, 0, 3.0), backlog("b", 0, 0, 3.0)], Budget(BUDGET, PLENTY))
    assert set(share) == {"a"}
    assert abs(share["a"] - BUDGET) <= 1


def test_nothing_to_read_gives_nothing() -> None:
    assert allocate([backlog("a", 0, None, None)], Budget(BUDGET, PLENTY)) == {}
    assert allocate([], Budget(BUDGET, PLENTY)) == {}


densities = st.none() | st.floats(1e-6, 1e5)
backlogs = st.builds(
    Backlog,
    st.uuids(),
    st.one_of(st.integers(0, 50), st.integers(0, 10**9)),
    st.none() | st.integers(0, 2_000_000_000_000),
    densities,
    st.sampled_from([1.0, 100.0, 2.0**20]),
)


@settings(deadline=None, max_examples=examples(300))
@given(
    all_backlogs=st.lists(backlogs, max_size=8),
    budget=st.sampled_from([1, 10, 50_000, BUDGET]),
    size=st.sampled_from([1, 100_000, 64 << 20, PLENTY]),
)
def test_never_nothing_never_too_much(all_backlogs: list[Backlog[object]], budget: int, size: int) -> None:
    share = allocate(all_backlogs, Budget(budget, size))
    waiting = {b.partition: b.records for b in all_backlogs if b.records}
    assert bool(share) == bool(waiting)
    assert all(0 < count <= waiting[partition] for partition, count in share.items())
    # One record of each partition whose density is not known, and one where nothing else would be read.
    unknown = [b for b in all_backlogs if b.highest is None or b.density is None]
    assert sum(share.values()) <= budget + len(unknown) + 1
    sizes = {b.partition: b.record_bytes for b in all_backlogs}
    most = size + sum(b.record_bytes for b in unknown) + max(sizes.values(), default=0)
    assert sum(count * sizes[partition] for partition, count in share.items()) <= most


def test_large_records_are_counted_in_bytes() -> None:
    """Also those whose density is not known yet; partitions that are level take turns where not all fit."""
    megabyte = 2.0**20
    unknown = [backlog("a", 10**6, None, None, megabyte), backlog("b", 10**6, None, None, 100)]
    assert allocate(unknown, Budget(BUDGET, 64 << 20)) == {"a": 32, "b": PROBE_RECORDS // 2}
    level = [backlog(name, 100, 0, 1.0, megabyte) for name in "abcde"]
    assert allocate(level, Budget(BUDGET, 12 << 20)) == {"a": 3, "b": 3, "c": 2, "d": 2, "e": 2}
    assert allocate(level, Budget(BUDGET, 1)) == {"a": 1}


@dataclass
class Topic:
    """Records at a constant density, read from the front."""

    density: float
    records: int
    start: int = 0
    read: int = 0

    @property
    def highest(self) -> int | None:
        return self.start + round(self.read / self.density) if self.read else None

    def take(self, count: int) -> tuple[int | None, int]:
        before, first = self.highest, self.start + round(self.read / self.density)
        self.read += count
        return before, first


def simulate(topics: dict[str, Topic], epochs: int, budget: int) -> list[dict[str, int]]:
    """Epoch by epoch as the planner does: allocate, read, learn the densities."""
    rates: EventTimeRates[str] = EventTimeRates()
    shares = []
    for _ in range(epochs):
        all_backlogs = [backlog(n, t.records - t.read, t.highest, rates.get(n)) for n, t in topics.items()]
        share = allocate(all_backlogs, Budget(budget, PLENTY))
        for name, count in share.items():
            before, first = topics[name].take(count)
            rates.observe(name, count, before, first, topics[name].highest)
        shares.append(share)
    return shares


def test_inputs_of_very_different_density_and_progress_end_up_aligned() -> None:
    topics = {"dense": Topic(10.0, 10**9), "sparse": Topic(0.01, 10**9), "ahead": Topic(1.0, 10**9, start=300_000)}
    simulate(topics, epochs=20, budget=BUDGET)
    reached = {name: topic.highest or 0 for name, topic in topics.items()}
    assert min(reached.values()) > 300_000
    # Within the event time of one epoch's budget: 500,000 records at 11 records/ms.
    assert max(reached.values()) - min(reached.values()) <= BUDGET / 11


def test_the_budget_is_used_once_densities_are_known() -> None:
    topics = {"a": Topic(2.0, 10**9), "b": Topic(0.5, 10**9)}
    shares = simulate(topics, epochs=10, budget=BUDGET)
    assert all(abs(sum(share.values()) - BUDGET) <= 2 for share in shares[5:])


def test_densities_follow_a_change_and_stay_finite() -> None:
    rates: EventTimeRates[str] = EventTimeRates()
    rates.observe("p", 0, 0, None, None)
    assert rates.get("p") is None
    rates.observe("p", 100, None, 1_000, 1_100)
    assert rates.get("p") == 1.0
    rates.observe("p", 300, 1_100, 1_100, 1_200)
    assert rates.get("p") == 2.0
    for _ in range(60):
        rates.observe("p", 1, 0, 0, 10**13)
    assert EventTimeRates.LOWEST <= (rates.get("p") or 0) < 2 * EventTimeRates.LOWEST
