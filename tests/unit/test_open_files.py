"""Pools of many nodes, and how many files their client may have open: in processes with limits of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import resource, sys
from skyward_core.pool.pool import raise_file_limit as make_room
soft, hard, nodes, least = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
make_room(nodes, 1, least)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def after(soft: int, hard: int, nodes: int, least: int) -> str:
    words = map(str, (soft, hard, nodes, least))
    done = subprocess.run([sys.executable, "-c", CHILD, *words], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("soft", "hard", "nodes", "least", "is_after"),
    [
        (1024, 4096, 4, 4, 1024),  # enough
        (256, 4096, 100, 100, range(600, 800)),
        (256, 300, 100, 100, 300),  # as far as it goes
        (60, 70, 100, 30, 70),  # for as many as can be had
    ],
)
def test_the_soft_limit_is_raised_as_far_as_a_pool_asks(
    soft: int, hard: int, nodes: int, least: int, is_after: int | range
) -> None:
    now, then = map(int, after(soft, hard, nodes, least).strip("()").split(","))
    assert then == hard and (now == is_after if isinstance(is_after, int) else now in is_after)


def test_a_hard_limit_that_is_too_low_is_told_before_anything_is_made() -> None:
    said = after(64, 64, 100, 100)
    assert "100 nodes need at least" in said and "this process may have 64" in said and "ulimit -Hn" in said


SCRIPT = """
import resource, sys
import skyward_core as sky
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 64))
try:
    sky.Compute(provider=sky.Local(), nodes=100, options=sky.Options(console=False)).__enter__()
except sky.UsageError as error:
    print("refused", error)
from skyward_core.store.ledger import Ledger
print(Ledger().live_pools())
"""


def test_a_pool_of_a_hundred_nodes_looks_first(tmp_path: Path) -> None:
    environ = os.environ | {"SKYWARD_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout.startswith("refused 100 nodes need at least") and done.stdout.endswith("[]\n"), done.stderr
