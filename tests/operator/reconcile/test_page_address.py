"""Jobs whose pages would have one address: the older one has it."""

from __future__ import annotations

import json

import pytest

from joinery_operator.kube.cache import ObjectCache, page_conflicts
from joinery_operator.kube.resources import ObjectKey
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import KINDS
from simulated_cluster.resources import resource_of
from simulated_cluster.simulation import IMAGE, SimulatedCluster, resource

URL = "https://joinery.example.com/{namespace}/{name}/"
ADDRESS = "https://joinery.example.com/shop/orders/"


@pytest.fixture
def cluster() -> SimulatedCluster:
    settings = Settings(runtime_image=IMAGE, page_url=URL, page_ingress=json.dumps({"className": "nginx"}))
    new_cluster = SimulatedCluster(resource(), settings=settings)
    new_cluster.resource["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"  # type: ignore[index]
    other = resource_of(KINDS[1])
    other["metadata"] |= {"uid": "other", "creationTimestamp": "2026-01-01T00:00:00Z"}
    new_cluster.page_conflicts = [other]
    return new_cluster


def test_the_later_one_has_no_address_and_says_whose_it_is(cluster: SimulatedCluster) -> None:
    cluster.started(1)
    assert cluster.status.page is None
    assert not cluster.ingresses
    assert cluster.condition("PageAddress") == ("False", "AddressTaken")
    message = next(condition.message for condition in cluster.status.conditions if condition.type == "PageAddress")
    assert ADDRESS in message
    assert "SessionWindow shop/orders" in message
    assert [event for event in cluster.events if "AddressTaken" in event] == [f"Warning AddressTaken: {message}"]
    assert cluster.condition("Ready")[0] == "True"
    cluster.page_conflicts = []
    cluster.step()
    assert cluster.status.page == ADDRESS
    assert len(cluster.ingresses) == 1
    assert "PageAddress" not in {condition.type for condition in cluster.status.conditions}


def test_the_older_one_keeps_it(cluster: SimulatedCluster) -> None:
    cluster.page_conflicts[0]["metadata"]["creationTimestamp"] = "2026-01-03T00:00:00Z"
    cluster.started(1)
    assert cluster.status.page == ADDRESS
    assert len(cluster.ingresses) == 1
    assert "PageAddress" not in {condition.type for condition in cluster.status.conditions}


@pytest.mark.parametrize(
    ("url", "conflicts"),
    [
        (URL, ["SessionWindow shop/a-b", "StreamJoin shop/a.b"]),
        ("https://{name}.example.com/", ["SessionWindow shop/a-b", "StreamJoin farm/a-b", "StreamJoin shop/a.b"]),
        ("", []),
    ],
)
def test_which_jobs_would_have_one_address(url: str, conflicts: list[str]) -> None:
    cache = ObjectCache()
    jobs = [(0, "shop", "a-b"), (0, "shop", "a.b"), (1, "shop", "a-b"), (0, "farm", "a-b"), (0, "shop", "a-c")]
    for number, (kind, namespace, name) in enumerate(jobs):
        manifest = resource_of(KINDS[kind], name, namespace)
        manifest["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": "1"}
        cache.put(manifest, KINDS[kind].name)
    mine = ObjectKey(KINDS[0].name, "shop", "a-b")
    assert sorted(map(str, page_conflicts(mine, cache, Settings(page_url=url)))) == conflicts
