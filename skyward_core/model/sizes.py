"""Numbers of bytes for people."""

from __future__ import annotations


def size_in_words(size: float) -> str:
    """``4,000`` -> ``4 kB``: three digits, in the unit that leaves the fewest."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
