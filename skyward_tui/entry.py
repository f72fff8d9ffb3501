"""The command ``skyward-tui``: opens the app, or passes its arguments to the command-line parser.

Importing the parser takes a tenth of the time to the first paint, and an app that is opened without options does not
need the parser.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from skyward_tui.terminal_kind_and_tmux_clipboard import is_dumb


def main() -> NoReturn:
    """Run the command, and end the process with its exit status (``docs/reference/exit-codes.md``)."""
    if sys.platform == "win32":
        sys.exit("skyward-tui does not run on native Windows: install and start it in WSL2 (`wsl --install`).")
    if len(sys.argv) > 1 or not _has_terminal():
        from skyward_tui.cli.main import main as understand

        understand()
    from skyward_tui.app import new_app, run

    try:
        status = run(new_app())
    except KeyboardInterrupt:
        status = 130
    gc.freeze()  # exclude all objects from garbage collection, because a last collection at exit would only take time
    sys.exit(status)


def _has_terminal() -> bool:
    is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return is_terminal and not is_dumb() and sys.stderr is not None
