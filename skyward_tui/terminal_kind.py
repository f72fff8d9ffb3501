"""What the environment says of the terminal."""

from __future__ import annotations

import os


def is_dumb() -> bool:
    """Whether it is one on which no cursor can be moved: after the first picture nothing would be painted any more."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")
