"""What a rank died of, below its log: an exception that left the function is in no line that the rank printed."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from skyward_core.model.outcome import Outcome
from skyward_core.views.views import RunView

from ..styles import beside
from ..theme import look
from ..words import failure, one_line

ROWS, ROWS_SHORT = 10, 5  # of a traceback: its last ones


class CauseLines(Static):
    """The last lines of a rank's traceback, and how to read all of it."""

    DEFAULT_CSS = beside(__file__)

    def __init__(self) -> None:
        super().__init__()
        self._shown: object = ()
        self.text = ""  # the whole traceback, while some of it is shown
        self.display = False

    def show(self, run: RunView | None, rank: int | None, key: str, *, short: bool) -> None:
        """Show why a rank failed, where it raised.

        Args:
            rank: None for none.
            key: what shows all failures, as a person reads it.
            short: whether lines are few.
        """
        outcome = None if run is None or rank is None or not run.counts.get("raised") else _raised(run, rank)
        shown = (outcome and outcome.error, key, short)
        if shown == self._shown:
            return
        self._shown = shown
        self.display = outcome is not None
        self.text = ""
        if outcome is not None and outcome.error is not None:
            error = outcome.error
            self.text = error.traceback
            said = failure(outcome.kind, error.type, one_line(error.message))
            lines = error.traceback.strip().splitlines()[-(ROWS_SHORT if short else ROWS) :]
            head = Content.assemble(
                (f"{look('raised').glyph} {said}", "bold $text-error"), (f"  {key} shows all", "$muted")
            )
            self.update(Content("\n").join([head, *(Content.styled(line, "$text-error") for line in lines)]))


def _raised(run: RunView, rank: int) -> Outcome | None:
    """How the rank's latest function ended, where it raised and left a traceback."""
    tasks = [task for task in list(run.tasks.values()) if task.rank == rank and task.outcome is not None]
    outcome = max(tasks, key=lambda task: task.began_at or 0.0).outcome if tasks else None
    if outcome is None or outcome.kind != "raised" or outcome.error is None or not outcome.error.traceback:
        return None
    return outcome
