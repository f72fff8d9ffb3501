"""Suspension of the app while a pager or another program uses the terminal."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import App
from textual.app import SuspendNotSupported as SuspendNotSupported

from skyward_core.model.errors import SkywardError
from skyward_tui.shutdown_and_daemon_threads import run_in_daemon_thread
from skyward_tui.text.error_hint_text import format_error

if TYPE_CHECKING:
    from skyward_core.client.user_settings_and_app_state import UserCommand
    from skyward_tui.app import SkywardApp

# If the program fails, the shell waits for enter, because the app would otherwise paint over the program's error
# message. The shell ignores ctrl+c, which is meant for the program.
_SHELL_WRAPPER = """trap : INT; "$@" || { printf '\\n(enter goes back to the app) '; read -r _; }"""


_RUN = "import sys; sys.path.append(sys.argv.pop(1)); from skyward_tui.cli.main import main; main()"


async def run_in_terminal(app: App[Any], *command: str) -> None:
    """Run a program in the terminal of the app. The app continues to work without painting, and repaints afterwards.

    Raises:
        OSError: If the program cannot be started.
        SuspendNotSupported: If the app has no terminal that it can release.
    """
    with app.suspend():
        # The terminal sends ctrl+c to the app and to the program. The app must ignore it.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        process = None
        try:
            process = await asyncio.create_subprocess_exec("/bin/sh", "-c", _SHELL_WRAPPER, "sh", *command)
            await process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            if process is not None and process.returncode is None:
                process.terminate()


async def run_user_command(app: SkywardApp, command: UserCommand, fields: Mapping[str, str]) -> None:
    """Run a command from the user's settings, in the terminal or in the background. Show the exit status of a command
    in the background.
    """
    name = command.name
    try:
        words = command.fill(fields)
        if not command.background:
            return await run_in_terminal(app, *words)
        app.flash(f"{name} has started")
        nothing, process = asyncio.subprocess.DEVNULL, None
        try:
            process = await asyncio.create_subprocess_exec(*words, stdin=nothing, stdout=nothing, stderr=nothing)
            status = await process.wait()
        finally:
            if process is not None and process.returncode is None:
                process.terminate()
    except KeyError as missing:
        return app.flash(f"{name} needs a {missing.args[0]}. Select one, and press the key again", "error")
    except SuspendNotSupported:
        return app.flash(f"{name} cannot run in this terminal. Set background = true", "error")
    except (OSError, ValueError) as error:
        return app.flash(f"{name} cannot be started: {error}", "error")
    return app.flash(f"{name}: exit status {status}", "error" if status else "done")


def own_command(command: str, *words: str) -> Sequence[str]:
    """Return the arguments that run a command of this installation of skyward-tui.

    The current folder is excluded from the import path (``sys.path``), because its modules could shadow those of the
    command.
    """
    return (sys.executable, "-P", "-c", _RUN, str(Path(__file__).parents[2]), command, *words)


FOLDER = "paged"  # name of the folder, below the state folder, with the temporary files of pagers
DEFAULT_PAGERS = ("less", "more")  # pagers that are tried in this order if $PAGER is not set


async def open_pager(app: SkywardApp, name: str, lines: Iterable[str]) -> None:
    """Write lines to a private temporary file, and open it in the user's pager."""
    from skyward_core.client.launch import job_and_shell_launch
    from skyward_tui.file_export import save

    try:
        words = shlex.split(os.environ.get("PAGER", "")) or [each for each in DEFAULT_PAGERS if shutil.which(each)][:1]
    except ValueError as error:
        return app.flash(f"$PAGER is not a valid command: {error}", "error")
    if not words:
        return app.flash("no pager found: set $PAGER", "error")
    try:
        folder = await asyncio.to_thread(job_and_shell_launch.make_process_folder, FOLDER)
    except (SkywardError, OSError) as error:
        return app.flash(f"cannot write the log for the pager: {format_error(error)}", "error")
    try:
        await run_in_terminal(app, *words, str(await asyncio.to_thread(save, folder / name, lines)))
    except SuspendNotSupported:
        app.flash("a pager cannot run in this terminal", "error")
    except OSError as error:
        app.flash(f"cannot start the pager: {error}", "error")
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return None


async def remove_stale_logs() -> None:
    """Remove the temporary files of apps that were killed."""
    from skyward_core.client.launch import job_and_shell_launch

    with suppress(SkywardError, OSError):  # no error here, because the session reports problems of the state folder
        await run_in_daemon_thread(partial(job_and_shell_launch.remove_dead_folders, FOLDER))
