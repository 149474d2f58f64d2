"""The `joinery` command."""

from joinery_runtime.cli.app import main

__all__ = ["main"]
