"""The operator in a process of its own: `python -m operator_world.operator_process KUBECONFIG`.

`WORLD_RECONCILE=stand_in` puts the small reconcile in place of the real one. `WORLD_KILL_AT=N` ends the process without
any clean-up as soon as the API server has carried out its Nth call that changes something. `WORLD_BLIND=1` loses all
that the watches tell, as a connection does that is dead and does not know it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from joinery_operator.kube import process
from joinery_operator.kube.api import Answer, Api
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.process import log_json
from joinery_operator.kube.reconciler import Reconcile
from joinery_operator.kube.resources import ApiResource
from joinery_operator.observed import Manifest
from joinery_operator.settings import settings_from
from joinery_runtime.errors import JoineryError

KILLED = 137


class KilledApi(Api):
    """Counts the calls that change something; reviews of rights do not."""

    calls = 0

    async def _send(self, method: str, address: str, headers: dict[str, str], body: Manifest | None) -> Answer:
        answer = await super()._send(method, address, headers, body)
        if method != "GET" and "selfsubjectaccessreviews" not in address:
            KilledApi.calls += 1
            if str(KilledApi.calls) == os.environ.get("WORLD_KILL_AT"):
                os._exit(KILLED)
        return answer


class BlindController(Controller):
    async def on_watch_event(self, resource: ApiResource, manifest: Manifest, deleted: bool) -> None:
        pass


def chosen_reconcile() -> Reconcile:
    if os.environ.get("WORLD_RECONCILE") == "stand_in":
        from operator_world.stand_in import reconcile as stand_in  # noqa: PLC0415

        return stand_in
    from joinery_operator.reconcile import reconcile  # noqa: PLC0415

    return reconcile


if __name__ == "__main__":
    log_json()
    if os.environ.get("WORLD_BLIND"):
        process.Controller = BlindController  # type: ignore[misc]
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(process.serve(settings_from(), chosen_reconcile(), Path(sys.argv[1]), KilledApi))
    except JoineryError as error:
        sys.exit(str(error))
