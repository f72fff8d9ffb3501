"""The person's settings, and what an app of theirs remembers from one start to the next."""

from __future__ import annotations

from pathlib import Path

from ..store import home
from ..store.debug_log import begin as begin_log
from ..store.home import own_settings
from ..store.own_settings import Notify, OwnSettings

__all__ = ["Notify", "OwnSettings", "begin_log", "own_settings", "remember", "remembered"]


def remembered(name: str) -> str:
    """The text that :func:`remember` was last given for a name.

    Raises:
        OSError: there is none, or it cannot be read.
        UnicodeDecodeError: somebody else wrote it.
    """
    return _file(name).read_text(encoding="utf-8")


def remember(name: str, text: str) -> None:
    """Keep a text in the person's own folder, for nobody else to read; the old one stays until the new one is whole.

    Raises:
        OSError: it cannot be written, or another process is just writing it.
    """
    from ..store.whole_file import write_whole  # late: the app reads its keys while it starts

    write_whole(_file(name), text.encode())


def _file(name: str) -> Path:
    return home.home() / f"{name}.json"
