"""Crash report of the app, and the system report of its "about" dialog."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import rich
import textual
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text
from rich.traceback import Traceback

import skyward_core
from skyward_core.client import doctor_and_bug_report
from skyward_core.client import user_settings_and_app_state as settings
from skyward_core.util.terminal_safe_text import sanitize_in_place
from skyward_core.views.pool_view import PoolView
from skyward_tui.text.number_time_and_run_state_format import count

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp


PACKAGES = Path(__file__).parents[1], Path(skyward_core.__file__).parent

UPDATED = "The files of skyward-tui changed while it was open, for example by an update. Start it again."
DEFECT = "skyward-tui crashed. This is a bug: include the traceback above in your report."


def render_crash(error: BaseException, pools: Sequence[PoolView], began: float) -> RenderableType:
    """Return the traceback of an internal error, and its consequences for the user.

    The traceback omits the values of variables, because users put it into bug reports and some values are secrets.

    Args:
        error: The error.
        pools: All pools that the app knows.
        began: Start time of the app, as Unix time.
    """
    where = Traceback.from_exception(
        type(error), error, error.__traceback__, show_locals=False, suppress=(rich, textual)
    )
    words = [UPDATED if _are_newer(began) else DEFECT]
    if up := [pool.name for pool in pools if not pool.is_over]:
        words.append(f"Pools and their runs are still up: {', '.join(up)}. Run skyward-tui to see them again.")
    return Group(where, Padding(Text("\n\n".join(words)), (1, 0)))


class SanitizedRenderable:
    """Rich renderable with each control character replaced by a visible mark."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._shown, options):
            if not segment.control:
                yield Segment("\n".join(map(sanitize_in_place, segment.text.split("\n"))), segment.style)


def _are_newer(began: float) -> bool:
    """Check whether source files of skyward-tui have changed since the given time. If so, modules imported before and
    after the change may not fit together.
    """
    try:
        return any(file.stat().st_mtime > began for folder in PACKAGES for file in folder.rglob("*.py"))
    except OSError:  # a source file no longer exists, so it has changed
        return True


_REPORTED_VARIABLES = ("TERM", "TERM_PROGRAM", "COLORTERM", "NO_COLOR", "LANG")
_CONNECTIONS = {"SSH_CONNECTION": "over ssh", "TMUX": "in tmux", "STY": "in GNU screen"}


def system_report(app: SkywardApp) -> str:
    """Return the lines of the "about" dialog, with known secrets masked."""
    pools = app.pools()
    up = sum(not pool.is_over for pool in pools)
    size, own = app.size, app.user_settings
    facts = {
        "skyward-tui": f"{metadata.version('skyward-tui')}, Textual {metadata.version('textual')}",
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "terminal": ", ".join([
            f"{size.width}x{size.height}",
            *(f"{name}={os.environ[name]}" for name in _REPORTED_VARIABLES if name in os.environ),
            *(words for name, words in _CONNECTIONS.items() if name in os.environ),
        ]),
        "appearance": f"{app.theme}{', plain ASCII' if own.ascii else ''}{'' if own.motion else ', no motion'}",
        "pools": f"{up} up, {count(len(pools) - up, 'other')} listed{', read-only' if app.read_only else ''}",
        "state folder": str(settings.settings_path().parent),
        "more": "skyward-tui debug-dump: pack checks, ledger and log",
    }  # fmt: skip
    return doctor_and_bug_report.make_cleaner()("\n".join(f"{name + ':':<14}{words}" for name, words in facts.items()))
