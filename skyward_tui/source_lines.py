"""The person's own code around where ranks stand, as far as its files are on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.content import Content

from skyward_core.front.user_files import read_bytes
from skyward_core.model.stacks import StackFrame
from skyward_core.wire.safe_text import field

from .editor import first_here

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


def source_of(frame: StackFrame, folders: Sequence[Path]) -> SourceFile | None:
    """The code that a frame is in; None where it is not on this machine, or has not that many lines."""
    if not frame.file.endswith(ENDINGS) or "\0" in frame.file:
        return None
    try:
        found = first_here([(frame.file, frame.line)], folders)
        if found is None:
            return None
        path, line = found
        text = read_bytes(path, MOST_BYTES)
        lines = tuple(field(each.expandtabs(4)) for each in text.decode("utf-8", "replace").splitlines())
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
