"""Calls of providers: progress, logs, time limits, polling and cached answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import DEBUG
from typing import Any, TypeVar

from skyward_core.model.errors import Unreachable
from skyward_core.model.machines import Machine
from skyward_core.store.debug_log import get_logger

T = TypeVar("T")

QUERY_TIMEOUT = 60.0  # seconds in which a provider answers a question, or takes an order

_log = get_logger("provider")

_listener: ContextVar[Callable[[str], None]] = ContextVar("hearer")


@contextmanager
def progress_listener(hear: Callable[[str], None]) -> Iterator[None]:
    """Have somebody hear, inside it, what a provider says it is at."""
    before = _listener.set(hear)
    try:
        yield
    finally:
        _listener.reset(before)


def report_progress(text: str) -> None:
    """A provider says what it is at now, to whoever waits for it."""
    current_listener()(text)


def current_listener() -> Callable[[str], None]:
    """Who hears that now."""
    return _listener.get(_ignore_progress)


def _ignore_progress(text: str) -> None:
    """Nobody waits."""


class ProviderTimeout(Unreachable):
    """A provider does not answer."""


async def log_query(verb: str, pool: str, call: Awaitable[T]) -> T:
    """As :func:`told`, for verbs that take no time of their own.

    Raises:
        NoAnswer: none came in :data:`ANSWER` seconds.
    """
    limit = asyncio.timeout(QUERY_TIMEOUT)
    try:
        async with limit:
            return await log_call(verb, pool, call)
    except TimeoutError as error:
        if not limit.expired():  # a limit of the provider's own
            raise
        said = f"the provider of pool {pool} has not answered within {QUERY_TIMEOUT:g} s ({verb}); try again later"
        _log.warning("%s", said, extra={"pool": pool})
        raise ProviderTimeout(said) from error


async def log_call(verb: str, pool: str, call: Awaitable[T]) -> T:
    """Wait for a call of a provider, and have the log tell of it.

    Args:
        verb: which of the provider's verbs it is.
        pool: the name of the pool that it is about.
    """
    begun, extra = time.monotonic(), {"pool": pool}
    try:
        result = await call
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        _log.warning("%s failed after %.3f s: %s", verb, time.monotonic() - begun, said, extra=extra)
        raise
    if _log.isEnabledFor(DEBUG):
        _log.debug("%s took %.3f s%s", verb, time.monotonic() - begun, _count_states(result), extra=extra)
    return result


def _count_states(result: object) -> str:
    """What came of it: of machines how many are in which state, and never their particulars."""
    machines = [result] if isinstance(result, Machine) else result
    if not isinstance(machines, list):
        return ""
    states = Counter(each.state for each in machines if isinstance(each, Machine))
    return ": machines " + (", ".join(f"{count} {state}" for state, count in states.items()) or "none")


async def poll_until_empty(
    ask: Callable[[], Awaitable[T]], pauses: tuple[float, float], limit: float, factor: float = 2.0
) -> T:
    """Ask again, after growing pauses, until the answer is empty or the time is over; return the last answer.

    Args:
        pauses: Seconds between two questions, at first and at most.
        limit: Seconds in all.
    """
    deadline, (pause, longest) = time.monotonic() + limit, pauses
    while (found := await ask()) and time.monotonic() + pause <= deadline:
        await asyncio.sleep(pause)
        pause = min(longest, pause * factor)
    return found


CACHE_TTL = 60.0  # seconds for which an answer counts as new
MAX_CACHED_ANSWERS = 256  # answers that are kept

_cache_enabled: ContextVar[bool] = ContextVar("remembering", default=False)


@contextmanager
def use_cached_answers() -> Iterator[None]:
    """Inside it questions to providers may be answered by what they said a little while ago."""
    before = _cache_enabled.set(True)
    try:
        yield
    finally:
        _cache_enabled.reset(before)


class AnswerCache:
    """Answers of one account, by what was asked. Whoever asks outside :func:`use_cached_answers` gets none of them, and
    refreshes them."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[float, Any]] = {}

    def get(self, question: Hashable) -> Any:
        """What was said; None where that was too long ago, or must not be used."""
        if not _cache_enabled.get():
            return None
        at, answer = self._answers.get(question, (0.0, None))
        return answer if answer is not None and time.monotonic() - at < CACHE_TTL else None

    def put(self, question: Hashable, answer: Any) -> None:
        """Note what was said."""
        self._answers.pop(question, None)
        self._answers[question] = time.monotonic(), answer
        while len(self._answers) > MAX_CACHED_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def clear(self) -> None:
        """Whose account it is has changed."""
        self._answers.clear()
