"""Formatting of byte sizes."""

from __future__ import annotations


def format_size(size: float) -> str:
    """Return a size with three digits in a suitable unit: ``4,000`` -> ``4 kB``."""
    if size < 999.5:  # 999.5 and more would be shown as 1000 bytes, which has four digits.
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 999.5:
            return f"{size:.3g} {unit}"
    size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size:,.0f} GB"
