"""Where a node has the source of what a script brings: in its copy of the working folder, or as the client sent it."""

from __future__ import annotations

import os
import sys
from typing import Any

from .children import AtImport

_open = open  # user code may put something else in the place of what is built in


class SourceFiles:
    """Finds them.

    Args:
        sent: the folder with what clients have sent, by content.
        here: the working folder, or "".
        there: the client's, of which that is a copy, or ""; None where both see the same files.
    """

    def __init__(self, sent: str, here: str = "", there: str | None = None) -> None:
        self._sent, self._here, self._there = sent, here, there
        self._shown: dict[str, tuple[str, str]] = {}  # by name, the file that has the text, and its content
        self._waits = False

    def find(self, named: dict[str, tuple[str, str, str]]) -> dict[str, str]:
        """The node's own files, by the client's names, where these are not the same.

        Args:
            named: as :mod:`skyward_core.tasks.source_texts` has it.
        """
        found = {}
        for name, (place, content, called) in named.items():
            sent = f"{self._sent}/{content}/{called}"
            if not place:
                self._show(name, sent, content)
            elif self._there is not None:
                found[name] = self._own(place, content, sent) or name
        return found

    def moved(self, place: str) -> str:
        """Where the copy of a client's file is, or ""."""
        inside = self._there and self._here and place.startswith(f"{self._there}/")
        return f"{self._here}{place[len(self._there or '') :]}" if inside else ""

    def _own(self, place: str, content: str, sent: str) -> str:
        copy = self.moved(place)
        if not os.path.isfile(copy):  # noqa: PTH113  a worker has no pathlib
            return sent if os.path.exists(sent) else ""  # noqa: PTH110
        self._show(copy, sent, content)
        return copy

    def _show(self, name: str, file: str, content: str) -> None:
        """Have tracebacks and :mod:`inspect` find a text by a name, when they look for it."""
        if not os.path.exists(file):  # noqa: PTH110
            return
        self._shown[name] = file, content
        if "linecache" in sys.modules:
            self._fill(sys.modules["linecache"])
        elif not self._waits:
            self._waits = True
            sys.meta_path.insert(0, AtImport(self._fill, "linecache"))

    def _fill(self, linecache: Any) -> None:
        import tokenize

        for name, (file, content) in self._shown.items():
            if _has(name, content):  # a copy that nobody has edited since it travelled
                continue
            try:
                with tokenize.open(file) as text:
                    lines = text.readlines()
            except (OSError, SyntaxError, UnicodeDecodeError):
                continue  # gone, or in no encoding that it names: it shows no lines, as in a plain process
            # Without a time it is never looked for on the disk.
            linecache.cache[name] = sum(map(len, lines)), None, lines, name
        self._shown.clear()


def _has(file: str, content: str) -> bool:
    from ...wire.content_name import name_of  # few ranks come to look at a text

    try:
        # A pipe that was put in its place since would have us wait for who writes.
        with _open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as read:
            return name_of(read.read()) == content
    except OSError:
        return False
