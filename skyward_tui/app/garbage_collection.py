"""Deferral of full garbage collections until the user is idle.

By default, Python starts a full collection in the middle of other work. In this app a full collection takes 50 ms or
more, during which the app handles no key and paints nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

DUE = 40  # young collections after which a full one is due
MAX_DEFERRED = 2_000  # young collections that force a full one; hours of input without a pause
REST_SECONDS = 1.0  # seconds without input after which the user counts as idle
_collections_before = -1  # full collections of this process before the deferral


@contextmanager
def freeze_imports() -> Iterator[None]:
    """Exclude everything that is imported in the block from garbage collection, because it stays until the end."""
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
    """Run a full collection if one is due and the user is idle.

    The objects that survive the first collection make up the app, its session and its screens. They stay until the
    end, so they are excluded from further collections.

    Args:
        rested: Seconds since the last input.
    """
    is_first = gc.get_stats()[2]["collections"] == _collections_before
    due = DUE // 4 if is_first else DUE
    if rested > REST_SECONDS and gc.get_threshold()[2] == MAX_DEFERRED and gc.get_count()[2] >= due:
        gc.collect()
        if is_first:
            gc.freeze()
