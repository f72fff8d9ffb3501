"""Picks one of the themes that there are."""

from __future__ import annotations

from collections.abc import Sequence

from textual.widgets import OptionList
from textual.widgets.option_list import Option

from .picker import Picker


class ThemePicker(Picker):
    """Returns a theme's name, or None.

    Args:
        names: of all themes.
        now: the one that holds.
    """

    ENTER = "takes it"
    PLACEHOLDER = "type to narrow the list"
    heading = "Theme"

    def __init__(self, names: Sequence[str], now: str) -> None:
        super().__init__()
        self._names, self._now = names, now

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        fitting = [name for name in self._names if typed.strip().casefold() in name.casefold()]
        listed.add_options(Option(name, id=name) for name in fitting)
        if not fitting:
            self.say(f"no theme has {typed.strip()} in its name")
        else:
            listed.highlighted = fitting.index(self._now) if self._now in fitting else 0

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def take(self, picked: str) -> None:
        self.dismiss(picked)
