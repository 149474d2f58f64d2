"""What a real API server does to an operator beside the usual: it refuses pods, and its watches are late."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from joinery_operator.decision import Action, Decision, Delete
from simulated_cluster.resources import copied
from simulated_cluster.simulation import Killed, Manifest, SimulatedCluster, stamp

TEMPLATE = {"data": {"pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: {}\n"}}
BY_KUBERNETES = "foregroundDeletion"


@dataclass
class TroubledCluster(SimulatedCluster):
    """`refuses`: no pod can be made (a quota, an admission). `seen` are the pods as the watches last told them: what
    the operator has written itself it knows at once."""

    refuses: bool = False
    seen: dict[str, Manifest] = field(default_factory=dict)
    late: bool = False

    def observed(self) -> Any:
        if not self.late:
            return super().observed()
        actual, self.pods = self.pods, {**self.pods, **self.seen}
        try:
            return super().observed()
        finally:
            self.pods = actual

    def step(self, killed_after: int | None = None, *, late: bool = False) -> Decision:
        """`late`: no watch has told anything of pods since the last look that was not late."""
        self.late = late
        try:
            return super().step(killed_after)
        finally:
            self.late = False
            if not late:
                self.seen = copied(self.pods)

    def _does_the_rest_soon(self, decision: Decision) -> None:
        if not self.late:
            super()._does_the_rest_soon(decision)

    def _act(self, action: Action) -> None:
        super()._act(action)
        if isinstance(action, Delete) and action.kind == "Pod":
            self.seen.pop(action.name, None)

    def _create(self, manifest: Manifest) -> None:
        if self.refuses and manifest["kind"] == "Pod" and manifest["metadata"]["name"] not in self.pods:
            self.create_refused = "403 Forbidden: exceeded quota: compute"
            raise Killed
        super()._create(manifest)
        self.create_refused = ""

    def delete_in_the_foreground(self) -> None:
        """Kubernetes deletes the children, and then takes its finalizer away."""
        assert self.resource is not None
        metadata = self.resource["metadata"]
        if "deletionTimestamp" not in metadata:
            metadata["finalizers"] = [*metadata.get("finalizers", ()), BY_KUBERNETES]
            metadata["deletionTimestamp"] = stamp(self.now)

    def collects(self) -> bool:
        """The garbage collector's part of a deletion in the foreground; says whether it did anything."""
        if not self.is_deleted_in_the_foreground():
            return False
        assert self.resource is not None
        dependents = [self._of(kind) for kind in ("Service", "ConfigMap", "NetworkPolicy")]
        before = copied([self.resource, self.pods, *dependents])
        for objects in dependents:
            objects.clear()
        for name in list(self.pods):
            self.delete_child("Pod", name)
        if not self.pods:
            self.resource["metadata"]["finalizers"].remove(BY_KUBERNETES)
            self._collect()
        return before != [self.resource, self.pods, *dependents]

    def is_deleted_in_the_foreground(self) -> bool:
        return self.resource is not None and BY_KUBERNETES in self.resource["metadata"].get("finalizers", ())

    def dead_nodes_are_removed(self) -> None:
        """A person or a cloud removes their Node objects, and Kubernetes their pods."""
        for name in list(self.dead):
            self.gone(name)


def older_job_of_another_kind(resource: Manifest) -> Manifest:
    """It keeps its state where this one does."""
    kind = {"StreamJoin": "SessionWindow", "SessionWindow": "StreamJoin"}[resource["kind"]]
    metadata = {**resource["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "uid-other"}
    return {**resource, "kind": kind, "metadata": metadata}
