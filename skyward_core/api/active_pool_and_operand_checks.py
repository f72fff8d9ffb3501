"""Pool of the innermost open ``with`` block, for ``task() >> sky``, and checks of the operands of pool operators."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from skyward_core.model.errors import PoolError
from skyward_core.model.function import Dispatcher, Function, PendingFunction, PendingGroup, function_name
from skyward_core.model.run_future import RunFuture


class PoolOperand:
    """Right operand of ``>>``, ``@`` and ``>``, and base class of pools.

    Python calls the reflected methods if the left operand does not support the operator. These methods raise a
    TypeError that names the mistake.
    """

    if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept operands of wrong types
        # Makes NumPy call the pool's operators instead of applying the operator to each item of an array.
        __array_ufunc__ = None

        def __rrshift__(self, left):
            _reject_left_operand(left, ">>")

        def __rmatmul__(self, left):
            _reject_left_operand(left, "@")

        def __lt__(self, left):
            _reject_left_operand(left, ">")


def _reject_left_operand(left: Any, operator: str) -> NoReturn:
    if isinstance(left, PendingFunction):
        raise TypeError(
            f"{left.name} returned NotImplemented, which Python reserves for operators. Return another value."
        )
    if isinstance(left, PendingGroup):  # a group supports only >> and @, so this operator is a mistake
        raise TypeError(
            "a group does not support this operator. Use group >> pool, or group.on(pool), which does not wait."
        )
    if isinstance(left, list | tuple) and left and all(isinstance(each, PendingFunction) for each in left):
        raise TypeError("a list of calls cannot be run. Send the calls as a group: sky.gather(*calls) >> pool")
    raise TypeError(
        f"the left operand of {operator} must be a call of a @sky.function function, got {left!r:.80}. "
        "Decorate the function with @sky.function."
    )


def require_call(given: Any, verb: str) -> PendingFunction[Any]:
    """Return the operand of a pool method if it is a call.

    Args:
        given: The operand.
        verb: Name of the method, for the error message.

    Raises:
        TypeError: If the operand is not a call. The message shows the correct form.
    """
    if isinstance(given, PendingFunction):
        return given
    raise TypeError(_expected_message(given, verb, "a call"))


def require_group(given: Any, verb: str) -> PendingGroup[Any]:
    """Return the operand of a pool method if it is a group of calls.

    Args:
        given: The operand.
        verb: Name of the method, for the error message.

    Raises:
        TypeError: If the operand is not a group. The message shows the correct form.
    """
    if isinstance(given, PendingGroup):
        return given
    raise TypeError(_expected_message(given, verb, "a group"))


def _expected_message(given: Any, verb: str, what: str) -> str:
    if isinstance(given, Function) and what == "a call":
        return f"{verb} takes a call, got a function. Call the function: {verb}({function_name(given.fn)}(...))"
    if isinstance(given, PendingGroup):
        return f"{verb} takes a call, got a group of {len(given.items)}. Use group >> compute or compute.run(group)."
    how = "f(...) of a @sky.function" if what == "a call" else "sky.gather(f(...), g(...)), or f(...) & g(...)"
    return f"{verb} takes {what}, {how}, got {given!r:.80}"


_LIBRARY = __name__.partition(".")[0]
_open_pools: list[Dispatcher] = []  # all open pools of this process, for threads that have opened none themselves
_context_pools: ContextVar[tuple[Dispatcher, ...]] = ContextVar("skyward_open_pools", default=())


def push_pool(pool: Dispatcher) -> None:
    """Register a pool whose ``with`` block begins, so that ``task() >> sky`` uses it."""
    _open_pools.append(pool)
    _context_pools.set((*_context_pools.get(), pool))


def remove_pool(pool: Dispatcher) -> None:
    """Unregister a pool whose ``with`` block ends, even if the block began in another thread."""
    if pool in _open_pools:
        _open_pools.remove(pool)
    _context_pools.set(tuple(each for each in _context_pools.get() if each is not pool))


def current_pool(what: str = "`>> sky` runs on") -> Dispatcher:
    """Return the pool of the innermost ``with`` block that is open in this context.

    A thread in which no ``with`` block is open gets the only open pool of the process.

    Args:
        what: Start of the error message: the operation that needs a pool.

    Raises:
        PoolError: If no block is open, or if several blocks are open and none of them began in this context.
    """
    mine = [each for each in _context_pools.get() if each in _open_pools]
    if mine:
        return mine[-1]
    if len(_open_pools) == 1:
        return _open_pools[0]
    state = "no block is open" if not _open_pools else f"{len(_open_pools)} blocks are open, and none in this thread"
    raise PoolError(f"{what} the pool whose `with sky.Compute(...)` block is open, but {state}. Name the pool")


class ActivePool(PoolOperand):
    """Right operand for the pool of the open ``with`` block: ``train() >> sky.sky``, or ``train() >> sky``."""

    @property
    def working_folder(self) -> str:
        """Working folder of the ranks; remote ranks use a copy of it."""
        return str(getattr(current_pool(), "working_folder", ""))

    def run_one(self, pending: PendingFunction[Any]) -> Any:
        """Run a call on one node: ``pending >> sky``.

        Args:
            pending: The call.
        """
        return current_pool().run_one(pending)

    def run_all(self, pending: PendingFunction[Any]) -> list[Any]:
        """Run a call on every rank: ``pending @ sky``.

        Args:
            pending: The call.
        """
        return current_pool().run_all(pending)

    def run_group(self, group: PendingGroup[Any]) -> Any:
        """Run several calls at the same time: ``group >> sky``.

        Args:
            group: The calls.
        """
        return current_pool().run_group(group)

    def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]:
        """Start a call on one node without waiting: ``pending > sky``.

        Args:
            pending: The call.
        """
        return current_pool().submit(pending)

    def submit_all(self, pending: PendingFunction[Any]) -> RunFuture[list[Any]]:
        """Start a call on every rank without waiting: ``pending.on_all(sky)``.

        Args:
            pending: The call.
        """
        return current_pool().submit_all(pending)

    def submit_group(self, group: PendingGroup[Any]) -> RunFuture[Any]:
        """Start several calls at the same time without waiting: ``group.on(sky)``.

        Args:
            group: The calls.
        """
        return current_pool().submit_group(group)

    # Also resolve the library's names here, because `from skyward import *` may bind `sky` to this object instead of
    # the library.
    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(sys.modules[_LIBRARY], name)

    def __repr__(self) -> str:
        return "sky.sky"


sky = ActivePool()
"""Pool of the open ``with`` block, as a right operand. The library module works the same way: ``train() >> sky``."""
