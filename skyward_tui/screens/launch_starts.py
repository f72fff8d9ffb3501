"""What a launch can begin with: launches of late, then the packaged examples. While no script is named it stands where
its code stands later, and below the plan where the screen is narrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on, work
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from skyward_core.wire.safe_text import field

from ..ends import beside
from ..packaged import examples
from ..starts import RECENT, example_row, lacking_of_examples, recent_row

if TYPE_CHECKING:
    from ..launch_form import Form


class StartList(OptionList):
    """Picked by enter or by the mouse.

    Args:
        recent: earlier launches, newest first.
        picked: takes a launch, or the path of an example.
    """

    def __init__(self, recent: Sequence[Form], picked: Callable[[Form | Path], None]) -> None:
        super().__init__(id="starts", compact=True)
        self._picked = picked
        self._starts: list[Form | Path] = [*recent[:RECENT], *examples()]

    def on_mount(self) -> None:
        self._list({})
        self._look_for_packages()

    def _list(self, lacking: Mapping[Path, str]) -> None:
        """List all; what examples lack is known later."""
        cursor = self.highlighted
        self.clear_options()
        for place, start in enumerate(self._starts):
            is_example = isinstance(start, Path)
            if not place or (is_example and not isinstance(self._starts[place - 1], Path)):
                heading = "packaged examples" if is_example else "recent launches"
                self.add_option(Option(Content.styled(heading, "$muted"), disabled=True))
            row = example_row(start, lacking.get(start, "")) if isinstance(start, Path) else recent_row(start)
            unfit = not isinstance(start, Path) and start.script != field(start.script)
            self.add_option(Option(row, id=str(place), disabled=unfit))
        self.highlighted = cursor

    @work
    async def _look_for_packages(self) -> None:
        lacking = await beside(lacking_of_examples)
        if any(lacking.values()) and self.is_attached:
            self._list(lacking)

    def on_focus(self) -> None:
        if self.highlighted is None:
            self.action_first()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._picked(self._starts[int(event.option_id or "0")])
