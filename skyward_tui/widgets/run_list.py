"""Past runs, a row each, with a cursor and marks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.message import Message

from skyward_core.front.line_search import FoundInLogs
from skyward_core.front.past_runs import COLUMNS, PastRun, sorted_runs

from ..theme import look
from ..words import ago, clip, duration, fit, money, one_line
from .roll import Roll

_ROOMY = 120  # columns from which all facts of a run are shown


class PastRunList(Roll):
    """All runs that are found, in the order that is chosen."""

    @dataclass
    class PastRunOpened(Message):
        """Enter was pressed, or a row double-clicked."""

        run: PastRun

    def __init__(self) -> None:
        super().__init__(id="list")
        self.rows: list[PastRun] = []
        self.marked: list[str] = []  # ids of runs, in the order in which they were marked
        self.cursor = 0
        self.by, self.falling = "when", True
        self._found: Sequence[PastRun] = ()
        self._note = ""
        self._now = 0.0
        self._in_logs: Mapping[str, FoundInLogs] = {}

    @property
    def chosen(self) -> PastRun | None:
        return self.rows[self.cursor] if self.rows else None

    def update(
        self,
        found: Sequence[PastRun],
        note: str,
        now: float,
        in_logs: Mapping[str, FoundInLogs] | None = None,
    ) -> None:
        """Take what is found.

        Args:
            note: what stands there where that is nothing.
            in_logs: where in the logs of some of them, by id.
        """
        self._found, self._note, self._now, self._in_logs = found, note, now, in_logs or {}
        self._sort()

    def tick(self, now: float) -> None:
        """Time goes on, which is shown of what goes on: once a second."""
        if int(now) != int(self._now):
            self._now = now
            if any(run.ended_at is None for run in self.rows):
                self.refresh()

    def _sort(self) -> None:
        chosen = self.chosen
        self.rows = sorted_runs(self._found, self.by, self._now, falling=self.falling)
        places = [
            at
            for at, run in enumerate(self.rows)
            if chosen and (run.run, run.key) == (chosen.run, chosen.key)
        ]
        self.cursor = places[0] if places else min(self.cursor, max(0, len(self.rows) - 1))
        self.refresh()

    def mark(self) -> None:
        """Mark the chosen run, or unmark it; of more than two the one that was marked first is unmarked."""
        if (run := self.chosen) is None or not run.run:
            return
        if run.run in self.marked:
            self.marked.remove(run.run)
        else:
            self.marked = [*self.marked, run.run][-2:]
        self.action_step(1)

    def turn(self) -> None:
        """Sort the other way round."""
        self.falling = not self.falling
        self._sort()

    def action_sideways(self, steps: int) -> None:
        self.by = COLUMNS[(COLUMNS.index(self.by) + steps) % len(COLUMNS)]
        self.falling = self.by in ("when", "took", "cost")  # what is wanted first
        self._sort()

    def shown(self) -> list[Content]:
        return super().shown() if self.rows else [self.blank(self._note)]

    def _columns(self, width: int) -> list[tuple[str, int]]:
        """Name and width of each; below 0 is right-aligned, 0 takes what is left."""
        pool = max(
            4, min(max((len(run.pool) for run in self.rows), default=4), 20 if width >= _ROOMY else 12)
        )
        function = max(
            8, min(max((len(run.function) for run in self.rows), default=8), 20 if width >= _ROOMY else 9)
        )
        if width >= _ROOMY:
            return [
                ("when", 16), ("run", 10), ("pool", pool), ("function", function), ("outcome", 11), ("took", -9),
                ("cost", -9), ("script", 14), ("what", 0),
            ]  # fmt: skip
        return [
            ("when", -8),
            ("pool", pool),
            ("function", function),
            ("outcome", 11),
            ("took", -8),
            ("what", 0),
        ]

    def head(self, width: int) -> list[Content]:
        parts: list[tuple[str, str]] = [("    ", "")]
        for name, room in self._columns(width):
            sorts = name == self.by
            title = "ARGUMENTS, OR WHAT FAILED" if name == "what" else name.upper()
            text = f"{title}{'▼' if self.falling else '▲'}" if sorts else title
            parts.append((_fit(text, room), "bold $text-accent" if sorts else "$muted"))
        return [Content.assemble(*parts)]

    def row_count(self, width: int) -> int:
        return len(self.rows)

    def keep_in_view(self) -> range:
        return range(self.cursor, self.cursor + 1)

    def row(self, index: int, width: int) -> Content:
        run, here = self.rows[index], index == self.cursor
        in_log = self._in_logs.get(run.run)
        mark = look(run.state)
        roomy = width >= _ROOMY
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.opened_at))
        cells = {
            "when": when if roomy else ago(self._now - run.opened_at),
            "run": run.run,
            "pool": run.pool,
            "function": run.function or "(no run)",
            "outcome": mark.text,
            "took": duration(run.seconds(self._now)),
            "cost": "$?" if run.dollars is None else money(run.dollars) if run.dollars else "",
            "script": run.script,
            "what": one_line(run.note) if in_log is None else in_log.note,
        }
        parts = [
            ("▶ " if here else "  ", "$text-accent"),
            ("◆ " if run.run in self.marked else "  ", "$text-accent"),
        ]
        left = width - 4
        for name, room in self._columns(width):
            figures = run.figures_note if in_log is None else ""
            text = _fit(cells[name], room) if room else _both(cells[name], figures, max(0, left))
            left -= abs(room) + 1
            found = name == "what" and in_log is not None
            parts.append((text, "" if found else self._style(name, run, mark.style)))
        line = Content.assemble(*parts)
        if here:
            line = line.pad_right(max(0, width - line.cell_length)).stylize_before(
                "on $block-cursor-background"
            )
        return line

    @staticmethod
    def _style(name: str, run: PastRun, style: str) -> str:
        if name == "outcome":
            return style
        if name == "function":
            return "bold"
        return (
            style
            if name == "what" and run.error
            else "$muted"
            if name in ("when", "run", "script", "cost")
            else ""
        )

    def action_step(self, rows: int) -> None:
        self.cursor = min(max(0, self.cursor + rows), max(0, len(self.rows) - 1))
        self.refresh()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.rows) if end else -len(self.rows))

    def action_open(self) -> None:
        if self.chosen is not None:
            self.post_message(self.PastRunOpened(self.chosen))


def _both(what: str, figures: str, room: int) -> str:
    """Why a run failed, and what its machine was at before; where both are too long, half of the room for each."""
    if not (what and figures):
        return clip(what or figures, room)
    return clip(f"{clip(what, max(room // 2, room - len(figures) - 3))} · {figures}", room)


def _fit(text: str, room: int) -> str:
    """A text in so many cells, on the right where that is below 0, and one more cell behind it."""
    return f"{fit(text, room)} " if room else text
