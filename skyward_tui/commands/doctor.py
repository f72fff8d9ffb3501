"""``skyward-tui doctor``: whether this machine can do what will be asked of it, in plain words."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator

from skyward_core.front import doctor as pools
from skyward_core.model import exit_status
from skyward_core.model.machine import Check

from ..hints import detail_of
from ..words import Columns
from .console import Console

SMALLEST = (80, 24)

_LOOKS = {"ok": ("✓", 32), "warn": ("!", 33), "fail": ("✗", 31)}


def doctor(console: Console) -> int:
    """Check what pools need, and print a line for each; exit status 1 where something cannot work."""
    columns, checks = Columns(len("! warn"), len("open files")), list[Check]()
    for c in examine():  # a host that does not answer is waited for last
        checks.append(c)
        if not console.as_json:
            glyph, color = _LOOKS[c.state]
            console.say(columns.line([f"{glyph} {c.state}", c.subject, detail_of(c)]), color)
    if console.as_json:
        rows = [{"subject": c.subject, "state": c.state, "detail": detail_of(c)} for c in checks]
        console.result({"ok": all(c.state != "fail" for c in checks), "checks": rows})
    return exit_status.FAILED if any(c.state == "fail" for c in checks) else exit_status.OK


def examine() -> Iterator[Check]:
    """Yield what is found of all that pools and the app need."""
    return pools.examine(_terminal())


def _terminal() -> Check:
    if not sys.stdout.isatty():
        return Check("terminal", "warn", "none here: the app needs one, the other commands do not")
    size = shutil.get_terminal_size()
    name = os.environ.get("TERM", "")
    if size < SMALLEST:
        return Check("terminal", "warn", f"{size.columns}x{size.lines}; the app wants at least 80x24")
    return Check("terminal", "ok", f"{name or 'unnamed'}, {size.columns}x{size.lines}")
