"""``sky.time``: lengths of time in seconds, as older generations write them."""

from __future__ import annotations


def minutes(n: float, /) -> float:
    """So many minutes, in seconds."""
    return n * 60.0


def hours(n: float, /) -> float:
    """So many hours, in seconds."""
    return n * 3600.0


def days(n: float, /) -> float:
    """So many days, in seconds."""
    return n * 86400.0
