from importlib.metadata import version

import pytest

from joinery_operator.main import main


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == f"joinery-operator {version('joinery-operator')}"


def test_says_that_it_arrives_later(capsys):
    assert main([]) == 3
    assert "arrives with a later release. Run a resource with `joinery run JOB.yaml`" in capsys.readouterr().err
