"""Numbers of bytes for people."""

from __future__ import annotations


def format_size(size: float) -> str:
    """``4,000`` -> ``4 kB``: three digits, in the unit that leaves the fewest; whole bytes."""
    if size < 999.5:  # what rounds to 1000 is one of the next unit
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 999.5:
            return f"{size:.3g} {unit}"
    size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size:,.0f} GB"
