"""A BlueGreenJob on a real node: readers switch to a second job and back, and each output has every pair once.

The tests go on from one another, in this order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.kill_harness import topic_rows
from e2e.node.cluster_job import PATIENCE_S, ClusterJob
from e2e.node.conftest import MakeJob
from e2e.node.works import Manifest, MovingPairs
from joinery_runtime.job.crd import BLUE_GREEN
from joinery_runtime.job.model.resource import API_VERSION

pytestmark = [pytest.mark.node, pytest.mark.soak, pytest.mark.timeout(1800)]


@dataclass
class BlueGreenOnCluster:
    """A BlueGreenJob of the name and the spec of `template`, which itself is never applied. `blue` is its first job,
    and `green` the one that runs beside that."""

    template: ClusterJob
    blue: ClusterJob | None = None
    green: ClusterJob | None = None

    def apply(self, **spec: Any) -> None:
        job = self.template
        template = {"kind": job.manifest["kind"], "spec": job.manifest["spec"]}
        manifest = {
            "apiVersion": API_VERSION,
            "kind": BLUE_GREEN.name,
            "metadata": {"name": job.name},
            "spec": {"stableFor": "5s", "keepOld": "10m", **spec, "template": template},
        }
        job.kubectl.apply(manifest, job.namespace)

    @property
    def status(self) -> Manifest:
        resource = self.template.kubectl.get(BLUE_GREEN.plural, self.template.name, self.template.namespace) or {}
        status: Manifest = resource.get("status", {})
        return status

    def read(self) -> list[str]:
        """The topics that readers are told to read."""
        return [output["target"] for output in self.status.get("outputs", ())]

    def up_to_date(self) -> str:
        """The reason of the condition."""
        return next(
            (condition["reason"] for condition in self.status.get("conditions", ()) if condition["type"] == "UpToDate"),
            "",
        )

    def jobs(self) -> tuple[ClusterJob, ClusterJob]:
        assert self.blue is not None
        assert self.green is not None
        return self.blue, self.green


@pytest.fixture(scope="module")
def blue_green(make_job: MakeJob) -> Iterator[BlueGreenOnCluster]:
    template = make_job("bluegreen", MovingPairs)
    spark = template.manifest["spec"]["spark"]
    spark["executor"] = {**spark["executor"], "instances": 1}
    resource = BlueGreenOnCluster(template)
    yield resource
    for job in (template, resource.blue, resource.green):
        if job is not None:
            job.log.close()


def driver_uids(*jobs: ClusterJob) -> list[str]:
    return [job.driver()["metadata"]["uid"] for job in jobs]


def as_texts(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def test_its_first_job_is_read(blue_green: BlueGreenOnCluster) -> None:
    template = blue_green.template
    blue_green.apply()
    template.wait("it has a job", lambda: bool(blue_green.status.get("active")))
    blue = blue_green.blue = template.renamed(blue_green.status["active"])
    with template.feeder:
        blue.wait_until_running()
    assert blue_green.read() == ["bluegreen.out"]
    blue.judge()


def test_readers_switch_to_a_job_that_writes_elsewhere_while_both_run(blue_green: BlueGreenOnCluster) -> None:
    template, blue = blue_green.template, blue_green.blue
    assert blue is not None
    spec, driver = template.manifest["spec"], driver_uids(blue)
    spec["output"]["kafka"]["topic"], spec["deadLetter"]["kafka"]["topic"] = "bluegreen.out2", "bluegreen.dead2"
    with template.feeder:
        blue_green.apply()
        template.wait("a second job runs beside it", lambda: "candidate" in blue_green.status)
        green = blue_green.green = template.renamed(blue_green.status["candidate"]["name"])
        green.wait_until_running()
    for job in (blue, green):
        job.wait_until_read()  # so that neither has more unread records than the other
    template.wait("the switch is awaited", lambda: blue_green.up_to_date() == "AwaitingSwitch")
    assert blue_green.read() == ["bluegreen.out"]
    drivers = driver_uids(blue, green)
    with template.feeder:
        template.joinery("rollout", "switch", template.name)
        template.wait("readers switch", lambda: blue_green.read() == ["bluegreen.out2"])
        for job in (blue, green):
            job.wait_for_more_epochs(3)
    for job in (blue, green):
        job.judge()
    assert driver_uids(blue, green) == drivers
    assert drivers[:1] == driver
    assert blue_green.status["active"] == green.name
    assert [old["name"] for old in blue_green.status["old"]] == [blue.name]
    assert "active" in template.joinery("rollout", "history", template.name)


def test_while_the_old_job_runs_readers_switch_back(blue_green: BlueGreenOnCluster) -> None:
    template, (blue, green) = blue_green.template, blue_green.jobs()
    driver, rows = driver_uids(blue), topic_rows(template.work.bootstrap, "bluegreen.out2")
    blue_green.apply(keepOld="5s")
    with template.feeder:
        template.joinery("rollout", "undo", template.name)
        template.wait("readers switch back", lambda: blue_green.read() == ["bluegreen.out"])
        template.wait("the other job ends", lambda: not green.resource and not green.children())
        blue.wait_for_more_epochs(3)
    assert green.log.record() is None, "its state is deleted"
    assert [past["name"] for past in blue_green.status["retired"]] == [green.name]
    written = topic_rows(template.work.bootstrap, "bluegreen.out2")
    assert as_texts(rows) <= as_texts(written), "its output stays"
    blue.judge()
    assert driver_uids(blue) == driver


def test_deleted_it_leaves_the_state_of_the_job_that_was_read(blue_green: BlueGreenOnCluster) -> None:
    template, (blue, _) = blue_green.template, blue_green.jobs()
    resource = f"{BLUE_GREEN.plural}/{template.name}"
    template.kubectl("delete", resource, "-n", template.namespace, timeout_seconds=PATIENCE_S)
    template.wait("nothing of it runs", lambda: not blue.resource and not blue.children())
    assert blue.log.record() is not None
