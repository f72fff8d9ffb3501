"""Base dialogs: question, picker, text input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from skyward_tui.ui.actions import bindings, first_key
from skyward_tui.ui.style_sheets import read_style_sheet
from skyward_tui.ui.type_ahead import DismissOnceScreen
from skyward_tui.widgets.form_fields import TextLine

if TYPE_CHECKING:
    pass

Result = TypeVar("Result")

LEAST_BUTTON, PADDED = 12, 2  # cells of a button, and those around its label


class Dialog(ModalScreen[Result], DismissOnceScreen[Result]):
    """A box to be answered. Escape closes it, arrows go from button to button; what stands first has the focus, so
    the answer that does no harm is the first one.

    Attributes:
        heading: what stands in the border.
    """

    BINDINGS = bindings("dialog")
    BOX: ClassVar[type[Widget]] = Vertical
    DEFAULT_CSS = read_style_sheet(__file__, "base")
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
        self.call_after_refresh(self.fit_to_screen)
        if self.focused is not None:
            self.call_after_refresh(self.focused.scroll_visible, animate=False)

    def fit_to_screen(self) -> None:
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


class Picker(Dialog[str | None]):
    """Returns what was picked, or None. The input has the focus; keys move the list's cursor all the same."""

    ENTER: ClassVar[str]  # what that key does
    PLACEHOLDER: ClassVar[str]
    BINDINGS = bindings("files")
    DEFAULT_CSS = read_style_sheet(__file__, "picker")

    def body(self) -> ComposeResult:
        narrow = TextLine(placeholder=self.PLACEHOLDER, compact=True)
        narrow.cursor_blink = False
        yield narrow
        yield OptionList(compact=True)

    def hint(self) -> str:
        return f"enter {self.ENTER}, type to narrow, {self.key_of('files.back')} back"

    def on_mount(self) -> None:
        self.fill("")

    def fill(self, typed: str) -> None:
        """List what fits to what was typed."""
        raise NotImplementedError

    def accept(self, picked: str) -> None:
        """Do what is to be done with the option of this id."""
        raise NotImplementedError

    def add_note(self, text: str) -> None:
        """Stand a line in the list that cannot be picked."""
        self.query_one(OptionList).add_option(Option(Content.styled(text, "$muted"), disabled=True))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.fill(event.value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        # The second half of a double click may arrive after the list was refilled.
        if event.option in event.option_list.options:
            self.accept(event.option_id or "")

    def action_step(self, step: int) -> None:
        listed = self.query_one(OptionList)
        if step > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()


class AskScreen(Dialog[str | None]):
    """Asks for one line; escape gives None.

    Args:
        value: what the line holds at first.
    """

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self.heading = question
        self._value = value

    def body(self) -> ComposeResult:
        answer = TextLine(self._value, compact=True)
        answer.cursor_blink = False
        yield answer

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class ChoiceScreen(Dialog[str]):
    """A question with a few answers, the harmless one first and focused.

    Args:
        title: in the border.
        text: what is asked, as it is.
        choices: (id, label, dangerous) of each answer; escape gives ``escape``.
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


class TypedConfirmation(Dialog[Result]):
    """Its body has the facts, ``#text`` in ``#facts``, and below them the field.

    Attributes:
        CONFIRMS: the buttons that wait for the word.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "typed_word")
    CONFIRMS: ClassVar[str] = ""

    @property
    def word(self) -> str:
        """What must be typed; "" where a press of a button is enough."""
        raise NotImplementedError

    def confirm(self) -> None:
        """The word was typed."""
        raise NotImplementedError

    def reject(self, said: str) -> None:
        """Something else was, in words."""
        raise NotImplementedError

    def field(self) -> Iterable[Input]:
        """Where the word is typed: empty, so that nobody confirms what was not read."""
        if self.word:
            answer = TextLine(compact=True, id="answer")
            answer.cursor_blink = False
            yield answer

    def show_facts(self, text: Content) -> None:
        """Other facts."""
        self.query_one("#text", Static).update(text)
        self.call_after_refresh(self.fit_to_screen)

    def on_input_changed(self, event: Input.Changed) -> None:
        for button in self.query(self.CONFIRMS).results(Button):
            button.disabled = event.value.strip() != self.word

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = event.value.strip()
        if typed == self.word:
            self.confirm()
        else:
            self.reject(f"{typed!r} is not {self.word!r}" if typed else "nothing was typed")
