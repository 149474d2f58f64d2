"""docs/operations.md and docs/gitops.md beside what they describe."""

from __future__ import annotations

import re
import shlex
from typing import get_args, get_type_hints

import pytest
import yaml

from charts.rendering import CHART, ROOT
from joinery_operator.plugin.app import app
from joinery_operator.reconcile import reasons
from joinery_operator.reconcile.desired import DesiredJob
from joinery_runtime.job.crd import Refusal

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
GITOPS = (ROOT / "docs" / "gitops.md").read_text()
REASONS = {
    *get_args(Refusal.model_fields["reason"].annotation),
    *(reasons.IMAGE_PULL, reasons.UNSCHEDULABLE, reasons.NOT_CREATED, reasons.NOT_READY, reasons.CREATE_REFUSED),
    *(reasons.REVISION_LOST, reasons.INCOMPLETE),
    *({*get_args(get_type_hints(DesiredJob)["reason"])} - {"Valid"}),
}


def test_every_reason_has_its_line() -> None:
    documented = {
        word for line in OPERATIONS.splitlines() if line.startswith("| `") for word in re.findall(r"`(\w+)`", line)
    }
    assert len(REASONS) >= 10
    assert documented >= REASONS


def test_every_command_of_the_plugin_is_told_and_no_other() -> None:
    commands = {name for name in app if not name.startswith("-")}
    table = OPERATIONS.partition("## kubectl joinery")[2].partition("## ")[0]
    documented = {
        word for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for word in re.findall(r"`(\w+)", cell)
    }
    assert documented == commands
    for command in re.findall(r"kubectl joinery (\w+)", OPERATIONS + GITOPS):
        assert command in commands | {"state"}, command


def test_values_that_are_named_exist() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    named = re.findall(r"--set '?([\w.]+)=", OPERATIONS)
    named += [
        setting
        for setting in re.findall(r"`([a-z]\w*(?:\.\w+)+)(?:=\w+)?`", OPERATIONS)
        if setting.split(".")[0] in defaults
    ]
    assert len(named) > 6
    for path in named:
        value = defaults
        for step in path.split("."):
            assert step in value, path
            value = value[step]


def test_files_that_are_named_exist() -> None:
    pages = OPERATIONS + GITOPS + "".join(page.read_text() for page in (ROOT / "docs/how-to").glob("*.md"))
    named = set(re.findall(r"(?<![\w/.-])((?:deploy|charts|examples|integrations|images|crds)/[\w./-]*)", pages))
    assert len(named) > 8
    assert [path for path in named if not (ROOT / path.rstrip(".")).exists()] == []


@pytest.mark.parametrize("text", [OPERATIONS, GITOPS], ids=["operations", "gitops"])
def test_blocks_can_be_read(text: str) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        assert isinstance(yaml.safe_load(block), dict)
    joined = re.sub(r"\\\n\s*", "", text)
    commands = re.findall(r"^(?: {2})?((?:kubectl|helm|docker) .*)$", joined, re.MULTILINE)
    assert commands
    for command in commands:
        shlex.split(command, comments=True)
