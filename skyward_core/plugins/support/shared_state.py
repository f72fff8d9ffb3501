"""What ranks and client share by name, as values on the server of the plugin ``shared``.

Each operation is one command, or one script, of the server's, so that none is ever seen half done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...model.errors import UsageError
from ...runtime.info import instance_info
from ...runtime.torchrun import together
from .shared_asking import asked, in_slices
from .shared_locks import SharedBarrier, SharedLock
from .shared_values import Key, named, pack, pack_key, unpack, unpack_key, whole
from .shared_way import SharedWay

_MISSING: Any = object()

_here: SharedState | None = None


def stand(state: SharedState | None) -> None:
    """What this rank's calls use; None at its end."""
    global _here
    if _here is not None:
        _here.close()
    _here = state


def of_rank() -> SharedState | None:
    """What this rank's calls use; None where this is no rank of a pool with the plugin."""
    return _here


class SharedState:
    """All that a pool shares. ``compute.shared`` on the client; in ranks ``sky.dict`` and its like use it.

    Args:
        way: to the server.
    """

    def __init__(self, way: SharedWay) -> None:
        self._way = way

    def dict(self, name: str) -> SharedDict:
        """The dict of that name; an empty one until somebody puts something there.

        Args:
            name: any text.
        """
        return SharedDict(self._way, named("dict", name))

    def set(self, name: str) -> SharedSet:
        """The set of that name; an empty one until somebody adds something.

        Args:
            name: any text.
        """
        return SharedSet(self._way, named("set", name))

    def counter(self, name: str) -> SharedCounter:
        """The counter of that name; it begins at 0.

        Args:
            name: any text.
        """
        return SharedCounter(self._way, named("counter", name))

    def queue(self, name: str) -> SharedQueue:
        """The queue of that name; an empty one until somebody puts something there.

        Args:
            name: any text.
        """
        return SharedQueue(self._way, named("queue", name))

    def lock(self, name: str, timeout: float | None = None) -> SharedLock:
        """The lock of that name, which one holder has at a time.

        Args:
            name: any text.
            timeout: seconds that a ``with`` block waits for it at most; None for no limit.
        """
        return SharedLock(self._way, named("lock", name), timeout)

    def barrier(self, name: str, parties: int | None = None) -> SharedBarrier:
        """The barrier of that name, of the run that this rank is in.

        Args:
            name: any text.
            parties: how many meet there; None for all ranks of the run.

        Raises:
            UsageError: this is no rank in a call; or the call runs on one rank, and ``parties`` are not said.
        """
        info = instance_info()
        if not info.run:
            raise UsageError("ranks meet at a barrier within a call of a run, and this is none")
        if parties is None and not together():
            raise UsageError(
                "this call runs on one rank: say how many meet at the barrier, sky.barrier(name, parties)"
            )
        count = info.world_size if parties is None else parties
        if count < 1:
            raise UsageError(f"a barrier is of 1 party or more, not {count}")
        return SharedBarrier(self._way, f"{named('barrier', name)}:{info.run}", count)

    def close(self) -> None:
        """Have no connection to the server; what is there stays."""
        self._way.close()


class SharedDict:
    """A dict that all ranks and the client see.

    Keys are plain values (texts, numbers, None, tuples of these), told apart by their types, too. Values are whatever
    can be pickled, and travel as copies: a change to one is seen by others once it is put back.
    """

    def __init__(self, way: SharedWay, key: str) -> None:
        self._way, self._key = way, key

    def __getitem__(self, key: Key) -> Any:
        found = self.get(key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found

    def get(self, key: Key, default: Any = None) -> Any:
        """The value of a key; ``default`` where there is none."""
        with asked(self._way) as redis:
            data = redis.hget(self._key, pack_key(key))
        return default if data is None else unpack(data)

    def __setitem__(self, key: Key, value: Any) -> None:
        self.update({key: value})

    def update(self, values: Mapping[Key, Any]) -> None:
        """Put several there; nobody sees a part of them only."""
        if values:
            packed = {pack_key(key): pack(value) for key, value in values.items()}
            with asked(self._way) as redis:
                redis.hset(self._key, mapping=packed)

    def setdefault(self, key: Key, default: Any = None) -> Any:
        """The value of a key, which becomes ``default`` where there is none. Of several that come at once one wins."""
        with asked(self._way) as redis, redis.pipeline() as both:
            both.hsetnx(self._key, pack_key(key), pack(default)).hget(self._key, pack_key(key))
            return unpack(both.execute()[1])

    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """Take a key out: its value, which one only gets of several that come at once.

        Raises:
            KeyError: there is none, and no ``default`` was given.
        """
        with asked(self._way) as redis, redis.pipeline() as both:
            data, _ = both.hget(self._key, pack_key(key)).hdel(self._key, pack_key(key)).execute()
        if data is not None:
            return unpack(data)
        if default is _MISSING:
            raise KeyError(key)
        return default

    def __delitem__(self, key: Key) -> None:
        with asked(self._way) as redis:
            gone = redis.hdel(self._key, pack_key(key))
        if not gone:
            raise KeyError(key)

    def __contains__(self, key: Key) -> bool:
        with asked(self._way) as redis:
            return bool(redis.hexists(self._key, pack_key(key)))

    def __len__(self) -> int:
        with asked(self._way) as redis:
            return int(redis.hlen(self._key))

    def keys(self) -> list[Key]:
        """All keys, as they are now."""
        with asked(self._way) as redis:
            return [unpack_key(data) for data in redis.hkeys(self._key)]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys())

    def items(self) -> list[tuple[Key, Any]]:
        """All keys with their values, as they are now."""
        with asked(self._way) as redis:
            return [(unpack_key(key), unpack(data)) for key, data in redis.hgetall(self._key).items()]

    def values(self) -> list[Any]:
        """All values, as they are now."""
        return [value for _, value in self.items()]

    def clear(self) -> None:
        """Have it empty."""
        with asked(self._way) as redis:
            redis.delete(self._key)

    def __repr__(self) -> str:
        return f"<shared {self._key}>"


class SharedSet:
    """A set of plain values (texts, numbers, None, tuples of these) that all ranks and the client see."""

    def __init__(self, way: SharedWay, key: str) -> None:
        self._way, self._key = way, key

    def add(self, value: Key) -> bool:
        """Add a value: whether it was not there. Of several that add it at once, one is told so."""
        with asked(self._way) as redis:
            return bool(redis.sadd(self._key, pack_key(value)))

    def update(self, values: Iterable[Key]) -> int:
        """Add several: how many were not there."""
        packed = [pack_key(value) for value in values]
        if not packed:
            return 0
        with asked(self._way) as redis:
            return int(redis.sadd(self._key, *packed))

    def discard(self, value: Key) -> bool:
        """Take a value out: whether it was there."""
        with asked(self._way) as redis:
            return bool(redis.srem(self._key, pack_key(value)))

    def remove(self, value: Key) -> None:
        """Take a value out.

        Raises:
            KeyError: it was not there.
        """
        if not self.discard(value):
            raise KeyError(value)

    def pop(self) -> Key:
        """Take any value out, which nobody else gets.

        Raises:
            KeyError: the set is empty.
        """
        with asked(self._way) as redis:
            data = redis.spop(self._key)
        if data is None:
            raise KeyError("the set is empty")
        return unpack_key(data)

    def __contains__(self, value: Key) -> bool:
        with asked(self._way) as redis:
            return bool(redis.sismember(self._key, pack_key(value)))

    def __len__(self) -> int:
        with asked(self._way) as redis:
            return int(redis.scard(self._key))

    def __iter__(self) -> Iterator[Key]:
        with asked(self._way) as redis:
            found = redis.smembers(self._key)
        return iter([unpack_key(data) for data in found])

    def clear(self) -> None:
        """Have it empty."""
        with asked(self._way) as redis:
            redis.delete(self._key)

    def __repr__(self) -> str:
        return f"<shared {self._key}>"


class SharedCounter:
    """A whole number that all ranks and the client count with, within 64 bits."""

    def __init__(self, way: SharedWay, key: str) -> None:
        self._way, self._key = way, key

    def increment(self, by: int = 1) -> int:
        """Add to it: what it is then, which no two callers are told of one step.

        Raises:
            PoolError: it would leave 64 bits; it stays as it was.
        """
        with asked(self._way) as redis:
            return int(redis.incrby(self._key, whole(by)))

    def decrement(self, by: int = 1) -> int:
        """Take from it; see :meth:`increment`."""
        return self.increment(-whole(by))

    @property
    def value(self) -> int:
        """What it is now."""
        with asked(self._way) as redis:
            return int(redis.get(self._key) or 0)

    def reset(self, value: int = 0) -> None:
        """Have it begin anew at ``value``."""
        with asked(self._way) as redis:
            redis.set(self._key, whole(value))

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"<shared {self._key}>"


class SharedQueue:
    """First in, first out, for all ranks and the client: each item goes to one of those who get. An item that was given
    to a rank which ends right then is gone with it."""

    def __init__(self, way: SharedWay, key: str) -> None:
        self._way, self._key = way, key

    def put(self, *items: Any) -> int:
        """Put items at its end, in order: how many are there then.

        Args:
            *items: whatever can be pickled, but None.

        Raises:
            UsageError: one is None, which is what ``get`` gives where nothing came.
        """
        if any(item is None for item in items):
            raise UsageError("a queue holds no None: it is what get gives where nothing came in time")
        packed = [pack(item) for item in items]
        with asked(self._way) as redis:
            return int(redis.rpush(self._key, *packed) if packed else redis.llen(self._key))

    def get(self, timeout: float | None = None) -> Any:
        """Take the first item out, which nobody else gets.

        Args:
            timeout: seconds to wait for one; 0 for not at all, None for no limit.

        Returns:
            The item; None where none came in time.
        """

        def take(wait: float) -> Any:
            with asked(self._way) as redis:
                if wait <= 0:
                    return redis.lpop(self._key)
                found = redis.blpop([self._key], timeout=wait)
                return None if found is None else found[1]

        data = in_slices(take, timeout)
        return None if data is None else unpack(data)

    def __len__(self) -> int:
        with asked(self._way) as redis:
            return int(redis.llen(self._key))

    def clear(self) -> None:
        """Have it empty."""
        with asked(self._way) as redis:
            redis.delete(self._key)

    def __repr__(self) -> str:
        return f"<shared {self._key}>"
