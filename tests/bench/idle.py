"""Benchmark of the idle app: CPU share on each screen, compared with an empty Textual app."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .fresh import BenchError
from .metric import Bar, Metric

RANKS = 4
SECONDS = 10.0  # of looking at each screen
SETTLES = 3.0  # before that: what a key has set off is no idleness
BARE = "from textual.app import App\nfrom textual.widgets import Static\n"
BARE += "class Bare(App):\n    def compose(self):\n        yield Static('bare')\nBare().run()"
SCRIPT = """
import skyward_core as sky

@sky.function
def train():
    for step in range(200):
        print(f"step={step} loss={1 / (step + 1):.4f}")
        sky.log(step=step, loss=1 / (step + 1))
    return 1 / 200
"""
# Where each key leads, and what is to be seen there; from the pools' list on.
SCREENS = {
    "pools": ("", "finished"),
    "run": ("enter", "train"),
    "metrics": ("5", "5 metrics"),
    "stacks": ("s", "read at"),
    "launch": ("escape,escape,n", "as a command"),
}


def measure() -> list[Metric]:
    import skyward_core as sky

    shares: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        home, script = Path(folder, "home"), Path(folder, "train.py")
        script.write_text(SCRIPT)
        os.environ["SKYWARD_HOME"] = str(home)
        os.chdir(folder)
        sys.path.insert(0, folder)
        import train  # type: ignore[import-not-found]

        options = sky.Options(console=False)
        with sky.Compute(name="finished", provider=sky.Local(), nodes=RANKS, options=options) as compute:
            if len(train.train() @ compute) != RANKS:
                raise BenchError("the run has not come to its results")
            theirs = _share_of(["-c", BARE], home, [("", "bare")])["bare"]
            steps = [(key, seen) for key, seen in SCREENS.values()]
            found = _share_of(["-m", "skyward_tui"], home, steps)
            shares = dict(zip(SCREENS, found.values(), strict=True))
    return [Metric(f"{name}_percent", share, theirs, Bar(at_most=1)) for name, share in shares.items()]


def _share_of(program: Sequence[str], home: Path, steps: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the CPU percentage of a program at each step while it is idle."""
    from tests.support.terminal import Terminal

    shares: dict[str, float] = {}
    terminal = Terminal(home, (160, 48), program=program)
    try:
        for key, seen in steps:
            for each in filter(None, key.split(",")):
                terminal.press(each)
                _left_alone(terminal, 1.0)
            terminal.until(seen)
            _left_alone(terminal, SETTLES)
            before, began = _processor(terminal.child.pid), time.monotonic()
            _left_alone(terminal, SECONDS)
            taken = _processor(terminal.child.pid) - before
            shares[seen] = 100 * taken / (time.monotonic() - began)
    finally:
        terminal.close()
    return shares


def _left_alone(terminal: object, seconds: float) -> None:
    """Wait, and read what the app paints, because a full pipe would block the app."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        if not terminal.read(min(left, 0.5)):  # type: ignore[attr-defined]
            raise BenchError("the app has ended")


def _processor(pid: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
