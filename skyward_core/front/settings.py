"""The person's settings, and what an app of theirs remembers from one start to the next."""

from __future__ import annotations

import os
from pathlib import Path

from ..store import home
from ..store.debug_log import begin as begin_log
from ..store.home import keys

__all__ = ["begin_log", "keys", "remember", "remembered"]


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
        OSError: it cannot be written.
    """
    import tempfile  # late: the app reads its keys while it starts

    handle, draft = tempfile.mkstemp(dir=home.home(), prefix=f"{name}-")
    try:
        with open(handle, "w", encoding="utf-8") as target:
            target.write(text)
        os.replace(draft, _file(name))  # noqa: PTH105
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise


def _file(name: str) -> Path:
    return home.home() / f"{name}.json"
