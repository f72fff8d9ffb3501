"""The app's start in a pseudo-terminal: from the command to the first paint, beside a bare Textual app's."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from .fresh import BenchError
from .metric import Bar, Metric

ROUNDS = 7
SECONDS = 20.0
COLUMNS, LINES = 120, 40
BARE = "from textual.app import App\nfrom textual.widgets import Static\n"
BARE += "class Bare(App):\n    def compose(self):\n        yield Static('bare')\nBare().run()"


def measure() -> list[Metric]:
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as home:
        for _ in range(ROUNDS):
            ours.append(first_paint([str(Path(sys.executable).with_name("skyward-tui"))], home))
            theirs.append(first_paint([sys.executable, "-c", BARE], home))
    return [Metric("first_paint_ms", median(ours) * 1000, median(theirs) * 1000, Bar(at_most=400, ratio_at_most=1.2))]


def first_paint(command: Sequence[str], home: str) -> float:
    """Seconds from the start of a command to the first visible character on its screen."""
    import pexpect
    import pyte

    environment = os.environ | {"TERM": "xterm-256color", "SKYWARD_HOME": home}
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    began = perf_counter()
    child = pexpect.spawn(command[0], [*command[1:]], env=environment, dimensions=(LINES, COLUMNS))
    try:
        while perf_counter() - began < SECONDS:
            stream.feed(child.read_nonblocking(1 << 16, timeout=SECONDS))
            taken = perf_counter() - began
            if any(line.strip() for line in screen.display):
                return taken
    except (pexpect.EOF, pexpect.TIMEOUT):
        pass
    finally:
        child.close(force=True)
    raise BenchError(f"{' '.join(command)} painted nothing: {' '.join(screen.display).split()}")
