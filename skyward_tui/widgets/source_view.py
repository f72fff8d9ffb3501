"""Python source and stacks with highlighting."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path

from textual.content import Content
from textual.widget import Widget

from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.util.user_files import read_text
from skyward_tui.source_lookup_and_editor import MOST_BYTES, SourceFile, excerpt

_MOST = 4  # groups that are shown
_LEAST = 3  # lines of each, for which a further group has to leave room


@dataclass(frozen=True, slots=True)
class CodePosition:
    """Where a group stands. ``said``: what is told where its code is not here."""

    head: Content
    source: SourceFile | None
    missing_text: str = ""


class StackCode(Widget, can_focus=False):
    """The chosen group first."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._positions: list[CodePosition] = []

    def update(self, told: list[CodePosition]) -> None:
        if told != self._positions:
            self._positions = told
            self.refresh()

    def render(self) -> Content:
        room = self.size.height + 1  # each has a blank line behind it, but for the last
        told = self._positions[: max(1, min(_MOST, room // (_LEAST + 2)))]
        lines: list[Content] = []
        for left, each in zip(range(len(told), 0, -1), told, strict=True):
            lines += [Content("")] if lines else []
            rows = max(1, (room - len(lines)) // left - 2)
            code = [Content.styled(each.missing_text, "$muted")] if each.source is None else excerpt(each.source, rows)
            lines += [each.head, *code]
        return Content("\n").join(lines)


_NAMED = ("def", "class")  # what follows is the name of something


class ScriptCode(Widget, can_focus=False):
    """A part of one file; nothing where that cannot be read."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Content] = []
        self._file_key: object = None
        self._line = 1
        self._shown: object = None

    def show(self, path: Path, line: int) -> bool:
        """Show a file from a line on, which counts from 1; whether there is anything to show."""
        try:
            about = path.stat()
            of = path, about.st_mtime_ns, about.st_size
            if of != self._file_key:
                text = read_text(path, errors="replace", most=MOST_BYTES)
                self._lines, self._file_key = list(highlight_python(text)), of
        except (OSError, ValueError):  # it went, or is not ours to read
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
    """Python's source line by line: words of the language in the accent, what is told to people quiet."""
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
        pass  # what was understood so far is coloured; whoever launches it is told of the rest
    for row, line in enumerate(lines, 1):
        content, shown = Content(sanitize_line(line)), sanitize_line(line) == line
        for first, last, style in spans.get(row, ()) if shown else ():
            content = content.stylize(style, first, last)
        yield content
