"""``sky.time``: durations in seconds, as older API generations write them."""

from __future__ import annotations


def minutes(n: float, /) -> float:
    """Return a number of minutes in seconds."""
    return n * 60.0


def hours(n: float, /) -> float:
    """Return a number of hours in seconds."""
    return n * 3600.0


def days(n: float, /) -> float:
    """Return a number of days in seconds."""
    return n * 86400.0
