"""The API server's schema of sessions beside what the models do; `test_crd_on_api_server` asks a real one."""

from __future__ import annotations

from typing import Any

import pytest

from job.crd.test_crd_objects import SCHEMAS, stored, without_nothing, wrong
from job.kinds.test_session_rules import GOOD, GOOD_SQL
from job.sessions import CLICKS, aggregate_call, document, in_sql, parsed
from joinery_runtime.job import SessionWindow

SPEC = SCHEMAS["SessionWindow"]["properties"]["spec"]
GOOD_OBJECTS = [*(document(*aggregates, **more) for aggregates, more in GOOD), *map(in_sql, GOOD_SQL)]

REFUSED: list[tuple[dict[str, Any], str]] = [
    (document(gap=0), ".gap"),
    (document(gap="30 s"), ".gap"),
    (document(maxDuration=None), ".maxDuration"),
    (document(maxDuration=0), ".maxDuration"),
    (document(lateData="keep"), ".lateData"),
    (document(allowedLateness="-1s"), ".allowedLateness"),
    (document(emitRetractions="true"), ".emitRetractions"),
    (document(width="5m"), ".width"),
    (document(inputs=[CLICKS]), ".inputs"),
    (document(input=None), ".input"),
    (document(groupBy="user_id"), ".groupBy"),
    (document(groupBy=[5]), ".groupBy[0]"),
    (document(aggregate_call("total", "price")), ".aggregates[0].function"),
    (document({"function": "count"}), ".aggregates[0].as"),
    (document(aggregate_call("count"), aggregate_call("count")), ".aggregates"),
    (document(aggregate_call("count_distinct", "page", method="sketch")), ".aggregates[0].method"),
    (document(aggregate_call("count_distinct", "page", limit=0)), ".aggregates[0].limit"),
    (document(compute=[{"as": "x"}]), ".compute[0].expression"),
    (document(compute=[{"as": "x", "expression": "1"}, {"as": "x", "expression": "2"}]), ".compute"),
    (document(limits={"maxRecords": 0}), ".limits.maxRecords"),
]


@pytest.mark.parametrize("written", GOOD_OBJECTS, ids=lambda written: str(written["spec"])[-60:])
def test_what_the_models_accept_is_stored_and_means_the_same(written: dict[str, Any]) -> None:
    stored_spec = stored(written["spec"], SPEC)
    assert list(wrong(stored_spec, SPEC)) == []
    assert parsed({**written, "spec": stored_spec}) == parsed(written)


@pytest.mark.parametrize(("written", "path"), REFUSED, ids=lambda value: str(value)[-60:])
def test_what_the_schema_refuses_the_models_refuse_too(written: dict[str, Any], path: str) -> None:
    assert path in set(wrong(stored(written["spec"], SPEC), SPEC))
    with pytest.raises(ValueError, match="validation error"):
        SessionWindow.model_validate(written, by_alias=True, by_name=False)


def test_the_stored_object_holds_every_constant_default() -> None:
    written = document(stateStore={"postgres": {"dsn": "x"}})
    every = parsed(written).model_dump(mode="json", by_alias=True)["spec"]
    stored_job = parsed({**written, "spec": stored(written["spec"], SPEC)})
    set_fields = stored_job.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
    assert without_nothing(set_fields) == without_nothing(every)
