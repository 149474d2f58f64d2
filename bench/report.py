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
        steady = f", {result['steady_rate']:,.0f} after two epochs" if result.get("steady_rate") else ""
        rows = f"{result['rows']:,} rows in {result['seconds']:.1f} s"
        print(f"{name:13} {result['rate']:>12,.0f} rows/s ({rows}{steady}{peak})")
    results["ratios"] = {name: ours / results[name]["rate"] for name in ("raw", "spark") if name in results}
    if results.get("spark", {}).get("steady_rate"):
        results["ratios"]["spark, both after two epochs"] = (
            results["joinery"]["steady_rate"] / results["spark"]["steady_rate"]
        )
    for name, ratio in results["ratios"].items():
        print(f"joinery is {ratio:.2f} times {name}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"arguments": vars(arguments) | {"out": None}, **results}, indent=2))
