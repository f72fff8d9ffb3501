"""Widgets that show Python source with highlighting."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path

from textual.content import Content
from textual.widget import Widget

from skyward_core.util.safe_file_access import read_text
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.source_lookup_and_editor import MOST_BYTES, SourceFile, excerpt

_MAX_GROUPS = 4  # maximum number of source positions that are shown
_LEAST = 3  # minimum lines of source for each shown position


@dataclass(frozen=True, slots=True)
class CodePosition:
    """Source position of a group of stacks.

    Attributes:
        head: Title line.
        source: The file; None if it is not on this machine.
        missing_text: Text shown without a source.
    """

    head: Content
    source: SourceFile | None
    missing_text: str = ""


class StackCode(Widget, can_focus=False):
    """Source code of several groups of stacks, the selected group first."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._positions: list[CodePosition] = []

    def update(self, positions: list[CodePosition]) -> None:
        if positions != self._positions:
            self._positions = positions
            self.refresh()

    def render(self) -> Content:
        # A blank line follows each position except the last, so one more row counts as available.
        room = self.size.height + 1
        positions = self._positions[: max(1, min(_MAX_GROUPS, room // (_LEAST + 2)))]
        lines: list[Content] = []
        for remaining, each in zip(range(len(positions), 0, -1), positions, strict=True):
            lines += [Content("")] if lines else []
            rows = max(1, (room - len(lines)) // remaining - 2)
            code = [Content.styled(each.missing_text, "$muted")] if each.source is None else excerpt(each.source, rows)
            lines += [each.head, *code]
        return Content("\n").join(lines)


_NAMED = ("def", "class")  # keywords after which the name of a function or class follows


class ScriptCode(Widget, can_focus=False):
    """Excerpt of a source file; empty if the file cannot be read."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Content] = []
        self._file_key: object = None
        self._line = 1
        self._shown: object = None

    def show(self, path: Path, line: int) -> bool:
        """Show a source file, beginning at a line.

        Args:
            line: Line number, from 1.

        Returns:
            Whether the file has lines to show.
        """
        try:
            stat = path.stat()
            key = path, stat.st_mtime_ns, stat.st_size
            if key != self._file_key:
                text = read_text(path, errors="replace", most=MOST_BYTES)
                self._lines, self._file_key = list(highlight_python(text)), key
        except (OSError, ValueError):  # the file no longer exists or cannot be read
            self._lines, self._file_key = [], None
        if (shown := (self._file_key, line)) != self._shown:
            self._shown, self._line = shown, line
            self.refresh()
        return bool(self._lines)

    def render(self) -> Content:
        width, height = self.size
        first = max(1, min(self._line, len(self._lines) - height + 1))
        shown = range(first, min(first + height, len(self._lines) + 1))
        digits = len(str(shown.stop))
        rows = [Content.assemble((f"{number:>{digits}}  ", "$muted"), self._lines[number - 1]) for number in shown]
        return Content("\n").join(row.truncate(width, ellipsis=True) for row in rows)


def highlight_python(text: str) -> Iterator[Content]:
    """Yield the lines of Python source code with keywords, strings and comments highlighted."""
    lines = text.expandtabs(4).splitlines()
    spans: dict[int, list[tuple[int, int, str]]] = {}
    before = ""
    try:
        for kind, word, start, end, _ in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            style = ""
            if kind in (tokenize.COMMENT, tokenize.STRING):
                style = "$muted"
            elif kind == tokenize.NAME:
                style = "$text-accent" if iskeyword(word) else "bold" if before in _NAMED else ""
            before = word
            for row in range(start[0], end[0] + 1) if style else ():
                last = end[1] if row == end[0] else len(lines[row - 1])
                spans.setdefault(row, []).append((start[1] if row == start[0] else 0, last, style))
    except (tokenize.TokenError, SyntaxError, IndexError):
        # if the source is invalid, only the lines before the error are highlighted; the launch form reports the error
        pass
    for row, line in enumerate(lines, 1):
        content = Content(sanitize_line(line))
        for first, last, style in spans.get(row, ()) if content.plain == line else ():
            content = content.stylize(style, first, last)
        yield content
