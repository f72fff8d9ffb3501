"""A script that forks while its pool is up: the child is another process, and the pool is the parent's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
import skyward_core as sky

@sky.function
def same(n):
    return n

@sky.function
def count(n):
    yield from range(n)

def in_child(work):
    sys.stdout.flush()
    if child := os.fork():
        print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print("parent goes on:", same(3) @ compute, flush=True)
    else:
        work()

def use():
    try:
        same(1) @ compute
    except sky.PoolError as error:
        print(error)
    sys.exit(4)

def use_another():
    with sky.attach("forking") as attached:
        print("attached:", same(5) @ attached)
    with sky.Compute(provider=provider) as own:
        print("own:", same(6) >> own)
    sys.exit(6)

def fail():
    raise ValueError("in the child")

provider = sky.Local()
with sky.Compute(provider=provider, nodes=2, name="forking") as compute:
    print(same(0) @ compute)
    values = count(9) >> compute
    assert next(values) == 0
    in_child(use)
    in_child(use_another)
    in_child(fail)
    print("values:", sum(values))
print("receipt:", compute.receipt.ok)
"""


def test_a_forked_child_ends_by_itself_and_leaves_the_pool_to_its_parent(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "forks.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=100, check=False)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("pool forking belongs")]
    assert lines == [
        "[0, 0]",
        "child ended with 4",
        "parent goes on: [3, 3]",
        "attached: [5, 5]",
        "own: 6",
        "child ended with 6",
        "parent goes on: [3, 3]",
        "child ended with 1",
        "parent goes on: [3, 3]",
        "values: 36",
        "receipt: True",
    ], done.stdout + done.stderr
    assert "cannot be used here; sky.attach('forking')" in done.stdout
    assert done.stderr.count("Traceback") == done.stderr.count("ValueError: in the child") == 1, done.stderr
