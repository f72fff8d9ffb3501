"""Result of a leftover scan with every kind of entry."""

from __future__ import annotations

from dataclasses import replace

from skyward_core.client.leftover_cleanup import JudgedLeftover, LeftoverScan
from skyward_core.model.leftovers import Leftover
from tests.support.fake_session import NOW

HOUR = 3600.0
MACHINE = Leftover(
    "instance", "i-0a1b2c3d4e5f60718", "us-east-1", "sweep-7", "t7", "mine", True, "me@laptop",
    is_machine=True, since=NOW - 26 * HOUR, expires=NOW - 2 * HOUR, hourly=32.77,
)  # fmt: skip


def leftovers() -> LeftoverScan:
    """Return leftovers of a running pool, of a pool that should have ended, of an unknown pool, and of another
    ledger.
    """
    up = replace(MACHINE, id="i-0f0f0f0f0f0f0f0f0", pool="llama-ft", token="0", expires=NOW + HOUR, hourly=0.0)
    lost = replace(MACHINE, id="i-0aaaaaaaaaaaaaaaa", pool="lost", token="tl", place="eu-west-1", hourly=1.5)
    group = replace(lost, what="security group", id="sg-0aaaaaaaaaaaaaaaa", is_machine=False, since=None, hourly=None)
    return LeftoverScan(
        (),
        [
            JudgedLeftover(up, "up", 0, "llama-ft.0"),
            JudgedLeftover(MACHINE, "expired", 0, "sweep-7.t7"),
            JudgedLeftover(lost, "left", 0),
            JudgedLeftover(group, "left", 0),
        ],
        {("0123456789abcdef", "me@old-laptop"): (2, 1)},
        {"ap-south-1": "no answer within 60 s"},
    )
