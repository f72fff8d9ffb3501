"""What pools are asked by the words of older generations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ...model.errors import UsageError
from ...model.function import PendingFunction, PendingGroup
from .right_side import call_of, group_of

if TYPE_CHECKING:
    from ...model.run_future import RunFuture
    from ...plugins.support.shared_locks import SharedBarrier, SharedLock
    from ...plugins.support.shared_state import SharedCounter, SharedDict, SharedQueue, SharedSet, SharedState

T = TypeVar("T")
R = TypeVar("R")


class OlderVerbs:
    """Each is another word for what ``Compute`` and an attached pool do, or says what to do instead."""

    if TYPE_CHECKING:

        @property
        def shared(self) -> SharedState: ...

        def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]: ...

        def run_group(self, group: PendingGroup[Any]) -> Any: ...

        def run_one(self, pending: PendingFunction[Any]) -> Any: ...

    def run_parallel(self, group: PendingGroup[R]) -> R:
        """The second generation's word for ``group >> compute``.

        Args:
            group: the calls.
        """
        value: R = self.run_group(group_of(group, "compute.run_parallel"))
        return value

    def start(self, pending: PendingFunction[T]) -> RunFuture[T]:
        """The third generation's word for ``pending > compute``.

        Args:
            pending: the call.
        """
        return self.submit(call_of(pending, "compute.start"))

    def gather(self, group: PendingGroup[Any]) -> list[Any]:
        """The third generation's word for ``group >> compute``.

        Args:
            group: the calls.
        """
        return list(self.run_group(group_of(group, "compute.gather")))

    def gather_stream(self, group: PendingGroup[Any]) -> Iterator[Any]:
        """The third generation's word for ``sky.gather(..., stream=True) >> compute``.

        Args:
            group: the calls.
        """
        group = group_of(group, "compute.gather_stream")
        values: Iterator[Any] = self.run_group(PendingGroup(group.items, True, group.ordered))
        return values

    def stream(self, pending: PendingFunction[Iterator[T]]) -> Iterator[T]:
        """The third generation's word for ``pending >> compute`` with a generator function.

        Args:
            pending: the call.
        """
        values: Iterator[T] = self.run_one(call_of(pending, "compute.stream"))
        return values

    def dict(self, name: str, consistency: str | None = None) -> SharedDict:
        """The second generation's word for ``compute.shared.dict(name)``.

        Args:
            name: any text.
            consistency: there is one server, and so the strongest always.
        """
        return self.shared.dict(name)

    def set(self, name: str, consistency: str | None = None) -> SharedSet:
        """The second generation's word for ``compute.shared.set(name)``.

        Args:
            name: any text.
            consistency: there is one server, and so the strongest always.
        """
        return self.shared.set(name)

    def counter(self, name: str, consistency: str | None = None) -> SharedCounter:
        """The second generation's word for ``compute.shared.counter(name)``.

        Args:
            name: any text.
            consistency: there is one server, and so the strongest always.
        """
        return self.shared.counter(name)

    def queue(self, name: str) -> SharedQueue:
        """The second generation's word for ``compute.shared.queue(name)``.

        Args:
            name: any text.
        """
        return self.shared.queue(name)

    def lock(self, name: str, timeout: float | None = 30) -> SharedLock:
        """The second generation's word for ``compute.shared.lock(name)``, with its limit.

        Args:
            name: any text.
            timeout: seconds that a ``with`` block waits at most; None for no limit.
        """
        return self.shared.lock(name, timeout)

    def barrier(self, name: str, n: int) -> SharedBarrier:
        """The second generation's word for ``compute.shared.barrier(name, n)``.

        Args:
            name: any text.
            n: how many meet there.
        """
        return self.shared.barrier(name, n)

    def resize(self, *nodes: Any) -> NoReturn:
        """Refused: a pool has as many machines as it was started with.

        Args:
            *nodes: how many.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "compute.resize(...) is not to be had: a pool has as many machines as it was started with; leave the block "
            "and bring another up, nodes=sky.Nodes(min=2, max=8) for as many as can be had"
        )

    def update(self, image: Any) -> NoReturn:
        """Refused: a pool keeps its image.

        Args:
            image: the other one.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "compute.update(image) is not to be had: a pool keeps its image; what the script defines travels anew with "
            "every call, and another image wants another pool"
        )

    def events(self) -> NoReturn:
        """Refused: a pool's events are read otherwise.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "compute.events() is not to be had: sky.attach(name).view shows what the pool is at, compute.metrics() "
            "what it measures, and the app both as they change"
        )
