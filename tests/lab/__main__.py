"""Command ``python -m tests.lab up [N] | down | list``: a lab for experiments."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from .lab import Lab
from .registry import claims
from .tools import LabError, wait_until

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def up(count: int) -> None:
    """Run a lab until ctrl-c or ``down``."""
    with Lab(count, by_hand=True) as lab:
        host = lab.hosts[0]
        print(f"{count} hosts are up: {lab.hosts[0].name} to {lab.hosts[-1].name}")
        print(f"  {host.address} to {lab.hosts[-1].address}, user {lab.user}, client {lab.client.address}")
        print(f"  key          {lab.key}")
        print(f"  known hosts  {lab.known_hosts}")
        print(f"  ssh config   {lab.ssh_config}")
        print(f"log in:        ssh -F {lab.ssh_config} {host.name}")
        print("end it:        ctrl-c here, or: python -m tests.lab down", flush=True)
        signal.pause()


def down() -> None:
    """End the labs that ``up`` started, and leftovers of killed owners."""
    mine = [lab for lab in claims() if lab.by_hand]
    for lab in mine:
        os.kill(lab.owner.pid, signal.SIGTERM)
    for lab in mine:
        wait_until(lambda: not lab.owner.is_alive, f"the end of lab {lab.number}", seconds=30)  # noqa: B023
    print(f"{len(mine)} labs ended")


def show() -> None:
    for lab in claims():
        hosts = len(list(lab.folder.glob("h[0-9]*")))
        made = "by hand" if lab.by_hand else "by tests"
        print(f"lab {lab.number}: {hosts} hosts, made {made}, owner {lab.owner.pid}")


def _end(*_: object) -> None:
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)  # an end that has begun is not interrupted
    raise SystemExit(0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description="Hosts to try things on.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb_up = verbs.add_parser("up", help="bring up hosts and hold them")
    verb_up.add_argument("count", nargs="?", type=int, default=4, help="how many (default 4)")
    verbs.add_parser("down", help="end the labs that `up` made")
    verbs.add_parser("list", help="the labs of this machine")
    given = parser.parse_args()
    for number in _ENDS:
        signal.signal(number, _end)
    try:
        if given.verb == "up":
            up(given.count)
        elif given.verb == "down":
            down()
        else:
            show()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
