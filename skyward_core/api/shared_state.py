"""Shared state by name: ``sky.dict``, ``sky.set``, ``sky.counter``, ``sky.queue``, ``sky.lock`` and ``sky.barrier``."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING, Any

from skyward_core.api.active_pool_and_operand_checks import current_pool
from skyward_core.model.errors import UsageError, convert_errors
from skyward_core.plugins import redis_shared_state_client
from skyward_core.plugins.redis_shared_state_client import SharedState, SharedStateConnection
from skyward_core.runtime.instance_info_and_attempt import instance_info
from skyward_core.store.default_and_forbidden_working_folders import main_script
from skyward_core.transport.background_loop import submit
from skyward_core.util.safe_file_access import read_text

if TYPE_CHECKING:
    from skyward_core.plugins.built_in.shared_collections import Shared
    from skyward_core.pool.pool import Pool


NOT_SHARED = "this pool has no shared state. Create it with plugins=[sky.plugins.shared()]."


def _state() -> SharedState:
    found = redis_shared_state_client.get_current()
    if found is not None:
        return found
    if instance_info().pool:
        raise UsageError(NOT_SHARED)
    pool: Any = current_pool("shared state belongs to")
    state: SharedState = pool.shared
    return state


def dict(name: str, consistency: str | None = None) -> redis_shared_state_client.SharedDict:
    """Return the dict with a name. All ranks and the client share it; initially empty.

    On the client the dict belongs to the pool of the open ``with`` block.

    Args:
        name: Any text.
        consistency: Accepted for older API versions. The single server is always strongly consistent.

    Raises:
        UsageError: If the pool has no ``sky.plugins.shared()``.
        PoolError: On the client, if no block is open, or if several are open and none of them began in this thread.
    """
    return _state().dict(name)


def set(name: str, consistency: str | None = None) -> redis_shared_state_client.SharedSet:
    """Return the set with a name; see :func:`dict`.

    Args:
        name: Any text.
        consistency: Same as for :func:`dict`.
    """
    return _state().set(name)


def counter(name: str, consistency: str | None = None) -> redis_shared_state_client.SharedCounter:
    """Return the counter with a name, which starts at 0; see :func:`dict`.

    Args:
        name: Any text.
        consistency: Same as for :func:`dict`.
    """
    return _state().counter(name)


def queue(name: str) -> redis_shared_state_client.SharedQueue:
    """Return the queue with a name; see :func:`dict`.

    Args:
        name: Any text.
    """
    return _state().queue(name)


def lock(name: str, timeout: float | None = None, *, ttl: float | None = None) -> redis_shared_state_client.SharedLock:
    """Return the lock with a name, which has one holder at a time; see :func:`dict`.

    Args:
        name: Any text.
        timeout: Maximum seconds that a ``with`` block waits before it raises TimeoutError. None for no limit.
        ttl: Argument of the newest API generation, ignored with a warning.
    """
    if ttl is not None:
        from skyward_core.model.deprecated_and_unknown_arguments import apply_rules, ignored

        apply_rules(
            "sky.lock", {"ttl": ignored("a lock is released within 30 seconds if its holder dies")}, {"ttl": ttl}
        )
    return _state().lock(name, timeout)


def barrier(name: str, parties: int | None = None, *, n: int | None = None) -> redis_shared_state_client.SharedBarrier:
    """Return the barrier with a name in the current run.

    Args:
        name: Any text.
        parties: Number of participants. None for all ranks of the run.
        n: Older name of ``parties``.

    Raises:
        UsageError: If this process is not a rank inside a call, or if ``parties`` is None in a call that runs on one
            rank. Also for the reasons of :func:`dict`.
    """
    return _state().barrier(name, n if parties is None else parties)


def connect_shared_state(pool: Pool, plugin: Shared) -> SharedState:
    """Return a client connection to the shared state of a pool.

    Args:
        pool: The pool.
        plugin: The pool's plugin, with its password.
    """

    @cache
    def find() -> tuple[str, int]:
        head = pool.context.links[0]
        with convert_errors(f"cannot reach the shared state of pool {pool.name}"):
            return submit(head.transport.forward_port(head.welcome["address"], plugin.port_of(pool.name))).result()

    return SharedState(SharedStateConnection(pool.name, plugin.token, plugin.papers[0], find))


_DEPRECATED_MODULE = "skyward"
_SHARED_NAME_PATTERN = re.compile(
    r"^[^#\n]*(?:\b(?:sky|skyward)\.(?:dict|set|counter|queue|barrier|lock)\("
    r"|\bfrom skyward import [^\n]*\b(?:dict|set|counter|queue|barrier|lock)\b)",
    re.MULTILINE,
)


def uses_deprecated_names() -> bool:
    """Check whether the script uses shared state under the package's older import name, without a plugin, as older
    generations allow.

    Return False if redis or its server is not installed.
    """
    if _DEPRECATED_MODULE not in sys.modules or (script := main_script()) is None:
        return False
    if find_spec("redis") is None or not (which("redis-server") or which("valkey-server")):
        return False
    try:
        return _SHARED_NAME_PATTERN.search(read_text(script, errors="replace")) is not None
    except OSError:  # the script cannot be read, for example because it was deleted
        return False
