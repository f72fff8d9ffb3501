"""What all panels of the run screen have in common: a numbered box, a look at each pulse, what the screen asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from textual.app import ComposeResult
from textual.widget import Widget

from skyward_core.client.run_history import LineMatch
from skyward_core.views.pool_view import PoolView, RunView
from skyward_tui.ui.panel_table import PanelSpec
from skyward_tui.widgets.header_and_hints import Panel

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp

Main = TypeVar("Main", bound=Widget)

BORDER = 2  # rows of a panel that are its border


class RunSelection(NamedTuple):
    """What of a run is looked at: a rank, or all of them merged, and then perhaps equal lines as one, or only those of
    ranks that have failed."""

    rank: int
    merged: bool
    collapsed: bool = False
    failed: bool = False


class PanelExport(NamedTuple):
    """What a panel has that is worth a file.

    Attributes:
        files: text, by how the file's name ends.
        remark: what the person has to know of it.
    """

    files: Mapping[str, Iterable[str]]
    remark: str = ""


class RunPanel(Panel, Generic[Main]):
    """One panel of the run screen.

    Args:
        row: of the table.
        show: has the screen give this panel a place, as if it had the focus.
        main: The widget that takes the focus; without it a ``MAIN``.

    Attributes:
        MAIN: Type of the widget that takes the focus.
        FITS_ROWS: Whether the panel has no use for more rows than its main widget has.
        CALM: whether what it awaits is looked at more seldom where nothing goes on in the pool.
        has_content: whether there is anything to see; what hides is away otherwise.
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

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        """Look at the pool and one of its runs, a few times a second: what has not changed must cost next to nothing.

        Args:
            now: Unix time in seconds.

        Returns:
            Whether it shows anything new.
        """
        raise NotImplementedError

    @property
    def needs_polling(self) -> bool:
        """Whether something may come of which no event tells, so that it wants to look once a second."""
        return False

    @property
    def preferred_rows(self) -> int | None:
        """Rows that all that it has takes, its border among them; None where it has a use for any number."""
        main: Any = self.main
        return main.total_rows + BORDER if self.FITS_ROWS else None

    @property
    def heading(self) -> str:
        """How its title begins."""
        return f"{self.row.number} {self.row.title}"

    @property
    def context(self) -> str:
        """What is looked at in it, as :data:`skyward_tui.ui.actions.HINTS` calls it."""
        return f"run.{self.row.id}"

    def above(self) -> Iterable[Widget]:
        """What stands above all panels; its style sheet says at which sizes."""
        return ()

    def offers(self, action: str) -> bool:
        """Whether a key of the screen, by the id of its action, is worth a hint, as far as this panel knows."""
        return True

    def saved_state(self) -> Mapping[str, str | bool]:
        """What of how it looks is kept for the next time, by names that no other panel gives."""
        return {}

    def restore(self, kept: Mapping[str, str | bool]) -> None:
        """Look as it did when that was kept, as far as it makes sense."""

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has moved in it."""
        return True

    def scroll_to_failure(self) -> bool:
        """Show where the rank that was chosen failed; whether that was found."""
        return True

    def scroll_to_match(self, found: LineMatch) -> None:
        """Have a line in view that was found in the log of the rank that is chosen."""

    def close_one(self) -> bool:
        """Close what is open in it, one thing at a time; whether there was one."""
        return False

    @property
    def run_to_cancel(self) -> str:
        """The run that the key for that cancels while it is looked at; "" for the one that the screen shows."""
        return ""

    def cancel_side_effects(self, run: RunView) -> str:
        """What is cancelled with a run, as far as this panel knows, in words."""
        return ""

    def clipboard_text(self) -> tuple[str, str] | None:
        """What the copy key takes while it is looked at, and what that is called."""
        return None

    async def exported_files(self, run: RunView | None, chosen: RunSelection) -> PanelExport:
        """What the save key writes of it."""
        return PanelExport({})
