"""Formatting of numbers, byte sizes and durations, the same on screens, in commands and in messages."""

from __future__ import annotations

from math import floor, isfinite, log10

NUMBER_WIDTH = 8  # maximum characters of a formatted number
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


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


def number(value: float, step: float = 0.0) -> str:
    """Format a number in at most ``NUMBER_WIDTH`` characters: ``0.0045``, ``1,234``, ``25.8k``, ``1.2e-5``.

    Args:
        step: Distance between the ticks of an axis, which determines the number of decimals; 0 for four significant
            digits.
    """
    if not isfinite(value):
        return str(value)
    size = max(abs(value), step)
    has_unit = (step or size >= 9999.5) and size < 1e15
    unit, name = next(((unit, name) for unit, name in _UNITS if has_unit and 0.99995 * unit <= size), (1.0, ""))
    if step and size < 1e15 and (decimals := max(0, -floor(log10(step / unit) + 1e-9))) < 5:
        text = f"{value / unit:.{decimals}f}{name}"
        if len(text) <= NUMBER_WIDTH:
            return text if float(text.rstrip("TGMk")) else "0"
    for digits in (4, 3, 2, 1):
        shown = f"{value / unit:,.{digits}g}{name}".replace("e-0", "e-").replace("e+", "e")
        if len(shown) <= NUMBER_WIDTH:
            break
    return shown


def duration(seconds: float, *, precise: bool = False) -> str:
    """Format seconds: ``0:41``, ``3:06``, ``2h05``, ``3d04h``, ``12d``.

    Args:
        precise: Whether a duration below a minute is shown as ``4 ms`` or ``9.2 s``: for measured durations, which do
            not change while they are shown.
    """
    if precise and seconds < 59.95:
        return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d{hours % 24:02d}h" if hours < 240 else f"{hours // 24}d"
    return f"{hours}h{minute:02d}" if hours else f"{minute}:{second:02d}"


def ago(seconds: float) -> str:
    """Format elapsed seconds in the largest unit, so that the text changes rarely: ``now``, ``41m ago``, ``2h ago``."""
    fitting = (f"{int(max(0.0, seconds) // unit)}{name} ago" for unit, name in ((86_400, "d"), (3600, "h"), (60, "m")))
    return next((text for text in fitting if text[0] != "0"), "now")
