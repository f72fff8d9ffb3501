"""``skyward-tui logs --collapse``: equal lines of ranks as one, as soon as no rank can join it any more."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from skyward_core.front.history import Printed
from skyward_core.views.collapsed import MOMENT, Fold, Folded, members, shown
from skyward_core.views.held_lines import HeldLine, HeldLines
from skyward_core.views.logs import About, Lines
from skyward_core.wire.safe_text import closed

from .console import Console


class Collapsed:
    """Takes what ranks printed, in the order of their clocks; prints rows: output to ours, errors to ours.

    Args:
        world: how many ranks there are.
    """

    def __init__(self, console: Console, world: int) -> None:
        self._console = console
        self._world = world
        self._fold = Fold(sys.maxsize)  # what is settled goes
        self._held = HeldLines()
        self._begun: dict[tuple[int, str, str], Lines] = {}
        self._latest = 0.0
        self._rows: list[dict[str, Any]] = []

    def put(self, piece: Printed) -> None:
        """Take bytes of a log file."""
        lines = self._begun.setdefault((piece.rank, piece.file, piece.stream), Lines())
        self._add(piece.rank, piece.stream, lines.take(piece.data), piece.at)
        if piece.at is not None:
            self._latest = piece.at
        # Nobody waits for what has been printed: so far apart may the nodes' clocks be.
        self._take(self._held.due(self._latest - MOMENT))
        self._give(self._fold.settled(self._latest - MOMENT))

    def finish(self, run: str) -> None:
        """Print what is left, the last lines that never ended among it."""
        for (rank, _, stream), lines in self._begun.items():
            self._add(rank, stream, lines.end(), self._latest or None)
        self._take(self._held.rest())
        self._give(self._fold.rest())
        self._console.result({"run": run, "rows": self._rows})

    def _add(self, rank: int, stream: str, texts: Iterable[str], at: float | None) -> None:
        for text in texts:
            self._held.put(rank, text, About(stream, at), self._latest if at is None else at)

    def _take(self, lines: Iterable[HeldLine]) -> None:
        for line in lines:
            self._fold.add(line.rank, line.text, line.about)

    def _give(self, rows: Iterable[Folded]) -> None:
        for row in rows:
            if self._console.as_json:
                ranks = members(row.ranks)
                self._rows.append({"ranks": ranks, "stream": row.about.stream, "text": row.text})
            else:
                stream: TextIO = sys.stderr if row.about.stream == "err" else sys.stdout
                stream.write(f"{closed(shown(row, self._world))}\n")
        if not self._console.as_json:
            sys.stdout.flush()
            sys.stderr.flush()
