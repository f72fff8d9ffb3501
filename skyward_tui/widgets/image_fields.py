"""What ranks' environment holds: a part of the launch form that folds, with a field for each kind of thing."""

from __future__ import annotations

import shlex
from pathlib import Path

from textual import on
from textual.message import Message

from skyward_core.model.errors import UsageError
from skyward_core.wire.safe_text import field

from ..argument_line import given
from ..words import one_line
from .argument_fields import ArgumentFields
from .folding_part import FoldingPart

LABEL = "Image and environment"


class ImageFields(FoldingPart):
    """That part."""

    class ImageChanged(Message):
        """A field was."""

    def __init__(self, *, id: str) -> None:
        super().__init__(LABEL, ArgumentFields(id="image-arguments", prefix="image"), id=id)
        self._line = ""  # what each field says, as they know it themselves
        self._texts: dict[str, list[str]] = {}  # and of a launch that was filled in, what that is made of

    @property
    def text(self) -> str:
        """What is said, as texts such as ``pip=einops``; such as nobody can split where a quotation has no end."""
        said = given(self._line) or {}
        return " ".join(text for name, each in said.items() if (text := self._text_of(name, each)))

    def fill(self, text: str) -> None:
        """Have the fields say what such texts do."""
        from skyward_core.front.image_fields import by_field

        try:
            texts = shlex.split(text)
        except ValueError:  # it was kept while somebody was typing
            texts = []
        self._texts = {}
        for each in texts:
            (name,) = by_field([each])
            self._texts.setdefault(name, []).append(each)
        self._line = shlex.join(f"{name}={said}" for name, said in by_field(texts).items())

    @on(FoldingPart.Expanded)
    def show(self) -> None:
        """Say on the line that folds what is set, or what is wrong; once it is open, have the fields there."""
        from skyward_core.front.image_asked import image_asked
        from skyward_core.front.image_fields import IMAGE_FIELDS

        if not self.collapsed:
            self.query_one(ArgumentFields).show(IMAGE_FIELDS, self._line, Path(), sweep=False)
        try:
            image_asked(shlex.split(self.text))
        except (UsageError, ValueError) as error:
            self.tell(f"✗ {field(one_line(str(error)))}", amiss=True)
        else:
            self.tell(field(one_line(self.text)) if self.text else "as they are by default")

    def _text_of(self, name: str, said: str) -> str:
        from skyward_core.front.image_fields import texts_of

        if name in self._texts:  # several commands stay several
            return shlex.join(self._texts[name])
        try:
            return shlex.join(texts_of(name, said))
        except ValueError:
            return f"{name}={said}"

    @on(ArgumentFields.Edited)
    def _edited(self, event: ArgumentFields.Edited) -> None:
        event.stop()
        said = given(self._line) or {}
        self._line, now = event.line, given(event.line) or {}
        changed = {name for name in said.keys() | now.keys() if said.get(name) != now.get(name)}
        self._texts = {name: texts for name, texts in self._texts.items() if name not in changed}
        self.post_message(self.ImageChanged())
