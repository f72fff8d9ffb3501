"""Kind of terminal and current folder of the program."""

from __future__ import annotations

import os
from pathlib import Path


def is_dumb() -> bool:
    """Whether it is one on which no cursor can be moved: after the first picture nothing would be painted any more."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def current_folder() -> Path:
    """That folder; where somebody has removed it, what it was called: paths below it are named by it, and whoever opens
    one is told that it is not there."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path(os.environ.get("PWD", "/"))
