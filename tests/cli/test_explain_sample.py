"""`joinery explain --sample` proposes a `watermark.delay` from records of the inputs."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from cli.commands import Joinery
from cli.verified import left_join
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import ordered_producer
from joinery_runtime.core.pipeline.lateness import behind_highest
from joinery_runtime.inspect.sample import Disorder

_names = (f"sample-{number}" for number in count())
COLUMNS = "[{name: k, type: string}, {name: ts, type: timestamp}]"


def words(*behind: int, delay_ms: int = 0) -> str:
    return Disorder("orders", np.array(sorted(behind), dtype=np.int64), delay_ms).words()


def test_disorder_is_the_distance_to_the_highest_time_before() -> None:
    assert behind_highest(np.array([5, 3, 9, 9, 2, 10])).tolist() == [0, 2, 0, 0, 7, 0]
    assert behind_highest(np.zeros(0, dtype=np.int64)).tolist() == []


def test_the_words_name_the_delay_that_keeps_all_and_one_that_keeps_nearly_all() -> None:
    assert words() == "orders: no record with an event time was there to sample"
    assert words(0, 0) == "orders: 2 sampled records are in order; watermark.delay: 0s keeps them all"
    assert words(0, 0, 0, 300_000, delay_ms=300_000) == (
        "orders: of 4 sampled records, 1 (25 %) come after a later one, by up to 5m; "
        "watermark.delay: 5m keeps them all (now 5m, which is enough)"
    )
    many = words(*[0] * 5_000, *[2_000] * 4_999, 86_400_000)
    assert many.endswith(
        "by up to 24h; watermark.delay: 24h keeps them all, 2s keeps 99.9 % (now 0s, which is not enough)"
    )


def test_files_are_sampled(joinery: Joinery, job_file: Path) -> None:
    times = {"l": [1_000, 9_000, 4_000, 9_500], "r": [1, 2, 3]}
    for name, of_input in times.items():
        lines = (json.dumps({"k": "a", "ts": ts}) for ts in of_input)
        (job_file.parent / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    job_file.write_text(left_join(COLUMNS, "  output: {console: {}}\n  stateStore: {memory: {}}\n"))
    ended = joinery("explain", job_file, "--sample")
    samples = [line for line in ended.out.splitlines() if line.startswith("SAMPLE: ")]
    assert samples == [
        "SAMPLE: l: of 4 sampled records, 1 (25 %) come after a later one, by up to 5s; "
        "watermark.delay: 5s keeps them all (now 0s, which is not enough)",
        "SAMPLE: r: 3 sampled records are in order; watermark.delay: 0s keeps them all",
    ]
    assert "SAMPLE" not in joinery("explain", job_file).out


def test_files_of_a_directory_follow_each_other(joinery: Joinery, job_file: Path) -> None:
    for name, of_files in {"l": ([9_000, 9_001], [1_000]), "r": ([1], [2])}.items():
        (job_file.parent / name).mkdir()
        for number, times in enumerate(of_files):
            lines = (json.dumps({"k": "a", "ts": ts}) for ts in times)
            (job_file.parent / name / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    text = left_join(COLUMNS, "  output: {console: {}}\n  stateStore: {memory: {}}\n")
    job_file.write_text(
        text.replace("{path: l.jsonl}", "{path: l, watch: true}").replace("{path: r.jsonl}", "{path: r}")
    )
    left, right = (line for line in joinery("explain", job_file, "--sample").out.splitlines() if "SAMPLE" in line)
    assert "1 (33 %) come after a later one, by up to 8s1ms" in left
    assert "2 sampled records are in order" in right


def test_a_missing_file_is_named_with_its_line(joinery: Joinery, job_file: Path) -> None:
    job_file.write_text(left_join(COLUMNS, "  output: {console: {}}\n  stateStore: {memory: {}}\n"))
    ended = joinery("explain", job_file, "--sample")
    assert ended.code == 1
    assert "l.jsonl" in ended.err


@pytest.mark.services
def test_topics_are_sampled_without_their_broken_clocks(
    kafka_broker: KafkaAdmin, joinery: Joinery, job_file: Path
) -> None:
    name = next(_names)
    kafka_broker.create_topic(name, 2)
    producer = ordered_producer(kafka_broker.bootstrap)
    start = 1_790_000_000_000
    far = start + 400 * 86_400_000
    for partition, times in enumerate([[0, 60_000, 30_000, far - start, 61_000], [600_000, 600_001]]):
        for ts in times:
            value = json.dumps({"k": "a", "ts": start + ts}).encode()
            producer.produce(name, value, partition=partition, timestamp=start + 700_000)
    assert producer.flush(30) == 0
    text = left_join(COLUMNS, "  output: {console: {}}\n  stateStore: {memory: {}}\n")
    kafka = f'kafka: {{bootstrapServers: "{kafka_broker.bootstrap}", topic: {name}}}'
    job_file.write_text(text.replace("file: {path: l.jsonl}", kafka).replace("file: {path: r.jsonl}", kafka))
    ended = joinery("explain", job_file, "--sample")
    (left, _) = (line for line in ended.out.splitlines() if line.startswith("SAMPLE: "))
    assert left.startswith("SAMPLE: l: of 6 sampled records, 1 (17 %) come after a later one, by up to 30s")
    assert ended.out.count("NO DELAY on ") == 2
