"""User settings of a test."""

from __future__ import annotations

import os
from pathlib import Path


def set_own(text: str) -> Path:
    """Write the ``skyward.toml`` of the home in ``SKYWARD_HOME``, and return its path."""
    home = Path(os.environ["SKYWARD_HOME"])
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "skyward.toml").write_text(text)
    return home / "skyward.toml"
