"""Base class of the run screen's panels: a numbered box, periodic updates, and hooks for the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget

from skyward_core.client.log_search import LineMatch
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.problem_alerts_and_stragglers import Alert
from skyward_tui.ui.run_screen_panel_list_and_layout import PanelSpec
from skyward_tui.widgets.screen_frame_and_replay_line import Panel

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp
    from skyward_tui.ui.actions import Action

Main = TypeVar("Main", bound=Widget)

BORDER = 2  # rows that the upper and the lower border of a panel occupy


class RunSelection(NamedTuple):
    """Selected rank of a run, or all ranks merged.

    Attributes:
        rank: The selected rank.
        merged: Whether the lines of all ranks are shown as one log.
        collapsed: Whether equal lines of several ranks are shown once.
        failed: Whether the merged log contains only failed ranks.
    """

    rank: int
    merged: bool
    collapsed: bool = False
    failed: bool = False


class InstantChosen(Message):
    """Message that the user has chosen a time, for example with the hairline of a chart. All panels then show this
    time.

    Args:
        at: Unix time; None for the newest data.
    """

    def __init__(self, at: float | None) -> None:
        super().__init__()
        self.at = at


class PanelExport(NamedTuple):
    """Content that a panel saves to files.

    Attributes:
        files: Text chunks by file name suffix.
        remark: Note to show to the user.
    """

    files: Mapping[str, Iterable[str]]
    remark: str = ""


class RunPanel(Panel, Generic[Main]):
    """One panel of the run screen.

    Args:
        row: Row of the table in ``ui.run_screen_panel_list_and_layout``.
        show: Makes the panel visible, as if it had the focus.
        main: Widget that takes the focus; by default, a new instance of ``MAIN``.

    Attributes:
        MAIN: Type of the widget that takes the focus.
        FITS_ROWS: Whether the panel never needs more rows than its main widget has.
        CALM: Whether the panel may be updated less often than every second while the pool is idle.
        has_content: Whether the panel has anything to show. If not, panels with ``hides`` are hidden.
    """

    app: SkywardApp
    CALM: ClassVar[bool] = False
    FITS_ROWS: ClassVar[bool] = False
    MAIN: ClassVar[Callable[..., Any]]

    def __init__(self, row: PanelSpec, show: Callable[[], None], main: Main | None = None) -> None:
        super().__init__(id=f"panel-{row.id}", classes="panel")
        self.row = row
        self.show = show
        self.main: Main = self.MAIN(id=row.id) if main is None else main
        self.has_content = not row.hides
        self.border_title = self.heading

    def compose(self) -> ComposeResult:
        yield self.main

    def above(self) -> Iterable[Widget]:
        """Return widgets that the screen shows above all panels."""
        return ()

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        """Show the current state of a pool and of one run.

        Called a few times a second, so a call must be cheap if nothing has changed.

        Args:
            now: Unix time in seconds.

        Returns:
            Whether the panel changed.
        """
        raise NotImplementedError

    @property
    def needs_polling(self) -> bool:
        """Whether the content may change without an event. If so, the panel is updated every second."""
        return False

    @property
    def preferred_rows(self) -> int | None:
        """Number of rows that the whole content needs, including the border; None if the panel can use any number."""
        main: Any = self.main
        return main.total_rows + BORDER if self.FITS_ROWS else None

    @property
    def heading(self) -> str:
        """First words of the title."""
        return f"{self.row.number} {self.row.title}"

    @property
    def context(self) -> str:
        """Key of the panel in :data:`skyward_tui.ui.actions.HINTS`."""
        return f"run.{self.row.id}"

    def offers(self, action: str) -> bool:
        """Check whether an action of the screen deserves a hint while this panel has the focus.

        Args:
            action: ID of the action.
        """
        return True

    def hint_label(self, action: Action) -> str:
        """Return the label of an action in the hint line."""
        return action.label

    def saved_state(self) -> Mapping[str, str | bool]:
        """Return the display options to save, under names that are unique across panels."""
        return {}

    def restore(self, saved: Mapping[str, str | bool]) -> None:
        """Restore saved display options; ignore invalid ones."""

    def show_alerts(self, alerts: Sequence[Alert], pool: PoolView) -> None:
        """Mark the ranks, nodes or GPUs that alerts are about. The worst alert comes first."""

    def alert_rank(self, alert: Alert, pool: PoolView) -> int | None:
        """Return the rank to select for an alert; None if the panel does not show what the alert is about."""
        return None

    @property
    def is_untouched(self) -> bool:
        """Whether the user has neither scrolled the panel nor moved its cursor."""
        return True

    def shows_beside(self, rank: int) -> bool:
        """Check whether the panel shows the log of a rank beside the logs of other ranks."""
        return False

    def scroll_to_failure(self) -> bool:
        """Scroll to the failure of the selected rank. Return False if no failure was found."""
        return True

    def scroll_to_match(self, found: LineMatch) -> None:
        """Scroll to a line of the selected rank's log that a search has found."""

    def show_instant(self, at: float | None) -> None:
        """Show the state at a Unix time that the user has chosen in another panel. None shows the newest data."""

    def close_one(self) -> bool:
        """Close one temporary element, such as a search. Return whether there was one."""
        return False

    @property
    def run_to_cancel(self) -> str:
        """ID of the run that the cancel key cancels while the panel has the focus; "" for the run on the screen."""
        return ""

    def cancel_side_effects(self, run: RunView) -> str:
        """Return a sentence about what else is cancelled together with a run; "" if nothing is."""
        return ""

    def clipboard_text(self) -> tuple[str, str] | None:
        """Return the text to copy and its description; None if there is nothing to copy."""
        return None

    async def exported_files(self, run: RunView | None, chosen: RunSelection) -> PanelExport:
        """Return the files that the save key writes."""
        return PanelExport({})
