"""The pool whose block is open: what ``task() >> sky`` means, ``sky`` being this library or its value of that name."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ...model.errors import PoolError
from ...model.function import Dispatcher, PendingFunction, PendingGroup
from ...model.run_future import RunFuture
from .right_side import RightSide

_LIBRARY = __name__.partition(".")[0]
_open: list[Dispatcher] = []  # of all of this process
_here: ContextVar[tuple[Dispatcher, ...]] = ContextVar("skyward_open_pools", default=())


def opened(pool: Dispatcher) -> None:
    """A pool's block begins."""
    _open.append(pool)
    _here.set((*_here.get(), pool))


def closed(pool: Dispatcher) -> None:
    """A pool's block ends, wherever it began."""
    if pool in _open:
        _open.remove(pool)
    _here.set(tuple(each for each in _here.get() if each is not pool))


def active(what: str = "`>> sky` runs on") -> Dispatcher:
    """The pool of the innermost block that is open here; in another thread than its own the only one of the process.

    Args:
        what: what is done with it, for the error.

    Raises:
        PoolError: there is none, or there are several and none is this thread's.
    """
    mine = [each for each in _here.get() if each in _open]
    if mine:
        return mine[-1]
    if len(_open) == 1:
        return _open[0]
    said = "no block is open" if not _open else f"{len(_open)} blocks are open, and none in this thread"
    raise PoolError(f"{what} the pool whose `with sky.Compute(...)` block is open; {said}: name the pool")


class ActivePool(RightSide):
    """Stands right of an operator for the pool whose block is open: ``train() >> sky.sky``, or ``train() >> sky``."""

    @property
    def working_folder(self) -> str:
        """The folder that its ranks work in, or in copies of."""
        return str(getattr(active(), "working_folder", ""))

    def run_one(self, pending: PendingFunction[Any]) -> Any:
        """``pending >> sky``: run a call on one node.

        Args:
            pending: the call.
        """
        return active().run_one(pending)

    def run_all(self, pending: PendingFunction[Any]) -> list[Any]:
        """``pending @ sky``: run a call on every rank.

        Args:
            pending: the call.
        """
        return active().run_all(pending)

    def run_group(self, group: PendingGroup[Any]) -> Any:
        """``group >> sky``: run several calls at the same time.

        Args:
            group: the calls.
        """
        return active().run_group(group)

    def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]:
        """``pending > sky``: run a call on one node, and wait for nothing.

        Args:
            pending: the call.
        """
        return active().submit(pending)

    def submit_all(self, pending: PendingFunction[Any]) -> RunFuture[list[Any]]:
        """``pending.on_all(sky)``: run a call on every rank, and wait for nothing.

        Args:
            pending: the call.
        """
        return active().submit_all(pending)

    def submit_group(self, group: PendingGroup[Any]) -> RunFuture[Any]:
        """``group.on(sky)``: run several calls at the same time, and wait for nothing.

        Args:
            group: the calls.
        """
        return active().submit_group(group)

    if (
        not TYPE_CHECKING
    ):  # it is called as the library mostly is: `from skyward import *` may put it in its place

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(sys.modules[_LIBRARY], name)

    def __repr__(self) -> str:
        return "sky.sky"


sky = ActivePool()
"""Stands right of an operator for the pool whose block is open; the library itself does, too: ``train() >> sky``."""
