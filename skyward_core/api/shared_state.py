"""Sky.dict(), sky.lock() and others: shared state by name."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING, Any

from skyward_core.api.active_pool import current_pool
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.plugins import redis_dict_queue_lock
from skyward_core.plugins.redis_dict_queue_lock import SharedState, SharedStateConnection
from skyward_core.runtime.instance_info import instance_info
from skyward_core.store.state_folder import main_script
from skyward_core.transport.background_loop import submit
from skyward_core.util.user_files import read_text

if TYPE_CHECKING:
    from skyward_core.plugins.built_in.shared_collections import Shared
    from skyward_core.plugins.redis_dict_queue_lock import (
        SharedBarrier,
        SharedCounter,
        SharedDict,
        SharedLock,
        SharedQueue,
        SharedSet,
    )
    from skyward_core.pool.pool import Pool


NOT_SHARED = "this pool shares nothing: give it plugins=[sky.plugins.shared()]"


def _state() -> SharedState:
    found = redis_dict_queue_lock.get_current()
    if found is not None:
        return found
    if instance_info().pool:
        raise UsageError(NOT_SHARED)
    pool: Any = current_pool("what is shared belongs to")
    state: SharedState = pool.shared
    return state


def dict(name: str, consistency: str | None = None) -> SharedDict:
    """The dict of that name, which all ranks and the client see; an empty one until somebody puts something there.

    On the client it is that of the pool whose ``with`` block is open.

    Args:
        name: any text.
        consistency: as older generations take it; there is one server, and so the strongest always.

    Raises:
        UsageError: the pool has no ``sky.plugins.shared()``.
        PoolError: on the client: no block is open, or several and none in this thread.
    """
    return _state().dict(name)


def set(name: str, consistency: str | None = None) -> SharedSet:
    """The set of that name; see :func:`dict`.

    Args:
        name: any text.
        consistency: as of :func:`dict`.
    """
    return _state().set(name)


def counter(name: str, consistency: str | None = None) -> SharedCounter:
    """The counter of that name, which begins at 0; see :func:`dict`.

    Args:
        name: any text.
        consistency: as of :func:`dict`.
    """
    return _state().counter(name)


def queue(name: str) -> SharedQueue:
    """The queue of that name; see :func:`dict`.

    Args:
        name: any text.
    """
    return _state().queue(name)


def lock(name: str, timeout: float | None = None, *, ttl: float | None = None) -> SharedLock:
    """The lock of that name, which one holder has at a time; see :func:`dict`.

    Args:
        name: any text.
        timeout: seconds that a ``with`` block waits for it at most, before it raises TimeoutError; None for no limit.
        ttl: as the newest generation takes it; a warning says that it goes unheeded.
    """
    if ttl is not None:
        from skyward_core.model.older_api_arguments import apply_rules, ignored

        apply_rules("sky.lock", {"ttl": ignored("one whose holder dies is free within 30 seconds")}, {"ttl": ttl})
    return _state().lock(name, timeout)


def barrier(name: str, parties: int | None = None, *, n: int | None = None) -> SharedBarrier:
    """The barrier of that name, of the run in progress.

    Args:
        name: any text.
        parties: how many meet there; None for all ranks of the run.
        n: the same, by an older word.

    Raises:
        UsageError: this is no rank in a call, or ``parties`` is to be said; or as :func:`dict`.
    """
    return _state().barrier(name, n if parties is None else parties)


def connect_shared_state(pool: Pool, plugin: Shared) -> SharedState:
    """What the pool shares, reached from here.

    Args:
        plugin: the pool's own, with its password.
    """
    at: list[tuple[str, int]] = []

    def find() -> tuple[str, int]:
        if not at:
            head = pool.context.links[0]
            try:
                at.append(
                    submit(head.transport.forward_port(head.welcome["address"], plugin.port_of(pool.name))).result()
                )
            except OSError as error:
                raise PoolError(f"there is no way to the shared state of pool {pool.name}: {error}") from error
        return at[0]

    return SharedState(SharedStateConnection(pool.name, plugin.token, plugin.papers[0], find))


_DEPRECATED_MODULE = "skyward"
_SHARED_NAME_PATTERN = re.compile(
    r"^[^#\n]*(?:\b(?:sky|skyward)\.(?:dict|set|counter|queue|barrier|lock)\("
    r"|\bfrom skyward import [^\n]*\b(?:dict|set|counter|queue|barrier|lock)\b)",
    re.MULTILINE,
)


def uses_deprecated_names() -> bool:
    """Whether the script that runs, by the older name of this library, shares dicts and their like, which older
    generations have without a plugin; and whether what that takes is here."""
    if _DEPRECATED_MODULE not in sys.modules or (script := main_script()) is None:
        return False
    if find_spec("redis") is None or not (which("redis-server") or which("valkey-server")):
        return False
    try:
        return _SHARED_NAME_PATTERN.search(read_text(script, errors="replace")) is not None
    except OSError:  # it is gone
        return False
