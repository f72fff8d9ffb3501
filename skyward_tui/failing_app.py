"""The part of the app that says farewell where the app fails by itself."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from .opening_app import OpeningApp

if TYPE_CHECKING:
    from rich.console import RenderableType


class FailingApp(OpeningApp):
    """An app that tells its person what becomes of pools where it fails.

    Args:
        theme: as :class:`DressedApp` takes it.
        plain: the same.
    """

    def __init__(self, theme: str, plain: bool) -> None:
        super().__init__(theme, plain)
        self._began = time.time()

    def _fatal_error(self) -> None:  # Textual calls it where nobody handles an error
        if (error := sys.exception()) is not None:
            from .own_failure import failed

            self.panic(failed(error, self.pools(), self._began))

    def panic(self, *renderables: RenderableType) -> None:
        """End, and leave this on the terminal, with nothing that acts there: an error may quote what a rank said."""
        from .own_failure import Harmless

        super().panic(*map(Harmless, renderables))
