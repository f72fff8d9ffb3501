"""Which failures a person wants to hear no more of: ids of runs, in a file of the home."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from .home import home
from .user_files import json_of, read_text
from .whole_file import write_whole

NAME = "dismissed.json"
MOST = 10_000  # ids; the oldest go
_RUN = re.compile(r"[0-9A-Za-z_-]{1,64}")


def dismissed() -> list[str]:
    """The ids, in the order in which they were dismissed; none where there is no such file, or it says nothing."""
    try:
        told = json_of(read_text(_file()))
    except (OSError, ValueError):
        return []
    return (
        [run for run in told if isinstance(run, str) and _RUN.fullmatch(run)]
        if isinstance(told, list)
        else []
    )


def dismiss(runs: Iterable[str]) -> None:
    """Add some.

    Raises:
        OSError: it cannot be written.
    """
    known = dict.fromkeys([*dismissed(), *runs])
    write_whole(_file(), json.dumps(list(known)[-MOST:]).encode())


def _file() -> Path:
    return home() / NAME
