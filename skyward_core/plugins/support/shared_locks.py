"""Locks and barriers by the server of the plugin ``shared``."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Any

from ...model.errors import PoolError, UsageError
from .shared_asking import asked, in_slices
from .shared_way import SharedWay

HELD_MS = 30_000  # a lock whose holder died is free so long after its last sign
SIGN = 10.0  # seconds between the signs of a holder
LOOK = 1.0  # seconds after which who waits for a lock looks by itself
KEPT_MS = 24 * 3600 * 1000  # what a barrier leaves behind

# A holder's release wakes one that waits.
RELEASE = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
redis.call('del', KEYS[2])
redis.call('rpush', KEYS[2], 1)
redis.call('pexpire', KEYS[2], ARGV[2])
return 1
"""
RENEW = "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('pexpire', KEYS[1], ARGV[2]) or 0"
# Who comes last opens it for the others, and begins the next round. Gives the round, and whether it is open.
ARRIVE = """
local round = tonumber(redis.call('hget', KEYS[1], 'round') or '0')
local here = redis.call('hincrby', KEYS[1], 'here', 1)
redis.call('pexpire', KEYS[1], ARGV[2])
if here < tonumber(ARGV[1]) then return {round, 0} end
redis.call('hset', KEYS[1], 'here', 0, 'round', round + 1)
for _ = 2, here do redis.call('rpush', KEYS[1] .. ':' .. round, 1) end
if here > 1 then redis.call('pexpire', KEYS[1] .. ':' .. round, ARGV[2]) end
return {round, 1}
"""
LEAVE = """
if tonumber(redis.call('hget', KEYS[1], 'round') or '0') ~= tonumber(ARGV[1]) then return 0 end
redis.call('hincrby', KEYS[1], 'here', -1)
return 1
"""


class SharedLock:
    """A lock that one holder has at a time, of all ranks and the client; ``with`` takes and frees it.

    A holder that dies frees it within 30 s. It is not taken twice by one holder.
    """

    def __init__(self, way: SharedWay, key: str, timeout: float | None) -> None:
        self._way, self._key, self._timeout = way, key, timeout
        self._held = ""
        self._signs = threading.Event()

    def acquire(self, timeout: float | None = None) -> bool:
        """Take it: whether it is held now.

        Args:
            timeout: seconds to wait for it; 0 for not at all, None for no limit.

        Raises:
            UsageError: this object holds it already.
        """
        if self._held:
            raise UsageError(f"{self!r} is held by this object already")
        token = os.urandom(16).hex()

        def take(wait: float) -> bool | None:
            with asked(self._way) as redis:
                if redis.set(self._key, token, nx=True, px=HELD_MS):
                    return True
                if wait > 0:
                    redis.blpop([f"{self._key}:free"], timeout=wait)
            return None

        if not in_slices(take, timeout, LOOK):
            return False
        self._held, self._signs = token, threading.Event()
        threading.Thread(target=self._sign, args=(token, self._signs), name="lock", daemon=True).start()
        return True

    def _sign(self, token: str, over: threading.Event) -> None:
        """Say that its holder lives."""
        while not over.wait(SIGN):
            try:
                with asked(self._way) as redis:
                    if not redis.eval(RENEW, 1, self._key, token, HELD_MS):
                        return
            except PoolError:
                continue  # the release tells, if it is lost

    def release(self) -> None:
        """Free it.

        Raises:
            UsageError: it is not held by this object.
            PoolError: it was lost meanwhile: its holder gave no sign for 30 s, and another may have had it.
        """
        if not self._held:
            raise UsageError(f"{self!r} is not held by this object")
        token, self._held = self._held, ""
        self._signs.set()
        with asked(self._way) as redis:
            freed = redis.eval(RELEASE, 2, self._key, f"{self._key}:free", token, HELD_MS)
        if not freed:
            raise PoolError(
                f"{self!r} was lost while it was held: its holder gave no sign for {HELD_MS // 1000} s"
            )

    def locked(self) -> bool:
        """Whether anybody holds it now."""
        with asked(self._way) as redis:
            return bool(redis.exists(self._key))

    def __enter__(self) -> SharedLock:
        if not self.acquire(self._timeout):
            raise TimeoutError(f"{self!r} was not free within {self._timeout:g} s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<shared {self._key}>"


class SharedBarrier:
    """Where ranks of a run wait until all of them have come; it can be met at again and again."""

    def __init__(self, way: SharedWay, key: str, parties: int) -> None:
        self._way, self._key, self.parties = way, key, parties

    def wait(self, timeout: float | None = None) -> None:
        """Come there, and wait for the others.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimeoutError: not all came in time. This one has left; the others wait on.
        """
        with asked(self._way) as redis:
            number, is_open = redis.eval(ARRIVE, 1, self._key, self.parties, KEPT_MS)
        if is_open:
            return
        if in_slices(lambda wait: self._woken(number, wait), timeout):
            return
        with asked(self._way) as redis:
            left = redis.eval(LEAVE, 1, self._key, number)
        if not left and self._woken(number, LOOK):
            return  # it opened this very moment
        raise TimeoutError(f"not all {self.parties} came to {self!r} within {timeout:g} s")

    def _woken(self, number: int, wait: float) -> Any:
        with asked(self._way) as redis:
            key = f"{self._key}:{number}"
            return redis.lpop(key) if wait <= 0 else redis.blpop([key], timeout=wait)

    def __repr__(self) -> str:
        return f"<shared {self._key.rpartition(':')[0]}>"
