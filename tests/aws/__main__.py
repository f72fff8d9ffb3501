"""Command ``python -m tests.aws up [--boot 2] [--simulated]``: a simulated EC2 for experiments, until ctrl-c."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys

from tests.lab import missing

from .bed import Bed

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def up(boot: float, simulated: bool) -> None:
    """Run a simulated EC2 until ctrl-c."""
    with Bed(simulated=simulated, boot=boot) as bed:
        print("# simulated EC2 is running; instances are", "in the API only" if simulated else "hosts of the lab")
        for name, value in bed.environment().items():
            print(f"export {name}={shlex.quote(value)}")
        print("# press ctrl-c to stop it", flush=True)
        signal.pause()


def _end(*_: object) -> None:
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the exit
    raise SystemExit(0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.aws", description="Run a simulated EC2 for experiments.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb_up = verbs.add_parser("up", help="start a simulated EC2 and keep it running")
    verb_up.add_argument("--boot", type=float, default=2.0, help="seconds until an instance runs (default 2)")
    verb_up.add_argument("--simulated", action="store_true", help="instances without hosts; needs no root")
    given = parser.parse_args()
    why = None if given.simulated else missing()
    if why:
        print(f"aws: {why}. Add --simulated", file=sys.stderr)
        return 1
    for number in _ENDS:
        signal.signal(number, _end)
    up(given.boot, given.simulated)
    return 0


if __name__ == "__main__":
    sys.exit(main())
