"""Asking the server of the plugin ``shared``, and waiting for what it has not yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...model.errors import PoolError
from .shared_way import SharedWay

T = TypeVar("T")
SLICE = 5.0  # seconds that the server waits at a time: who is to stop meanwhile does
SHORTEST = 0.01  # which it does not take for 0, and for ever


@contextmanager
def asked(way: SharedWay) -> Iterator[Any]:
    """A connected client of the package redis, whose errors are ours.

    Raises:
        PoolError: the server does not answer, or refuses: it may have no room left.
    """
    redis = way.redis()
    from redis import exceptions

    try:
        yield redis
    except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
        words = f"the shared state of pool {way.pool} does not answer, and what was asked may be done or not: {error}"
        raise PoolError(words) from error
    except exceptions.RedisError as error:
        raise PoolError(f"the shared state of pool {way.pool} refuses: {error}") from error


def in_slices(take: Callable[[float], T | None], timeout: float | None, longest: float = SLICE) -> T | None:
    """What ``take`` gives at last; None where it gave nothing in time.

    Args:
        take: given the seconds that it may wait.
        timeout: seconds in all; None for no limit.
        longest: seconds that it may wait at a time.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        left = longest if until is None else min(longest, until - time.monotonic())
        found = take(max(left, SHORTEST) if left > 0 else 0.0)
        if found is not None or left <= 0:
            return found
