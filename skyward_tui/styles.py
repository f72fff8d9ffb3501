"""Style sheets stand in a file of their own beside the screen, panel or dialog that they are for."""

from __future__ import annotations

from pathlib import Path


def beside(module: str) -> str:
    """The style sheet of a module, by its ``__file__``. As defaults of a class (``DEFAULT_CSS``) its rules yield to
    those of a focused or disabled widget, which rules of a ``CSS_PATH`` would not."""
    return Path(module).with_suffix(".tcss").read_text("utf-8")
