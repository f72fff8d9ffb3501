"""The user's editor opened at a source line."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from skyward_core.views.pool_view import RunView
from skyward_tui.source_lookup import find_local, source_folders

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp

_GOTO = ("code", "code-insiders", "codium", "cursor", "windsurf")  # take --goto FILE:LINE
_COLON = ("hx", "helix", "subl", "zed")  # take FILE:LINE


class EditorError(Exception):
    """There is none that could be started; the message says what to do."""


def editor_command(environment: Mapping[str, str], path: Path, line: int) -> list[str]:
    """What starts the person's editor there, by ``$VISUAL``, else ``$EDITOR``.

    Raises:
        NoEditor: neither says one.
    """
    said = environment.get("VISUAL") or environment.get("EDITOR") or ""
    try:
        words = shlex.split(said)
    except ValueError as error:
        raise EditorError(f"$EDITOR is no command ({error}): {said}") from None
    if not words:
        raise EditorError(f"set $EDITOR to have {path.name}:{line} opened")
    target = str(path.absolute())
    name = PurePosixPath(words[0]).name
    if name in _GOTO:
        return [*words, "--goto", f"{target}:{line}"]
    if name in _COLON:
        return [*words, f"{target}:{line}"]
    return [*words, f"+{line}", target]


async def open_in_editor(app: SkywardApp, run: RunView | None, lines: Sequence[str]) -> None:
    """Open the file that these lines name, at its line; where that is no file of this machine, say so.

    Args:
        run: whose lines they are: the folder that it was launched in has its sources.
    """
    from skyward_tui.ui.suspend_for_programs import SuspendNotSupported, run_in_terminal

    folders = await source_folders(app, run)
    found = await asyncio.to_thread(find_local, lines, folders)
    if found is None:
        return app.flash("no line here names a file of this machine: a traceback's last lines have to be in view")
    path, line = found
    try:
        words = editor_command(os.environ, path, line)
        await run_in_terminal(app, *words)
    except SuspendNotSupported:
        app.flash(f"this terminal cannot be given away: {path}:{line}", "error")
    except EditorError as error:
        app.flash(str(error), "error")
    except OSError as error:
        app.flash(f"the editor cannot be started: {error}", "error")
