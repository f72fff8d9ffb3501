"""The Textual app: :func:`new_app` creates it, and :func:`run` starts it with deferred garbage collection.

By default, Python may start a full collection at any moment. In this app, a full collection takes 50 ms or more, during
which the app handles no key and paints nothing. Full collections are therefore deferred until the user is idle.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skyward_tui.app.app import SkywardApp as SkywardApp

DUE = 40  # number of young garbage collections after which a full collection is due
# number of young garbage collections after which a full collection no longer waits for a pause in the input; reached
# only after hours of constant input
MAX_DEFERRED = 2_000
# seconds without input after which the user counts as idle, so that a full garbage collection may run
REST_SECONDS = 1.0
# number of full garbage collections in this process before the latest :func:`defer_collection`
_collections_before = -1


def new_app(*, read_only: bool = False, theme: str = "", plain: bool = False) -> SkywardApp:
    """Return the app for this machine's pools; see ``app.SkywardApp`` for the arguments."""
    with freeze_imports():
        from skyward_tui.app.app import SkywardApp
    return SkywardApp(read_only=read_only, theme=theme, plain=plain)


def run(app: SkywardApp) -> int:
    """Run an app until the user quits, and return the exit status."""
    defer_collection()
    app.run()
    return app.return_code or 0


@contextmanager
def freeze_imports() -> Iterator[None]:
    """Exclude all objects that exist after the ``with`` block from garbage collection. The block imports modules, which
    are never freed.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def defer_collection() -> None:
    """Defer full garbage collections to :func:`collect_if_due`. Collections of young objects still run, each in at most
    3 ms.
    """
    global _collections_before
    _collections_before = gc.get_stats()[2]["collections"]
    gc.set_threshold(700, 10, MAX_DEFERRED)


def collect_if_due(rested: float) -> None:
    """Run a full garbage collection if one is due and the user is idle.

    The objects that survive the first full collection are the app, its session and its screens. They live until the
    process ends, so they are excluded from further collections.

    Args:
        rested: Seconds since the last input.
    """
    is_first = gc.get_stats()[2]["collections"] == _collections_before
    due = DUE // 4 if is_first else DUE
    if rested > REST_SECONDS and gc.get_threshold()[2] == MAX_DEFERRED and gc.get_count()[2] >= due:
        gc.collect()
        if is_first:
            gc.freeze()
