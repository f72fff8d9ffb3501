"""Values that a job asks for and that nobody may read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.app import ComposeResult
from textual.widgets import Button, Input, Label

from .base import Dialog


class SecretsScreen(Dialog[dict[str, str] | None]):
    """Asks for each of some names; what is typed is not shown, and kept nowhere. Escape gives None."""

    heading = "The job asks for secrets"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def body(self) -> ComposeResult:
        for number, name in enumerate(self._names):
            yield Label(name, markup=False)
            answer = Input(compact=True, password=True, id=f"secret-{number}")
            answer.cursor_blink = False
            yield answer

    def buttons(self) -> Iterable[Button]:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Launch", id="go", compact=True)

    def on_mount(self) -> None:
        self.query_one("#secret-0").focus()

    def on_input_submitted(self) -> None:
        empty = [each for each in self.query(Input) if not each.value]
        if empty:
            empty[0].focus()
        else:
            self._give()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "go":
            self.on_input_submitted()
        else:
            self.dismiss(None)

    def _give(self) -> None:
        values = (each.value for each in self.query(Input))
        self.dismiss(dict(zip(self._names, values, strict=True)))

    def action_close(self) -> None:
        self.dismiss(None)
