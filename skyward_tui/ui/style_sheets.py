"""Style sheets stand in a file of their own beside the screen, panel, dialog or widget that they are for."""

from __future__ import annotations

from pathlib import Path


def read_style_sheet(module: str, name: str = "") -> str:
    """The style sheet of a module, by its ``__file__``, or the one beside it that has a name of its own. As defaults of
    a class (``DEFAULT_CSS``) its rules yield to those of a focused or disabled widget, which rules of a ``CSS_PATH``
    would not.
    """
    path = Path(module)
    return path.with_stem(name or path.stem).with_suffix(".tcss").read_text("utf-8")
