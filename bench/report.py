"""What a comparison of engines prints, and writes as JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any


def print_and_write(results: dict[str, Any], arguments: argparse.Namespace) -> None:
    """`results` by engine, of which `joinery` is one; `arguments.out` is the file, or None."""
    ours = results["joinery"]["rate"]
    for name, result in results.items():
        peak = f", peak {result['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in result else ""
        print(f"{name:13} {result['rate']:>12,.0f} rows/s ({result['rows']:,} rows in {result['seconds']:.1f} s{peak})")
    results["ratios"] = {name: ours / results[name]["rate"] for name in ("raw", "spark") if name in results}
    for name, ratio in results["ratios"].items():
        print(f"joinery is {ratio:.2f} times {name}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"arguments": vars(arguments) | {"out": None}, **results}, indent=2))
