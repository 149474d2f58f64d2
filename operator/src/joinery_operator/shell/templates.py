"""ConfigMaps that hold pod templates: users' own, read when a job names them, and kept for a short while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache

from ruamel.yaml.error import YAMLError

from joinery_operator.children.config import JOB_FILE
from joinery_operator.children.yaml import from_yaml
from joinery_operator.observed import Children, Manifest
from joinery_operator.shell.api import Api, NotFound
from joinery_operator.shell.kinds import CONFIG_MAP

_KEPT_SECONDS = 15.0
_KEPT = 500


def template_names(job: Manifest, children: Children) -> frozenset[str]:
    """The ConfigMaps that the `podTemplate` fields name: those of the resource, and those of its revisions."""
    revisions = ((each.get("data") or {}).get(JOB_FILE, "") for each in children.config_maps.values())
    return _named(job).union(*(_names_in(text) for text in revisions))


def _named(job: object) -> frozenset[str]:
    found = (_inside(job, "spec", "spark", part, "podTemplate", "name") for part in ("driver", "executor"))
    return frozenset(name for name in found if isinstance(name, str))


@lru_cache(maxsize=_KEPT)
def _names_in(text: str) -> frozenset[str]:
    # Parsing takes a while, and few jobs have templates.
    if "podTemplate" not in text:
        return frozenset()
    try:
        return _named(from_yaml(text))
    except YAMLError:
        return frozenset()


def _inside(document: object, *path: str) -> object:
    for step in path:
        document = document.get(step) if isinstance(document, Mapping) else None
    return document


class Templates:
    """`clock` counts seconds."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], tuple[float, Manifest | None]] = OrderedDict()

    async def of(self, job: Manifest, children: Children) -> Mapping[str, Manifest | None]:
        """By name; None where there is none of that name."""
        namespace = job["metadata"]["namespace"]
        return {name: await self._get(namespace, name) for name in sorted(template_names(job, children))}

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
