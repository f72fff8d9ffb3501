"""What the parts of a session have in common: a way to a pool, and to the session's thread."""

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from skyward_core.pool.pool import Pool
    from skyward_core.views.pool_view import PoolView

T = TypeVar("T")


class SessionPart:
    """Base of the parts that ``session.Session`` is made of."""

    def pools(self) -> list[PoolView]:
        """Pools known to this session."""
        raise NotImplementedError

    async def _observe_pool(self, name: str) -> Pool:
        """A pool that is up, as one who only looks."""
        raise NotImplementedError

    async def _attach_pool(self, name: str) -> Pool:
        """A pool that is up, as one who uses it."""
        raise NotImplementedError

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        raise NotImplementedError
