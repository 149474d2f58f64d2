import subprocess
import sys
from importlib.metadata import version

import pytest

from joinery_operator.main import main


@pytest.fixture(autouse=True)
def _outside_a_cluster(monkeypatch):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == f"joinery-operator {version('joinery-operator')}"


def run(*arguments):
    """In a process of its own: it sets up the process's log."""
    command = [
        sys.executable,
        "-c",
        f"import sys; from joinery_operator.main import main; sys.exit(main({arguments!r}))",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_without_a_cluster_it_says_what_to_do():
    done = run()
    assert done.returncode == 3
    assert "cannot log in to Kubernetes: not in a pod, and no kubeconfig is given" in done.stderr
    assert "name a kubeconfig with --kubeconfig" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path):
    done = run("--kubeconfig", str(tmp_path / "absent"))
    assert done.returncode == 3
    assert f"kubeconfig {tmp_path / 'absent'}: " in done.stderr


def test_a_wrong_setting_is_named(monkeypatch):
    monkeypatch.setenv("JOINERY_OPERATOR_POLL_SECONDS", "often")
    done = run()
    assert done.returncode == 3
    assert "JOINERY_OPERATOR_POLL_SECONDS is 'often'" in done.stderr
