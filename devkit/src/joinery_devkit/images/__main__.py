"""`python -m joinery_devkit.images`: builds the product's images ahead, into the user's cache (minutes, once)."""

from __future__ import annotations

import sys

from joinery_devkit.images.build import build_ahead
from joinery_runtime.errors import JoineryError

if __name__ == "__main__":
    try:
        build_ahead()
    except JoineryError as problem:
        print(f"joinery: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
