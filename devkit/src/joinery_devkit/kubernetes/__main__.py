"""`python -m joinery_devkit.kubernetes build|up|status|load|down`: this machine's Kubernetes node, for people."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from joinery_devkit import gitops
from joinery_devkit.kubernetes import binaries, packages
from joinery_devkit.kubernetes.node import Node, only_one
from joinery_runtime.errors import JoineryError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m joinery_devkit.kubernetes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build the programs ahead (minutes, once)")
    build.add_argument("tier", choices=("api", "node"), nargs="?", default="node")
    commands.add_parser("up", help="bring the node up; it stays until `down`, and tests use it")
    load = commands.add_parser("load", help="make the image of an OCI archive known to the node")
    load.add_argument("archive", type=Path)
    commands.add_parser("down", help="end it and remove all of its files, images too")
    commands.add_parser("status", help="say whether it is up; ends with 1 when it is not")
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except JoineryError as problem:
        print(f"joinery: {problem}", file=sys.stderr)
        return problem.exit_code


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "build":
        if arguments.tier == "node":
            packages.install(packages.ALL)  # includes those of images and tests, to install all at once
        binaries.build(binaries.API_TIER if arguments.tier == "api" else binaries.WHOLE_NODE)
        gitops.build()
        return 0
    node = Node()
    if arguments.command == "down":
        with only_one():
            node.down()
        return 0
    if arguments.command == "up" and not node.detached:
        begun = time.monotonic()
        with only_one():
            node.up(detached=True)
        print(f"up in {time.monotonic() - begun:.1f} s")
    if not node.detached:
        print("no node is up")
        return 1
    if arguments.command == "load":
        node.load_image(arguments.archive)
    else:
        print(f"export KUBECONFIG={node.kubeconfig}")
        print(f"logs: {node.directory / 'log'}")
        print(node.kubectl("get", "pods", "--all-namespaces", "--output=wide"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
