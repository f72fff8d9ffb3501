"""Shared dict, set, counter, queue, lock and barrier in a Redis server.

Each operation is one command or one script of the server, and therefore atomic.
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
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeAlias, TypeVar

from skyward_core.model.errors import PoolError, UsageError, convert_errors
from skyward_core.runtime.framework_rendezvous_and_thread_limits import is_gang_call
from skyward_core.runtime.instance_info_and_attempt import instance_info
from skyward_core.util.number_size_and_time_format import format_size

SOCKET = "socket"
PATIENCE = 60.0  # seconds to wait for a server on another node, because the head node may start later than this node
# seconds to wait for a server on this host. Ranks start after the server, so a server that does not answer has ended.
LOCAL_TIMEOUT = 5.0
TIMEOUT = 30.0  # seconds for the answer to a command; longer than the longest blocking command
PAUSE = 0.1  # seconds between two attempts to connect


def private_folder(token: str) -> Path:
    """Return the folder of the server's socket on its host. The name is derived from the token, so that other users
    cannot guess it.
    """
    return Path("/tmp", f"sky-shared-{hashlib.sha256(token.encode()).hexdigest()[:16]}")


class SharedStateConnection:
    """Connections to the server, opened at first use. Safe to use from any thread.

    Args:
        pool: Name of the pool.
        token: The password.
        authority: Certificate of the authority that signed the server's certificate.
        find: Returns address and port of the server; called if its socket is not on this host.
    """

    def __init__(self, pool: str, token: str, authority: str, find: Callable[[], tuple[str, int]]) -> None:
        self.pool = pool
        self._token, self._authority, self._find = token, authority, find
        self._redis: Any = None
        self._lock = threading.Lock()

    def get_client(self) -> Any:
        """Return a connected client of the package redis.

        Raises:
            PoolError: If the package is not installed, or if the server does not answer.
        """
        with self._lock:
            if self._redis is None:
                self._redis = self._connect()
            return self._redis

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            redis, self._redis = self._redis, None
        if redis is not None:
            redis.close()

    def _connect(self) -> Any:
        try:
            from redis import exceptions
        except ModuleNotFoundError as error:
            raise PoolError("the package redis is not installed on this machine. Run pip install redis.") from error
        began = time.monotonic()
        while True:
            patience = LOCAL_TIMEOUT if _is_own_socket(private_folder(self._token)) else PATIENCE
            client = self._make_client()
            try:
                client.ping()
                return client
            except exceptions.AuthenticationError as error:
                client.close()
                raise PoolError(f"the shared state of pool {self.pool} rejected the password: {error}") from error
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

        # Commands are not retried, because the server may have executed a command whose answer was lost.
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
    """Check whether the server's socket is on this host, in a private folder of this user."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o077 and (folder / SOCKET).exists()


def _make_ssl_context(authority: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only the pool's own certificate authority, which has signed a single
    certificate: the server's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=authority)
    return context


def _make_tls_class() -> Any:
    """Return a connection class that uses a given TLS context. The class of the redis package would trust all
    authorities that this machine trusts.
    """
    from redis import connection

    # ``Any``, because some versions of the package redis have no type annotations
    Connection: Any = connection.Connection
    if "_connect" not in vars(Connection):
        raise PoolError("this version of the package redis is not supported. Use version 5 to 8.")

    class Secured(Connection):  # type: ignore[misc]  # the base class may have no type annotations
        def __init__(self, *, context: ssl.SSLContext, **kwargs: Any) -> None:
            self._context = context
            super().__init__(**kwargs)

        def _connect(self) -> Any:
            return self._context.wrap_socket(super()._connect())

    return Secured


T = TypeVar("T")
MAX_WAIT = 5.0  # maximum seconds of one blocking command; the process can be stopped between two commands
MIN_WAIT = 0.01  # minimum seconds of a blocking command, because the server treats 0 as no limit


@contextmanager
def wrap_redis_errors(connection: SharedStateConnection) -> Iterator[Any]:
    """Yield a connected client of the package redis, and raise its errors as PoolErrors.

    Raises:
        PoolError: If the server does not answer, or rejects a command, for example because its memory is full.
    """
    redis = connection.get_client()
    from redis import exceptions

    try:
        yield redis
    except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
        raise PoolError(
            f"the shared state of pool {connection.pool} does not answer, so the operation may have succeeded or not: "
            f"{error}"
        ) from error
    except exceptions.RedisError as error:
        raise PoolError(f"the shared state of pool {connection.pool} rejected the operation: {error}") from error


def poll_in_slices(take: Callable[[float], T | None], timeout: float | None, longest: float = MAX_WAIT) -> T | None:
    """Call ``take`` repeatedly until its result is not None, and return this result; None after the timeout.

    Args:
        take: Called with the seconds that it may block.
        timeout: Total seconds. None for no limit.
        longest: Maximum seconds per call.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        remaining = longest if until is None else min(longest, until - time.monotonic())
        found = take(max(remaining, MIN_WAIT) if remaining > 0 else 0.0)
        if found is not None or remaining <= 0:
            return found


class SharedObject:
    """Named object on the server."""

    def __init__(self, way: SharedStateConnection, key: str) -> None:
        self._connection, self._key = way, key

    def _call(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Run a command of the Redis server on the key of this object."""
        with wrap_redis_errors(self._connection) as redis:
            return getattr(redis, command)(self._key, *arguments, **options)

    def __repr__(self) -> str:
        return f"<shared {self._key}>"


class SharedCollection(SharedObject):
    """Shared object with several values."""

    length_command: ClassVar[str]

    def clear(self) -> None:
        """Remove all values."""
        self._call("delete")

    def __len__(self) -> int:
        return int(self._call(self.length_command))


LOCK_TTL_MS = 30_000  # milliseconds after the last renewal until a lock expires
RENEW_INTERVAL = 10.0  # seconds between two renewals of a lock by its holder
# seconds between two attempts of a process that waits for a lock, if no release of the lock wakes it
RETRY_INTERVAL = 1.0
BARRIER_TTL_MS = 24 * 3600 * 1000  # milliseconds until the keys of an unused barrier expire

# Script that releases a lock, and wakes one waiting process.
RELEASE = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
redis.call('del', KEYS[2])
redis.call('rpush', KEYS[2], 1)
redis.call('pexpire', KEYS[2], ARGV[2])
return 1
"""
RENEW = "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('pexpire', KEYS[1], ARGV[2]) or 0"
# Script with which a participant arrives at a barrier. The last participant opens the barrier and begins the next
# round. Returns the round, and whether the barrier is open.
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
    """Lock with one holder at a time among all ranks and the client. ``with`` acquires and releases it.

    If the holder dies, the lock is released within 30 s. The lock is not reentrant.
    """

    def __init__(self, way: SharedStateConnection, key: str, timeout: float | None) -> None:
        super().__init__(way, key)
        self._timeout = timeout
        self._held = ""
        self._signs = threading.Event()

    def acquire(self, timeout: float | None = None) -> bool:
        """Acquire the lock and return whether that succeeded.

        Args:
            timeout: Maximum seconds to wait. 0 to not wait, None for no limit.

        Raises:
            UsageError: If this object already holds the lock.
        """
        if self._held:
            raise UsageError(f"this object already holds {self!r}")
        token = os.urandom(16).hex()

        def take(wait: float) -> bool | None:
            with wrap_redis_errors(self._connection) as redis:
                if redis.set(self._key, token, nx=True, px=LOCK_TTL_MS):
                    return True
                if wait > 0:
                    redis.blpop([f"{self._key}:free"], timeout=wait)
            return None

        if not poll_in_slices(take, timeout, RETRY_INTERVAL):
            return False
        self._held, self._signs = token, threading.Event()
        threading.Thread(target=self._renew_until, args=(token, self._signs), name="lock", daemon=True).start()
        return True

    def _renew_until(self, token: str, released: threading.Event) -> None:
        """Renew the lock until its release."""
        while not released.wait(RENEW_INTERVAL):
            # After an error, try again at the next renewal. If all renewals fail, ``release`` reports a lost lock.
            with suppress(PoolError), wrap_redis_errors(self._connection) as redis:
                if not redis.eval(RENEW, 1, self._key, token, LOCK_TTL_MS):
                    return

    def release(self) -> None:
        """Release the lock.

        Raises:
            UsageError: If this object does not hold the lock.
            PoolError: If the lock expired, because it was not renewed for 30 s. Another holder may have acquired it.
        """
        if not self._held:
            raise UsageError(f"this object does not hold {self!r}")
        token, self._held = self._held, ""
        self._signs.set()
        with wrap_redis_errors(self._connection) as redis:
            freed = redis.eval(RELEASE, 2, self._key, f"{self._key}:free", token, LOCK_TTL_MS)
        if not freed:
            raise PoolError(f"{self!r} expired while it was held: it was not renewed for {LOCK_TTL_MS // 1000} s")

    def locked(self) -> bool:
        """Check whether any process holds the lock."""
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
    """Barrier at which ranks of a run wait for each other. Reusable."""

    def __init__(self, way: SharedStateConnection, key: str, parties: int) -> None:
        super().__init__(way, key)
        self.parties = parties

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all participants have arrived.

        Args:
            timeout: Maximum seconds to wait. None for no limit.

        Raises:
            TimeoutError: If participants were missing after the timeout. This participant has left, and the others
                continue to wait.
        """
        with wrap_redis_errors(self._connection) as redis:
            number, is_open = redis.eval(ARRIVE, 1, self._key, self.parties, BARRIER_TTL_MS)
        if is_open:
            return
        if poll_in_slices(lambda wait: self._wait_round(number, wait), timeout):
            return
        with wrap_redis_errors(self._connection) as redis:
            left = redis.eval(LEAVE, 1, self._key, number)
        if not left and self._wait_round(number, RETRY_INTERVAL):
            return  # no error: the last participant opened the barrier just before the timeout
        raise TimeoutError(f"not all {self.parties} participants arrived at {self!r} within {timeout:g} s")

    def _wait_round(self, number: int, wait: float) -> Any:
        with wrap_redis_errors(self._connection) as redis:
            key = f"{self._key}:{number}"
            return redis.lpop(key) if wait <= 0 else redis.blpop([key], timeout=wait)

    def __repr__(self) -> str:
        return f"<shared {self._key.rpartition(':')[0]}>"


MAX_VALUE_BYTES = 500 << 20  # maximum bytes of a value; the server's own limit is 512 MB
Key: TypeAlias = "str | int | float | bytes | bool | tuple[Key, ...] | None"


def make_key(kind: str, name: str) -> str:
    """Return an object's key on the server. Objects of different types may have the same name.

    Raises:
        UsageError: If the name is not text, or is empty.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"the name of a shared {kind} must be a non-empty text, got {name!r}")
    return f"{kind}:{name.encode('utf-8', 'backslashreplace').decode()}"


def check_integer(number: object) -> int:
    """Return a whole number unchanged.

    Raises:
        UsageError: If it is not a whole number.
    """
    if not isinstance(number, int):
        raise UsageError(f"a counter takes whole numbers, got {number!r}")
    return int(number)


def pack_key(key: Key) -> bytes:
    """Return a key as bytes. Unlike a pickle, the result is the same for equal values in all processes.

    Raises:
        UsageError: If the key is not a plain value.
    """
    _check_plain(key)
    return ascii(key).encode()


def _check_plain(key: object) -> None:
    if isinstance(key, tuple) and type(key) is tuple:
        for part in key:
            _check_plain(part)
    elif key is not None and type(key) not in (str, int, float, bytes, bool):
        kind = type(key).__name__
        raise UsageError(f"dict keys and set members must be texts, numbers, None or tuples of these, got {kind}")
    elif isinstance(key, float) and not math.isfinite(key):
        raise UsageError(f"{key} cannot be a key: it is not finite")


def unpack_key(data: bytes) -> Key:
    """Return the key that :func:`pack_key` packed."""
    key: Key = ast.literal_eval(data.decode())
    return key


def pack_value(value: Any) -> bytes:
    """Return a value as bytes.

    Raises:
        UsageError: If the value cannot be pickled, or is too large.
    """
    import cloudpickle  # cloudpickle, unlike pickle, also pickles classes that a script defines

    # Convert any exception, because pickling runs code of the user's classes.
    with convert_errors(f"a value of type {type(value).__name__} cannot be shared", UsageError, Exception):
        data: bytes = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    if len(data) > MAX_VALUE_BYTES:
        raise UsageError(
            f"a value of type {type(value).__name__} has {format_size(len(data))}, more than the limit of "
            f"{format_size(MAX_VALUE_BYTES)} for shared values. Write it to a file."
        )
    return data


def unpack_value(data: bytes) -> Any:
    """Return the value that :func:`pack_value` packed. Unpickling is safe: only the pool can write to the server."""
    return pickle.loads(data)


_MISSING: Any = object()

_current: SharedState | None = None


def set_current(state: SharedState | None) -> None:
    """Set the shared state for this rank's calls; None when the rank ends. Closes the previous state."""
    global _current
    if _current is not None:
        _current.close()
    _current = state


def get_current() -> SharedState | None:
    """Return the shared state for this rank's calls. None if this process is not a rank of a pool with the plugin."""
    return _current


class SharedState:
    """Shared state of a pool: ``compute.shared`` on the client. In ranks ``sky.dict`` and similar functions use it.

    Args:
        way: Connection to the server.
    """

    def __init__(self, way: SharedStateConnection) -> None:
        self._connection = way

    def dict(self, name: str) -> SharedDict:
        """Return the dict with a name, initially empty.

        Args:
            name: Any text.
        """
        return SharedDict(self._connection, make_key("dict", name))

    def set(self, name: str) -> SharedSet:
        """Return the set with a name, initially empty.

        Args:
            name: Any text.
        """
        return SharedSet(self._connection, make_key("set", name))

    def counter(self, name: str) -> SharedCounter:
        """Return the counter with a name, which starts at 0.

        Args:
            name: Any text.
        """
        return SharedCounter(self._connection, make_key("counter", name))

    def queue(self, name: str) -> SharedQueue:
        """Return the queue with a name, initially empty.

        Args:
            name: Any text.
        """
        return SharedQueue(self._connection, make_key("queue", name))

    def lock(self, name: str, timeout: float | None = None) -> SharedLock:
        """Return the lock with a name, which has one holder at a time.

        Args:
            name: Any text.
            timeout: Maximum seconds that a ``with`` block waits. None for no limit.
        """
        return SharedLock(self._connection, make_key("lock", name), timeout)

    def barrier(self, name: str, parties: int | None = None) -> SharedBarrier:
        """Return the barrier with a name in this rank's run.

        Args:
            name: Any text.
            parties: Number of participants. None for all ranks of the run.

        Raises:
            UsageError: If this process is not a rank inside a call, or if the call runs on one rank and ``parties`` is
                missing.
        """
        info = instance_info()
        if not info.run:
            raise UsageError("a barrier can only be used by a rank inside a call")
        if parties is None and not is_gang_call():
            raise UsageError("this call runs on one rank. Give the number of participants: sky.barrier(name, parties)")
        count = info.world_size if parties is None else parties
        if count < 1:
            raise UsageError(f"a barrier needs 1 or more participants, got {count}")
        return SharedBarrier(self._connection, f"{make_key('barrier', name)}:{info.run}", count)

    def close(self) -> None:
        """Close the connections. The shared state stays on the server."""
        self._connection.close()


class SharedDict(SharedCollection):
    """Dict shared by all ranks and the client.

    Keys are plain values (texts, numbers, None, tuples of these). Keys of different types are different. Values are any
    picklable objects. Reading returns a copy: to share a change, write the changed value back.

        counts = sky.dict("counts")
        counts["seen"] = counts.get("seen", 0) + 1  # not atomic: use sky.counter
    """

    length_command = "hlen"

    def __getitem__(self, key: Key) -> Any:
        found = self.get(key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key, or ``default`` if the key does not exist."""
        data = self._call("hget", pack_key(key))
        return default if data is None else unpack_value(data)

    def __setitem__(self, key: Key, value: Any) -> None:
        self.update({key: value})

    def update(self, values: Mapping[Key, Any]) -> None:
        """Set several values atomically."""
        if values:
            self._call("hset", mapping={pack_key(key): pack_value(value) for key, value in values.items()})

    def setdefault(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key. If the key does not exist, set it to ``default``. Atomic among concurrent
        callers.
        """
        with wrap_redis_errors(self._connection) as redis, redis.pipeline() as both:
            both.hsetnx(self._key, pack_key(key), pack_value(default)).hget(self._key, pack_key(key))
            return unpack_value(both.execute()[1])

    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """Remove a key and return its value. Of several concurrent callers, only one gets the value.

        Raises:
            KeyError: If the key does not exist and no ``default`` is given.
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
        """Return all current keys."""
        return [unpack_key(data) for data in self._call("hkeys")]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys())

    def items(self) -> list[tuple[Key, Any]]:
        """Return all current keys with their values."""
        return [(unpack_key(key), unpack_value(data)) for key, data in self._call("hgetall").items()]

    def values(self) -> list[Any]:
        """Return all current values."""
        return [value for _, value in self.items()]


class SharedSet(SharedCollection):
    """Set of plain values (texts, numbers, None, tuples of these), shared by all ranks and the client."""

    length_command = "scard"

    def add(self, value: Key) -> bool:
        """Add a value and return whether it was new. Only one of several concurrent callers gets True."""
        return bool(self._call("sadd", pack_key(value)))

    def update(self, values: Iterable[Key]) -> int:
        """Add several values and return how many were new."""
        packed = [pack_key(value) for value in values]
        return int(self._call("sadd", *packed)) if packed else 0

    def discard(self, value: Key) -> bool:
        """Remove a value and return whether it existed."""
        return bool(self._call("srem", pack_key(value)))

    def remove(self, value: Key) -> None:
        """Remove a value.

        Raises:
            KeyError: If the value does not exist.
        """
        if not self.discard(value):
            raise KeyError(value)

    def pop(self) -> Key:
        """Remove and return any value. Concurrent callers get different values.

        Raises:
            KeyError: If the set is empty.
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
    """64-bit integer shared by all ranks and the client."""

    def increment(self, by: int = 1) -> int:
        """Add to the counter and return the new value. Atomic among concurrent callers.

        Raises:
            PoolError: If the value would exceed 64 bits. The counter does not change.
        """
        return int(self._call("incrby", check_integer(by)))

    def decrement(self, by: int = 1) -> int:
        """Subtract from the counter; see :meth:`increment`."""
        return self.increment(-check_integer(by))

    @property
    def value(self) -> int:
        """Current value."""
        return int(self._call("get") or 0)

    def reset(self, value: int = 0) -> None:
        """Set the counter to ``value``."""
        self._call("set", check_integer(value))

    def __int__(self) -> int:
        return self.value


class SharedQueue(SharedCollection):
    """First-in, first-out queue shared by all ranks and the client. Each item goes to one consumer.

    An item is lost if its consumer dies right after receiving it.
    """

    length_command = "llen"

    def put(self, *items: Any) -> int:
        """Append items in order, and return the new length.

        Args:
            *items: Any picklable objects except None.

        Raises:
            UsageError: If an item is None, because ``get`` returns None if there is no item.
        """
        if any(item is None for item in items):
            raise UsageError("a queue cannot contain None, which get() returns if there is no item")
        packed = [pack_value(item) for item in items]
        return int(self._call("rpush", *packed)) if packed else len(self)

    def get(self, timeout: float | None = None) -> Any:
        """Remove and return the first item. Concurrent callers get different items.

        Args:
            timeout: Maximum seconds to wait. 0 to not wait, None for no limit.

        Returns:
            The item, or None after the timeout.
        """

        def take(wait: float) -> Any:
            with wrap_redis_errors(self._connection) as redis:
                if wait <= 0:
                    return redis.lpop(self._key)
                found = redis.blpop([self._key], timeout=wait)
                return None if found is None else found[1]

        data = poll_in_slices(take, timeout)
        return None if data is None else unpack_value(data)
