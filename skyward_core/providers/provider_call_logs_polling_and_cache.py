"""Calls of providers: progress, logs, time limits, polling and cached answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from logging import DEBUG
from typing import Any, TypeVar

from skyward_core.model.errors import PoolError, Unreachable
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.store.debug_log import get_logger
from skyward_core.transport.background_loop import set_for_tasks

T = TypeVar("T")

QUERY_TIMEOUT = 60.0  # seconds for a provider to answer a query or to accept a request

_log = get_logger("provider")

_listener: ContextVar[Callable[[str], None]] = ContextVar("progress_listener")


def progress_listener(listener: Callable[[str], None]) -> AbstractContextManager[None]:
    """Pass the progress messages of providers to a function for the duration of a ``with`` block."""
    return set_for_tasks(_listener, listener)


def report_progress(text: str) -> None:
    """Report the progress of a provider to the current listener."""
    current_listener()(text)


def current_listener() -> Callable[[str], None]:
    """Return the function that receives progress messages."""
    return _listener.get(lambda _text: None)


class ProviderTimeout(Unreachable):
    """Error: a provider does not answer."""


class IncompleteSearch(PoolError):
    """Error: a provider cannot list all machines of a pool.

    Attributes:
        machines: Machines that the provider shows, or named before. The latter may have ended.
        left: Seconds after which a new search is complete; 0 if that is unknown.
    """

    def __init__(self, message: str, machines: Sequence[Machine] = (), left: float = 0.0) -> None:
        super().__init__(message)
        self.machines = machines
        self.left = left


async def log_query(verb: str, pool: str, call: Awaitable[T]) -> T:
    """Await a provider call like :func:`log_call`, with a limit of :data:`QUERY_TIMEOUT` seconds.

    Raises:
        ProviderTimeout: If the provider does not answer in time.
    """
    limit = asyncio.timeout(QUERY_TIMEOUT)
    try:
        async with limit:
            return await log_call(verb, pool, call)
    except TimeoutError as error:
        if not limit.expired():  # the timeout came from a time limit inside the provider, not from this one
            raise
        message = f"the provider of pool {pool} has not answered within {QUERY_TIMEOUT:g} s ({verb}); try again later"
        _log.warning("%s", message, extra={"pool": pool})
        raise ProviderTimeout(message) from error


async def log_call(verb: str, pool: str, call: Awaitable[T]) -> T:
    """Await a provider call, and log its duration and result or error.

    Args:
        verb: Name of the provider's method, for the log.
        pool: Name of the pool.
    """
    begun, extra = time.monotonic(), {"pool": pool}
    try:
        result = await call
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        _log.warning("%s failed after %.3f s: %s", verb, time.monotonic() - begun, cause, extra=extra)
        raise
    if _log.isEnabledFor(DEBUG):
        _log.debug("%s took %.3f s%s", verb, time.monotonic() - begun, _count_states(result), extra=extra)
    return result


def _count_states(result: object) -> str:
    """Return the number of machines in each state, without their details, for the log."""
    machines = [result] if isinstance(result, Machine) else result
    if not isinstance(machines, list):
        return ""
    states = Counter(each.state for each in machines if isinstance(each, Machine))
    return ": machines " + (", ".join(f"{count} {state}" for state, count in states.items()) or "none")


async def poll_until_empty(
    ask: Callable[[], Awaitable[T]], pauses: tuple[float, float], limit: float, factor: float = 2.0
) -> T:
    """Repeat a query with growing pauses until the answer is empty or the time limit is reached. Return the last
    answer.

    Args:
        pauses: First and longest pause between two queries, in seconds.
        limit: Total time in seconds.
    """
    deadline, (pause, longest) = time.monotonic() + limit, pauses
    while (found := await ask()) and time.monotonic() + pause <= deadline:
        await asyncio.sleep(pause)
        pause = min(longest, pause * factor)
    return found


CACHE_TTL = 60.0  # seconds after a query during which its cached answer may be used
MAX_CACHED_ANSWERS = 256  # maximum number of answers in the cache

_cache_enabled: ContextVar[bool] = ContextVar("remembering", default=False)


def use_cached_answers() -> AbstractContextManager[None]:
    """Allow cached answers of :class:`AnswerCache` for the duration of a ``with`` block."""
    return set_for_tasks(_cache_enabled, True)


class AnswerCache:
    """Cache of a provider's answers for one account. A query outside :func:`use_cached_answers` bypasses and refreshes
    the cache.
    """

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[float, Any]] = {}

    def get(self, question: Hashable) -> Any:
        """Return the cached answer; None if there is none, if it has expired, or outside :func:`use_cached_answers`."""
        if not _cache_enabled.get():
            return None
        at, answer = self._answers.get(question, (0.0, None))
        return answer if answer is not None and time.monotonic() - at < CACHE_TTL else None

    def put(self, question: Hashable, answer: Any) -> None:
        """Store an answer."""
        self._answers.pop(question, None)
        self._answers[question] = time.monotonic(), answer
        while len(self._answers) > MAX_CACHED_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def clear(self) -> None:
        """Forget all answers, for example after the credentials changed."""
        self._answers.clear()
