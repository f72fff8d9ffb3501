"""Gives a log to the person's pager, in the app's terminal.

The log lies in a file, by its name: pagers show that, and one that hands on to a window has no descriptor of ours. It
goes with the pager; where the app was killed before that, with the next start.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from .app_face import AppFace
from .ends import beside
from .hints import words_of

FOLDER = "paged"  # of the home
USUAL = ("less", "more")  # where $PAGER says none


async def page(app: AppFace, name: str, lines: Iterable[str]) -> None:
    """Have it read there, from a file that only the person can read, and that goes when the pager has ended."""
    from skyward_core.front import passing_folders
    from skyward_core.model.errors import SkywardError

    from .given_terminal import SuspendNotSupported, run_in_terminal
    from .saving import save

    try:
        words = shlex.split(os.environ.get("PAGER", "")) or [each for each in USUAL if shutil.which(each)][:1]
    except ValueError as error:
        return app.flash(f"$PAGER is no command ({error})", "error")
    if not words:
        return app.flash("set $PAGER to have the log opened", "error")
    try:
        folder = await asyncio.to_thread(passing_folders.begin, FOLDER)
    except (SkywardError, OSError) as error:
        return app.flash(f"the log cannot be put where a pager finds it: {words_of(error)}", "error")
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


async def sweep() -> None:
    """Remove logs that apps were killed over."""
    from skyward_core.front import passing_folders
    from skyward_core.model.errors import SkywardError

    with suppress(SkywardError, OSError):  # the session says what is wrong with the home
        await beside(partial(passing_folders.sweep, FOLDER))
