import ast
from importlib.metadata import version
from pathlib import Path

import pytest

import joinery_operator
from joinery_operator.main import main


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == f"joinery-operator {version('joinery-operator')}"


def test_says_that_it_arrives_later(capsys):
    assert main([]) == 3
    assert "arrives with a later release. Run a resource with `joinery run JOB.yaml`" in capsys.readouterr().err


def test_imports_only_the_resource_models_of_the_runtime():
    folder = Path(joinery_operator.__file__).parent
    nodes = [node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in imported if name.startswith("joinery_runtime")} == {"joinery_runtime.job"}
