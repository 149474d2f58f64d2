"""Each kind of step has a description, so that no command fails on a kind."""

from __future__ import annotations

from joinery_runtime.core.compile.aggregates import aggregate_kinds
from joinery_runtime.core.compile.joins import join_kinds, ranking_kinds
from joinery_runtime.core.kinds.projection import RecordProjection
from joinery_runtime.inspect.kinds import base


def test_each_kind_is_described() -> None:
    assert set(base._find_descriptions()) == {*join_kinds(), *aggregate_kinds(), *ranking_kinds(), RecordProjection}
