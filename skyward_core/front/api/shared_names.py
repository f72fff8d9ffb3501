"""``sky.dict`` and its like: what ranks and client share by name, of the pool that this code belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...model.errors import UsageError
from ...plugins.support import shared_state
from ...runtime.info import instance_info
from .active_pool import active

if TYPE_CHECKING:
    from ...plugins.support.shared_locks import SharedBarrier, SharedLock
    from ...plugins.support.shared_state import (
        SharedCounter,
        SharedDict,
        SharedQueue,
        SharedSet,
        SharedState,
    )

NOT_SHARED = "this pool shares nothing: give it plugins=[sky.plugins.shared()]"


def _state() -> SharedState:
    found = shared_state.of_rank()
    if found is not None:
        return found
    if instance_info().pool:
        raise UsageError(NOT_SHARED)
    pool: Any = active("what is shared belongs to")
    state: SharedState = pool.shared
    return state


def dict(name: str, consistency: str | None = None) -> SharedDict:
    """The dict of that name, which all ranks and the client see; an empty one until somebody puts something there.

    On the client it is that of the pool whose ``with`` block is open.

    Args:
        name: any text.
        consistency: as older generations take it; there is one server, and so the strongest always.

    Raises:
        UsageError: the pool has no ``sky.plugins.shared()``.
        PoolError: on the client: no block is open, or several and none in this thread.
    """
    return _state().dict(name)


def set(name: str, consistency: str | None = None) -> SharedSet:
    """The set of that name; see :func:`dict`.

    Args:
        name: any text.
        consistency: as of :func:`dict`.
    """
    return _state().set(name)


def counter(name: str, consistency: str | None = None) -> SharedCounter:
    """The counter of that name, which begins at 0; see :func:`dict`.

    Args:
        name: any text.
        consistency: as of :func:`dict`.
    """
    return _state().counter(name)


def queue(name: str) -> SharedQueue:
    """The queue of that name; see :func:`dict`.

    Args:
        name: any text.
    """
    return _state().queue(name)


def lock(name: str, timeout: float | None = None, *, ttl: float | None = None) -> SharedLock:
    """The lock of that name, which one holder has at a time; see :func:`dict`.

    Args:
        name: any text.
        timeout: seconds that a ``with`` block waits for it at most, before it raises TimeoutError; None for no limit.
        ttl: as the newest generation takes it; a warning says that it goes unheeded.
    """
    if ttl is not None:
        from ...model.older_words import heeded, unheeded

        heeded("sky.lock", {"ttl": unheeded("one whose holder dies is free within 30 seconds")}, {"ttl": ttl})
    return _state().lock(name, timeout)


def barrier(name: str, parties: int | None = None, *, n: int | None = None) -> SharedBarrier:
    """The barrier of that name, of the run in progress.

    Args:
        name: any text.
        parties: how many meet there; None for all ranks of the run.
        n: the same, by an older word.

    Raises:
        UsageError: this is no rank in a call, or ``parties`` is to be said; or as :func:`dict`.
    """
    return _state().barrier(name, n if parties is None else parties)
