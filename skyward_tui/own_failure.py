"""What is said where the app itself fails: what happened, what becomes of pools, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import rich
import textual
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text
from rich.traceback import Traceback

import skyward_core
from skyward_core.views.views import PoolView
from skyward_core.wire.safe_text import in_place

PACKAGES = Path(__file__).parent, Path(skyward_core.__file__).parent

UPDATED = "skyward-tui's own files were changed while it was open, as an update does. Start it again."
DEFECT = "skyward-tui failed by itself, which is a defect of it. What stands above belongs into a report."


def failed(error: BaseException, pools: Sequence[PoolView], began: float) -> RenderableType:
    """Where it failed, and below it what that means for the person.

    Variables are left out: passwords and environments stand in some, and this is what people put into a report.

    Args:
        pools: all that the app knew.
        began: when the app was started, in Unix time.
    """
    where = Traceback.from_exception(
        type(error), error, error.__traceback__, show_locals=False, suppress=(rich, textual)
    )
    return Group(where, Padding(Text("\n\n".join(_words(pools, began))), (1, 0)))


class Harmless:
    """Something as it is painted, but for characters in it that would act on a terminal, which show as a mark."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._shown, options):
            if not segment.control:
                lines = segment.text.split("\n")
                yield Segment("\n".join(map(in_place, lines)), segment.style)


def _words(pools: Sequence[PoolView], began: float) -> list[str]:
    up = [pool.name for pool in pools if not pool.is_over]
    words = [UPDATED if _are_newer(began) else DEFECT]
    if up:
        words.append(
            f"Nothing was torn down: {', '.join(up)} and what runs there; skyward-tui opens it again."
        )
    return words


def _are_newer(began: float) -> bool:
    """Whether a file of ours was written after that time; modules that are loaded late would not fit the others."""
    try:
        return any(file.stat().st_mtime > began for folder in PACKAGES for file in folder.rglob("*.py"))
    except OSError:  # one that was there is gone
        return True
