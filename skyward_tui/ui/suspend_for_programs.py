"""Suspension of the app while a pager or another program uses the terminal."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import App
from textual.app import SuspendNotSupported as SuspendNotSupported

from skyward_tui.shutdown import run_in_daemon_thread
from skyward_tui.text.error_hints import format_error

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp

# A shell waits where the program has something to complain of: the app is painted over it. It outlives ctrl+c, which is
# the program's to hear.
_SHELL_WRAPPER = """trap : INT; "$@" || { printf '\\n(enter goes back to the app) '; read -r _; }"""


_RUN = "import sys; sys.path.append(sys.argv.pop(1)); from skyward_tui.cli.main import main; main()"


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
            process = await asyncio.create_subprocess_exec("/bin/sh", "-c", _SHELL_WRAPPER, "sh", *command)
            await process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            if process is not None and process.returncode is None:
                process.terminate()


def own_command(command: str, *words: str) -> Sequence[str]:
    """The words that run a command of ours, from where the app was loaded: modules of the current folder, which may be
    called as others are, have no part in it."""
    return (sys.executable, "-P", "-c", _RUN, str(Path(__file__).parents[2]), command, *words)


FOLDER = "paged"  # of the home
DEFAULT_PAGERS = ("less", "more")  # where $PAGER says none


async def open_pager(app: SkywardApp, name: str, lines: Iterable[str]) -> None:
    """Have it read there, from a file that only the person can read, and that goes when the pager has ended."""
    from skyward_core.client.launch import job_launch
    from skyward_core.model.errors import SkywardError

    pass
    from skyward_tui.file_export import save

    try:
        words = shlex.split(os.environ.get("PAGER", "")) or [each for each in DEFAULT_PAGERS if shutil.which(each)][:1]
    except ValueError as error:
        return app.flash(f"$PAGER is no command ({error})", "error")
    if not words:
        return app.flash("set $PAGER to have the log opened", "error")
    try:
        folder = await asyncio.to_thread(job_launch.make_process_folder, FOLDER)
    except (SkywardError, OSError) as error:
        return app.flash(f"the log cannot be put where a pager finds it: {format_error(error)}", "error")
    try:
        path = await asyncio.to_thread(save, folder / name, lines)
        await run_in_terminal(app, *words, str(path))
    except SuspendNotSupported:
        app.flash("this terminal cannot be given away to a pager", "error")
    except OSError as error:
        app.flash(f"the pager cannot be started: {error}", "error")
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return None


async def remove_stale_logs() -> None:
    """Remove logs that apps were killed over."""
    from skyward_core.client.launch import job_launch
    from skyward_core.model.errors import SkywardError

    with suppress(SkywardError, OSError):  # the session says what is wrong with the home
        await run_in_daemon_thread(partial(job_launch.remove_dead_folders, FOLDER))
