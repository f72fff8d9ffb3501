"""Base classes of dialogs: question, picker, text input, scrollable lines."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from skyward_core.util.user_files import expand_user, is_file
from skyward_tui.ui.actions import bindings, first_key
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.ui.typed_key_queue import DismissOnceScreen
from skyward_tui.widgets.header_and_hints import TextLine

Result = TypeVar("Result")

LEAST_BUTTON, PADDED = 12, 2  # minimum cells of a button, and cells around its label


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
            box.border_title = self.heading
            box.border_subtitle = self.hint()
            yield from self.body()
            if buttons := list(self.buttons()):
                yield Horizontal(*buttons, id="buttons")

    def body(self) -> ComposeResult:
        """Yield the content of the dialog."""
        raise NotImplementedError

    def buttons(self) -> Iterable[Button]:
        """Yield the buttons, the harmless one first."""
        return ()

    def hint(self) -> str:
        """Return the text in the lower border."""
        return ""

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
        """Adapt the dialog, and keep the focused widget visible."""
        self.call_after_refresh(self.fit_to_screen)
        if self.focused is not None:
            self.call_after_refresh(self.focused.scroll_visible, animate=False)

    def fit_to_screen(self) -> None:
        """Stack buttons vertically if they do not fit side by side, and make the text part focusable if it needs
        scrolling."""
        for row in self.query("#buttons"):
            shown = [each for each in row.query(Button) if each.display]
            widths = [max(LEAST_BUTTON, Content(str(each.label)).cell_length + PADDED) for each in shown]
            row.set_class(sum(widths) + len(widths) + 1 > row.size.width, "-stacked")
        for facts in self.query("#facts").results(VerticalScroll):  # no result once the dialog is closed
            facts.can_focus = facts.max_scroll_y > 0

    def action_close(self) -> None:
        """Close without an answer."""
        self.dismiss()


class Picker(Dialog[str | None]):
    """Base class of pickers, which return the picked value, or None.

    The input has the focus, and the arrow keys move the list's cursor.

    Attributes:
        ENTER: Description of the enter key in the hint.
        PLACEHOLDER: Text of the empty input.
        folder: Folder to which typed paths are relative; None if paths are not accepted.
    """

    ENTER: ClassVar[str]
    PLACEHOLDER: ClassVar[str]
    folder: Path | None = None
    BINDINGS = bindings("files")
    DEFAULT_CSS = read_style_sheet(__file__, "picker")

    def body(self) -> ComposeResult:
        yield TextLine(placeholder=self.PLACEHOLDER, compact=True)
        yield OptionList(compact=True)

    def hint(self) -> str:
        return f"enter: {self.ENTER}, type to filter, {self.key_of('files.back')}: back"

    def __init__(self) -> None:
        super().__init__()
        self._values: list[Any] = []  # values of the selectable options; the ID of an option is an index in this list

    def on_mount(self) -> None:
        self.fill("")

    def fill(self, typed: str) -> None:
        """List the options that match the typed text."""
        self._values.clear()
        self._listed.clear_options()
        self.list_options(typed.strip())
        self._listed.action_first()

    def refill(self) -> None:
        """Refresh the list, unless the dialog is being closed."""
        if self.is_attached and self.display:
            self.fill(self.query_one(Input).value)

    def list_options(self, typed: str) -> None:
        """Add the options that match the typed text."""
        raise NotImplementedError

    def accept(self, value: Any) -> None:
        """Handle the value that was picked."""
        self.dismiss(value)

    @property
    def _listed(self) -> OptionList:
        return self.query_one(OptionList)

    def add(self, value: Any, row: Content, *, disabled: bool = False) -> None:
        """Add an option."""
        self._listed.add_option(Option(row, id=str(len(self._values)), disabled=disabled))
        self._values.append(value)

    def add_note(self, text: str, style: str = "$muted") -> None:
        """Add a line that cannot be selected."""
        self._listed.add_option(Option(Content.styled(text, style), disabled=True))

    def replace(self, value: Any, row: Content | None) -> None:
        """Replace the row of a listed value, or remove it if ``row`` is None. Does nothing while the dialog is being
        closed."""
        if self.display and value in self._values:
            id = str(self._values.index(value))
            if row is None:
                self._listed.remove_option(id)
            else:
                self._listed.replace_option_prompt(id, row)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.fill(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = None if self.folder is None else self.folder / expand_user(event.value.strip())
        if typed is not None and event.value.strip() and is_file(typed):
            self.dismiss(str(typed))
        else:
            self._listed.action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        # The second half of a double click may arrive when the list has new options.
        if event.option in event.option_list.options:
            self.accept(self._values[int(event.option_id or 0)])

    def action_step(self, step: int) -> None:
        if step > 0:
            self._listed.action_cursor_down()
        else:
            self._listed.action_cursor_up()


class AskScreen(Dialog[str | None]):
    """Dialog that asks for one line of text. Escape returns None.

    Args:
        question: Title of the dialog.
        value: Initial text.
    """

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self.heading = question
        self._value = value

    def body(self) -> ComposeResult:
        yield TextLine(self._value, compact=True)

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


class TypedConfirmation(Dialog[Result]):
    """Dialog that the user confirms by typing a word, and that then shows the progress of its work.

    The body contains the text (``#text`` in ``#facts``) with the input below.

    Attributes:
        CONFIRMS: Selector of the buttons that are disabled until the word is typed.
        has_started: Whether the user has confirmed.
        word: The required word; "" if a button is enough.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "typed_confirmation")
    CONFIRMS: ClassVar[str] = ""
    has_started = False
    word = ""

    def confirm(self) -> None:
        """Handle the confirmation by the user."""
        raise NotImplementedError

    def reject(self, reason: str) -> None:
        """Show why the confirmation was rejected, after another word was typed."""
        raise NotImplementedError

    def field(self) -> Iterable[Input]:
        """Yield the input for the required word. It is empty at first, so that the user must read the question."""
        if self.word:
            yield TextLine(compact=True, id="answer")

    def show_facts(self, text: Content) -> None:
        """Replace the text part of the body."""
        self.query_one("#text", Static).update(text)
        self.call_after_refresh(self.fit_to_screen)

    def show_progress(self) -> None:
        """Show the progress of the work."""
        raise NotImplementedError

    def start(self, title: str, work: Coroutine[Any, Any, None]) -> None:
        """Start the work, and show its progress. The work continues if the dialog is closed."""
        self.has_started = True
        self.box.border_title = title
        self.query(f"#answer, #ask, {self.CONFIRMS}").add_class("hidden")
        close = self.query_one("#cancel", Button)
        close.label = "Hide"
        close.focus()
        self.app.run_worker(work, exclusive=False)
        self.progress_timer = self.set_interval(0.2, self.show_progress)
        self.show_progress()

    def finish(self, title: str, *, gone: bool) -> None:
        """Show the end of the work.

        Args:
            title: New title.
            gone: Whether all resources are verified to be gone.
        """
        self.box.border_title = title
        self.box.set_class(gone, "-gone")
        self.query_one("#cancel", Button).label = "Close"

    def on_input_changed(self, event: Input.Changed) -> None:
        for button in self.query(self.CONFIRMS).results(Button):
            button.disabled = event.value.strip() != self.word

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = event.value.strip()
        if typed == self.word:
            self.confirm()
        else:
            self.reject(f"{typed!r} is not {self.word!r}" if typed else "nothing was typed")


class DifferencesScreen(Dialog[None]):
    """Dialog with a scrollable table.

    Args:
        heading: Title of the dialog.
        lines: Lines of the table, its header first.
    """

    BOX: ClassVar[type[Widget]] = VerticalScroll
    DEFAULT_CSS = read_style_sheet(__file__, "differences")

    def __init__(self, heading: str, lines: Sequence[str]) -> None:
        super().__init__()
        self.heading = heading
        self._lines = lines

    def body(self) -> ComposeResult:
        first, *others = self._lines
        yield Static(Content("\n").join([Content.styled(first, "bold"), *map(Content, others)]))

    def hint(self) -> str:
        return f"{self.key_of('dialog.close')}: close"
