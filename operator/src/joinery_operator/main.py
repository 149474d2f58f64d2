"""The entry point `joinery-operator`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from joinery_operator.settings import read_settings
from joinery_runtime.errors import JoineryError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until SIGTERM or SIGINT. Returns the exit code."""
    parser = argparse.ArgumentParser("joinery-operator", description="Kubernetes operator for Joinery")
    parser.add_argument("--version", action="version", version=f"joinery-operator {version('joinery-operator')}")
    parser.add_argument("--kubeconfig", type=Path, help="default: $KUBECONFIG, else the pod's service account")
    options = parser.parse_args(arguments)
    # Slow to import, and not needed for --version and --help.
    from joinery_operator.kube.process import log_json, serve  # noqa: PLC0415
    from joinery_operator.reconcile import reconcile  # noqa: PLC0415

    try:
        settings = read_settings()
        log_json()
        with suppress(asyncio.CancelledError):
            asyncio.run(serve(settings, reconcile, options.kubeconfig))
    except JoineryError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0
