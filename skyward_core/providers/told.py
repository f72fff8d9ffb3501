"""Calls to a provider: how long one may take, what it says while it is at work, and what the log tells of each."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import DEBUG
from typing import TypeVar

from ..model.errors import Unreachable
from ..model.machine import Machine
from ..store.loggers import logger

T = TypeVar("T")

ANSWER = 60.0  # seconds in which a provider answers a question, or takes an order

_log = logger("provider")

_hearer: ContextVar[Callable[[str], None]] = ContextVar("hearer")


@contextmanager
def hearing(hear: Callable[[str], None]) -> Iterator[None]:
    """Have somebody hear, inside it, what a provider says it is at."""
    before = _hearer.set(hear)
    try:
        yield
    finally:
        _hearer.reset(before)


def progress(text: str) -> None:
    """A provider says what it is at now, to whoever waits for it."""
    listener()(text)


def listener() -> Callable[[str], None]:
    """Who hears that now."""
    return _hearer.get(_nobody)


def _nobody(text: str) -> None:
    """Nobody waits."""


class NoAnswer(Unreachable):
    """A provider does not answer."""


async def answered(verb: str, pool: str, call: Awaitable[T]) -> T:
    """As :func:`told`, for verbs that take no time of their own.

    Raises:
        NoAnswer: none came in :data:`ANSWER` seconds.
    """
    limit = asyncio.timeout(ANSWER)
    try:
        async with limit:
            return await told(verb, pool, call)
    except TimeoutError as error:
        if not limit.expired():  # a limit of the provider's own
            raise
        said = f"the provider of pool {pool} has not answered within {ANSWER:g} s ({verb}); try again later"
        _log.warning("%s", said, extra={"pool": pool})
        raise NoAnswer(said) from error


async def told(verb: str, pool: str, call: Awaitable[T]) -> T:
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
        _log.debug("%s took %.3f s%s", verb, time.monotonic() - begun, _summary(result), extra=extra)
    return result


def _summary(result: object) -> str:
    """What came of it: of machines how many are in which state, and never their particulars."""
    machines = [result] if isinstance(result, Machine) else result
    if not isinstance(machines, list):
        return ""
    states = Counter(each.state for each in machines if isinstance(each, Machine))
    return ": machines " + (", ".join(f"{count} {state}" for state, count in states.items()) or "none")
