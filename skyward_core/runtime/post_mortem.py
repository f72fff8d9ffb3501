"""A debugger where an exception was raised."""

from __future__ import annotations

import sys


def post_mortem(error: BaseException | None = None) -> None:
    """Open a debugger where an exception was raised; code that calls it in ``except`` needs to say no more.

    In a rank it is as with ``breakpoint()``: ``Options(debug_wait=)`` says how long the rank waits there for somebody.
    Elsewhere it is ``pdb.post_mortem``.

    Args:
        error: the exception; the one that is being handled without.

    Raises:
        ValueError: there is none.
    """
    if error is None:
        error = sys.exc_info()[1]
    if error is None or error.__traceback__ is None:
        raise ValueError("no exception is being handled, and none was given that has been raised")
    import pdb

    pdb.post_mortem(error.__traceback__)
