"""Gives a log to the person's pager, in the app's terminal."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .app_face import AppFace

USUAL = ("less", "more")  # where $PAGER says none


async def page(app: AppFace, name: str, lines: Iterable[str]) -> None:
    """Have it read there, from a file that only the person can read, and that goes when the pager has ended."""
    from .given_terminal import SuspendNotSupported, run_in_terminal
    from .saving import save

    try:
        words = shlex.split(os.environ.get("PAGER", "")) or [each for each in USUAL if shutil.which(each)][:1]
    except ValueError as error:
        return app.flash(f"$PAGER is no command ({error})", "error")
    if not words:
        return app.flash("set $PAGER to have the log opened", "error")
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="skyward-log-"))
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
