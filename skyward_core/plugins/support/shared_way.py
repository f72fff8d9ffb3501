"""The way to the server of a pool's shared state. Needs the package redis, once it is gone."""

from __future__ import annotations

import hashlib
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...model.errors import PoolError

SOCKET = "socket"
PATIENCE = 60.0  # seconds for the server to be there: the head may come up after other nodes
ON_ITS_HOST = (
    5.0  # seconds of that where its socket is: there the server comes before all else, and this one is gone
)
TIMEOUT = 30.0  # seconds for an answer; longer than a command waits there
PAUSE = 0.1  # seconds between attempts


def private_folder(token: str) -> Path:
    """Where the server has its socket on its host. Only who knows the token knows the name before it is there."""
    return Path("/tmp", f"sky-shared-{hashlib.sha256(token.encode()).hexdigest()[:16]}")


class SharedWay:
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

    def redis(self) -> Any:
        """A connected client of the package redis.

        Raises:
            PoolError: that is not installed here, or the server does not answer.
        """
        with self._lock:
            if self._redis is None:
                self._redis = self._connected()
            return self._redis

    def close(self) -> None:
        """Have no connections."""
        with self._lock:
            redis, self._redis = self._redis, None
        if redis is not None:
            redis.close()

    def _connected(self) -> Any:
        try:
            from redis import exceptions
        except ModuleNotFoundError as error:
            raise PoolError("the package redis is not installed here: pip install redis") from error
        began = time.monotonic()
        while True:
            patience = ON_ITS_HOST if _is_ours(private_folder(self._token)) else PATIENCE
            client = self._client()
            try:
                client.ping()
                return client
            except exceptions.AuthenticationError as error:
                client.close()
                raise PoolError(f"the shared state of pool {self.pool} lets nobody in: {error}") from error
            except exceptions.RedisError as error:
                client.close()
                if time.monotonic() - began > patience:
                    raise PoolError(
                        f"the shared state of pool {self.pool} does not answer: {error}"
                    ) from error
            time.sleep(PAUSE)

    def _client(self) -> Any:
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
        if _is_ours(folder):
            pool = ConnectionPool(
                connection_class=UnixDomainSocketConnection, path=str(folder / SOCKET), **common
            )
        else:
            host, port = self._find()
            kind, context = _by_tls(), _context(self._authority)
            pool = ConnectionPool(
                connection_class=kind, host=host, port=port, context=context,
                socket_connect_timeout=TIMEOUT, socket_keepalive=True, **common,
            )  # fmt: skip
        return Redis.from_pool(pool)


def _is_ours(folder: Path) -> bool:
    """Whether the server's socket is on this host, and nobody else's."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o077 and (folder / SOCKET).exists()


def _context(authority: str) -> ssl.SSLContext:
    """Trusts what the pool's own authority has signed, and nothing else: it signs one certificate only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=authority)
    return context


def _by_tls() -> Any:
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
