"""What the plugins that are on can be given: a part of the launch form that folds, with a field for each parameter."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.message import Message

from skyward_core.wire.safe_text import field

from ..argument_line import given
from ..words import one_line
from .argument_fields import ArgumentFields
from .folding_part import FoldingPart

if TYPE_CHECKING:
    from skyward_core.front.scripts import ArgumentField

LABEL = "Plugins' parameters"


class PluginFields(FoldingPart):
    """That part. It is there while a plugin is on that takes something."""

    class ParametersChanged(Message):
        """A parameter was."""

    def __init__(self, *, id: str) -> None:
        super().__init__(LABEL, ArgumentFields(id="plugin-arguments", prefix="parameter"), id=id)
        self.display = False
        self._line = ""
        self._names: Sequence[str] | None = None
        self._asked: list[ArgumentField] = []

    @property
    def texts(self) -> Mapping[str, str]:
        """What is given, by names such as ``torch.backend``; of plugins that are off, too."""
        return given(self._line) or {}

    def fill(self, texts: Mapping[str, str]) -> None:
        """Have the fields say what is given."""
        self._line = shlex.join(f"{name}={text}" for name, text in texts.items())

    def show(self, names: Sequence[str]) -> None:
        """Have fields for the plugins that are on."""
        from skyward_core.front.plugins import parameter_fields

        if names != self._names:  # packages are looked through for others' plugins
            self._names, self._asked = names, parameter_fields(names)
        asked = self._asked
        self.display = bool(asked)
        self.query_one(ArgumentFields).show(asked, self._line, Path(), sweep=False)
        known = {each.name: each for each in asked}
        said = {name: text for name, text in self.texts.items() if name in known}
        amiss = [name for name, text in said.items() if known[name].amiss(text)]
        if amiss:
            self.tell(f"✗ {field(amiss[0])} is amiss", amiss=True)
        else:
            told = ", ".join(f"{name}={text}" for name, text in said.items())
            self.tell(field(one_line(told)) if told else "as they are by default")

    @on(ArgumentFields.Edited)
    def _edited(self, event: ArgumentFields.Edited) -> None:
        event.stop()
        self._line = event.line
        self.post_message(self.ParametersChanged())
