"""Groups in trouble, on a broker of their own: the user may not join, the broker dies."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from connectors.kafka.kafka_bench import EAGER, assigned_partitions, eventually, joined, kafka_input, planning, ref
from joinery_devkit.kafka import KafkaBroker
from joinery_runtime.connectors.inputs import planner_for
from joinery_runtime.connectors.source import StoredOffsets
from joinery_runtime.errors import SourceError
from stores import STORE

pytestmark = [pytest.mark.services, pytest.mark.slow]
ACCESS_CONTROL = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
GROUP = (ResourceType.GROUP, "locked.in", ResourcePatternType.LITERAL)
DENIED = (*GROUP, "User:ANONYMOUS", "*", AclOperation.READ, AclPermissionType.DENY)


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaBroker]:
    with KafkaBroker(properties=ACCESS_CONTROL) as broker:
        yield broker


def test_a_group_that_may_not_be_joined(guarded) -> None:
    guarded.create_topic("topic")
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    for done in admin.create_acls([AclBinding(*DENIED)]).values():
        done.result(20)
    with planning(kafka_input(guarded.bootstrap, "topic", properties=EAGER), "locked") as planner:
        todo = r"Allow this user to Read the group \(kafka-acls --operation Read --group\)"
        with pytest.raises(SourceError, match=f"consumer group locked.in cannot be joined: .*{todo}"):
            eventually(lambda: assigned_partitions(planner))
        for lifted in admin.delete_acls([AclBindingFilter(*DENIED)]).values():
            lifted.result(20)

        def joins_after_all() -> bool:
            try:
                return bool(assigned_partitions(planner))
            except SourceError:
                return False

        eventually(joins_after_all)
        joined(planner)


def test_a_dead_broker_does_not_keep_the_driver_from_ending(guarded, monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.metadata._ANSWER_SECONDS", 1.0)
    guarded.create_topic("dying")
    planner = planner_for(kafka_input(guarded.bootstrap, "dying"), "job", STORE)
    joined(planner)
    assert planner.pin([ref("dying")])
    guarded.kill()
    with pytest.raises(SourceError, match="the Kafka broker does not answer"):
        planner.bounds(StoredOffsets())
    assert planner.is_pinned(), "nobody can have taken the partition while the broker is away"
    planner.unpin({ref("dying"): 1})
    started = time.monotonic()
    planner.close()
    assert time.monotonic() - started < 15
