"""Base classes of screens and dialogs, and the simple dialogs: one line of text, a choice, scrollable lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, Static

from skyward_tui.ui.actions import bindings, first_key
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.screen_frame_and_replay_line import TextLine

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp

Result = TypeVar("Result")

LEAST_BUTTON, PADDED = 12, 2  # minimum width in cells of a button; cells that a button needs in addition to its label


class DismissOnceScreen(Screen[Result]):
    """Base class of all screens and dialogs, which ignores repeated dismissals.

    It must be the last base class of a subclass, because Textual takes default styles from the first base class.
    """

    app: SkywardApp

    @property
    def has_widgets(self) -> bool:
        """Whether the screen still has its widgets. While a screen closes or the app exits, its widgets disappear one
        by one.
        """
        return self.is_attached and self.display

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close the screen with a result, unless it is already closed or covered by another screen."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def on_resize(self) -> None:
        """Keep the focused widget visible."""
        if self.focused is not None:
            self.call_after_refresh(self.focused.scroll_visible, animate=False)

    def leave(self) -> None:
        """Close the screen without a result, unless it is already closed or covered by another screen."""
        if self.is_active:
            self.app.pop_screen()


class Palette(CommandPalette, DismissOnceScreen[None]):
    """Textual's command palette, changed so that it runs a chosen command only once."""

    @on(OptionList.OptionSelected)
    def _ignore_repeat(self, event: OptionList.OptionSelected) -> None:
        if not self.is_active:
            event.prevent_default()


class Dialog(ModalScreen[Result], DismissOnceScreen[Result]):
    """Base of dialogs. Escape closes a dialog, and arrows move between its buttons.

    The first button has the focus initially, so it must be the harmless answer.

    Attributes:
        heading: Title in the border.
    """

    BINDINGS = bindings("dialog")
    BOX: ClassVar[type[Widget]] = Vertical
    DEFAULT_CSS = read_style_sheet(__file__)
    heading: str = ""

    def compose(self) -> ComposeResult:
        with self.BOX(id="dialog") as box:
            buttons = list(self.buttons())
            box.border_title = self.heading
            box.border_subtitle = self.hint() or (self._choice_hint() if buttons[1:] else "")
            yield from self.body()
            if buttons:
                yield Horizontal(*buttons, id="buttons")

    def body(self) -> ComposeResult:
        """Yield the content of the dialog."""
        raise NotImplementedError

    def buttons(self) -> Iterable[Button]:
        """Yield the buttons, the harmless one first."""
        return ()

    def hint(self) -> str:
        """Return the hint that the lower border of the dialog shows."""
        return ""

    def _choice_hint(self) -> str:
        """Return the hint about the keys that choose a button."""
        previous, following, close = (self.key_of(f"dialog.{each}") for each in ("previous", "next", "close"))
        return f"{previous} {following}: choose, enter: confirm, {close}: close"

    @property
    def box(self) -> Widget:
        return self.query_one("#dialog")

    def key_of(self, action: str) -> str:
        """Return the displayed key of an action, given the action's ID."""
        return first_key(action, self.app.keys)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "go" or bool(self.query(Button))

    def action_go(self, step: int) -> None:
        if step > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def facts(self, text: Content) -> VerticalScroll:
        """Return the text part of the body, which scrolls if it does not fit."""
        return VerticalScroll(Static(text, id="text"), id="facts", can_focus=False)

    def on_resize(self) -> None:
        self.call_after_refresh(self.fit_to_screen)

    def fit_to_screen(self) -> None:
        """Stack buttons vertically if they do not fit side by side, and make the text part focusable if it needs
        scrolling."""
        for row in self.query("#buttons"):
            shown = [each for each in row.query(Button) if each.display]
            widths = [max(LEAST_BUTTON, Content(str(each.label)).cell_length + PADDED) for each in shown]
            row.set_class(sum(widths) + len(widths) + 1 > row.size.width, "-stacked")
        # the query finds no widget if the dialog is already closed
        for facts in self.query("#facts").results(VerticalScroll):
            facts.can_focus = facts.max_scroll_y > 0

    def action_close(self) -> None:
        """Close the dialog without an answer."""
        self.dismiss()


class AskScreen(Dialog[str | None]):
    """Dialog that asks for one line of text. Escape returns None.

    Args:
        question: Title of the dialog.
        value: Initial text.
        offers: Completions of the typed text, listed in the empty field.
    """

    def __init__(self, question: str, value: str = "", offers: Sequence[str] = ()) -> None:
        super().__init__()
        self.heading = question
        self._value, self._offers = value, offers

    def body(self) -> ComposeResult:
        yield TextLine(self._value, " ".join(self._offers), compact=True, suggester=SuggestFromList(self._offers))

    def hint(self) -> str:
        return f"enter: confirm, {self.key_of('dialog.close')}: close"

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class ChoiceScreen(Dialog[str]):
    """Dialog with a question and a few answers. The first answer is harmless and has the focus.

    Args:
        title: Title in the border.
        text: The question, without markup.
        choices: The answers as (ID, label, whether dangerous).
        escape: Result of the escape key.
    """

    def __init__(self, title: str, text: str, choices: list[tuple[str, str, bool]], escape: str) -> None:
        super().__init__()
        self.heading = title
        self._text, self._choices, self._escape = text, choices, escape

    def body(self) -> ComposeResult:
        yield Static(self._text, markup=False)

    def buttons(self) -> Iterable[Button]:
        for name, label, dangerous in self._choices:
            yield Button(label, id=name, variant="error" if dangerous else "default", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id or self._escape)

    def action_close(self) -> None:
        self.dismiss(self._escape)


class DifferencesScreen(Dialog[None]):
    """Dialog with a scrollable table of differences.

    Args:
        heading: Title of the dialog.
        lines: Lines of the table, its header first.
        styles: Styles of lines by their first character.
    """

    BOX: ClassVar[type[Widget]] = VerticalScroll
    DEFAULT_CSS = read_style_sheet(__file__, "differences")

    def __init__(self, heading: str, lines: Sequence[str], styles: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.heading = heading
        self._lines, self._styles = lines, styles or {}

    def body(self) -> ComposeResult:
        first, *others = self._lines
        shown = [Content.styled(line, self._styles.get(line[:1], "")) for line in others]
        yield Static(Content("\n").join([Content.styled(first, "bold"), *shown]))

    def hint(self) -> str:
        return f"{self.key_of('dialog.close')}: close"
