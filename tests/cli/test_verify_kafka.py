"""`joinery verify` of topics: output and dead letters, with keys and headers, as JSON and Avro; spoilt in every way."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cli.verified import Written, left_join
from formats.registry import registry
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import ordered_producer
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.inspect.verify import verify
from joinery_runtime.job import parse_job
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import EpochRecord, JobRecord

pytestmark = pytest.mark.services
COLUMNS = "[{name: k, type: string}, {name: v, type: double}, {name: ts, type: timestamp}]"
JOB = left_join(
    COLUMNS,
    """\
  output: {kafka: {bootstrapServers: "BROKER", topic: NAME, HOW}, MORE}
  deadLetter: {kafka: {topic: NAME.dead}}
  delivery: DELIVERY
  stateStore: {memory: {}}
""",
    name="NAME",
)
EPOCHS, PARTITIONS = 3, 2
STEPS: list[dict[str, Any]] = [
    {
        "rows": {
            "l": [*({"k": f"k{i}", "v": i / 3, "ts": 100 * step + i} for i in range(10)), {"k": f"bad{step}"}],
            "r": [{"k": f"k{i}", "v": None, "ts": 100 * step + i} for i in range(0, 10, 2)],
        }
    }
    for step in range(EPOCHS)
]
_names = (f"verify-{number}" for number in count())


class Topics:
    """The topics of a job of its own, and what other programs do to them."""

    def __init__(self, broker: KafkaAdmin, cache: Path, config: Any = None, partitions: int = PARTITIONS) -> None:
        self._broker, self._cache, self.name = broker, cache, next(_names)
        broker.create_topic(self.name, partitions, config)
        broker.create_topic(f"{self.name}.dead")

    def job(self, how: str = "", more: str = "", delivery: str = "exactlyOnce") -> Written:
        text = JOB.replace("NAME", self.name).replace("BROKER", self._broker.bootstrap).replace("HOW", how)
        text = text.replace("DELIVERY", delivery).replace("MORE", more)
        return Written(parse_job(text, "job.yaml"), STEPS, self._cache)

    def send(self, value: bytes, topic: str = "", key: bytes | None = None) -> None:
        producer = ordered_producer(self._broker.bootstrap, {"linger.ms": 0})
        producer.produce(f"{self.name}{topic}", value, key, partition=0)
        assert producer.flush(30) == 0


@pytest.fixture
def topics(kafka_broker: KafkaAdmin, tmp_path: Path) -> Topics:
    return Topics(kafka_broker, tmp_path / "cache")


def spoilt(rows: pa.Table, column: str, value: Any) -> pa.Table:
    """The first row is missing, the second one is twice, the third one has another value."""
    third = pa.Table.from_pylist([rows.slice(2, 1).to_pylist()[0] | {column: value}], rows.schema)
    return pa.concat_tables([rows.slice(1, 1), rows.slice(1, 1), third, rows.slice(3)])


@pytest.mark.parametrize("form", ["json", "keyed", "avro", "protobuf"])
def test_rows_in_a_topic(topics: Topics, form: str) -> None:
    how = "key: [left_k, left_ts], headers: {of: right_k, at: left_ts}" if form == "keyed" else ""
    with registry() as served:
        written = topics.job(
            how, f"format: {form}, schemaRegistry: {{url: {served.url}}}" if form in {"avro", "protobuf"} else ""
        )
        spoiling, dead = written.with_rows(5)[0], sorted(written.dead)
        untouched = next(epoch for epoch in written.with_rows(5) if epoch not in {spoiling, *dead[:2]})
        rows = written.rows[spoiling]
        written.rows[spoiling] = spoilt(rows, "left_v", 77.5)
        written.dead[dead[0]] = pa.concat_tables([written.dead[dead[0]]] * 2)
        lost = written.dead.pop(dead[1])
        written.publish()
        verdict, other = written.verdict(), written.verdict(untouched, untouched)
    assert other.right
    assert other.compared.rows == written.rows[untouched].num_rows
    assert dict(verdict.compared.counted) == {"missing": 2, "extra": 2, "different": 1}
    differences = {(difference.output, difference.kind): difference for difference in verdict.compared.differences}
    assert {name: difference.epoch for name, difference in differences.items()} == {
        ("output", "missing"): spoiling, ("output", "extra"): spoiling, ("output", "different"): spoiling,
        ("dead letters", "missing"): dead[1], ("dead letters", "extra"): dead[0],
    }  # fmt: skip
    changed = differences["output", "different"]
    assert changed.actual == changed.expected | {"left_v": 77.5}
    assert changed.origin.startswith("r 0/")
    assert differences["output", "extra"].found_at.startswith(f"{topics.name}:")
    assert differences["dead letters", "missing"].expected["offset"] == lost["offset"][0].as_py()


def test_dead_letters_that_an_earlier_release_wrote_as_json(topics: Topics) -> None:
    written = topics.job()
    letters = written.dead
    written.dead = {min(letters): letters[min(letters)]}
    written.publish()
    for epoch in sorted(letters)[1:]:
        for line in rows_to_json(letters[epoch]):
            topics.send(line, ".dead")
    verdict = written.verdict()
    assert (verdict.right, verdict.compared.dead) == (True, EPOCHS)


def test_a_right_topic_and_what_is_not_this_jobs(topics: Topics) -> None:
    written = topics.job()
    epoch = written.with_rows(5)[0]
    (row,) = rows_to_json(written.rows[epoch].slice(0, 1))
    written.rows[epoch] = written.rows[epoch].slice(1)
    written.publish()
    topics.send(json.dumps(json.loads(row), indent=1, sort_keys=True).encode())  # the same row, in another way
    verdict = written.verdict()
    assert (verdict.right, verdict.notes) == (True, [])
    assert verdict.compared.dead == EPOCHS
    topics.send(b"torn{")
    (difference,) = written.verdict().compared.differences
    assert (difference.kind, difference.epoch, difference.actual) == ("extra", None, {"not JSON": "torn{"})
    assert difference.line().startswith(f"output: extra; found at {topics.name}:0=")


def test_a_dead_letter_topic_that_two_jobs_share_is_named_as_the_likely_cause(topics: Topics) -> None:
    written = topics.job()
    written.publish()
    topics.send(b'{"input": "of another job", "offset": 7}', ".dead")
    verdict = written.verdict()
    assert dict(verdict.compared.counted) == {"extra": 1}
    assert verdict.notes == [
        f"dead letters: topic {topics.name}.dead does not say which job has written a record. If another job writes "
        "there too, its records are among these differences: give each job a topic of its own"
    ]


def test_keys_count_too(topics: Topics) -> None:
    written = topics.job("key: [left_k]")
    epoch = written.with_rows(5)[0]
    (row,) = rows_to_json(written.rows[epoch].slice(0, 1))
    written.rows[epoch] = written.rows[epoch].slice(1)
    written.publish()
    topics.send(row, key=b"other")
    (difference,) = written.verdict().compared.differences
    assert difference.kind == "different"
    assert difference.expected == json.loads(row) | {"record": [json.loads(row)["left_k"]]}
    assert difference.actual == json.loads(row) | {"record": ["other"]}


def test_rows_of_the_epoch_that_is_pending(topics: Topics) -> None:
    """A driver has died between the transactions of an epoch and its commit, or is there now."""
    written = topics.job()
    newest = written.with_rows(5)[-1]
    written.rows[newest] = written.rows[newest].slice(1)  # of one shard only
    written.publish(newest)
    behind = Behind(written.store, newest)
    verdict = verify(written.job, behind, written.inputs, None, None)
    assert (dict(verdict.compared.counted), verdict.last) == ({}, newest - 1)
    behind.pending = False
    assert dict(verify(written.job, behind, written.inputs, None, None).compared.counted).keys() == {"extra"}


class Behind:
    """The store before epoch `newest` was committed."""

    def __init__(self, store: MemoryStore, newest: int) -> None:
        self._store, self._newest, self.pending = store, newest, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def epochs(self, job: str, after: int = 0, limit: int = 1000) -> list[EpochRecord]:
        return [entry for entry in self._store.epochs(job, after, limit) if entry.epoch < self._newest]

    def newest_epoch(self, job: str) -> EpochRecord:
        return self.epochs(job)[-1]

    def record(self, job: str) -> JobRecord:
        (entry,) = self._store.epochs(job, self._newest - 1, 1)
        record = self._store.record(job)
        assert record is not None
        return replace(record, plan=entry.plan if self.pending else None, epoch=self._newest - 1)


def test_rows_may_repeat_at_least_once(topics: Topics) -> None:
    written = topics.job(delivery="atLeastOnce")
    epoch = written.with_rows(5)[0]
    rows = written.rows[epoch]
    written.rows[epoch] = pa.concat_tables([rows, rows.slice(0, 2)])
    written.publish()
    verdict = written.verdict()
    assert verdict.right
    assert verdict.notes == ["output: 2 rows are there again, as delivery: atLeastOnce allows"]
    topics.send(b"{}")
    assert dict(written.verdict().compared.counted) == {"extra": 1}


def test_a_topic_that_has_lost_its_beginning(kafka_broker: KafkaAdmin, tmp_path: Path) -> None:
    topics = Topics(kafka_broker, tmp_path / "cache", partitions=1)
    written = topics.job()
    first, second, third = written.with_rows(5)[:3]
    written.rows[third] = written.rows[third].slice(1)
    written.publish()
    ends = written.rows[first].num_rows + 1  # a transaction's end is a record too
    kafka_broker.delete_records(topics.name, 0, ends + 1)
    verdict = written.verdict()
    assert dict(verdict.compared.counted) == {"missing": 1}
    assert {difference.epoch for difference in verdict.compared.differences} == {third}
    assert verdict.notes == [
        f"output: the topic has lost its beginning, so rows up to epoch {second} may be missing there"
    ]
    kafka_broker.delete_records(topics.name, 0, -1)
    verdict = written.verdict()
    assert (verdict.right, dict(verdict.compared.counted)) == (False, {})
    assert "NOT VERIFIED, nothing could be judged" in next(iter(verdict.lines()))


def test_a_compacted_topic_is_refused(kafka_broker: KafkaAdmin, tmp_path: Path) -> None:
    written = Topics(kafka_broker, tmp_path / "cache", {"cleanup.policy": "compact,delete"}).job()
    with pytest.raises(JoineryError, match=r"cleanup.policy is compact,delete: compaction deletes rows"):
        written.verdict()
