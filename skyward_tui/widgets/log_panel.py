"""The box around a log pane: what it shows, whether it follows, and the line for find and filter."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input

from ..words import count
from .chrome import Panel
from .log_pane import LogPane
from .log_window import Matcher


class LogPanel(Panel):
    """A log pane with its title and a prompt below it."""

    DEFAULT_CSS = """
    LogPanel { border-subtitle-color: $text-accent; }
    LogPanel > Input { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    LogPanel.-asking > Input { display: block; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.subject = ""
        self._asking = ""

    def compose(self) -> ComposeResult:
        yield LogPane(id="pane")
        yield Input(compact=True, id="prompt", select_on_focus=True)

    def on_mount(self) -> None:
        self.pane.can_focus = True
        self.prompt.cursor_blink = False

    @property
    def pane(self) -> LogPane:
        return self.query_one(LogPane)

    @property
    def prompt(self) -> Input:
        return self.query_one(Input)

    def describe(self) -> None:
        """Bring the title up to date."""
        pane = self.pane
        state = "FOLLOW" if pane.following else _paused(pane.behind)
        style = "$text-success" if pane.following else "$text-warning"
        wrap = "  wrap" if pane.wrap else ""
        reading = "  reading files …" if pane.is_reading else ""
        title = Content.assemble(self.subject, "  ", (state, style), wrap, reading)
        parts = []
        if pane.window.filter is not None:
            hits = pane.window.filter
            parts.append(f"&{hits.matcher.text} {count(len(hits.numbers), 'line')}")
        if pane.window.search is not None:
            parts.append(f"/{pane.window.search.matcher.text} {count(pane.hit_count, 'hit')}")
        if parts and (begin := _searched_from(pane)):
            parts.append(f"in the last {count(pane.window.end - begin, 'line')} only")
        self.retitle(title, Content("  ".join(parts)))

    def ask(self, what: str) -> None:
        """Open the prompt: "find" or "filter"."""
        self._asking = what
        hits = self.pane.window.search if what == "find" else self.pane.window.filter
        self.prompt.placeholder = (
            "find: text or regular expression" if what == "find" else "show only (! inverts)"
        )
        self.prompt.value = "" if hits is None else hits.matcher.text
        self.add_class("-asking")
        self.prompt.focus()

    def dismiss_one(self) -> bool:
        """Close the prompt, else drop the search, else the filter; whether there was one of them."""
        if self.has_class("-asking"):
            self._close()
        elif self.pane.window.search is not None:
            self.pane.set_search(None)
        elif self.pane.window.filter is not None:
            self.pane.set_filter(None)
        else:
            return False
        return True

    def _close(self) -> None:
        self.remove_class("-asking")
        self.pane.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._asking == "find":
            self.pane.set_search(Matcher.parse(event.value))
        else:
            self.pane.set_filter(Matcher.parse(event.value, invertible=True))
        self._close()

    def on_log_pane_moved(self) -> None:
        self.describe()


def _searched_from(pane: LogPane) -> int:
    """Number of the line before which nothing was looked at, as neither the ring nor files have it, or not yet."""
    return max(hits.begin for hits in (pane.window.filter, pane.window.search) if hits is not None)


def _paused(behind: int) -> str:
    return f"PAUSED +{count(behind, 'line')}, f follows" if behind else "PAUSED, f follows"
