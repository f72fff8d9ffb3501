"""Opens the person's editor where a traceback points, from whatever screen shows that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from skyward_core.model.errors import SkywardError
from skyward_core.views.views import RunView

from .app_face import AppFace, settled
from .current_folder import current_folder
from .editor import NoEditor, command, here


async def edit_named(app: AppFace, run: RunView | None, lines: Sequence[str]) -> None:
    """Open the file that these lines name, at its line; where that is no file of this machine, say so.

    Args:
        run: whose lines they are: the folder that it was launched in has its sources.
    """
    from .given_terminal import SuspendNotSupported, run_in_terminal

    folders = await folders_of(app, run)
    found = await asyncio.to_thread(here, lines, folders)
    if found is None:
        return app.flash(
            "no line here names a file of this machine: a traceback's last lines have to be in view"
        )
    path, line = found
    try:
        words = command(os.environ, path, line)
        await run_in_terminal(app, *words)
    except SuspendNotSupported:
        app.flash(f"this terminal cannot be given away: {path}:{line}", "error")
    except NoEditor as error:
        app.flash(str(error), "error")
    except OSError as error:
        app.flash(f"the editor cannot be started: {error}", "error")


async def folders_of(app: AppFace, run: RunView | None) -> list[Path]:
    """Where the sources of a run are: where it was launched, as far as that is known, and the current folder."""
    folder = current_folder()
    if run is None or app.session is None:
        return [folder]
    try:
        return [(await settled(app.session.kept_launch(run.id))).cwd, folder]
    except (SkywardError, OSError):  # of a script of the person's own, or over for long
        return [folder]
