"""What all dialogs have in common: a box over the screen, a title, buttons, and the keys that go with these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, TypeVar

from textual import getters
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Static

from ..actions import bindings, first_key
from ..app_face import AppFace
from ..left_once import LeftOnce
from ..styles import beside

Result = TypeVar("Result")

LEAST_BUTTON, PADDED = 12, 2  # cells of a button, and those around its label


class Dialog(ModalScreen[Result], LeftOnce[Result]):
    """A box to be answered. Escape closes it, arrows go from button to button; what stands first has the focus, so
    the answer that does no harm is the first one.

    Attributes:
        heading: what stands in the border.
    """

    BINDINGS = bindings("dialog")
    BOX: ClassVar[type[Widget]] = Vertical
    DEFAULT_CSS = beside(__file__)
    app = getters.app(AppFace)
    heading: str = ""

    def compose(self) -> ComposeResult:
        with self.BOX(id="dialog") as box:
            box.border_title = self.heading
            box.border_subtitle = self.hint()
            yield from self.body()
            if buttons := list(self.buttons()):
                yield Horizontal(*buttons, id="buttons")

    def body(self) -> ComposeResult:
        """What is asked, or shown."""
        raise NotImplementedError

    def buttons(self) -> Iterable[Button]:
        """The answers; the first one does no harm."""
        return ()

    def hint(self) -> str:
        """What stands in the border below."""
        return ""

    @property
    def box(self) -> Widget:
        return self.query_one("#dialog")

    def key_of(self, action: str) -> str:
        """The key of an action, by its id, as a person reads it."""
        return first_key(action, self.app.keys)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "go" or bool(self.query(Button))

    def action_go(self, step: int) -> None:
        if step > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def facts(self, text: Content) -> VerticalScroll:
        """The part of the body that is scrolled where it has no room."""
        return VerticalScroll(Static(text, id="text"), id="facts", can_focus=False)

    def on_resize(self) -> None:
        """What has the focus stays in sight."""
        self.call_after_refresh(self.fit)
        if self.focused is not None:
            self.call_after_refresh(self.focused.scroll_visible, animate=False)

    def fit(self) -> None:
        """Buttons that have no room side by side stand below each other. Facts that have none can be reached by tab,
        and scrolled by keys; those that have some are no stop on the way."""
        for row in self.query("#buttons"):
            shown = [each for each in row.query(Button) if each.display]
            wanted = [max(LEAST_BUTTON, Content(str(each.label)).cell_length + PADDED) for each in shown]
            row.set_class(sum(wanted) + len(wanted) + 1 > row.size.width, "-stacked")
        for facts in self.query("#facts").results(VerticalScroll):  # none where it is closed by now
            facts.can_focus = facts.max_scroll_y > 0

    def action_close(self) -> None:
        """Go without an answer."""
        self.dismiss()
