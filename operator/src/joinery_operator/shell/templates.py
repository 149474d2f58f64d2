"""ConfigMaps that hold pod templates: users' own, read when a job names them, and kept for a short while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from joinery_operator.observed import Manifest
from joinery_operator.shell.api import Api, NotFound
from joinery_operator.shell.kinds import CONFIG_MAP

_KEPT_SECONDS = 15.0
_KEPT = 500


def template_names(job: Manifest) -> frozenset[str]:
    """The ConfigMaps that the job's `podTemplate` fields name."""
    spark = job["spec"].get("spark") or {}
    found = ((spark.get(part) or {}).get("podTemplate") or {} for part in ("driver", "executor"))
    return frozenset(reference["name"] for reference in found if "name" in reference)


class Templates:
    """`clock` counts seconds."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], tuple[float, Manifest | None]] = OrderedDict()

    async def of(self, job: Manifest) -> Mapping[str, Manifest | None]:
        """By name; None where there is none of that name."""
        namespace = job["metadata"]["namespace"]
        return {name: await self._get(namespace, name) for name in sorted(template_names(job))}

    async def _get(self, namespace: str, name: str) -> Manifest | None:
        read, found = self._kept.get((namespace, name), (float("-inf"), None))
        if self._clock() - read < _KEPT_SECONDS:
            return found
        try:
            found = await self._api.get(CONFIG_MAP, namespace, name)
        except NotFound:
            found = None
        self._kept[namespace, name] = (self._clock(), found)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return found
