"""``compute.map``: a function over many items, beside the operators."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from .dispatch import Dispatching

if TYPE_CHECKING:
    from ...model.function import Function

T = TypeVar("T")


class MapWords(TypedDict, total=False):
    """What ``map`` takes beside a function and items; it says what each is."""

    ordered: bool
    timeout: float | None


class OverItems(Dispatching):
    """What sends calls to a pool, with ``map``. Safe to use from any thread."""

    @overload
    def map(
        self, fn: Function[..., Coroutine[Any, Any, T]], items: Iterable[Any], **how: Unpack[MapWords]
    ) -> Iterator[T]: ...
    @overload
    def map(self, fn: Function[..., T], items: Iterable[Any], **how: Unpack[MapWords]) -> Iterator[T]: ...
    @overload
    def map(self, fn: Callable[..., T], items: Iterable[Any], **how: Unpack[MapWords]) -> Iterator[T]: ...
    def map(
        self,
        fn: Callable[..., Any],
        items: Iterable[Any],
        *more: Iterable[Any],
        ordered: bool = True,
        timeout: float | None = None,
    ) -> Iterator[Any]:
        """Call a function once for each item, spread over all ranks: one run, however many items there are.

            for area in compute.map(measure, Path("photos").glob("*.jpg")):
                ...

        Nothing is read of ``items`` before the first value is asked for, and never more than is soon to be worked on,
        so that they may be endless; it is this thread that reads them. Quick calls travel several at a time.

        Args:
            fn: a ``@function``, or a plain function, of one argument.
            items: what it is called with.
            *more: refused, as the builtin ``map`` takes several series: ``zip`` them.
            ordered: whether values come in the order of the items; with False as calls end.
            timeout: seconds that one item may take; None for the function's own limit. With a limit items travel one
                by one.

        Returns:
            An iterator of the values. Closing it, or leaving a loop over it, cancels what still runs. After the first
            failure nothing more is begun.

        Raises:
            TypeError: ``fn`` is no function, or does not take one argument; or there are several series of items.
            ValueError: ``timeout`` is not more than 0.
            UsageError: it is a generator function.
            RunError: a call failed (while values are taken); its cause is the function's own exception. ``results`` has
                the values that were computed, by item: those that the loop has not had, and of items with a length the
                first 64 MB of those that it has had.
            NotPicklableError: an item cannot travel (while values are taken).
            Cancelled: the run was cancelled (while values are taken).
            PoolError: the pool is not up.
        """
        from .maps import Mapped, OnRanks, ShareWay, function_of  # few scripts have one

        if more:
            raise TypeError(
                "compute.map takes one series of items: compute.map(lambda each: f(*each), zip(a, b))"
            )
        call = function_of(fn, timeout)
        way: ShareWay
        if (engine := self._engine()) is not None and call.timeout is None:
            from .dask_work import ByDask

            way = ByDask(engine, call)
            return Mapped(way, call, items, ordered=ordered, single=False).values()
        way = OnRanks(self._start_map, self._cancel, call, self.plugins, self._folder(), self.concurrency)
        return Mapped(way, call, items, ordered=ordered, single=call.timeout is not None).values()
