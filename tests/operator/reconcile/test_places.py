"""Where a job keeps its state, in words: without passwords, so that another password is no other place. And where its
rows go."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from joinery_operator.outputs import OutputPlace, written_places
from joinery_operator.reconcile.places import state_place_text, written_outputs
from joinery_runtime.job.crd import KINDS, OutputStatus, Status
from simulated_cluster.resources import resource_of


def place_of(dsn: str, **more: Any) -> str:
    manifest = resource_of(KINDS[0], stateStore={"postgres": {"dsn": dsn, **more}})
    return state_place_text(KINDS[0].model.model_validate(manifest, by_alias=True, by_name=False).spec)


@pytest.mark.parametrize(
    ("dsn", "location"),
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
def test_a_dsn_is_told_without_its_secrets(dsn: str, location: str) -> None:
    assert place_of(dsn) == f"schema joinery of {location}"
    assert place_of(dsn, schema="shop") == f"schema shop of {location}"


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
    assert "a dsn of digest " in place_of(dsn)
    assert "s3cret" not in place_of(dsn)
    assert place_of(dsn) != place_of(dsn + "2")


def test_two_long_places_are_two() -> None:
    hosts = [f"postgresql://{'a' * 600}{end}{'b' * 600}/jobs" for end in "xy"]
    first, second = map(place_of, hosts)
    assert first != second
    assert max(len(first), len(second)) < 600


@pytest.mark.parametrize("repeated", ["a", "a ", "a=", "a='", "a='\\", "a=b ", " ", "1:1,", "[", "/?"])
@pytest.mark.parametrize("beginning", ["", "a=", "postgresql://"])
def test_a_long_dsn_is_read_in_linear_work(beginning: str, repeated: str) -> None:
    """Forty of the longest ones that the API server accepts: a search that began anew at each letter took more than ten
    seconds of the operator's event loop, and linear work takes about a tenth of one."""
    longest = (beginning + repeated * 4096)[:4090]
    dsns = [f"{longest}{number:06}" for number in range(40)]
    begun = process_time()
    locations = written(
        "shop", outputs=[{"name": dsn[-2:], "postgres": {"table": dsn[-6:], "dsn": dsn}} for dsn in dsns]
    )
    assert process_time() - begun < 3
    assert len(locations) == 40


def test_of_a_dsn_longer_than_any_valid_one_a_digest_is_told() -> None:
    pair = "host=db dbname=jobs application_name="
    assert place_of(f"{pair:x<4096}") == "schema joinery of host=db dbname=jobs"
    assert "a dsn of digest " in place_of(f"{pair:x<4097}")


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
    assert [
        (output_status.name, output_status.kind, output_status.target) for output_status in outputs(output=output)
    ] == [("output", kind, target)]


def test_outputs_are_told_by_name_as_many_as_a_status_has_room_for() -> None:
    names = [f"out{number}" for number in range(100)]
    output_statuses = outputs(
        output=None, outputs=[{"name": name, "kafka": {**KAFKA["kafka"], "topic": name}} for name in names]
    )
    assert [output_status.name for output_status in output_statuses] == names[:64]
    assert Status(outputs=output_statuses).outputs == output_statuses


def test_a_long_target_is_cut_to_what_a_status_takes() -> None:
    (output_status,) = outputs(output={"file": {"path": "/data/" + "x" * 10_000}})
    assert output_status.target is not None
    assert (len(output_status.target), output_status.target[:6]) == (512, "/data/")


def outputs(**spec: Any) -> tuple[OutputStatus, ...]:
    resource = resource_of(KINDS[0], **spec)
    return written_outputs(KINDS[0].model.model_validate(resource, by_alias=True, by_name=False))


def written(namespace: str, **spec: Any) -> frozenset[OutputPlace]:
    return written_places({"metadata": {"name": "orders", "namespace": namespace}, "spec": spec})


def kafka(servers: str) -> Any:
    return {"output": {"kafka": {"bootstrapServers": servers, "topic": "paid"}}}


def table(*, store: Any = None, **output: Any) -> Any:
    return {"output": {"postgres": output}, "stateStore": {"postgres": store or {"dsn": "postgresql://db/jobs"}}}


SECRET = {"name": "db", "key": "dsn"}
LAKE = {"table": "shop.paid", "properties": {"uri": "http://catalog"}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (kafka("kafka-0:9092,kafka-1:9092"), kafka("Kafka-1:9092")),
        (table(table="t"), table(table="public.t", dsn="postgresql://me@db/jobs")),
        (table(table="t", dsnSecretRef=SECRET), table(table="t", store={"dsnSecretRef": SECRET})),
        ({"output": {"file": {"path": "/out/a/"}}}, {"output": {"file": {"path": "/out/./a"}}}),
        ({"output": {"iceberg": LAKE}}, {"outputs": [{"name": "all", "iceberg": LAKE}]}),
    ],
    ids=["brokers", "tables", "secrets", "folders", "lakes"],
)
def test_what_two_jobs_of_a_namespace_write_is_one_place_however_it_is_written(first: Any, second: Any) -> None:
    assert written("shop", **first) & written("shop", **second)
    assert not written("shop", **first) & written("other", **second), "the names mean something else there"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (kafka("kafka-0:9092"), kafka("kafka-2:9092")),
        (table(table="t"), table(table="t", dsn="postgresql://db/reports")),
        (table(table="t"), table(table="u")),
        (table(table="t", dsnSecretRef=SECRET), table(table="t", dsnSecretRef={**SECRET, "key": "other"})),
        ({"output": {"iceberg": LAKE}}, {"output": {"iceberg": {**LAKE, "catalog": "other"}}}),
        ({"output": {"console": {}}}, {"output": {"console": {}}}),
    ],
    ids=["brokers", "databases", "tables", "secrets", "catalogs", "consoles"],
)
def test_other_places_are_told_apart(first: Any, second: Any) -> None:
    assert not written("shop", **first) & written("shop", **second)


def test_names_with_a_domain_and_object_stores_are_one_place_in_every_namespace() -> None:
    for spec in (kafka("kafka.shop:9092"), {"output": {"delta": {"path": "s3://lake/a"}}}):
        assert written("shop", **spec) & written("other", **spec)


def test_only_the_first_places_of_a_job_with_very_many_are_compared() -> None:
    folders = [{"name": f"out{number}", "file": {"path": f"/out/{number}"}} for number in range(5000)]
    assert {location.target for location in written("shop", outputs=folders)} == {
        f"/out/{number}" for number in range(1024)
    }
    topics = [{"name": f"out{number}", **kafka("a.b,c.d")["output"]} for number in range(5000)]
    assert len(written("shop", outputs=topics)) == 2, "each topic has both of its brokers"
    brokers = ",".join(f"kafka-{number}" for number in range(2000))
    assert len(written("shop", **kafka(brokers))) == 1024


@pytest.mark.parametrize("spec", [{}, {"output": 3}, {"outputs": "all"}, {"output": {"kafka": {"topic": 3}}}])
def test_what_is_no_output_is_no_place(spec: Any) -> None:
    assert not written("shop", **spec)
