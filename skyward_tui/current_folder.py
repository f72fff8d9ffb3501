"""The folder that the app is in, which may go while it is open."""

from __future__ import annotations

import os
from pathlib import Path


def current_folder() -> Path:
    """That folder; where somebody has removed it, what it was called: paths below it are named by it, and whoever opens
    one is told that it is not there."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path(os.environ.get("PWD", "/"))
