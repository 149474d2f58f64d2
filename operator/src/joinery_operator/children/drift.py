"""What others changed of a child and can be repaired: labels, owner, and a Service's spec. Of a pod nearly all else is
immutable, of an immutable ConfigMap all."""

from __future__ import annotations

from typing import Any

from joinery_operator.decision import Patch
from joinery_operator.observed import Manifest


def drifted(expected: Manifest, found: Manifest) -> Patch | None:
    """The merge patch that makes `found` what `expected` says, None where it is. What others added is left alone."""
    metadata: dict[str, Any] = {}
    if changed := _missing(expected["metadata"]["labels"], found["metadata"].get("labels") or {}):
        metadata["labels"] = changed
    owner = expected["metadata"]["ownerReferences"][0]
    owners = found["metadata"].get("ownerReferences") or []
    if owner not in owners:
        metadata["ownerReferences"] = [owner, *(each for each in owners if not _replaced(each, owner))]
    body: dict[str, Any] = {"metadata": metadata} if metadata else {}
    if expected["kind"] == "Service" and (spec := _service(expected["spec"], found.get("spec") or {})):
        body["spec"] = spec
    return Patch(expected["kind"], expected["metadata"]["name"], body) if body else None


def _missing(wanted: Manifest, there: Manifest) -> dict[str, Any]:
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def _replaced(each: Manifest, owner: Manifest) -> bool:
    """Only one owner may be the controller."""
    return each.get("uid") == owner["uid"] or bool(each.get("controller"))


def _service(wanted: Manifest, there: Manifest) -> dict[str, Any]:
    changed = _missing({key: value for key, value in wanted.items() if key != "selector"}, there)
    selector = there.get("selector") or {}
    if wanted["selector"] != selector:
        # A merge patch removes what is null.
        changed["selector"] = {**dict.fromkeys(selector), **wanted["selector"]}
    return changed
