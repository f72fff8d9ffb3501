"""Every key, those of the screen in front first."""

from __future__ import annotations

from typing import ClassVar

from textual import getters
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ..actions import SCOPES, of
from ..app_face import AppFace

_GROUPS = {"run": ("run", "log", "panel"), "pools": ("pools", "panel"), "launch": ("launch", "files")}


class HelpScreen(ModalScreen[None]):
    """A list to scroll; any of the keys that opened it closes it.

    Args:
        scope: of the actions that come first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1", "dismiss(None)", "Close", show=False),
        Binding("j", "scroll('down')", show=False),
        Binding("k", "scroll('up')", show=False),
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen VerticalScroll {
        width: 78; max-width: 96%; height: auto; max-height: 92%;
        border: round $primary; background: $surface; padding: 0 1;
    }
    HelpScreen Static { width: 1fr; }
    """
    app = getters.app(AppFace)

    def __init__(self, scope: str = "") -> None:
        super().__init__()
        self._scope = scope

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = "keys"
            box.border_subtitle = "esc closes"
            yield Static(self._text())

    def _text(self) -> Content:
        first = _GROUPS.get(self._scope, (self._scope,)) if self._scope else ()
        parts: list[tuple[str, str]] = []
        for scope in [*first, "app", *(scope for scope in SCOPES if scope not in (*first, "app"))]:
            parts.append((f"\n{SCOPES[scope]}\n", "bold $text-accent"))
            for action in of(scope):
                keys = " ".join(action.shown_keys(self.app.keys))
                danger = "  (asks first)" if action.dangerous else ""
                parts += [(f"  {keys:<16}", "bold"), (f"{action.help}{danger}\n", "")]
        return Content.assemble(*parts)

    def action_scroll(self, way: str) -> None:
        box = self.query_one(VerticalScroll)
        if way == "down":
            box.scroll_down(animate=False)
        else:
            box.scroll_up(animate=False)
