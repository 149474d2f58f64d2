"""Driver pods of an earlier resource of the same name, which was deleted and made again before they had ended."""

from __future__ import annotations

from collections.abc import Mapping

from joinery_operator.names import JOB_LABEL, KIND_LABEL, ROLE_LABEL, labels
from joinery_operator.observed import Manifest
from joinery_operator.shell.kinds import POD
from joinery_operator.shell.store import Store, owner_uid, uid_of


def left_over(job: Manifest, store: Store) -> Mapping[str, Manifest]:
    """By name. Looked for before the first attempt only: a look at every pod is too much for every look at a job."""
    if (job.get("status") or {}).get("driver") is not None:
        return {}
    theirs = labels(job, "driver")
    wanted = {name: theirs[name] for name in (JOB_LABEL, KIND_LABEL, ROLE_LABEL)}
    namespace = job["metadata"]["namespace"]
    pods = {key.name: store.get(key) for key in store.keys(POD.kind) if key.namespace == namespace}
    return {
        name: pod
        for name, pod in pods.items()
        if pod is not None
        and wanted.items() <= (pod["metadata"].get("labels") or {}).items()
        # Without an owner nobody will delete it, and nobody says that it is a driver of this job.
        and owner_uid(pod) not in {None, uid_of(job)}
    }
