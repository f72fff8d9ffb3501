"""Gives the terminal to another program for as long as that runs, such as a debugger."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from textual.app import App
from textual.app import SuspendNotSupported as SuspendNotSupported

# A shell waits where the program has something to complain of: the app is painted over it. It outlives ctrl+c, which is
# the program's to hear.
_SEEN = """trap : INT; "$@" || { printf '\\n(enter goes back to the app) '; read -r _; }"""


_RUN = "import sys; sys.path.append(sys.argv.pop(1)); from skyward_tui.cli import main; main()"


async def run_in_terminal(app: App[Any], *command: str) -> None:
    """Run a program in the app's terminal; the app goes on behind, and paints when it has ended.

    Raises:
        OSError: it cannot be started.
        SuspendNotSupported: the app has no terminal that it could give away.
    """
    with app.suspend():
        before = signal.signal(signal.SIGINT, lambda *_: None)  # ctrl+c goes to all that are in the terminal
        process = None
        try:
            process = await asyncio.create_subprocess_exec("/bin/sh", "-c", _SEEN, "sh", *command)
            await process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            if process is not None and process.returncode is None:
                process.terminate()


def of_ours(command: str, *words: str) -> Sequence[str]:
    """The words that run a command of ours, from where the app was loaded: modules of the current folder, which may be
    called as others are, have no part in it."""
    return (sys.executable, "-P", "-c", _RUN, str(Path(__file__).parents[1]), command, *words)
