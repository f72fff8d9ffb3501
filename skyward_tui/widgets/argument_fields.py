"""A field for each argument of a function, with what is amiss under it; the line above them says the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Label, Select, Static

from skyward_core.wire.safe_text import field

from ..argument_line import given, with_argument
from ..several_values import amiss, values_of
from ..styles import beside
from .form_fields import Choice, line
from .saying import say
from .toggles import Toggles

if TYPE_CHECKING:
    from skyward_core.front.scripts import ArgumentField

_ON = "on"
_LABEL, _WIDEST = 12, 30  # cells of a name, with what is around it


class ArgumentRow(Vertical):
    """One argument. Under its field stands what is amiss; while it has the focus, what it is.

    Args:
        asked: what it wants.
        id: of the field.
        text: what is given; None where nothing is.
    """

    def __init__(self, asked: ArgumentField, id: str, text: str | None) -> None:
        super().__init__()
        self.asked = asked
        self.label = Label(field(asked.name))
        self._field = _field_of(asked, id, text)
        self._under = Static(classes="under", markup=False)
        self._amiss, self._warning = "", ""
        self._many = 0  # values that are given

    def compose(self) -> ComposeResult:
        yield Horizontal(self.label, self._field, classes="row argument")
        yield self._under

    def on_mount(self) -> None:
        self._show_under()

    @property
    def own_field(self) -> Widget:
        """That which takes it."""
        return self._field

    @property
    def text(self) -> str | None:
        """What the field gives; None where it gives nothing."""
        if isinstance(self._field, Toggles):
            is_on = bool(self._field.chosen)
            return None if is_on == self.asked.is_on else str(is_on).lower()
        value = self._field.value if isinstance(self._field, Input | Select) else ""
        return value if isinstance(value, str) and value else None

    def fill(self, text: str | None) -> None:
        """Have the field say what is given."""
        if isinstance(self._field, Toggles):
            self._field.chosen = _chosen(self.asked, text)
            self._field.refresh()
        elif isinstance(self._field, Select):
            # Before it is there, a list does not show what it is set to.
            if self._field.is_mounted and self._field.value != (choice := _choice(self.asked, text)):
                self._field.value = choice
        elif isinstance(self._field, Input) and (text or "") != self._field.value:
            self._field.value = text or ""

    def tell(self, text: str | None, script: Path, *, sweep: bool) -> None:
        """Tell what is amiss with what is given; with ``sweep`` that are values between commas."""
        if text is not None and sweep:
            self._amiss = amiss(self.asked, text)
            values = [] if self._amiss else values_of(self.asked.name, text)
        else:
            self._amiss = "" if text is None else self.asked.amiss(text)
            values = [] if text is None or self._amiss else [text]
        missing = (said for value in values if (said := self.asked.missing(value, script)))
        self._warning = next(missing, "")
        self._many = len(values)
        self._show_under()

    def on_descendant_focus(self) -> None:
        self._show_under()

    def on_descendant_blur(self) -> None:
        self._show_under()

    def _show_under(self) -> None:
        if self._amiss:
            said = Content.styled(field(f"✗ {self._amiss}"), "$text-error")
        elif self._warning:
            said = Content.styled(field(f"! {self._warning}"), "$text-warning")
        elif self._many > 1:
            said = Content.styled(f"{self._many:,} values", "$text-accent")
        elif self._field.has_focus:
            says_itself = isinstance(self._field, Input) and not self._field.value
            said = Content.styled(field(_about(self.asked, says_itself)), "$muted")
        else:
            said = Content("")
        say(self._under, said)
        self._under.display = bool(said.plain)


class ArgumentFields(Vertical):
    """The fields of the function that is chosen, or of plugins.

    Args:
        prefix: what the fields' ids begin with.
    """

    DEFAULT_CSS = beside(__file__)

    @dataclass
    class Edited(Message):
        """A field was.

        Attributes:
            line: what the line of arguments is to say.
        """

        line: str

    def __init__(self, *, id: str, prefix: str = "argument") -> None:
        super().__init__(id=id)
        self._prefix = prefix
        self._asked: Sequence[ArgumentField] = ()
        self._rows: list[ArgumentRow] = []
        self._line = ""
        self._own: list[str] = []  # lines that fields made of it, and that are still to come back
        self._made = 0  # times that there were other fields; ids of those that go are still taken

    def show(self, asked: Sequence[ArgumentField], line: str, script: Path, *, sweep: bool) -> None:
        """Have fields for these arguments, which say what the line says."""
        # Whoever types in a field is ahead of what comes back of it.
        is_own = line in self._own
        del self._own[: self._own.index(line) + 1 if is_own else None]
        is_new = not is_own and line != self._line
        if is_new:
            self._line = line
        texts: Mapping[str, str] | None = given(line)
        if list(asked) != list(self._asked):
            self._asked = asked
            self._made += 1
            self.remove_children()
            self._rows = [
                ArgumentRow(each, f"{self._prefix}-{self._made}-{number}", (texts or {}).get(each.name))
                for number, each in enumerate(asked)
            ]
            self.mount(*self._rows)
            widest = max((len(each.name) for each in asked), default=0)
            for each in self._rows:
                each.label.styles.width = max(_LABEL, min(_WIDEST, widest + 3))
        if texts is not None:
            with self.prevent(Input.Changed, Select.Changed, Toggles.Changed):
                for each in self._rows:
                    text = texts.get(each.asked.name)
                    if is_new:
                        each.fill(text)
                    each.tell(text, script, sweep=sweep)

    def field_of(self, name: str) -> Widget | None:
        """The field of an argument; None where it has none."""
        return next((each.own_field for each in self._rows if each.asked.name == name), None)

    @on(Input.Changed)
    @on(Select.Changed)
    @on(Toggles.Changed)
    def _edited(self, event: Input.Changed | Select.Changed | Toggles.Changed) -> None:
        event.stop()
        changed = next((each for each in self._rows if event.control in each.walk_children()), None)
        if changed is None:
            return
        name, text = changed.asked.name, changed.text
        before = (given(self._line) or {}).get(name)
        if text == before or (text is None and before == ""):
            return
        if isinstance(event.control, Select) and _choice(changed.asked, before) == (text or ""):
            return  # it only tells what it was made with
        self._line = with_argument(self._line, name, text, [each.name for each in self._asked])
        self._own.append(self._line)
        self.post_message(self.Edited(self._line))


def _field_of(asked: ArgumentField, id: str, text: str | None) -> Widget:
    if asked.kind == "switch":
        return Toggles([(_ON, _ON)], _chosen(asked, text), id=id)
    if asked.kind == "choice":
        first = "choose one" if asked.required else f"{field(asked.default or 'nothing')}, if not chosen"
        listed = [(first, ""), *((field(each), each) for each in asked.choices)]
        return Choice(listed, value=_choice(asked, text), allow_blank=False, id=id, compact=True)
    return line(id, field(asked.look), value=text or "")


def _about(asked: ArgumentField, says_itself: bool) -> str:
    """What stands below a field: how the signature has it, too, unless the empty field says that itself."""
    of = "" if says_itself else asked.look
    listed = "a list as 1,2,3" if asked.type.startswith("*") else ""
    return "  ".join(filter(None, (of, listed, asked.help)))


def _choice(asked: ArgumentField, text: str | None) -> str:
    return "" if text is None else asked.choice_of(text) or ""


def _chosen(asked: ArgumentField, text: str | None) -> set[str]:
    known = None if text is None or asked.amiss(text) else text.lower() in ("true", "yes", "on", "1")
    return {_ON} if (asked.is_on if known is None else known) else set()
