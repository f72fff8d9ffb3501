"""Lookup of source files that logs, tracebacks and stacks mention, and opening of these files in the user's editor."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from textual.content import Content

from skyward_core.model.errors import SkywardError
from skyward_core.model.thread_stacks import StackFrame
from skyward_core.util.safe_file_access import current_folder, is_file, read_bytes
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import RunView
from skyward_tui.text.ansi_colours import plain
from skyward_tui.ui.session_futures import wait_shielded

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp

# File and line number in tracebacks (`  File "train.py", line 12`), and as compilers and linters print them
# (`train.py:12`).
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
# editors that are tried in this order if neither $VISUAL nor $EDITOR is set
_EDITORS = ("sensible-editor", "vim", "vi", "nano")
_PLACE = re.compile(r"(?:^|[\s('\"])([\w./+-]+\.\w+):(\d+)(?=\D|$)")


def source_positions(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the files and line numbers that a log mentions, from its end on: first the innermost frame of the newest
    traceback."""
    for line in reversed(list(lines)):
        text = plain(line)
        for found in reversed([*_FRAME.finditer(text), *_PLACE.finditer(text)]):
            if len(found[2]) < 10:
                yield found[1], int(found[2])


def find_local(lines: Iterable[str], folders: Sequence[Path]) -> tuple[Path, int] | None:
    """Return the first mentioned position whose file is on this machine. Files below the given folders come first.

    Paths of ranks are matched by their ends: ``/home/runner/copy-1f/models/net.py`` is ``models/net.py`` of the folder
    that was uploaded.
    """
    return find_local_position(list(source_positions(lines)), folders)


def find_local_position(found: Sequence[tuple[str, int]], folders: Sequence[Path]) -> tuple[Path, int] | None:
    """Return the first position whose file is on this machine; see :func:`find_local`."""
    for name, line in found:
        for folder in folders:
            if (path := _find_within(folder, PurePosixPath(name))) is not None:
                return path, line
    for name, line in found:
        path = Path(name)
        if path.is_absolute() and is_file(path):
            return path, line
    return None


def _find_within(folder: Path, path: PurePosixPath) -> Path | None:
    """Return the file below a folder whose path shares the longest ending with the given path; None if no file does."""
    parts = [part for part in path.parts if part != "/"]
    if ".." in parts:
        return None
    if path.is_absolute() and folder in (own := Path(path)).parents and is_file(own):
        return own
    for start in range(len(parts)):
        own = folder.joinpath(*parts[start:])
        if is_file(own):
            return own
    return None


MOST_BYTES = 2_000_000  # bytes; a larger file is not source code that a user wrote
# suffixes of files that may be opened, because ranks choose the paths and must not open arbitrary files
ENDINGS = (".py", ".pyw", ".pyi", ".pyx")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Source file that a rank is executing.

    Attributes:
        lines: Lines of the file.
        line: Current line of the rank, from 1.
        changed_at: Unix time of the file's last change.
    """

    lines: tuple[str, ...]
    line: int
    changed_at: float


def find_source(frame: StackFrame, folders: Sequence[Path]) -> SourceFile | None:
    """Return the source file of a frame; None if the file is not on this machine or has fewer lines."""
    if not frame.file.endswith(ENDINGS) or "\0" in frame.file:
        return None
    try:
        found = find_local_position([(frame.file, frame.line)], folders)
        if found is None:
            return None
        path, line = found
        text = read_bytes(path, MOST_BYTES)
        lines = tuple(sanitize_line(each.expandtabs(4)) for each in text.decode("utf-8", "replace").splitlines())
        return SourceFile(lines, line, path.stat().st_mtime) if 0 < line <= len(lines) else None
    except OSError:  # the file no longer exists or cannot be read
        return None


def excerpt(source: SourceFile, rows: int) -> list[Content]:
    """Return ``rows`` lines of the file around the rank's current line, which is marked."""
    first = max(1, min(source.line - rows // 2, len(source.lines) - rows + 1))
    shown = range(first, min(first + rows, len(source.lines) + 1))
    digits = len(str(shown.stop))
    made = []
    for number in shown:
        text = source.lines[number - 1]
        if number == source.line:
            made.append(Content.styled(f"▶ {number:>{digits}}  {text}", "bold $text-accent"))
        else:
            made.append(Content.assemble((f"  {number:>{digits}}  ", "$muted"), text))
    return made


async def source_folders(app: SkywardApp, run: RunView | None) -> list[Path]:
    """Return the folders with the sources of a run: the folder of its launch, if known, and the current folder."""
    folder = current_folder()
    if run is None or app.session is None:
        return [folder]
    try:
        return [(await wait_shielded(app.session.load_launch(run.id))).cwd, folder]
    # the run has no saved launch, for example because a user's script started it, or the ledger cannot be read
    except (SkywardError, OSError):
        return [folder]


_GOTO = ("code", "code-insiders", "codium", "cursor", "windsurf")  # editors whose option --goto takes FILE:LINE
_COLON = ("hx", "helix", "subl", "zed")  # editors that take FILE:LINE as an argument


class EditorError(Exception):
    """Failure to find the user's editor. The message states the fix."""


def editor_command(environment: Mapping[str, str], path: Path, line: int) -> list[str]:
    """Return the command that opens a file at a line in ``$VISUAL``, ``$EDITOR`` or an installed editor.

    Raises:
        EditorError: If no editor is set or installed, or the value of the variable is not a command.
    """
    command = environment.get("VISUAL") or environment.get("EDITOR") or ""
    command = command or next((name for name in _EDITORS if shutil.which(name, path=environment.get("PATH", ""))), "")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise EditorError(f"$EDITOR is not a valid command ({error}): {command}") from None
    if not words:
        raise EditorError(f"no editor found. Set $EDITOR to open {path.name}:{line}")
    target = str(path.absolute())
    name = PurePosixPath(words[0]).name
    if name in _GOTO:
        return [*words, "--goto", f"{target}:{line}"]
    if name in _COLON:
        return [*words, f"{target}:{line}"]
    return [*words, f"+{line}", target]


async def open_in_editor(app: SkywardApp, run: RunView | None, lines: Sequence[str]) -> None:
    """Open the file that some lines mention in the user's editor. If no such file is on this machine, show a message.

    Args:
        run: Run that printed the lines. The folder of its launch contains its sources.
    """
    from skyward_tui.ui.suspend_for_programs import SuspendNotSupported, run_in_terminal

    found = await asyncio.to_thread(find_local, lines, await source_folders(app, run))
    if found is None:
        return app.flash("no line here names a file of this machine: scroll to the last lines of a traceback")
    path, line = found
    try:
        await run_in_terminal(app, *editor_command(os.environ, path, line))
    except SuspendNotSupported:
        app.flash(f"cannot open an editor in this terminal: {path}:{line}", "error")
    except EditorError as error:
        app.flash(str(error), "error")
    except OSError as error:
        app.flash(f"the editor cannot be started: {error}", "error")
