"""Where a job keeps its state, in words: without passwords, so that another password is no other place. And where its
rows go."""

from __future__ import annotations

from typing import Any

import pytest

from joinery_operator.reconcile.places import state_place_text, written_outputs
from joinery_runtime.job.crd import KINDS, OutputStatus, Status
from simulated_cluster.resources import resource_of


def place(dsn: str, **more: Any) -> str:
    made = resource_of(KINDS[0], stateStore={"postgres": {"dsn": dsn, **more}})
    return state_place_text(KINDS[0].model.model_validate(made, by_alias=True, by_name=False).spec)


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        ("postgresql://db", "postgresql://db"),
        ("postgresql://db/", "postgresql://db"),
        ("postgresql://joinery:s3cret@db:5433/jobs?sslmode=require", "postgresql://db:5433/jobs"),
        ("postgres://joinery:s3cret@db", "postgresql://db user=joinery"),
        ("postgresql://joinery:s3#c?ret@[::1]:5433/jobs", "postgresql://[::1]:5433/jobs"),
        ("postgresql://a:1,b:2/jobs?password=s3cret&service=x", "postgresql://a:1,b:2/jobs service=x"),
        ("postgresql:///jobs?host=/run/pg&user=joinery", "postgresql:///jobs host=/run/pg"),
        ("host=db port = 5433 dbname=jobs user=joinery password='s3\\' cret'", "host=db port=5433 dbname=jobs"),
        ("host=db user=joinery password=s3cret", "host=db user=joinery"),
        ("service=state", "service=state"),
    ],
)
def test_a_dsn_is_told_without_its_secrets(dsn: str, told: str) -> None:
    assert place(dsn) == f"schema joinery of {told}"
    assert place(dsn, schema="shop") == f"schema shop of {told}"


@pytest.mark.parametrize(
    "dsn",
    [
        "s3cret",
        "host=db password='s3cret",
        "://:s3cret@db",
        "postgresql://u:a/s3cret@db/jobs",
        "postgresql://[u:s3cret",
    ],
)
def test_a_dsn_in_no_known_form_is_told_as_a_digest(dsn: str) -> None:
    assert "a dsn of digest " in place(dsn)
    assert "s3cret" not in place(dsn)
    assert place(dsn) != place(dsn + "2")


def test_two_long_places_are_two() -> None:
    hosts = [f"postgresql://{'a' * 600}{end}{'b' * 600}/jobs" for end in "xy"]
    first, second = map(place, hosts)
    assert first != second
    assert max(len(first), len(second)) < 600


KAFKA = {"kafka": {"bootstrapServers": "kafka:9092", "topic": "joined"}}


@pytest.mark.parametrize(
    ("output", "kind", "target"),
    [
        (KAFKA, "kafka", "joined"),
        ({"postgres": {"table": "shop.joined", "dsn": "postgresql://u:s3cret@db/shop"}}, "postgres", "shop.joined"),
        ({"file": {"path": "/data/joined"}}, "file", "/data/joined"),
        ({"iceberg": {"table": "shop.joined"}}, "iceberg", "shop.joined"),
        ({"delta": {"path": "s3://lake/joined"}}, "delta", "s3://lake/joined"),
        ({"console": {}}, "console", None),
    ],
)
def test_an_output_is_told_by_its_kind_and_target(output: dict[str, Any], kind: str, target: str | None) -> None:
    assert [(told.name, told.kind, told.target) for told in outputs(output=output)] == [("output", kind, target)]


def test_outputs_are_told_by_name_as_many_as_a_status_has_room_for() -> None:
    names = [f"out{number}" for number in range(100)]
    told = outputs(output=None, outputs=[{"name": name, "kafka": {**KAFKA["kafka"], "topic": name}} for name in names])
    assert [each.name for each in told] == names[:64]
    assert Status(outputs=told).outputs == told


def test_a_long_target_is_cut_to_what_a_status_takes() -> None:
    (told,) = outputs(output={"file": {"path": "/data/" + "x" * 10_000}})
    assert told.target is not None
    assert (len(told.target), told.target[:6]) == (512, "/data/")


def outputs(**spec: Any) -> tuple[OutputStatus, ...]:
    resource = resource_of(KINDS[0], **spec)
    return written_outputs(KINDS[0].model.model_validate(resource, by_alias=True, by_name=False))
