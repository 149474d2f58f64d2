"""The runtime's command line takes what the operator's pods call."""

import pytest

from joinery_runtime.cli.app import app


def commands(job):
    containers = list(job.driver(migrate="rollout-abc", abandon_state=True)["spec"]["initContainers"])
    pods = (job.driver(), job.restore(), job.check(), job.delete_state())
    containers += [pod["spec"]["containers"][0] for pod in pods]
    return [container["args"] for container in containers]


def test_each_command_is_known_with_its_arguments(job, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(job.config_map()["data"]["job.yaml"])
    command_names = set()
    for program, *arguments in commands(job):
        assert program == "joinery"
        here = [str(file) if argument == "/etc/joinery/job.yaml" else argument for argument in arguments]
        command, bound, ignored = app.parse_args(here, exit_on_error=False, print_error=False)
        assert str(file) in map(str, bound.args + tuple(bound.kwargs.values()))
        assert not ignored
        command_names.add(command.__name__)
    assert len(command_names) == 5


def test_a_command_that_is_not_known_would_be_noticed(job):
    with pytest.raises(Exception, match="nothing-of-the-kind"):
        app.parse_args(["state", "nothing-of-the-kind"], exit_on_error=False, print_error=False)
