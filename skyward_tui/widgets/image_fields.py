"""What ranks' environment holds: a part of the launch form that folds, with a line such as ``pip=einops``."""

from __future__ import annotations

import shlex

from skyward_core.model.errors import UsageError
from skyward_core.wire.safe_text import field

from ..words import one_line
from .folding_part import FoldingPart
from .form_fields import line, row

LABEL = "Image and environment"
_SUCH_AS = "such as pip=einops env.NAME=value secret=NAME"


class ImageFields(FoldingPart):
    """That part."""

    def __init__(self, *, id: str) -> None:
        super().__init__(LABEL, row("Set", line("image", _SUCH_AS)), id=id)

    def show(self, text: str) -> None:
        """Say on its line what is set, or what is wrong with it."""
        from skyward_core.front.image_asked import image_asked

        try:
            image_asked(shlex.split(text))
        except (UsageError, ValueError) as error:
            self.tell(f"✗ {field(one_line(str(error)))}", amiss=True)
        else:
            self.tell(field(one_line(text)) if text.strip() else "as they are by default")
