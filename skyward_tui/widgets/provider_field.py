"""The list of providers, each with how its check-up went, and below it what that said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from textual.content import Content
from textual.widgets import Select, Static

from skyward_core.wire.safe_text import field

from ..hints import detail_of
from ..words import clip_path, one_line
from .form_fields import Choice
from .saying import say

if TYPE_CHECKING:
    from skyward_core.model.machine import Check

State = Literal["asked", "ok", "warn", "fail"]

_GLYPHS: Mapping[str, str] = {"asked": "…", "ok": "✓", "warn": "!", "fail": "✗"}
_STYLES: Mapping[str, str] = {"ok": "$muted", "warn": "$text-warning", "fail": "$text-error"}
_ORDER = ("fail", "warn", "ok")


def state_of(lines: Sequence[Check]) -> State:
    """The worst of what a check-up says."""
    found = {line.state for line in lines}
    return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


class ProviderField(Choice):
    """Providers, as (name, label)."""

    def __init__(self, labels: Mapping[str, str], value: str, *, id: str) -> None:
        self._labels = labels
        self._states: dict[str, State] = {}
        super().__init__(self._listed(), value=value, allow_blank=False, id=id, compact=True)

    def mark(self, name: str, state: State | None) -> None:
        """Say how a provider is; None where nobody knows."""
        if self._states.get(name) == state:
            return
        self._states.pop(name, None)
        if state is not None:
            self._states[name] = state
        chosen = self.value
        with self.prevent(Select.Changed):
            self.set_options(self._listed())
            self.value = chosen
            self.mutate_reactive(Choice.value)  # type: ignore[misc]  # what is called otherwise now is shown so

    def _listed(self) -> list[tuple[str, str]]:
        return [
            (f"{_GLYPHS[state]} {label}" if (state := self._states.get(name)) else label, name)
            for name, label in self._labels.items()
        ]


class CheckLines(Static):
    """What a check-up said, the worst first; of one that went well, a line where there is room."""

    _fine = ""

    def show(self, lines: Sequence[Check], rows: int) -> None:
        """Show it.

        Args:
            rows: how many lines there is room for where something is amiss.
        """
        amiss = [line for each in _ORDER[:2] for line in lines if line.state == each]
        shown = amiss[:rows]
        said = [(line.state, f"{_GLYPHS[line.state]} {_told(line)}") for line in shown]
        if len(amiss) > len(shown):
            said.append(("warn", f"  and {len(amiss) - len(shown)} more: skyward-tui doctor tells all"))
        self._fine = "" if amiss or rows <= 1 else "; ".join(_told(line) for line in lines)
        if self._fine:
            return self._show_fine()
        content = Content("\n").join(Content.styled(text, _STYLES[state]) for state, text in said)
        self.remove_class("-fine")
        say(self, content)
        self.display = bool(said)
        return None

    def _show_fine(self) -> None:
        """One line; where it names a folder that has no room, its end."""
        text = f"{_GLYPHS['ok']} {self._fine}"
        self.add_class("-fine")
        say(self, Content.styled(clip_path(text, self.size.width or len(text)), _STYLES["ok"]))
        self.display = True

    def on_resize(self) -> None:
        if self._fine:
            self._show_fine()


def _told(line: Check) -> str:
    return field(one_line(f"{line.subject}: {detail_of(line)}"))
