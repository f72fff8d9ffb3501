"""The person's editor at the line that a traceback names: which that is, where its file is here, and the command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from skyward_core.front.user_files import is_file

from .sgr import plain

# `  File "train.py", line 12`, and what compilers and linters print: `train.py:12`.
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_PLACE = re.compile(r"(?:^|[\s('\"])([\w./+-]+\.\w+):(\d+)(?=\D|$)")
_GOTO = ("code", "code-insiders", "codium", "cursor", "windsurf")  # take --goto FILE:LINE
_COLON = ("hx", "helix", "subl", "zed")  # take FILE:LINE


class NoEditor(Exception):
    """There is none that could be started; the message says what to do."""


def places(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The files and lines that a log names, from its end on: the innermost frame of the newest traceback first."""
    for line in reversed(list(lines)):
        text = plain(line)
        for found in reversed([*_FRAME.finditer(text), *_PLACE.finditer(text)]):
            if len(found[2]) < 10:
                yield found[1], int(found[2])


def here(lines: Iterable[str], folders: Sequence[Path]) -> tuple[Path, int] | None:
    """The first of these that is a file of this machine: of the person's own, in these folders, else any.

    What a rank calls ``/home/runner/copy-1f/models/net.py`` is ``models/net.py`` of the folder that was copied.
    """
    return first_here(list(places(lines)), folders)


def first_here(found: Sequence[tuple[str, int]], folders: Sequence[Path]) -> tuple[Path, int] | None:
    """As :func:`here`, of files and lines."""
    for name, line in found:
        for folder in folders:
            if (path := _within(folder, PurePosixPath(name))) is not None:
                return path, line
    for name, line in found:
        path = Path(name)
        if path.is_absolute() and is_file(path):
            return path, line
    return None


def _within(folder: Path, path: PurePosixPath) -> Path | None:
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


def command(environment: Mapping[str, str], path: Path, line: int) -> list[str]:
    """What starts the person's editor there, by ``$VISUAL``, else ``$EDITOR``.

    Raises:
        NoEditor: neither says one.
    """
    said = environment.get("VISUAL") or environment.get("EDITOR") or ""
    try:
        words = shlex.split(said)
    except ValueError as error:
        raise NoEditor(f"$EDITOR is no command ({error}): {said}") from None
    if not words:
        raise NoEditor(f"set $EDITOR to have {path.name}:{line} opened")
    target = str(path.absolute())
    name = PurePosixPath(words[0]).name
    if name in _GOTO:
        return [*words, "--goto", f"{target}:{line}"]
    if name in _COLON:
        return [*words, f"{target}:{line}"]
    return [*words, f"+{line}", target]
