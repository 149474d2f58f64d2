import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from joinery_operator.manifests import ManifestError
from joinery_operator.revision import resolved_image
from joinery_operator.settings import Settings
from joinery_runtime.job import StreamJoin
from joinery_runtime.job.crd import KINDS
from simulated_cluster.resources import BY_NAME, hash_of, resource_of

KIND = BY_NAME["StreamJoin"]
SESSIONS = BY_NAME["SessionWindow"]
EXAMPLES = Path(__file__).parents[2] / "examples"
RESOURCE, SESSION_RESOURCE = (
    YAML(typ="safe", pure=True).load((EXAMPLES / name).read_text())
    for name in ("orders-payments.yaml", "session-window.yaml")
)
IMAGE = "joinery:1"


def edited(path="", value=None):
    """The example with another value at a path such as `spec.joins.0.type`."""
    resource = copy.deepcopy(RESOURCE)
    *parents, last = path.split(".")
    at = resource
    for step in parents:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    at[last] = value
    return resource


def revision_of(resource, image=IMAGE):
    return hash_of(KIND, resource, image)


BASE = revision_of(RESOURCE)


def test_it_is_ten_hex_digits_and_the_same_for_every_release():
    assert len(BASE) == 10
    assert int(BASE, 16) >= 0
    # Another value here restarts every job of every installation that upgrades.
    assert BASE == "47948d63c9"
    assert hash_of(SESSIONS, SESSION_RESOURCE, IMAGE) == "328ee8f680"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.spark.executor.memory", "4g"),
        ("spec.spark.driver.nodeSelector", {"disk": "ssd"}),
        ("spec.spark.conf", {"spark.task.maxFailures": 8}),
        ("spec.joins.0.where", "orders.amount > 1"),
        ("spec.joins.0.interval.upper", "11m"),
        ("spec.inputs.0.kafka.topic", "orders2"),
        ("spec.inputs.0.kafka.properties", {"fetch.min.bytes": 5}),
        ("spec.trigger.maxRecordsPerEpoch", 10),
        ("metadata.annotations", {"joinery.dev/restartedAt": "2026-11-21T10:00:00Z"}),
    ],
)
def test_what_a_driver_sees_makes_another_revision(path, value):
    assert revision_of(edited(path, value)) != BASE


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.suspend", True),
        ("spec.cleanup", "deleteState"),
        ("spec.upgrade", {"mode": "stateless"}),
        ("status", {"phase": "Running"}),
        ("metadata.labels", {"a": "b"}),
        ("metadata.annotations", {"kubectl.kubernetes.io/last-applied-configuration": "{}"}),
        ("metadata.resourceVersion", "7"),
        ("metadata.generation", 7),
        ("metadata.finalizers", ["joinery.dev/state"]),
        ("spec.spark.image", IMAGE),
        # The same, said in another way.
        ("spec.joins.0.allowedLateness", "30000ms"),
        ("spec.joins.0.interval.upper", "600s"),
        ("spec.inputs.0.watermark.idleTimeout", "60000ms"),
        ("spec.inputs.0.kafka.stopAt", {}),
    ],
)
def test_what_no_driver_sees_makes_none(path, value):
    assert revision_of(edited(path, value)) == BASE


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.delivery", "exactlyOnce"),
        ("spec.spark", {}),
        ("spec.spark", {"driver": {"cores": 1, "memory": "1g"}, "executor": {"instances": 2}, "conf": {}}),
        ("spec.stateStore", {"checkpointInterval": "1m"}),
        ("spec.inputs.0.kafka.onDataLoss", "fail"),
    ],
)
def test_a_default_that_is_spelled_out_changes_nothing(path, value):
    assert revision_of(edited(path, value)) == BASE


def test_all_defaults_filled_in_as_the_api_server_does_change_nothing():
    filled = StreamJoin.model_validate(RESOURCE).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert filled["spec"]["trigger"]
    assert revision_of({**RESOURCE, "spec": filled["spec"]}) == BASE


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_jobs_of_every_kind_have_revisions(kind):
    base = hash_of(kind, resource_of(kind), IMAGE)
    filled = kind.model.model_validate(resource_of(kind)).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert hash_of(kind, {**resource_of(kind), "spec": filled["spec"]}, IMAGE) == base
    same = (
        *({"suspend": True}, {"cleanup": "deleteState"}, {"upgrade": {"mode": "stateless"}}),
        *({"autoscale": {"maxInstances": 5}}, {"shards": 5}, {"spark": {"executor": {"instances": 3}}}),
    )
    assert {hash_of(kind, resource_of(kind, **spec), IMAGE) for spec in same} == {base}
    both = {"autoscale": {"maxInstances": 5}, "spark": {"executor": {"instances": 4}}}
    assert hash_of(kind, resource_of(kind, **both), IMAGE) == base
    executor = {"instances": 3, "maxInstances": 5}
    other = ({"spark": {"executor": executor}}, {"trigger": {"maxRecordsPerEpoch": 1}})
    assert len({base, *(hash_of(kind, resource_of(kind, **spec), IMAGE) for spec in other)}) == 3
    earlier = {hash_of(kind, resource_of(kind, **spec), IMAGE, with_scale=True) for spec in (*same[-2:], {})}
    assert len(earlier) == 3


def test_how_columns_are_named_is_a_part_of_it_from_this_release_on():
    """Earlier API servers wrote `always` into every resource: that must restart no job."""

    def named(*, with_naming=True, **spec):
        return hash_of(KIND, resource_of(KIND, **spec), IMAGE, with_naming=with_naming)

    always, when_needed = {"prefixes": "always"}, {"prefixes": "whenNeeded"}
    earlier = named(with_naming=False)
    assert named(**always) == named(with_naming=False, **always) == earlier
    assert named(**when_needed) == named(with_naming=False, **when_needed)
    assert len({named(), named(**always), named(**when_needed)}) == 3
    chosen = {"select": [{"column": "l.id"}]}
    assert named(**chosen) == named(with_naming=False, **chosen), "a job that names its columns itself"
    assert hash_of(SESSIONS, SESSION_RESOURCE, IMAGE, with_naming=True) == hash_of(SESSIONS, SESSION_RESOURCE, IMAGE)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ({"gap": "30000ms"}, True),
        ({"lateData": "drop", "emitRetractions": False}, True),
        ({"gap": "31s"}, False),
        ({"maxDuration": "1h"}, False),
        ({"lateData": "reopen"}, False),
        ({"emitRetractions": True}, False),
        ({"where": "clicks.id <> ''"}, False),
        ({"aggregates": [{"function": "count", "as": "other"}]}, False),
    ],
)
def test_what_a_session_windows_driver_sees_makes_another_revision(spec, same):
    base = hash_of(SESSIONS, resource_of(SESSIONS), IMAGE)
    assert (hash_of(SESSIONS, resource_of(SESSIONS, **spec), IMAGE) == base) == same


def test_another_image_is_another_revision():
    assert revision_of(RESOURCE, "joinery:2") != BASE
    assert revision_of(edited("spec.spark.image", "joinery:2"), "joinery:2") == revision_of(RESOURCE, "joinery:2")


@given(st.randoms())
def test_the_order_of_keys_does_not_matter(random):
    def shuffled(value):
        if isinstance(value, dict):
            items = list(value.items())
            random.shuffle(items)
            return {key: shuffled(item) for key, item in items}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    assert revision_of(shuffled(json.loads(json.dumps(RESOURCE)))) == BASE


def image(spec_image=None, installed="", in_force=None, changed=False):
    job = StreamJoin.model_validate(edited("spec.spark", {"image": spec_image} if spec_image else {}))
    return resolved_image(job, Settings(runtime_image=installed), in_force, changed)


def test_the_jobs_own_image_comes_first():
    assert image("own", "installed", "running") == "own"


def test_without_one_the_job_keeps_what_it_runs_with_while_nothing_changes():
    assert image(None, "installed:2", "installed:1") == "installed:1"
    assert image(None, "installed:2", "installed:1", changed=True) == "installed:2"
    assert image(None, "installed:2", None) == "installed:2"
    assert image(None, "", "installed:1", changed=True) == "installed:1"


def test_no_image_at_all_says_where_to_name_one():
    with pytest.raises(ManifestError, match=r"orders-payments has no image.*spec\.spark\.image"):
        image()
