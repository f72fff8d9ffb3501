"""When the app looks for garbage: not while somebody waits for it.

Python looks through all that there is whenever enough has come to it, in the midst of whatever made the last of that: a
twentieth of a second and more of this app, in which no key is heard and nothing is painted.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

DUE = 40  # rounds of looking through what is new, after which all is looked through once nobody is there
MAX_DEFERRED = 2_000  # of them after which it is not put off any longer; that is hours of keys without a pause
REST_SECONDS = 1.0  # for which nobody has done anything: nobody is there
_collections_before = -1  # of this process, before it was put off


@contextmanager
def freeze_imports() -> Iterator[None]:
    """What is imported meanwhile is here to stay, and never looked through."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def defer_collection() -> None:
    """Defer full collections to :func:`collect_if_due`. Young objects are still collected, in 3 ms at most."""
    global _collections_before
    _collections_before = gc.get_stats()[2]["collections"]
    gc.set_threshold(700, 10, MAX_DEFERRED)


def collect_if_due(rested: float) -> None:
    """Look through all, where that was put off for long enough, and somebody who did something did so a while ago.

    What is there the first time is what the app, its session and its screens are made of: that is here to stay, too.

    Args:
        rested: seconds since then.
    """
    is_first = gc.get_stats()[2]["collections"] == _collections_before
    due = DUE // 4 if is_first else DUE
    if rested > REST_SECONDS and gc.get_threshold()[2] == MAX_DEFERRED and gc.get_count()[2] >= due:
        gc.collect()
        if is_first:
            gc.freeze()
