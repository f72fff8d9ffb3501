"""The part of the app that handles its own failures: a worker's is shown in its panel, any other one ends the app."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, ClassVar

from textual.worker import NoActiveWorker, WorkerFailed, get_current_worker

from .opening_app import OpeningApp

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.dom import DOMNode
    from textual.widget import Widget
    from textual.worker import Worker


class FailingApp(OpeningApp):
    """An app that tells its person what becomes of pools where it fails.

    Args:
        theme: as :class:`DressedApp` takes it.
        plain: the same.

    Attributes:
        VITAL: groups of workers without which the app does not go on: the one that paints, and the one that ends it.
    """

    VITAL: ClassVar[tuple[str, ...]] = ("paint", "leave")

    def __init__(self, theme: str, plain: bool) -> None:
        super().__init__(theme, plain)
        self._began = time.time()

    def _handle_exception(self, error: Exception) -> None:
        """Show in its panel what a worker failed at; Textual ends the app for anything else."""
        try:
            worker = get_current_worker()
        except NoActiveWorker:
            worker = None
        if worker is None or worker.group in self.VITAL or not isinstance(error, WorkerFailed):
            super()._handle_exception(error)
        else:
            self._show_failure(worker, error.error)

    def _show_failure(self, worker: Worker[object], error: BaseException) -> None:
        from textual.content import Content

        from skyward_core.front import bug_report
        from skyward_core.wire.safe_text import field

        from .screens.base import BaseScreen

        bug_report.log_failure(worker.name, error)
        what = field(f"{type(error).__name__}: {error}")
        if (box := _box_of(worker.node)) is not None:
            box.border_subtitle = Content.styled(f"✗ {what}", "$text-error")
        screen = next(
            (each for each in worker.node.ancestors_with_self if isinstance(each, BaseScreen)), self
        )
        screen.flash(
            f"this is a defect of skyward-tui: {what} (--debug writes its traceback to the log)", "error"
        )

    def _fatal_error(self) -> None:  # Textual calls it where nobody handles an error
        if (error := sys.exception()) is not None:
            from .own_failure import failed

            self.panic(failed(error, self.pools(), self._began))

    def panic(self, *renderables: RenderableType) -> None:
        """End, and leave this on the terminal, with nothing that acts there: an error may quote what a rank said."""
        from .own_failure import Harmless

        super().panic(*map(Harmless, renderables))


def _box_of(node: DOMNode) -> Widget | None:
    """The box that a node is in: a panel, or a dialog's."""
    from .dialogs.base import Dialog
    from .widgets.chrome import Panel

    for each in node.ancestors_with_self:
        if isinstance(each, Panel):
            return each
        if isinstance(each, Dialog):
            return next(iter(each.query("#dialog")), None)  # none before it is composed
    return None
