"""An output row that its topic does not take is a dead letter and not the end of the job (rule T8)."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from e2e.kill_harness import dead_letter_rows, topic_rows
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kafka_admin import KafkaAdmin

pytestmark = pytest.mark.services
JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: NAME}
spec:
  inputs:
    - {name: a, file: {path: a.jsonl}, format: json, eventTime: ts,
       schema: [{name: id, type: string}, {name: v, type: string}, {name: ts, type: timestamp}]}
    - {name: b, file: {path: b.jsonl}, format: json, eventTime: ts,
       schema: [{name: id, type: string}, {name: ts, type: timestamp}]}
  joins: [{right: b, keys: {a.id: b.id}, interval: {of: a, lower: 0s, upper: 10s}}]
  select: [{column: a.id}, {column: a.v}]
  output: {kafka: {bootstrapServers: "BROKER", topic: NAME.out}}
  deadLetter: {kafka: {topic: NAME.dead}}
  stateStore: {postgres: {dsn: "DSN", schema: SCHEMA}}
  delivery: DELIVERY
  shards: 4
"""
LARGE, COUNT = {"2", "4"}, 40


CLIENT, TOPIC = (1_500_000, "999,872 (message.max.bytes)"), (60_000, "49,872 (its max.message.bytes)")


@pytest.mark.parametrize(
    ("name", "where", "size", "takes", "delivery"),
    [
        ("here", ["--local"], *CLIENT, "exactlyOnce"),
        ("executors", ["--master", "local-cluster[2,1,1024]"], *CLIENT, "exactlyOnce"),
        ("topic", ["--local"], *TOPIC, "exactlyOnce"),
        ("topic-again", ["--local"], *TOPIC, "atLeastOnce"),
    ],
)
def test_a_row_that_is_too_large(
    kafka_broker: KafkaAdmin,
    postgres_dsn: str,
    tmp_path: Path,
    name: str,
    where: list[str],
    size: int,
    takes: str,
    delivery: str,
) -> None:
    name = f"large-rows-{name}"
    kafka_broker.create_topic(f"{name}.out", config={"max.message.bytes": "50000"} if "its" in takes else {})
    kafka_broker.create_topic(f"{name}.dead")
    keys = list(map(str, range(COUNT)))
    for side in ("a", "b"):
        rows = [{"id": key, "v": "x" * (size if key in LARGE else 9_000), "ts": 1_000} for key in keys]
        (tmp_path / f"{side}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = JOB.replace("NAME", name).replace("BROKER", kafka_broker.bootstrap).replace("DSN", postgres_dsn)
    text = text.replace("SCHEMA", name.replace("-", "_")).replace("DELIVERY", delivery)
    (tmp_path / "job.yaml").write_text(text)

    def joinery(*arguments: str) -> list[dict[str, Any]]:
        ended = subprocess.run(
            [sys.executable, "-m", "joinery_runtime", *arguments], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "JOINERY_WAIT_FOR_SPARK": "1"}, timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines()]

    epochs = [event for event in joinery("run", "job.yaml", *where) if event["event"] == "epoch"]
    assert sum(epoch["dropped"].get("b", {}).get("failed", 0) for epoch in epochs) == len(LARGE)
    assert sorted(row["id"] for row in topic_rows(kafka_broker.bootstrap, f"{name}.out")) == sorted({*keys} - LARGE)
    letters = dead_letter_rows(kafka_broker.bootstrap, f"{name}.dead")
    assert {letter["text"][:9] for letter in letters} == {f'{{"id":"{key}"' for key in LARGE}
    assert all(f"topic {name}.out takes {takes}" in letter["reason"] for letter in letters)
    (verdict,) = joinery("verify", "job.yaml")
    assert (verdict["verified"], verdict["rows"], verdict["dead_letters"]) == (True, COUNT - len(LARGE), len(LARGE))


# --- where nobody says what a topic takes -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded_broker() -> Iterator[KafkaBroker]:
    """A broker that looks at ACLs, and lets everybody do what none is about."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = {"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"}
    with KafkaBroker(properties=settings) as running:
        yield running


def deny_settings(bootstrap: str, topic: str) -> None:
    """Lets everybody do anything with the topic but read its settings."""
    rules = [(AclOperation.ALL, AclPermissionType.ALLOW), (AclOperation.DESCRIBE_CONFIGS, AclPermissionType.DENY)]
    where = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*")
    admin: Any = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_acls([AclBinding(*where, *rule) for rule in rules]).values():
        created.result(30)


def noise(seed: str, size: int) -> str:
    """A text that cannot be packed to less than three quarters."""
    return base64.b64encode(random.Random(seed).randbytes(size * 3 // 4)).decode()


@pytest.mark.parametrize(
    ("name", "denied", "properties", "key", "delivery", "fault"),
    [
        ("denied", True, "", "", "exactlyOnce", ""),
        ("denied-again", True, "", "", "atLeastOnce", ""),
        ("denied-killed", True, "", "", "exactlyOnce", "output-written@1"),
        ("denied-routed", True, "", "key: [g], keyOrder: true,", "exactlyOnce", "output-written@1"),
        ("packed", False, "properties: {compression.type: zstd},", "", "exactlyOnce", ""),
        ("packed-killed", False, "properties: {compression.type: lz4},", "", "exactlyOnce", "before-commit@1"),
    ],
)
def test_a_row_that_only_the_brokers_know_to_be_too_large(
    guarded_broker: KafkaBroker,
    postgres_dsn: str,
    tmp_path: Path,
    name: str,
    denied: bool,
    properties: str,
    key: str,
    delivery: str,
    fault: str,
) -> None:
    """The topic takes 50,000 bytes, and small rows in batches of that size. What an attempt has found out is in the
    topic with its rows, so a replay gives the same dead letters."""
    name = f"unknown-limit-{name}"
    guarded_broker.create_topic(f"{name}.out", config={"max.message.bytes": "50000"})
    guarded_broker.create_topic(f"{name}.dead")
    if denied:
        deny_settings(guarded_broker.bootstrap, f"{name}.out")
    keys, packs_well = list(map(str, range(COUNT))), "7"
    values = {text: noise(text, 80_000 if text in LARGE else 9_000) for text in keys}
    if properties:
        values[packs_well] = "x" * 60_000
    for input_name in ("a", "b"):
        rows = [{"id": text, "v": values[text], "g": int(text) % 3, "ts": 1_000} for text in keys]
        (tmp_path / f"{input_name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = JOB.replace("topic: NAME.out", f"{properties} {key} topic: NAME.out").replace("NAME", name)
    text = text.replace("{name: v, type: string},", "{name: v, type: string}, {name: g, type: int64},")
    text = text.replace("{column: a.v}", "{column: a.v}, {column: a.g}")
    text = text.replace("BROKER", guarded_broker.bootstrap).replace("DSN", postgres_dsn)
    (tmp_path / "job.yaml").write_text(text.replace("SCHEMA", name.replace("-", "_")).replace("DELIVERY", delivery))

    def run(fault: str) -> int:
        ended = subprocess.run(
            [sys.executable, "-m", "joinery_runtime", "run", "job.yaml", "--local"], cwd=tmp_path, capture_output=True,
            text=True, env={**os.environ, "JOINERY_FAULT": fault}, timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode in (0, -9), ended.stderr
        return ended.returncode

    if fault:
        assert run(fault) == -9
    assert run("") == 0
    written = {row["id"] for row in topic_rows(guarded_broker.bootstrap, f"{name}.out")}
    assert written == {*keys} - LARGE
    letters = dead_letter_rows(guarded_broker.bootstrap, f"{name}.dead")
    assert sorted(letter["text"][:9] for letter in letters) == sorted(f'{{"id":"{text}"' for text in LARGE)
    assert all(f"topic {name}.out takes at most " in letter["reason"] for letter in letters)
