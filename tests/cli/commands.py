"""Runs `joinery` in this process and says what it printed and how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from joinery_runtime.cli import main

Joinery = Callable[..., "Ended"]


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def runner(capsys: pytest.CaptureFixture[str]) -> Joinery:
    def joinery(*arguments: object) -> Ended:
        code: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        assert isinstance(code, int)
        return Ended(code, out, err)

    return joinery
