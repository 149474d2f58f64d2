"""The entry point `joinery-operator`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from joinery_runtime.job import StreamJoin


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the version with `--version`, else says that this release has no controller. Returns the exit code."""
    parser = argparse.ArgumentParser("joinery-operator", description="Kubernetes operator for Joinery")
    parser.add_argument("--version", action="version", version=f"joinery-operator {version('joinery-operator')}")
    parser.parse_args(arguments)
    kind = StreamJoin.model_fields["kind"].default
    sys.stderr.write(
        f"joinery-operator cannot watch {kind} resources yet: the operator arrives with a later release. "
        "Run a resource with `joinery run JOB.yaml` until then.\n"
    )
    return 3
