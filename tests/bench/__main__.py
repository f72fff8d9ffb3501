"""Command ``python -m tests.bench [NAME] [--json]``."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module

from .fresh import BenchError
from .metric import table

NAMES = (
    "local", "logs", "startup", "idle", "machines", "screens", "stacks", "ssh", "outputs", "torchrun", "environments",
    "aws", "jobs", "scale", "restart",
)  # fmt: skip


def main() -> int:
    """Run benchmarks and return the exit status: 0 if every bound is met, 1 if one is not, 2 for wrong usage, 3 if a
    side failed.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure speed and memory.")
    parser.add_argument("name", nargs="?", choices=NAMES, help="what to measure; without it, list them")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args()
    if given.name is None:
        for name in NAMES:
            print(f"{name:12} {(import_module(f'tests.bench.{name}').__doc__ or '').splitlines()[0]}")
        return 0
    try:
        metrics = import_module(f"tests.bench.{given.name}").measure()
    except BenchError as error:
        print(f"bench {given.name}: {error}", file=sys.stderr)
        return 3
    if given.json:
        print(json.dumps({"name": given.name, "metrics": {m.name: m.to_json() for m in metrics}}))
    else:
        print(table(metrics))
    return 0 if all(m.ok for m in metrics) else 1


if __name__ == "__main__":
    sys.exit(main())
