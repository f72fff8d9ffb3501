"""Times as a person says them: of the day, or so long before the newest line."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_OF_DAY = re.compile(r"(?:(\d{4}-\d\d-\d\d)[ T])?(\d{1,2}):(\d\d)(?::(\d\d(?:\.\d+)?))?")
_BEFORE = re.compile(r"-\s*(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def moment(text: str, newest: float) -> float | None:
    """A time as a Unix time in seconds; None where it is none.

    Args:
        text: ``12:30``, ``12:30:05``, ``2026-11-24 12:30``, or ``-5m``: so long before the newest line, in s, m, h
            or d.
        newest: when that was printed. A time of day without a date is the latest such before it, by this machine's
            time zone.
    """
    text = text.strip()
    if said := _BEFORE.fullmatch(text):
        return newest - float(said[1]) * _SECONDS[said[2]]
    said = _OF_DAY.fullmatch(text)
    if said is None:
        return None
    last = datetime.fromtimestamp(newest)
    try:
        day = datetime.fromisoformat(said[1]) if said[1] else last
        at = day.replace(hour=int(said[2]), minute=int(said[3]), second=0, microsecond=0)
    except ValueError:  # the 25th hour
        return None
    seconds = float(said[4] or 0.0)
    if seconds >= 60:
        return None
    at += timedelta(seconds=seconds)
    if not said[1] and at > last:
        at -= timedelta(days=1)
    return at.timestamp()
