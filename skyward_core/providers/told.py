"""What the log tells of calls to a provider: which, how long it took, what came of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable
from logging import DEBUG
from typing import TypeVar

from ..model.machine import Machine
from ..store.loggers import logger

T = TypeVar("T")

_log = logger("provider")


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
