"""Dict, set, counter, queue, lock and barrier in a Redis.

Each operation is one command, or one script, of the server's, so that none is ever seen half done.
"""

from __future__ import annotations

import ast
import hashlib
import math
import os
import pickle
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeAlias, TypeVar

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.runtime.instance_info import instance_info
from skyward_core.runtime.rendezvous import is_gang_call
from skyward_core.util.byte_sizes import format_size

SOCKET = "socket"
PATIENCE = 60.0  # seconds for the server to be there: the head may come up after other nodes
LOCAL_TIMEOUT = 5.0  # seconds of that where its socket is: there the server comes before all else, and this one is gone
TIMEOUT = 30.0  # seconds for an answer; longer than a command waits there
PAUSE = 0.1  # seconds between attempts


def private_folder(token: str) -> Path:
    """Where the server has its socket on its host. Only who knows the token knows the name before it is there."""
    return Path("/tmp", f"sky-shared-{hashlib.sha256(token.encode()).hexdigest()[:16]}")


class SharedStateConnection:
    """Connections to the server, made when they are first needed. Safe to use from any thread.

    Args:
        pool: its pool's name.
        token: the password.
        authority: certificate of the one that signed the server's own.
        find: address and port of the server, asked for where its socket is not on this host.
    """

    def __init__(self, pool: str, token: str, authority: str, find: Callable[[], tuple[str, int]]) -> None:
        self.pool = pool
        self._token, self._authority, self._find = token, authority, find
        self._redis: Any = None
        self._lock = threading.Lock()

    def get_client(self) -> Any:
        """A connected client of the package redis.

        Raises:
            PoolError: that is not installed here, or the server does not answer.
        """
        with self._lock:
            if self._redis is None:
                self._redis = self._connect()
            return self._redis

    def close(self) -> None:
        """Have no connections."""
        with self._lock:
            redis, self._redis = self._redis, None
        if redis is not None:
            redis.close()

    def _connect(self) -> Any:
        try:
            from redis import exceptions
        except ModuleNotFoundError as error:
            raise PoolError("the package redis is not installed here: pip install redis") from error
        began = time.monotonic()
        while True:
            patience = LOCAL_TIMEOUT if _is_own_socket(private_folder(self._token)) else PATIENCE
            client = self._make_client()
            try:
                client.ping()
                return client
            except exceptions.AuthenticationError as error:
                client.close()
                raise PoolError(f"the shared state of pool {self.pool} lets nobody in: {error}") from error
            except exceptions.RedisError as error:
                client.close()
                if time.monotonic() - began > patience:
                    raise PoolError(f"the shared state of pool {self.pool} does not answer: {error}") from error
            time.sleep(PAUSE)

    def _make_client(self) -> Any:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.connection import ConnectionPool, UnixDomainSocketConnection
        from redis.retry import Retry

        # Nothing is done again by itself: whether a lost command was done, nobody knows.
        common: dict[str, Any] = {
            "password": self._token,
            "socket_timeout": TIMEOUT,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        folder = private_folder(self._token)
        if _is_own_socket(folder):
            pool = ConnectionPool(connection_class=UnixDomainSocketConnection, path=str(folder / SOCKET), **common)
        else:
            host, port = self._find()
            kind, context = _make_tls_class(), _make_ssl_context(self._authority)
            pool = ConnectionPool(
                connection_class=kind, host=host, port=port, context=context,
                socket_connect_timeout=TIMEOUT, socket_keepalive=True, **common,
            )  # fmt: skip
        return Redis.from_pool(pool)


def _is_own_socket(folder: Path) -> bool:
    """Whether the server's socket is on this host, and nobody else's."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o077 and (folder / SOCKET).exists()


def _make_ssl_context(authority: str) -> ssl.SSLContext:
    """Trusts what the pool's own authority has signed, and nothing else: it signs one certificate only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=authority)
    return context


def _make_tls_class() -> Any:
    """Connections that trust the context they are given; those of the package trust all that this machine trusts."""
    from redis import connection

    Connection: Any = connection.Connection  # of which not all versions are typed
    if "_connect" not in vars(Connection):
        raise PoolError("this version of the package redis is not known here: have one from 5 to 8")

    class Secured(Connection):  # type: ignore[misc]  # see above
        def __init__(self, *, context: ssl.SSLContext, **kwargs: Any) -> None:
            self._context = context
            super().__init__(**kwargs)

        def _connect(self) -> Any:
            return self._context.wrap_socket(super()._connect())

    return Secured


T = TypeVar("T")
MAX_WAIT = 5.0  # seconds that the server waits at a time: who is to stop meanwhile does
MIN_WAIT = 0.01  # which it does not take for 0, and for ever


@contextmanager
def wrap_redis_errors(way: SharedStateConnection) -> Iterator[Any]:
    """A connected client of the package redis, whose errors are ours.

    Raises:
        PoolError: the server does not answer, or refuses: it may have no room left.
    """
    redis = way.get_client()
    from redis import exceptions

    try:
        yield redis
    except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
        words = f"the shared state of pool {way.pool} does not answer, and what was asked may be done or not: {error}"
        raise PoolError(words) from error
    except exceptions.RedisError as error:
        raise PoolError(f"the shared state of pool {way.pool} refuses: {error}") from error


def poll_in_slices(take: Callable[[float], T | None], timeout: float | None, longest: float = MAX_WAIT) -> T | None:
    """What ``take`` gives at last; None where it gave nothing in time.

    Args:
        take: given the seconds that it may wait.
        timeout: seconds in all; None for no limit.
        longest: seconds that it may wait at a time.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        left = longest if until is None else min(longest, until - time.monotonic())
        found = take(max(left, MIN_WAIT) if left > 0 else 0.0)
        if found is not None or left <= 0:
            return found


class SharedObject:
    """A named object on the server."""

    def __init__(self, way: SharedStateConnection, key: str) -> None:
        self._connection, self._key = way, key

    def _call(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Run a command of the server on this object."""
        with wrap_redis_errors(self._connection) as redis:
            return getattr(redis, command)(self._key, *arguments, **options)

    def __repr__(self) -> str:
        return f"<shared {self._key}>"


class SharedCollection(SharedObject):
    """A shared object that holds several values."""

    length_command: ClassVar[str]

    def clear(self) -> None:
        """Remove all values."""
        self._call("delete")

    def __len__(self) -> int:
        return int(self._call(self.length_command))


LOCK_TTL_MS = 30_000  # a lock whose holder died is free so long after its last sign
RENEW_INTERVAL = 10.0  # seconds between the signs of a holder
LOOK = 1.0  # seconds after which who waits for a lock looks by itself
BARRIER_TTL_MS = 24 * 3600 * 1000  # what a barrier leaves behind

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


class SharedLock(SharedObject):
    """A lock that one holder has at a time, of all ranks and the client; ``with`` takes and frees it.

    A holder that dies frees it within 30 s. It is not taken twice by one holder.
    """

    def __init__(self, way: SharedStateConnection, key: str, timeout: float | None) -> None:
        super().__init__(way, key)
        self._timeout = timeout
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
            with wrap_redis_errors(self._connection) as redis:
                if redis.set(self._key, token, nx=True, px=LOCK_TTL_MS):
                    return True
                if wait > 0:
                    redis.blpop([f"{self._key}:free"], timeout=wait)
            return None

        if not poll_in_slices(take, timeout, LOOK):
            return False
        self._held, self._signs = token, threading.Event()
        threading.Thread(target=self._renew_until, args=(token, self._signs), name="lock", daemon=True).start()
        return True

    def _renew_until(self, token: str, over: threading.Event) -> None:
        """Say that its holder lives."""
        while not over.wait(RENEW_INTERVAL):
            try:
                with wrap_redis_errors(self._connection) as redis:
                    if not redis.eval(RENEW, 1, self._key, token, LOCK_TTL_MS):
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
        with wrap_redis_errors(self._connection) as redis:
            freed = redis.eval(RELEASE, 2, self._key, f"{self._key}:free", token, LOCK_TTL_MS)
        if not freed:
            raise PoolError(f"{self!r} was lost while it was held: its holder gave no sign for {LOCK_TTL_MS // 1000} s")

    def locked(self) -> bool:
        """Whether anybody holds it now."""
        return bool(self._call("exists"))

    def __enter__(self) -> SharedLock:
        if not self.acquire(self._timeout):
            raise TimeoutError(f"{self!r} was not free within {self._timeout:g} s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class SharedBarrier(SharedObject):
    """Where ranks of a run wait until all of them have come; it can be met at again and again."""

    def __init__(self, way: SharedStateConnection, key: str, parties: int) -> None:
        super().__init__(way, key)
        self.parties = parties

    def wait(self, timeout: float | None = None) -> None:
        """Come there, and wait for the others.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimeoutError: not all came in time. This one has left; the others wait on.
        """
        with wrap_redis_errors(self._connection) as redis:
            number, is_open = redis.eval(ARRIVE, 1, self._key, self.parties, BARRIER_TTL_MS)
        if is_open:
            return
        if poll_in_slices(lambda wait: self._wait_round(number, wait), timeout):
            return
        with wrap_redis_errors(self._connection) as redis:
            left = redis.eval(LEAVE, 1, self._key, number)
        if not left and self._wait_round(number, LOOK):
            return  # it opened this very moment
        raise TimeoutError(f"not all {self.parties} came to {self!r} within {timeout:g} s")

    def _wait_round(self, number: int, wait: float) -> Any:
        with wrap_redis_errors(self._connection) as redis:
            key = f"{self._key}:{number}"
            return redis.lpop(key) if wait <= 0 else redis.blpop([key], timeout=wait)

    def __repr__(self) -> str:
        return f"<shared {self._key.rpartition(':')[0]}>"


MAX_VALUE_BYTES = 500 << 20  # bytes of a value; the server breaks connections off that send it 512 MB in one
Key: TypeAlias = "str | int | float | bytes | bool | tuple[Key, ...] | None"


def make_key(kind: str, name: str) -> str:
    """What something is called on the server: a dict and a set of one name are two things.

    Raises:
        UsageError: the name is no text, or empty.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"a shared {kind} is named by a text, not {name!r}")
    return f"{kind}:{name.encode('utf-8', 'backslashreplace').decode()}"


def check_integer(number: object) -> int:
    """A whole number, as it is.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(number, int):
        raise UsageError(f"a counter counts in whole numbers, not {number!r}")
    return int(number)


def pack_key(key: Key) -> bytes:
    """A key as bytes: the same for the same value in any process, which pickles are not.

    Raises:
        UsageError: it is no plain value.
    """
    _check_plain(key)
    return ascii(key).encode()


def _check_plain(key: object) -> None:
    if isinstance(key, tuple) and type(key) is tuple:
        for part in key:
            _check_plain(part)
    elif key is not None and type(key) not in (str, int, float, bytes, bool):
        kind = type(key).__name__
        raise UsageError(f"keys of a dict and members of a set are texts, numbers, None or tuples of these, not {kind}")
    elif isinstance(key, float) and not math.isfinite(key):
        raise UsageError(f"{key} is no key: it is not a finite number")


def unpack_key(data: bytes) -> Key:
    """What :func:`pack_key` packed."""
    key: Key = ast.literal_eval(data.decode())
    return key


def pack_value(value: Any) -> bytes:
    """A value as bytes.

    Raises:
        UsageError: it cannot be pickled, or is too large.
    """
    import cloudpickle  # a class of the script goes along with its instances

    try:
        data: bytes = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # a reducer may raise anything
        raise UsageError(f"a value of type {type(value).__name__} cannot be shared: {error}") from error
    if len(data) > MAX_VALUE_BYTES:
        raise UsageError(
            f"a value of type {type(value).__name__} has {format_size(len(data))}; one that is shared has at most "
            f"{format_size(MAX_VALUE_BYTES)}: write it to a file"
        )
    return data


def unpack_value(data: bytes) -> Any:
    """What :func:`pack` packed: only the pool's own reach the server."""
    return pickle.loads(data)


_MISSING: Any = object()

_current: SharedState | None = None


def set_current(state: SharedState | None) -> None:
    """What this rank's calls use; None at its end."""
    global _current
    if _current is not None:
        _current.close()
    _current = state


def get_current() -> SharedState | None:
    """What this rank's calls use; None where this is no rank of a pool with the plugin."""
    return _current


class SharedState:
    """All that a pool shares. ``compute.shared`` on the client; in ranks ``sky.dict`` and its like use it.

    Args:
        way: to the server.
    """

    def __init__(self, way: SharedStateConnection) -> None:
        self._connection = way

    def dict(self, name: str) -> SharedDict:
        """The dict of that name; an empty one until somebody puts something there.

        Args:
            name: any text.
        """
        return SharedDict(self._connection, make_key("dict", name))

    def set(self, name: str) -> SharedSet:
        """The set of that name; an empty one until somebody adds something.

        Args:
            name: any text.
        """
        return SharedSet(self._connection, make_key("set", name))

    def counter(self, name: str) -> SharedCounter:
        """The counter of that name; it begins at 0.

        Args:
            name: any text.
        """
        return SharedCounter(self._connection, make_key("counter", name))

    def queue(self, name: str) -> SharedQueue:
        """The queue of that name; an empty one until somebody puts something there.

        Args:
            name: any text.
        """
        return SharedQueue(self._connection, make_key("queue", name))

    def lock(self, name: str, timeout: float | None = None) -> SharedLock:
        """The lock of that name, which one holder has at a time.

        Args:
            name: any text.
            timeout: seconds that a ``with`` block waits for it at most; None for no limit.
        """
        return SharedLock(self._connection, make_key("lock", name), timeout)

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
        if parties is None and not is_gang_call():
            raise UsageError("this call runs on one rank: say how many meet at the barrier, sky.barrier(name, parties)")
        count = info.world_size if parties is None else parties
        if count < 1:
            raise UsageError(f"a barrier is of 1 party or more, not {count}")
        return SharedBarrier(self._connection, f"{make_key('barrier', name)}:{info.run}", count)

    def close(self) -> None:
        """Have no connection to the server; what is there stays."""
        self._connection.close()


class SharedDict(SharedCollection):
    """A dict that all ranks and the client see.

    Keys are plain values (texts, numbers, None, tuples of these), told apart by their types, too. Values are whatever
    can be pickled, and travel as copies: a change to one is seen by others once it is put back.
    """

    length_command = "hlen"

    def __getitem__(self, key: Key) -> Any:
        found = self.get(key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found

    def get(self, key: Key, default: Any = None) -> Any:
        """The value of a key; ``default`` where there is none."""
        data = self._call("hget", pack_key(key))
        return default if data is None else unpack_value(data)

    def __setitem__(self, key: Key, value: Any) -> None:
        self.update({key: value})

    def update(self, values: Mapping[Key, Any]) -> None:
        """Put several there; nobody sees a part of them only."""
        if values:
            packed = {pack_key(key): pack_value(value) for key, value in values.items()}
            self._call("hset", mapping=packed)

    def setdefault(self, key: Key, default: Any = None) -> Any:
        """The value of a key, which becomes ``default`` where there is none. Of several that come at once one wins."""
        with wrap_redis_errors(self._connection) as redis, redis.pipeline() as both:
            both.hsetnx(self._key, pack_key(key), pack_value(default)).hget(self._key, pack_key(key))
            return unpack_value(both.execute()[1])

    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """Take a key out: its value, which one only gets of several that come at once.

        Raises:
            KeyError: there is none, and no ``default`` was given.
        """
        with wrap_redis_errors(self._connection) as redis, redis.pipeline() as both:
            data, _ = both.hget(self._key, pack_key(key)).hdel(self._key, pack_key(key)).execute()
        if data is not None:
            return unpack_value(data)
        if default is _MISSING:
            raise KeyError(key)
        return default

    def __delitem__(self, key: Key) -> None:
        if not self._call("hdel", pack_key(key)):
            raise KeyError(key)

    def __contains__(self, key: Key) -> bool:
        return bool(self._call("hexists", pack_key(key)))

    def keys(self) -> list[Key]:
        """All keys, as they are now."""
        return [unpack_key(data) for data in self._call("hkeys")]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys())

    def items(self) -> list[tuple[Key, Any]]:
        """All keys with their values, as they are now."""
        return [(unpack_key(key), unpack_value(data)) for key, data in self._call("hgetall").items()]

    def values(self) -> list[Any]:
        """All values, as they are now."""
        return [value for _, value in self.items()]


class SharedSet(SharedCollection):
    """A set of plain values (texts, numbers, None, tuples of these) that all ranks and the client see."""

    length_command = "scard"

    def add(self, value: Key) -> bool:
        """Add a value: whether it was not there. Of several that add it at once, one is told so."""
        return bool(self._call("sadd", pack_key(value)))

    def update(self, values: Iterable[Key]) -> int:
        """Add several: how many were not there."""
        packed = [pack_key(value) for value in values]
        if not packed:
            return 0
        return int(self._call("sadd", *packed))

    def discard(self, value: Key) -> bool:
        """Take a value out: whether it was there."""
        return bool(self._call("srem", pack_key(value)))

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
        data = self._call("spop")
        if data is None:
            raise KeyError("the set is empty")
        return unpack_key(data)

    def __contains__(self, value: Key) -> bool:
        return bool(self._call("sismember", pack_key(value)))

    def __iter__(self) -> Iterator[Key]:
        return iter([unpack_key(data) for data in self._call("smembers")])


class SharedCounter(SharedObject):
    """A whole number that all ranks and the client count with, within 64 bits."""

    def increment(self, by: int = 1) -> int:
        """Add to it: what it is then, which no two callers are told of one step.

        Raises:
            PoolError: it would leave 64 bits; it stays as it was.
        """
        return int(self._call("incrby", check_integer(by)))

    def decrement(self, by: int = 1) -> int:
        """Take from it; see :meth:`increment`."""
        return self.increment(-check_integer(by))

    @property
    def value(self) -> int:
        """What it is now."""
        return int(self._call("get") or 0)

    def reset(self, value: int = 0) -> None:
        """Have it begin anew at ``value``."""
        self._call("set", check_integer(value))

    def __int__(self) -> int:
        return self.value


class SharedQueue(SharedCollection):
    """First in, first out, for all ranks and the client: each item goes to one of those who get. An item that was given
    to a rank which ends right then is gone with it."""

    length_command = "llen"

    def put(self, *items: Any) -> int:
        """Put items at its end, in order: how many are there then.

        Args:
            *items: whatever can be pickled, but None.

        Raises:
            UsageError: one is None, which is what ``get`` gives where nothing came.
        """
        if any(item is None for item in items):
            raise UsageError("a queue holds no None: it is what get gives where nothing came in time")
        packed = [pack_value(item) for item in items]
        return int(self._call("rpush", *packed)) if packed else len(self)

    def get(self, timeout: float | None = None) -> Any:
        """Take the first item out, which nobody else gets.

        Args:
            timeout: seconds to wait for one; 0 for not at all, None for no limit.

        Returns:
            The item; None where none came in time.
        """

        def take(wait: float) -> Any:
            with wrap_redis_errors(self._connection) as redis:
                if wait <= 0:
                    return redis.lpop(self._key)
                found = redis.blpop([self._key], timeout=wait)
                return None if found is None else found[1]

        data = poll_in_slices(take, timeout)
        return None if data is None else unpack_value(data)
