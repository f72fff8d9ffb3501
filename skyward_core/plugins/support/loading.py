"""Loading a framework without looking for garbage among it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """Import in here what is large and stays: nobody looks for garbage among it, neither now nor later.

    Else Python goes through all that there is again and again while it grows, a sixth of the time that PyTorch and
    what DistributedDataParallel loads of it take. What is garbage already goes first, for what is here at the end is
    never looked at again. Who has switched the search off has it as it was.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
