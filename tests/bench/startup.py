"""Benchmark of start-up: the app in a pseudo-terminal, an empty Textual app, and the CPU time of each program."""

from __future__ import annotations

import os
import subprocess
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

_LAUNCHED = "import skyward_core as sky; sky.Compute(provider=sky.{})"
# What each process of a pool, a script and the command line run before they do anything; milliseconds of CPU allowed.
STARTS: dict[str, tuple[str, float]] = {
    "python": ("pass", 0),
    "agent": ("import skyward_core.node.agent.__main__, skyward_core.node.agent.agent", 45),
    "worker": ("import skyward_core.node.worker.worker", 30),
    "host_command": ("import skyward_core.node.bootstrap.host_commands", 20),
    "api": ("import skyward_core", 15),
    "local_compute": (_LAUNCHED.format("Local()"), 60),
    "ssh_compute": (_LAUNCHED.format("SSH(hosts='host')"), 60),
    "session": ("import skyward_core.client.session", 150),
    "help": ("import sys; sys.argv[1:] = ['-h']; from skyward_tui.entry import main; main()", 75),
}

PEERS = {"agent": "import asyncio"}  # the least that such a process runs, which shows the speed of the machine


def measure() -> list[Metric]:
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as home:
        for _ in range(ROUNDS):
            ours.append(first_paint([str(Path(sys.executable).with_name("skyward-tui"))], home))
            theirs.append(first_paint([sys.executable, "-c", BARE], home))
    bare = cpu_time(STARTS["python"][0])
    return [
        Metric("first_paint_ms", median(ours) * 1000, median(theirs) * 1000, Bar(at_most=400, ratio_at_most=1.2)),
        *(
            Metric(
                f"{name}_cpu_ms",
                (cpu_time(code) - bare) * 1000,
                (cpu_time(PEERS[name]) - bare) * 1000 if name in PEERS else None,
                Bar(at_most=most),
            )
            for name, (code, most) in STARTS.items()
            if name != "python"
        ),
    ]


def cpu_time(code: str) -> float:
    """Return the seconds of CPU that a fresh interpreter needs to run some code, the least of several."""

    def once() -> float:
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise BenchError(f"python -c {code!r} ended with status {process.returncode}")
        return used.ru_utime + used.ru_stime

    return min(once() for _ in range(3 * ROUNDS))


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
