"""Source files and lines of this machine that logs, tracebacks and stacks name; the user's editor opened there."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from textual.content import Content

from skyward_core.model.errors import SkywardError
from skyward_core.model.thread_stacks import StackFrame
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.util.user_files import is_file, read_bytes
from skyward_core.views.pool_view import RunView
from skyward_tui.text.ansi_colours import plain
from skyward_tui.tmux_clipboard_and_terminal_checks import current_folder
from skyward_tui.ui.session_futures import wait_shielded

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp

# `  File "train.py", line 12`, and what compilers and linters print: `train.py:12`.
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_PLACE = re.compile(r"(?:^|[\s('\"])([\w./+-]+\.\w+):(\d+)(?=\D|$)")


def source_positions(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The files and lines that a log names, from its end on: the innermost frame of the newest traceback first."""
    for line in reversed(list(lines)):
        text = plain(line)
        for found in reversed([*_FRAME.finditer(text), *_PLACE.finditer(text)]):
            if len(found[2]) < 10:
                yield found[1], int(found[2])


def find_local(lines: Iterable[str], folders: Sequence[Path]) -> tuple[Path, int] | None:
    """The first of these that is a file of this machine: of the person's own, in these folders, else any.

    What a rank calls ``/home/runner/copy-1f/models/net.py`` is ``models/net.py`` of the folder that was copied.
    """
    return find_local_position(list(source_positions(lines)), folders)


def find_local_position(found: Sequence[tuple[str, int]], folders: Sequence[Path]) -> tuple[Path, int] | None:
    """As :func:`here`, of files and lines."""
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
    """A file of a folder that a path means: by as much of the path's end as there is here."""
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


MOST_BYTES = 2_000_000  # of a file: more is no source that somebody wrote
ENDINGS = (".py", ".pyw", ".pyi", ".pyx")  # ranks say the names: nothing but code is opened


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file in which ranks stand.

    Attributes:
        line: where they stand, from 1.
        changed_at: Unix time of its last change.
    """

    lines: tuple[str, ...]
    line: int
    changed_at: float


def find_source(frame: StackFrame, folders: Sequence[Path]) -> SourceFile | None:
    """The code that a frame is in; None where it is not on this machine, or has not that many lines."""
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
    except OSError:  # it went, or is not ours to read
        return None


def excerpt(source: SourceFile, rows: int) -> list[Content]:
    """So many lines of it, that of the ranks in the middle, and marked."""
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
    """Where the sources of a run are: where it was launched, as far as that is known, and the current folder."""
    folder = current_folder()
    if run is None or app.session is None:
        return [folder]
    try:
        return [(await wait_shielded(app.session.load_launch(run.id))).cwd, folder]
    except (SkywardError, OSError):  # of a script of the person's own, or over for long
        return [folder]


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
        raise EditorError(f"$EDITOR is not a valid command ({error}): {said}") from None
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
        return app.flash("no line here names a file of this machine: scroll to the last lines of a traceback")
    path, line = found
    try:
        words = editor_command(os.environ, path, line)
        await run_in_terminal(app, *words)
    except SuspendNotSupported:
        app.flash(f"cannot open an editor in this terminal: {path}:{line}", "error")
    except EditorError as error:
        app.flash(str(error), "error")
    except OSError as error:
        app.flash(f"the editor cannot be started: {error}", "error")
