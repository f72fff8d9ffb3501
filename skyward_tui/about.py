"""What a report of a bug says first: which versions these are, and on what they run."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING

from skyward_core.front import bug_report, settings

from .words import count

if TYPE_CHECKING:
    from .app_face import AppFace

_TOLD = ("TERM", "TERM_PROGRAM", "COLORTERM", "NO_COLOR", "LANG")  # variables that say what the terminal is
_BETWEEN = {"SSH_CONNECTION": "over ssh", "TMUX": "in tmux", "STY": "in GNU screen"}


def about(app: AppFace) -> str:
    """Lines to be read and to be copied, without secrets that are known as such."""
    pools = app.pools()
    up = sum(not pool.is_over for pool in pools)
    size, own = app.size, app.own
    told = {
        "skyward-tui": f"{metadata.version('skyward-tui')}, Textual {metadata.version('textual')}",
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "terminal": ", ".join([
            f"{size.width}x{size.height}",
            *(f"{name}={os.environ[name]}" for name in _TOLD if name in os.environ),
            *(words for name, words in _BETWEEN.items() if name in os.environ),
        ]),
        "looks": f"{app.theme}{', plain ASCII' if own.ascii else ''}{'' if own.motion else ', no motion'}",
        "pools": f"{up} up, {count(len(pools) - up, 'other')} listed{', read-only' if app.read_only else ''}",
        "state folder": str(settings.file().parent),
        "more": "skyward-tui debug-dump packs checks, ledger and log",
    }  # fmt: skip
    return bug_report.cleaner()("\n".join(f"{name + ':':<14}{words}" for name, words in told.items()))
