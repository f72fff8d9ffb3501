"""The pool of the current with block: task() >> sky."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from skyward_core.model.errors import PoolError
from skyward_core.model.function import Dispatcher, Function, PendingFunction, PendingGroup, function_name
from skyward_core.model.run_future import RunFuture


class PoolOperand:
    """Base of pools. Python asks it where what stands left knows nothing of pools."""

    if not TYPE_CHECKING:  # to checkers such a line is wrong, as it is to everybody
        __array_ufunc__ = None  # an array does not go through a pool as through one more array

        def __rrshift__(self, left):
            _reject_left_operand(left, ">>")

        def __rmatmul__(self, left):
            _reject_left_operand(left, "@")

        def __lt__(self, left):
            _reject_left_operand(left, ">")


def _reject_left_operand(left: Any, operator: str) -> NoReturn:
    if isinstance(left, PendingFunction):
        raise TypeError(f"{left.name} gave NotImplemented, which no operator can give: have it give something else")
    if isinstance(left, PendingGroup):  # that has the other two
        raise TypeError("a group runs with >>, or with group.on(pool), which waits for nothing")
    if isinstance(left, list | tuple) and left and all(isinstance(each, PendingFunction) for each in left):
        raise TypeError("several calls are sent as a group: sky.gather(*calls) >> pool")
    raise TypeError(
        f"left of {operator} stands a call of a function that has @sky.function above it, and not its value, "
        f"{left!r:.80}: decorate the function, and calling it runs nothing before {operator} does"
    )


def require_call(given: Any, verb: str) -> PendingFunction[Any]:
    """What a verb of a pool was given, where that is a call.

    Args:
        given: what it was given.
        verb: as people write it.

    Raises:
        TypeError: it is something else; says what to write.
    """
    if isinstance(given, PendingFunction):
        return given
    raise TypeError(_expected_message(given, verb, "a call"))


def require_group(given: Any, verb: str) -> PendingGroup[Any]:
    """The same of a group."""
    if isinstance(given, PendingGroup):
        return given
    raise TypeError(_expected_message(given, verb, "a group"))


def _expected_message(given: Any, verb: str, what: str) -> str:
    if isinstance(given, Function) and what == "a call":
        return f"{verb} takes a call: call it, {verb}({function_name(given.fn)}(...))"
    if isinstance(given, PendingGroup):
        return f"{verb} takes a call, and a group of {len(given.items)} runs with >>, or by compute.run(group)"
    how = "f(...) of a @sky.function" if what == "a call" else "sky.gather(f(...), g(...)), or f(...) & g(...)"
    return f"{verb} takes {what}, {how}, not {given!r:.80}"


_LIBRARY = __name__.partition(".")[0]
_open_pools: list[Dispatcher] = []  # of all of this process
_context_pools: ContextVar[tuple[Dispatcher, ...]] = ContextVar("skyward_open_pools", default=())


def push_pool(pool: Dispatcher) -> None:
    """A pool's block begins."""
    _open_pools.append(pool)
    _context_pools.set((*_context_pools.get(), pool))


def remove_pool(pool: Dispatcher) -> None:
    """A pool's block ends, wherever it began."""
    if pool in _open_pools:
        _open_pools.remove(pool)
    _context_pools.set(tuple(each for each in _context_pools.get() if each is not pool))


def current_pool(what: str = "`>> sky` runs on") -> Dispatcher:
    """The pool of the innermost block that is open here; in another thread than its own the only one of the process.

    Args:
        what: what is done with it, for the error.

    Raises:
        PoolError: there is none, or there are several and none is this thread's.
    """
    mine = [each for each in _context_pools.get() if each in _open_pools]
    if mine:
        return mine[-1]
    if len(_open_pools) == 1:
        return _open_pools[0]
    said = "no block is open" if not _open_pools else f"{len(_open_pools)} blocks are open, and none in this thread"
    raise PoolError(f"{what} the pool whose `with sky.Compute(...)` block is open; {said}: name the pool")


class ActivePool(PoolOperand):
    """Stands right of an operator for the pool whose block is open: ``train() >> sky.sky``, or ``train() >> sky``."""

    @property
    def working_folder(self) -> str:
        """The folder that its ranks work in, or in copies of."""
        return str(getattr(current_pool(), "working_folder", ""))

    def run_one(self, pending: PendingFunction[Any]) -> Any:
        """``pending >> sky``: run a call on one node.

        Args:
            pending: the call.
        """
        return current_pool().run_one(pending)

    def run_all(self, pending: PendingFunction[Any]) -> list[Any]:
        """``pending @ sky``: run a call on every rank.

        Args:
            pending: the call.
        """
        return current_pool().run_all(pending)

    def run_group(self, group: PendingGroup[Any]) -> Any:
        """``group >> sky``: run several calls at the same time.

        Args:
            group: the calls.
        """
        return current_pool().run_group(group)

    def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]:
        """``pending > sky``: run a call on one node, and wait for nothing.

        Args:
            pending: the call.
        """
        return current_pool().submit(pending)

    def submit_all(self, pending: PendingFunction[Any]) -> RunFuture[list[Any]]:
        """``pending.on_all(sky)``: run a call on every rank, and wait for nothing.

        Args:
            pending: the call.
        """
        return current_pool().submit_all(pending)

    def submit_group(self, group: PendingGroup[Any]) -> RunFuture[Any]:
        """``group.on(sky)``: run several calls at the same time, and wait for nothing.

        Args:
            group: the calls.
        """
        return current_pool().submit_group(group)

    if not TYPE_CHECKING:  # it is called as the library mostly is: `from skyward import *` may put it in its place

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(sys.modules[_LIBRARY], name)

    def __repr__(self) -> str:
        return "sky.sky"


sky = ActivePool()
"""Stands right of an operator for the pool whose block is open; the library itself does, too: ``train() >> sky``."""
