"""A fork waits for what other threads are importing.

A child has no thread but the one that forked it. A module that another thread was importing at that moment is half
there in the child, and its lock is held by nobody, so that the child's own import of it would wait for ever. Our
threads import a module when they first need it, so that it is ours to see to.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterator
from typing import Any

# Seconds. An import that takes longer (a script's own, say, which serves in it) is not worth holding up a fork.
PATIENCE = 2.0
_LOOK = 0.001


def wait_for_imports() -> None:
    """Return when no other thread is importing, or after :data:`PATIENCE`."""
    me, until = threading.get_ident(), time.monotonic() + PATIENCE
    while any(owner not in (None, me) for owner in _importing()) and time.monotonic() < until:
        time.sleep(_LOOK)


def _importing() -> Iterator[int | None]:
    """The threads that hold modules' locks; Python has no public word for it."""
    locks: dict[str, Any] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    for lock in list(locks.values()):
        yield getattr(lock(), "owner", None)
