"""The command ``skyward-tui``: opens the app, or has the command line understood.

What understands a command line takes a tenth of the time to the first paint, and an app that is opened without options
needs none of it.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from skyward_tui.tmux_clipboard_and_terminal_checks import is_dumb


def main() -> NoReturn:
    """Do what is asked for and end with its exit status (``docs/reference/exit-codes.md``)."""
    if len(sys.argv) > 1 or not _has_terminal():
        from skyward_tui.cli.main import main as understand

        understand()
    from skyward_tui.app import new_app, run

    try:
        status = run(new_app())
    except KeyboardInterrupt:
        status = 130
    gc.freeze()  # what is left is not looked through once more
    sys.exit(status)


def _has_terminal() -> bool:
    return (
        not is_dumb()
        and sys.stderr is not None
        and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    )
