"""Dialogs for unknown host keys, and for the values of secret variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.content import Content
from textual.reactive import var
from textual.widgets import Button, Input, Label

from skyward_tui.dialogs.basic_dialogs import Dialog
from skyward_tui.text.number_time_and_run_state_format import count
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.screen_frame_and_replay_line import TextLine

if TYPE_CHECKING:
    from skyward_core.client.session_interface import ServerKey


def _short(path: Path) -> str:
    """Return a path relative to ``~`` if it is below the user's home."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


class HostKeyScreen(Dialog[bool]):
    """Dialog about an unknown host key. Returns whether the user accepted the key.

    Refuse has the focus, and escape refuses.

    Args:
        key: Key of the host.
        starts: Whether the start of a pool waits for the answer.

    Attributes:
        more: Number of further hosts with unknown keys.
    """

    BINDINGS = bindings("hostkey")
    VERTICAL_BREAKPOINTS = [(0, "-tight"), (22, "-roomy")]  # noqa: RUF012
    DEFAULT_CSS = read_style_sheet(__file__, "host_key")
    heading = "Unknown host key"
    more: var[int] = var(0, init=False)

    def __init__(self, key: ServerKey, *, starts: bool = True) -> None:
        super().__init__()
        self.key = key
        self._starts = starts
        self._withdrawn = False

    def body(self) -> ComposeResult:
        yield self.facts(self._question())

    def buttons(self) -> Iterable[Button]:
        yield Button(f"Refuse ({self.key_of('hostkey.refuse')})", id="refuse", compact=True)
        yield Button(f"Accept ({self.key_of('hostkey.accept')})", id="accept", variant="warning", compact=True)

    def on_mount(self) -> None:
        self.watch_more(self.more)

    def _question(self) -> Content:
        key = self.key
        look = f"ssh-keygen -lf /etc/ssh/ssh_host_{key.key_type.lower()}_key.pub"
        rows = [("host", key.host), ("key type", key.key_type), ("fingerprint", key.fingerprint)]
        if (key.name, key.port) != (key.host, 22) and f"{key.name}:{key.port}" != key.host:
            rows.insert(1, ("reached at", f"{key.name} port {key.port}"))
        continues, fails = (" and the start continues", " and the start fails") if self._starts else ("", "")
        parts: list[tuple[str, str]] = []
        for name, value in rows:
            parts += [(f"{name:<13}", "$muted"), (f"{value}\n", "bold")]
        parts += [
            ("\nCompare with the output of this command on the host:\n", ""),
            (f"{look}\n\n", "$text-accent"),
            ("If you accept, ", "bold"),
            (f"this key is trusted from now on{continues}. It is saved in\n", ""),
            (f"{_short(key.file)}\n\n", "$text-accent"),
            ("If you refuse, ", "bold"),
            (f"nothing is sent to the host{fails}.", ""),
        ]
        return Content.assemble(*parts)

    def watch_more(self, more: int) -> None:
        for dialog in self.query("#dialog"):
            dialog.border_subtitle = f"{count(more, 'more host')}" if more else ""

    def withdraw(self) -> None:
        """Close without an answer. If another dialog is on top, wait until that dialog closes."""
        self._withdrawn = True
        self.dismiss(False)

    def on_screen_resume(self) -> None:
        if self._withdrawn:
            self.dismiss(False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "accept")

    def action_answer(self, accepted: bool) -> None:
        self.dismiss(accepted)


class SecretsScreen(Dialog[dict[str, str] | None]):
    """Dialog that asks for the values of secrets, which are neither shown nor saved. Escape returns None."""

    heading = "Secrets of the job"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def body(self) -> ComposeResult:
        for number, name in enumerate(self._names):
            yield Label(name, markup=False)
            yield TextLine(compact=True, password=True, id=f"secret-{number}")

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
            self.dismiss(dict(zip(self._names, (each.value for each in self.query(Input)), strict=True)))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "go":
            self.on_input_submitted()
        else:
            self.dismiss(None)
